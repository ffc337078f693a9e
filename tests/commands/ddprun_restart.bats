#!/usr/bin/env bats
# Restarts, the end of a job in all its forms, what the reports say, and that nothing is left of it.

load ../support/ddprun_jobs

# report EXPRESSION...: each must be true of report.json, which is `r`.
report() {
  python3 -c 'import json, sys
r = json.load(open("report.json"))
for expression in sys.argv[1:]:
    if not eval(expression): sys.exit(f"not so: {expression}\n" + json.dumps(r, indent=1))' "$@"
}

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

@test "--report-json: success, failure with the last lines of standard error, signal" {
  run "$DDPRUN" --nproc-per-node 2 --report-json report.json true
  [ "$status" -eq 0 ]
  report 'r["schema"] == "ddprun-report/1"' 'r["success"] is True' 'r["exit_status"] == 0' 'r["root_cause"] is None' \
    'r["world_size"] == 2 and r["num_nodes"] == 1 and r["attempt"] == 0 and r["program"] == "true"' \
    '0 < r["seconds_until_started"] <= r["seconds_total"]' 'r["start"].endswith("Z")'
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 --report-json report.json sh -c \
    'if [ "$RANK" != 1 ]; then sleep 100; fi; seq -f "line %g" 100 >&2; echo "out of luck" >&2; exit 85'
  [ "$status" -eq 85 ]
  [[ $output == *$'line 100\nout of luck\n'*"stderr    : out of luck (last line; see above)"*"2 other ranks were ended by ddprun."* ]]
  report 'r["root_cause"]["kind"] == "rank" and r["root_cause"]["rank"] == 1' 'len(r["failures"]) == 1' \
    'r["failures"][0]["exit_code"] == 85 and r["failures"][0]["signal"] is None and r["failures"][0]["pid"] > 0' \
    'r["failures"][0]["stderr_tail"].endswith("line 99\nline 100\nout of luck\n")' 'r["ended_on_request"] == 2'
  run "$DDPRUN" --report-json report.json sh -c 'ulimit -c 0; kill -SEGV $$$$'
  [ "$status" -eq 139 ]
  report 'r["failures"][0]["signal"] == {"number": 11, "name": "SIGSEGV"}' 'r["failures"][0]["exit_code"] is None' \
    'r["exit_status"] == 139'
}

@test "a rank that ends early with 0 is named when the others fail" {
  # Rank 0 fails once it sees that rank 1's process is gone, as when a connection breaks.
  run "$DDPRUN" --nproc-per-node 3 --report-json report.json sh -c \
    'case $RANK in
       0) until [ -s "$NOTES/gone" ]; do sleep 0.05; done
          while grep -q "^State:[[:space:]]*[A-Y]" "/proc/$(cat "$NOTES/gone")/status"; do sleep 0.05; done
          echo "Connection closed by peer" >&2; exit 9 ;;
       1) echo $$$$ >"$NOTES/gone" ;;
       2) sleep 100 ;;
     esac'
  echo "$output"
  [ "$status" -eq 9 ]
  [[ $output == *"Root Cause (first observed failure):"*"rank      : 0 "*"Ended early: rank 1 ($(hostname)) ended with exit code 0, "*" s before the first failure; the others may have waited for it."*"Other Failures:"* ]]
  report 'r["root_cause"]["rank"] == 0' '[e["rank"] for e in r["ended_early"]] == [1]' \
    'r["ended_early"][0]["seconds_before_failure"] >= 0 and r["ended_early"][0]["pid"] > 0' 'len(r["failures"]) == 1'
  # Not where all is well, however early it ends.
  run "$DDPRUN" --nproc-per-node 2 --report-json report.json sh -c 'sleep 0.$RANK'
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  report 'r["ended_early"] == []'
}

@test "reports name the log files, give the last line of a traceback, and hint at @record for Python only" {
  printf '%s\n' 'raise ValueError("bad loss")' >fails.py
  run "$DDPRUN" -t 3 --log-dir logs --report-json report.json fails.py
  echo "$output"
  [ "$status" -eq 1 ]
  log=$(echo "$PWD"/logs/none_*/attempt_0/0)
  [[ $output == *"  stdout_log: $log/stdout.log"*"  stderr_log: $log/stderr.log"* ]]
  [[ $output == *"  traceback : ValueError: bad loss (see above)"* ]]
  [ "$(grep -c "raise ValueError" <<<"$output")" -eq 1 ]
  [[ $output != *"To enable traceback"* ]]
  report 'r["failures"][0]["logs"] == {"stdout": "'"$log"'/stdout.log", "stderr": "'"$log"'/stderr.log"}'
  # Slurm's job or step names the folder where the user does not.
  SLURM_JOB_ID=77 run "$DDPRUN" -r 3 --log-dir slurm true
  SLURM_JOB_ID=77 run "$DDPRUN" -r 3 --log-dir slurm --rdzv-id run7 true
  [ -d slurm/77_*/attempt_0/0 ]
  [ -d slurm/run7_*/attempt_0/0 ]
  # What the console does not have is shown.
  run "$DDPRUN" -r 3 --log-dir logs fails.py
  [[ $output == *"  traceback : in stderr"*"raise ValueError"* ]]
  printf '%s\n' 'import sys; sys.exit("no luck")' >exits.py
  run "$DDPRUN" --log-dir /dev/null exits.py
  [[ $output == *"To enable traceback see"* ]]
  run "$DDPRUN" sh -c 'echo no luck >&2; exit 3'
  [ "$status" -eq 3 ]
  [[ $output != *"To enable traceback see"* ]]
}

@test "-v: what ddprun is comes with the host's name, and once for a frontend and its agents" {
  run "$DDPRUN" -v true
  [[ ${lines[0]} == "ddprun: $(hostname): one node" ]]
  DDPRUN_AGENT=nobody run "$DDPRUN" -v true
  echo "$output"
  [ "$status" -ne 0 ]
  [[ $output != *"started this agent"* ]]
}

@test "an error file that does not outlive the job is not named" {
  run "$DDPRUN" --report-json report.json sh -c 'echo "{\"message\": \"no luck\"}" >"$TORCHELASTIC_ERROR_FILE"; exit 4'
  echo "$output"
  [ "$status" -eq 4 ]
  [[ $output == *"error_file: <N/A>"*"traceback : no luck"* ]]
  report 'r["failures"][0]["error"]["file"] is None' 'r["failures"][0]["error"]["message"] == "no luck"'
}

@test "a rank that fails at once has a process id in the report" {
  for _ in $(seq 30); do
    run "$DDPRUN" --report-json report.json sh -c 'exit 3'
    [ "$status" -eq 3 ]
    [[ $output =~ "exitcode  : 3 (pid: "[1-9] ]]
  done
  report 'r["seconds_until_started"] > 0'
}

@test "--report-json of a job that never came together" {
  run -1 "$DDPRUN" --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "localhost:$(free_port)" --rdzv-conf join_timeout=0.3 \
    --report-json report.json true
  report 'r["root_cause"] == {"kind": "node", "node_rank": None, "host": None}' 'r["exit_status"] == 1' \
    '"1 of 2 nodes has joined" in r["nodes"][0]["message"]'
}

@test "a report that cannot be written is an error before anything starts" {
  rejects 1 "--report-json=/nosuchfolder/r.json can be written" --report-json /nosuchfolder/r.json touch started
  rejects 1 "Is a directory" --report-json "$PWD" touch started
  rejects 2 "'' is not a file" --report-json= touch started
  [ ! -e started ]
  # Later, it is said; the job's status stays.
  run -5 "$DDPRUN" --report-json /dev/full sh -c 'exit 5'
  [[ $output == *"ddprun: writing --report-json=/dev/full: No space left on device"* ]]
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

@test "a ddprun that is stopped and goes on has missed nothing" {
  start --nproc-per-node 2 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.02; done; exit $((RANK * 7))'
  eventually 20 noted 2
  kill -STOP "$launcher"
  touch "$NOTES/go"
  eventually 20 all_gone
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 7 ]
  # A signal that came meanwhile is not lost either.
  rm "$NOTES"/*
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.1; done'
  eventually 20 noted 1
  kill -STOP "$launcher"
  kill -TERM "$launcher"
  sleep 0.2
  run -1 all_gone
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 143 ]
  all_gone
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

@test "--forward-signals: the job goes on; --signals-to-handle: these end it" {
  start --nproc-per-node 2 --forward-signals SIGUSR1,SIGCONT sh -c \
    'trap "touch \$NOTES/usr1.\$RANK" USR1; trap "touch \$NOTES/cont.\$RANK" CONT; echo $$$$ >"$NOTES/pid.$RANK"
     while ! [ -e "$NOTES/usr1.$RANK" ] || ! [ -e "$NOTES/cont.$RANK" ]; do sleep 0.05; done'
  eventually 20 noted 2
  kill -USR1 "$launcher"
  kill -CONT "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [ -e "$NOTES/usr1.0" ] && [ -e "$NOTES/cont.1" ]

  rm "$NOTES"/*
  start --signals-to-handle SIGTERM,SIGUSR2 sh -c \
    'trap "touch \$NOTES/usr2; exit 0" USR2; echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.05; done'
  eventually 20 noted 1
  kill -USR2 "$launcher"
  finish
  [ "$status" -eq 140 ]
  [ -e "$NOTES/usr2" ]

  # A signal that is in no list has its default action: it ends ddprun, and the ranks with it.
  rm "$NOTES"/*
  start --signals-to-handle SIGTERM sh -c 'trap "" HUP; echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.05; done'
  eventually 20 noted 1
  kill -HUP "$launcher"
  finish
  [ "$status" -eq 129 ]
  eventually 20 all_gone
  rejects 2 "SIGUSR1 is in --signals-to-handle and in --forward-signals" --signals-to-handle SIGUSR1 --forward-signals SIGUSR1 true
  rejects 2 "'SIGFOO' is not a signal" --forward-signals SIGFOO true
  rejects 2 "'SIGKILL' cannot be forwarded" --forward-signals SIGKILL true
}

@test "status, summary and colours are for terminals only" {
  type script >/dev/null || skip "needs script, of util-linux"
  on_terminal() { TERM=xterm SHELL=/bin/sh script -qec "$*" /dev/null </dev/null; }
  run on_terminal "$DDPRUN" --nproc-per-node 2 -t 1 --log-dir logs echo hello
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *$'\e[36m[default0]:\e[0mhello'* ]]
  [[ $output == *"ddprun: 2 ranks on 1 node succeeded after "* ]]
  run on_terminal "$DDPRUN --nproc-per-node 2 -t 1 --log-dir logs echo hello 2>err | tee out"
  [ "$(sort out)" = $'[default0]:hello\n[default1]:hello' ]
  [ ! -s err ]
  run on_terminal "$DDPRUN -t 3 --log-dir logs sh -c 'echo hello; echo there >&2' 2>err"
  [[ $output == *$'\e[36m[default0]:\e[0mhello'* ]]
  [ "$(cat err)" = "[default0]:there" ]
  run on_terminal "$DDPRUN -t 3 --log-dir logs sh -c 'echo hello; echo there >&2' | tee out"
  [[ $output == *$'\e[36m[default0]:\e[0mthere'* ]]
  [ "$(cat out)" = "[default0]:hello" ]
  run on_terminal "$DDPRUN" sh -c "'exit 85'"
  [ "$status" -eq 85 ]
  [[ $output == *"exitcode  : 85 "* && $output != *"succeeded after"* ]]
}
