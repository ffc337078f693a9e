#!/usr/bin/env bats
# Restarts, the end of a job in all its forms, and that nothing is left of it.

load ddprun_report_fixture

# A rank that leaves a process in a session of its own, which ignores SIGTERM, and then waits.
deep='echo $$$$ >"$NOTES/pid.$RANK"
(setsid sh -c "trap \"\" TERM; echo \$\$ >\"\$NOTES/pid.deep.\$RANK\"; while :; do sleep 100; done" </dev/null >/dev/null 2>&1 &)
while :; do sleep 0.1; done'

attempt_process() { pgrep -P "$launcher" ddprun-attempt; }

@test "ranks that are started after the first failure are ended like the others" {
  # Rank 0 fails while the last of 64 are still being made; nobody must wait for the shutdown timeout.
  run "$DDPRUN" --nproc-per-node 64 --bind none --failure-grace 0 --shutdown-timeout 60 sh -c \
    'if [ $RANK = 0 ]; then exit 3; fi; exec sleep 50'
  [ "$status" -eq 3 ]
  [[ $output == *"63 other ranks were ended by ddprun."* ]] || { echo "$output"; return 1; }
}

@test "--max-restarts: all ranks start again, with another store and another PMIx namespace" {
  run "$DDPRUN" --nproc-per-node 2 --max-restarts 2 sh -c \
    'echo "$TORCHELASTIC_RESTART_COUNT $RANK $MASTER_PORT $PMIX_NAMESPACE $TORCHELASTIC_MAX_RESTARTS"
     if [ "$RANK" = 0 ]; then : >"$NOTES/said.$TORCHELASTIC_RESTART_COUNT"; sleep 100; fi
     while ! [ -e "$NOTES/said.$TORCHELASTIC_RESTART_COUNT" ]; do sleep 0.02; done
     exit $((40 + TORCHELASTIC_RESTART_COUNT))'
  echo "$output"
  [ "$status" -eq 42 ]  # of the last attempt
  [[ $output == *"ddprun: attempt 0 failed: rank 1 on $(hostname) exited with 40; restarting (restart 1 of at most 2)"* ]]
  [[ $output == *"ddprun: attempt 1 failed: rank 1 on $(hostname) exited with 41; restarting (restart 2 of at most 2)"* ]]
  [[ $output == *"attempt 2: 2 of at most 2 restarts used"*"exitcode  : 42 "* ]]
  ranks=$(grep -E '^[012] [01] [0-9]+ ddp\..* 2$' <<<"$output")
  [ "$(wc -l <<<"$ranks")" -eq 6 ]
  # Both ranks of an attempt agree, and no two attempts do.
  [ "$(cut -d' ' -f1,3 <<<"$ranks" | sort -u | wc -l)" -eq 3 ]
  [ "$(cut -d' ' -f3 <<<"$ranks" | sort -u | wc -l)" -eq 3 ]
  [ "$(cut -d' ' -f4 <<<"$ranks" | sort -u | wc -l)" -eq 3 ]
}

@test "a job that succeeds after a restart has succeeded" {
  run "$DDPRUN" --nproc-per-node 3 --max-restarts 5 --report-json report.json sh -c \
    'if [ "$RANK" = 2 ]; then exit $((TORCHELASTIC_RESTART_COUNT == 0)); fi'
  echo "$output"
  [ "$status" -eq 0 ]
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == *"attempt 0 failed: rank 2 "*"(restart 1 of at most 5)" ]]
  report 'r["success"] is True' 'r["attempt"] == 1' 'r["max_restarts"] == 5' 'r["failures"] == []'
}

@test "what ranks leave behind is gone before the next attempt" {
  run "$DDPRUN" --max-restarts 1 --shutdown-timeout 5 sh -c \
    'if [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]; then ! kill -0 "$(cat "$NOTES/pid.deep")"; exit; fi
     (setsid sh -c "trap \"\" TERM; echo \$\$ >\"\$NOTES/pid.deep\"; while :; do sleep 100; done" </dev/null >/dev/null 2>&1 &)
     while ! [ -s "$NOTES/pid.deep" ]; do sleep 0.02; done; exit 3'
  echo "$output"
  [ "$status" -eq 0 ]
  noted 1
}

@test "there is no restart after a signal, or once --timeout expired" {
  start --max-restarts 3 --report-json report.json sh -c 'echo $$$$ >"$NOTES/pid.$TORCHELASTIC_RESTART_COUNT"; sleep 100'
  eventually 20 noted 1
  kill -TERM "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 143 ]
  noted 1
  report 'r["root_cause"] == {"kind": "signal"}' 'r["signal"] == {"number": 15, "name": "SIGTERM"}' 'r["exit_status"] == 143' \
    'r["ended_on_request"] == 1' 'r["killed"] == 0' 'not r["success"]'
  run "$DDPRUN" --max-restarts 3 --timeout 0.5 --report-json report.json sh -c \
    'echo $$$$ >"$NOTES/pid.late.$TORCHELASTIC_RESTART_COUNT"; exec sleep 100'
  echo "$output"
  [ "$status" -eq 124 ]
  [[ $output == *"ended by --timeout: all ranks got SIGTERM; 1 rank ended after it" ]]
  noted 2
  all_gone
  report 'r["root_cause"] == {"kind": "timeout"}' 'r["timed_out"]' 'r["exit_status"] == 124' 'r["seconds_total"] >= 0.5'
  # The time is the whole job's, and a job that ends before it is not affected.
  run "$DDPRUN" --max-restarts 1000 --timeout 1 sh -c 'sleep 0.3; exit 1'
  [ "$status" -eq 124 ]
  run "$DDPRUN" --timeout 50 sh -c 'exit 3'
  [ "$status" -eq 3 ]
}

@test "exit statuses: of the rank, 128 + the signal, or always 1 as with torchrun" {
  for code in 1 2 85 124 127 255; do
    run "-$code" "$DDPRUN" --nproc-per-node 2 sh -c "exit $code"
  done
  run "$DDPRUN" sh -c 'kill -KILL $$$$'
  [ "$status" -eq 137 ]
  run "$DDPRUN" --torchrun-exit-codes sh -c 'exit 85'
  [ "$status" -eq 1 ]
  [[ $output == *"exitcode  : 85 "* ]]
  run "$DDPRUN" --torchrun-exit-codes sh -c 'kill -KILL $$$$'
  [ "$status" -eq 1 ]
  run "$DDPRUN" --torchrun-exit-codes --timeout 0.2 sleep 100
  [ "$status" -eq 1 ]
  run "$DDPRUN" --torchrun-exit-codes true
  [ "$status" -eq 0 ]
}

@test "-v: what ddprun is comes with the host's name, and once for a frontend and its agents" {
  run "$DDPRUN" -v true
  [[ ${lines[0]} == "ddprun: $(hostname): one node" ]]
  DDPRUN_AGENT=nobody run "$DDPRUN" -v true
  echo "$output"
  [ "$status" -ne 0 ]
  [[ $output != *"started this agent"* ]]
}

@test "a rank that ends well early is no failure" {
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c 'if [ "$RANK" != 0 ]; then exit 0; fi; sleep 0.5; echo "rank 0 is done"'
  [ "$status" -eq 0 ]
  [ "$output" = "rank 0 is done" ]
}

@test "--failure-grace: how long the others may go on" {
  job='if [ "$RANK" = 1 ]; then exit 3; fi; sleep 1; echo "rank 0 has something to say"'
  run -3 "$DDPRUN" --nproc-per-node 2 --failure-grace 20 sh -c "$job"
  [[ $output == *"something to say"* ]]
  run -3 "$DDPRUN" --nproc-per-node 2 --failure-grace 0 sh -c "$job"
  [[ $output != *"something to say"* ]]
  # While there are restarts, nobody waits.
  run -3 "$DDPRUN" --nproc-per-node 2 --max-restarts 1 sh -c "$job"
  [ "$(grep -c 'something to say' <<<"$output")" -eq 1 ]
}

@test "a user's limit of processes: one clear error, and nothing is left" {
  [ "$(id -u)" -eq 0 ] || skip "needs to be root to become somebody else"
  folder=$(mktemp -d /tmp/ddprun-limit-XXXXXX)  # TMPDIR may be closed to other users
  chmod 777 "$folder"
  # A user id that nobody has, so that no other process counts.
  as_user=(setpriv --reuid 64123 --regid 64123 --clear-groups)
  "${as_user[@]}" test -x "$DDPRUN" || { rmdir "$folder"; skip "other users cannot execute ddprun here"; }
  run -1 "${as_user[@]}" bash -c 'cd "$1" && ulimit -u 9 && TMPDIR=$1 exec "$2" --nproc-per-node 32 sleep 100' - "$folder" "$DDPRUN"
  left=$(ls -A "$folder")
  rm -r "$folder"
  echo "$output"
  [[ $output == *"starting rank "*"Resource temporarily unavailable"*"check the limit of processes (ulimit -u)"* ]]
  [ -z "$left" ]
  run -1 pgrep -U 64123
}

@test "the limit of open files: raised as far as allowed, and then one clear error" {
  run bash -c 'ulimit -Sn 40 && exec "$DDPRUN" --nproc-per-node 4 sh -c "ulimit -Sn"'
  [ "$status" -eq 0 ]
  [ "$(sort -u <<<"$output")" = 40 ]  # ranks get what the user has set
  run -1 bash -c 'ulimit -n 32 && exec "$DDPRUN" touch started'
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: preparing to start 1 rank: "*"but the hard limit is 32"*"raise it (ulimit -Hn)" ]]
  run -1 bash -c 'ulimit -n 120 && exec "$DDPRUN" --nproc-per-node 64 touch started'
  [[ $output == *"preparing to start 64 ranks: "*"or start 5 at most" ]]
  [ ! -e started ]
}

@test "what ranks have detached is gone at the end, after SIGTERM, and after SIGKILL of ddprun or of its attempt process" {
  export TMPDIR=$PWD
  for victim in signal outer attempt; do
    rm -f "$NOTES"/*
    start --nproc-per-node 2 --report-json report.json sh -c "$deep"
    eventually 20 noted 4
    run -1 all_gone
    case $victim in
      signal) kill -TERM "$launcher" ;;
      outer) kill -KILL "$launcher" ;;
      attempt)
        attempt=$(attempt_process)
        kill -KILL "$attempt"
        ;;
    esac
    finish
    echo "$victim: $status: $output"
    case $victim in
      signal) [ "$status" -eq 143 ] ;;
      outer) [ "$status" -eq 137 ] ;;
      attempt)
        [ "$status" -eq 1 ]
        [[ $output == *"ddprun's own process for the ranks on $(hostname) (pid $attempt) was ended by SIGKILL"* ]]
        report 'r["root_cause"]["kind"] == "node"' 'not r["success"]'
        ;;
    esac
    eventually 20 all_gone
  done
}

@test "the loss of the attempt process is a failure like others: there is a restart, and nothing of before is left" {
  start --nproc-per-node 2 --max-restarts 1 sh -c "if [ \$TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; $deep"
  eventually 20 noted 4
  kill -KILL "$(attempt_process)"
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"attempt 0 failed: "*"was ended by SIGKILL; restarting (restart 1 of at most 1)" ]]
  eventually 20 all_gone
}

@test "a second Ctrl-C kills at once, also while ranks are restarted again and again" {
  start --nproc-per-node 2 --shutdown-timeout 60 --max-restarts 3 sh -c "trap '' INT TERM; $deep"
  eventually 20 noted 4
  kill -INT "$launcher"
  sleep 0.3
  kill -0 "$launcher"
  kill -INT "$launcher"
  finish
  [ "$status" -eq 130 ]
  [[ $output == *"2 had to be killed"* ]]
  eventually 20 all_gone
  rm "$NOTES"/*
  start --max-restarts 1000000 --failure-grace 0 sh -c 'echo $$$$ >"$NOTES/pid.0"; exit 1'
  eventually 20 noted 1
  kill -INT "$launcher"
  finish
  # The signal may come just after a failure, before the next attempt.
  [ "$status" -eq 130 ] || [[ $status -eq 1 && $output == *"ddprun received SIGINT after the first failure."* ]]
}
