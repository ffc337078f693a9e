#!/usr/bin/env bats
# What a user of ddprun sees: exit codes, signals, reports, bad input, and that nothing is left behind.
# DDP_BIN_DIR names the folder with the program; default: build/bin, then build/dev/bin.

load ../support/ddprun_jobs

setup_file() {
  ddprun_jobs_setup_file
  export HELLO=$BATS_FILE_TMPDIR/pmix_hello
  # shellcheck disable=SC2046
  ${CC:-cc} $(pkg-config --cflags pmix) "$BATS_TEST_DIRNAME/../support/pmix_hello.c" -o "$HELLO" $(pkg-config --libs pmix)
}

@test "every rank gets torchrun's environment" {
  run "$DDPRUN" --nproc-per-node 3 sh -c \
    'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $ROLE_RANK $ROLE_WORLD_SIZE $ROLE_NAME"'
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = "0 0 3 3 0 1 0 3 default
1 1 3 3 0 1 1 3 default
2 2 3 3 0 1 2 3 default" ]
}

@test "an outer launcher's identity does not reach the ranks, the allocation's facts do" {
  export SLURM_PROCID=70707 SLURM_LOCALID=70707 SLURM_GTIDS=70707 SLURM_TASK_PID=1 PMI_RANK=70707 PMIX_RANK=70707
  export PMIX_NAMESPACE=outer OMPI_COMM_WORLD_RANK=70707 OMPI_MCA_ess_base_jobid=70707
  export MASTER_ADDR=elsewhere MASTER_PORT=1 SLURM_JOB_ID=42
  run "$DDPRUN" env
  [ "$status" -eq 0 ]
  [[ $output == *SLURM_JOB_ID=42* ]]
  [[ $output == *PMIX_RANK=0* && $output == *PMIX_NAMESPACE=ddp.* ]]
  run -1 grep -E '=70707$|^MASTER_(ADDR=elsewhere|PORT=1)$|^PMIX_NAMESPACE=outer|^SLURM_TASK_PID=' <<<"$output"
}

@test "nobody who reads standard error is no reason to fail" {
  run "$DDPRUN" -v --nproc-per-node 2 sh -c 'exit 0' 2>/dev/full
  [ "$status" -eq 0 ]
  run "$DDPRUN" --bogus 2>/dev/full
  [ "$status" -eq 2 ]
}

@test "the program's arguments are its own" {
  run "$DDPRUN" printf '%s|' --nproc-per-node 2 -- -v
  [ "$output" = "--nproc-per-node|2|--|-v|" ]
  run "$DDPRUN" --nproc_per_node=2 -- printf '%s|' -x
  [ "$output" = "-x|-x|" ]
}

@test "standard input is inherited" {
  run sh -c "echo through | '$DDPRUN' cat"
  [ "$output" = through ]
}

@test "exit code 85 stays 85, and the report names the rank" {
  run "$DDPRUN" --nproc-per-node 3 sh -c 'if [ "$RANK" = 2 ]; then exit 85; fi'
  echo "$output"
  [ "$status" -eq 85 ]
  [[ $output == *"sh FAILED"*"Root Cause"*"host      : $(hostname)"*"rank      : 2 (local_rank: 2)"*"exitcode  : 85 (pid: "* ]]
  run "$DDPRUN" --nproc-per-node 3 true
  [ "$status" -eq 0 ]
  [ -z "$output" ]
}

@test "a rank that dies by a signal gives 128 + its number" {
  run "$DDPRUN" --nproc-per-node 2 sh -c 'ulimit -c 0; if [ "$RANK" = 1 ]; then kill -SEGV $$$$; fi'
  echo "$output"
  [ "$status" -eq 139 ]
  [[ $output == *"rank      : 1 "*"signal    : SIGSEGV (11)"* ]]
}

@test "the first failure ends the other ranks after the grace time" {
  SECONDS=0
  run "$DDPRUN" --nproc-per-node 4 --failure-grace 0.2 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; if [ "$RANK" = 1 ]; then exit 3; fi; sleep 100'
  echo "$output"
  [ "$status" -eq 3 ]
  [ "$SECONDS" -lt 20 ]
  [[ $output == *"rank      : 1 "*"<NO_OTHER_FAILURES>"*"3 other ranks were ended by ddprun."* ]]
  all_gone
}

@test "ranks that fail within the grace time are reported after the root cause" {
  run "$DDPRUN" --nproc-per-node 2 --failure-grace 20 sh -c \
    'if [ "$RANK" = 1 ]; then exit 3; fi; sleep 0.5; echo "lost a peer"; exit 9'
  echo "$output"
  [ "$status" -eq 3 ]
  [[ $output == *"lost a peer"* ]]
  [[ $output == *"Root Cause"*"rank      : 1 "*"Other Failures:"*"rank      : 0 "*"exitcode  : 9 "* ]]
}

@test "a rank that ignores SIGTERM is killed after the shutdown timeout, and not before" {
  begin=$(date +%s%N)
  run "$DDPRUN" --nproc-per-node 2 --failure-grace 0 --shutdown-timeout 1.5 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; if [ "$RANK" = 1 ]; then while ! [ -e "$NOTES/deaf" ]; do sleep 0.05; done; exit 3; fi
     trap "" TERM; touch "$NOTES/deaf"; while :; do sleep 100; done'
  taken_ms=$((($(date +%s%N) - begin) / 1000000))
  echo "$taken_ms ms; $output"
  [ "$status" -eq 3 ]
  [ "$taken_ms" -ge 1500 ] && [ "$taken_ms" -lt 10000 ]
  [[ $output == *"1 other rank was ended by ddprun, 1 of them by SIGKILL."* ]]
  all_gone
}

@test "a rank that was stopped before the first failure is the root cause" {
  start --nproc-per-node 2 --failure-grace 0 --shutdown-timeout 2 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; if [ "$RANK" = 0 ]; then sleep 100; fi
     while ! [ -e "$NOTES/go" ]; do sleep 0.05; done; exit 5'
  eventually 20 noted 2
  kill -STOP "$(cat "$NOTES/pid.0")"
  eventually 20 grep -q "rank 0 (pid .*) was stopped by SIGSTOP" "$BATS_TEST_TMPDIR/err"
  touch "$NOTES/go"
  finish
  echo "$output"
  [ "$status" -eq 5 ]
  [[ $output == *"Root Cause (stopped"*"rank      : 0 "*"SIGSTOP "*" s before"*"Other Failures:"*"rank      : 1 "*"exitcode  : 5 "* ]]
}

@test "a rank that was stopped and goes on is not blamed" {
  start --nproc-per-node 2 --failure-grace 0 -v sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; if [ "$RANK" = 0 ]; then sleep 100; fi
     while ! [ -e "$NOTES/go" ]; do sleep 0.05; done; exit 5'
  eventually 20 noted 2
  kill -STOP "$(cat "$NOTES/pid.0")"
  eventually 20 grep -q "was stopped by SIGSTOP" "$BATS_TEST_TMPDIR/err"
  kill -CONT "$(cat "$NOTES/pid.0")"
  eventually 20 grep -q "rank 0 resumed" "$BATS_TEST_TMPDIR/err"
  touch "$NOTES/go"
  finish
  [ "$status" -eq 5 ]
  [[ $output == *"Root Cause (first observed failure):"*"rank      : 1 "* ]]
}

@test "SIGTERM, SIGINT, SIGHUP and SIGQUIT reach the ranks and end the job with 128 + number" {
  for signal in TERM:143 INT:130 HUP:129 QUIT:131; do
    name=${signal%:*}
    rm -f "$NOTES"/*
    start --nproc-per-node 2 sh -c \
      "trap 'echo got >\"\$NOTES/got.\$RANK\"; exit 0' $name; echo \$\$ >\"\$NOTES/pid.\$RANK\"; while :; do sleep 0.05; done"
    eventually 20 noted 2
    kill "-$name" "$launcher"
    finish
    echo "$name: $status: $output"
    [ "$status" -eq "${signal#*:}" ]
    [ -e "$NOTES/got.0" ] && [ -e "$NOTES/got.1" ]
    [[ $output == *"ended by SIG$name"* ]]
  done
}

@test "a second SIGINT kills at once" {
  SECONDS=0
  start --nproc-per-node 2 --shutdown-timeout 60 sh -c \
    'trap "" INT TERM; echo $$$$ >"$NOTES/pid.$RANK"; while :; do sleep 100; done'
  eventually 20 noted 2
  kill -INT "$launcher"
  sleep 0.3
  kill -0 "$launcher"  # one SIGINT does not end what ignores it
  kill -INT "$launcher"
  finish
  [ "$status" -eq 130 ]
  [ "$SECONDS" -lt 20 ]
  all_gone
}

@test "SIGUSR1 and SIGUSR2 reach the ranks, and the job goes on" {
  start --nproc-per-node 2 sh -c \
    'trap "touch \$NOTES/usr1.\$RANK" USR1; trap "touch \$NOTES/usr2.\$RANK" USR2; echo $$$$ >"$NOTES/pid.$RANK"
     while ! [ -e "$NOTES/usr1.$RANK" ] || ! [ -e "$NOTES/usr2.$RANK" ]; do sleep 0.05; done; exit 0'
  eventually 20 noted 2
  kill -USR1 "$launcher"
  kill -USR2 "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [ -e "$NOTES/usr1.0" ] && [ -e "$NOTES/usr2.1" ]
}

@test "under nohup, a hangup ends nothing" {
  nohup "$DDPRUN" --nproc-per-node 2 sh -c \
    'echo $$$$ >"$NOTES/pid.$RANK"; while ! [ -e "$NOTES/go" ]; do sleep 0.05; done' >/dev/null 2>&1 3>&- &
  launcher=$!
  eventually 20 noted 2
  kill -HUP "$launcher" "$(cat "$NOTES/pid.0")"
  sleep 0.2
  touch "$NOTES/go"
  ended "$launcher"
  [ "$status" -eq 0 ]
}

# state PID STATES: whether the process is in one of them, by the letters of proc(5).
state() { [[ $(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat") == ["$2"] ]]; }
all_stopped() {
  local note
  for note in "$NOTES"/pid.*; do state "$(cat "$note")" T || return 1; done
}

@test "Ctrl-Z stops the ranks, all below them, and ddprun; fg continues all" {
  start --nproc-per-node 2 --failure-grace 0 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"
    setsid sh -c "echo \$\$ >\"$NOTES/pid.below$RANK\"; while ! [ -e \"$NOTES/go\" ]; do sleep 0.05; done" & wait
    exit $((RANK * 5))'
  eventually 20 noted 4
  for round in 1 2; do
    kill -TSTP "$launcher"
    eventually 20 state "$launcher" T
    eventually 20 all_stopped
    touch "$NOTES/go"
    sleep 0.3
    all_stopped
    [ $round -eq 2 ] || rm "$NOTES/go"
    kill -CONT "$launcher"
    [ $round -eq 2 ] || eventually 20 state "$(cat "$NOTES/pid.0")" SR
  done
  finish
  echo "$output"
  [ "$status" -eq 5 ]
  [[ $output != *stopped* ]]
}

@test "a signal that came after Ctrl-Z ends the job once it goes on" {
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; while :; do sleep 0.1; done'
  eventually 20 noted 1
  kill -TSTP "$launcher"
  eventually 20 all_stopped
  kill -TERM "$launcher"
  kill -CONT "$launcher"
  finish
  [ "$status" -eq 143 ]
  all_gone
}

@test "SIGKILL to ddprun leaves no rank" {
  export TMPDIR=$BATS_TEST_TMPDIR  # nobody can remove the server's folder then
  start --nproc-per-node 4 sh -c 'trap "" TERM; echo $$$$ >"$NOTES/pid.$RANK"; while :; do sleep 1; done'
  eventually 20 noted 4
  run -1 all_gone
  kill -KILL "$launcher"
  eventually 20 all_gone
}

@test "processes that ranks leave behind are gone at the end" {
  # The double fork and the new session take the process out of its rank's tree and process group.
  run "$DDPRUN" --nproc-per-node 2 sh -c \
    '(setsid sh -c "trap \"\" TERM; echo \$\$ >\"\$NOTES/pid.\$RANK\"; while :; do sleep 100; done" \
      </dev/null >/dev/null 2>&1 &); sleep 0.5'
  echo "$output"
  [ "$status" -eq 0 ]
  noted 2
  all_gone
}

@test "adopted processes that end do not stay as zombies" {
  start sh -c '(setsid sh -c "echo \$\$ >\"\$NOTES/pid.0\"; sleep 0.2" &); while ! [ -e "$NOTES/go" ]; do sleep 0.05; done'
  eventually 20 noted 1
  orphan=$(cat "$NOTES/pid.0")
  eventually 20 test ! -d "/proc/$orphan"
  kill -0 "$launcher"
  touch "$NOTES/go"
  finish
  [ "$status" -eq 0 ]
}

@test "bad input is one clear line" {
  rejects 2 "no program" --nproc-per-node 2
  rejects 2 "no program"
  rejects 2 "'0' is too small; give a whole number from 1 to 4096" --nproc-per-node 0 true
  rejects 2 "'-1' is too small" --nproc-per-node -1 true
  rejects 2 "'x' is neither a number from 1 to 4096 nor cpu, gpu or auto" --nproc-per-node x true
  rejects 2 "'100000' is too large; give a whole number from 1 to 4096" --nproc-per-node 100000 true
  rejects 2 "'' is not a whole number" --nproc-per-node= true
  rejects 2 "needs a value" --nproc-per-node
  rejects 2 "'-1' is out of range" --shutdown-timeout -1 true
  rejects 2 "'soon' is not a number of seconds" --failure-grace soon true
  rejects 2 "did you mean '--nproc-per-node'?" --nproc-per-nod3 2 true
  rejects 2 "unknown option '-x'" -x true
  rejects 127 "'nosuchprogram'" nosuchprogram
  rejects 127 "there is no such file" ./nosuchprogram
  rejects 126 "it is a folder" /
  printf '#!/nosuchinterpreter\n' >"$BATS_TEST_TMPDIR/script"
  chmod +x "$BATS_TEST_TMPDIR/script"
  rejects 126 "interpreter" --nproc-per-node 2 "$BATS_TEST_TMPDIR/script"
  TMPDIR=/nosuchfolder rejects 1 "set TMPDIR" true
}

@test "--help has examples and --version a number" {
  run "$DDPRUN" --help
  [ "$status" -eq 0 ]
  [[ $output == *"Examples:"*"--nproc-per-node"* ]]
  run "$DDPRUN" --version
  [ "$status" -eq 0 ]
  [[ $output =~ ^"ddprun (libddp) "[0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "PMIx: 8 ranks exchange values, and the facts are right" {
  run "$DDPRUN" --nproc-per-node 8 "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c 'is well$' <<<"$output")" -eq 8 ]
  # The client does look: a wrong size is noticed.
  run "$DDPRUN" --nproc-per-node 2 env WORLD_SIZE=3 "$HELLO"
  [ "$status" -eq 1 ]
  [[ $output == *"job size differs from WORLD_SIZE"* ]]
}

# libpmix believes the user that a client names.
@test "PMIx: the server listens on loopback alone, and who does not know the namespace's random part cannot connect" {
  run "$DDPRUN" --nproc-per-node 1 python3 -c '
import os, re, subprocess, sys
address, port = re.search(r"tcp4://([0-9.]+):([0-9]+)", os.environ["PMIX_SERVER_URI4"]).groups()
own = open("/proc/net/tcp").read() + open("/proc/net/tcp6").read()
places = re.findall(r"([0-9A-F]+):%04X 0+:0000 0A" % int(port), own)
assert address == "127.0.0.1" and places == ["0100007F"], (address, places)
name = os.environ["PMIX_NAMESPACE"]
host, secret = re.fullmatch(r"(ddp\..*\.[0-9]+)\.([0-9a-f]{32})\.0", name).groups()
guess = "%s.%032x.0" % (host, int(secret, 16) ^ 1)
environment = {key: value.replace(name, guess) for key, value in os.environ.items()}
stranger = subprocess.run([sys.argv[1]], env=environment, timeout=60, capture_output=True, text=True)
assert stranger.returncode != 0 and "is well" not in stranger.stdout, stranger
sys.exit(subprocess.run([sys.argv[1]], timeout=60).returncode)' "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"is well"* ]]
}

@test "PMIx: an outer server's variables do no harm" {
  PMIX_NAMESPACE=outer PMIX_RANK=5 PMIX_SERVER_URI4="outer.0;tcp4://127.0.0.1:1" \
    run "$DDPRUN" --nproc-per-node 2 "$HELLO"
  echo "$output"
  [ "$status" -eq 0 ]
}

@test "PMIx: PMIx_Abort ends the job with its status and says who called" {
  SECONDS=0
  run "$DDPRUN" --nproc-per-node 3 "$HELLO" abort
  echo "$output"
  [ "$status" -eq 7 ]
  [ "$SECONDS" -lt 20 ]
  [[ $output == *"rank      : 1 "*"PMIx_Abort(7): rank 1 gives up"* ]]
}

@test "PMIx: ranks that wait in a fence for a rank that failed are ended, and that rank is the root cause" {
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c \
    'if [ "$RANK" = 2 ]; then exit 11; fi; exec "$HELLO" abort'
  echo "$output"
  [ "$status" -eq 11 ]
  [[ $output == *"Root Cause"*"rank      : 2 "* ]]
}

@test "PMIx: ranks that die while they connect do not hold up the end" {
  for _ in $(seq 20); do
    run timeout -s KILL 20 "$DDPRUN" --nproc-per-node 3 --failure-grace 0 sh -c \
      'if [ "$RANK" = 2 ]; then exit 11; fi; exec "$HELLO" abort'
    echo "$output"
    [ "$status" -eq 11 ]
  done
}

@test "PMIx: two jobs at once do not meet" {
  "$DDPRUN" --nproc-per-node 4 "$HELLO" >"$BATS_TEST_TMPDIR/one" 3>&- &
  launcher=$!
  run "$DDPRUN" --nproc-per-node 4 "$HELLO"
  [ "$status" -eq 0 ]
  ended "$launcher"
  [ "$status" -eq 0 ]
  [ "$(grep -c 'is well$' "$BATS_TEST_TMPDIR/one")" -eq 4 ]
  [ "$(cut -d' ' -f4 <<<"${lines[0]}")" != "$(head -n1 "$BATS_TEST_TMPDIR/one" | cut -d' ' -f4)" ]
}

@test "64 ranks" {
  run "$DDPRUN" --nproc-per-node 64 /bin/true
  echo "$output"
  [ "$status" -eq 0 ]
  run "$DDPRUN" --nproc-per-node 64 "$HELLO"
  [ "$(grep -c 'is well$' <<<"$output")" -eq 64 ]
}

@test "the server's folder is private, and removed after success, failure and signal" {
  export TMPDIR=$BATS_TEST_TMPDIR/scratch
  mkdir "$TMPDIR"
  run "$DDPRUN" sh -c 'stat -c "%a" "$TMPDIR"/ddprun.*'
  [ "$output" = 700 ]
  [ -z "$(ls -A "$TMPDIR")" ]
  run "$DDPRUN" false
  [ "$status" -eq 1 ]
  [ -z "$(ls -A "$TMPDIR")" ]
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; exec sleep 100'
  eventually 20 noted 1
  [ -n "$(ls -A "$TMPDIR")" ]
  kill -TERM "$launcher"
  finish
  [ "$status" -eq 143 ]
  [ -z "$(ls -A "$TMPDIR")" ]
}

@test "the folders of a job that was killed are removed by the next one, and those in use are not" {
  export TMPDIR=$BATS_TEST_TMPDIR/scratch
  mkdir "$TMPDIR"
  start sh -c 'echo $$$$ >"$NOTES/pid.0"; exec sleep 100'
  eventually 20 noted 1
  folder=$(echo "$TMPDIR"/ddprun.*)
  run "$DDPRUN" true
  [ "$(echo "$TMPDIR"/*)" = "$folder" ]
  attempt=$(ps -o ppid= -p "$(cat "$NOTES/pid.0")")
  kill -STOP "$launcher" # or it would clean up
  # shellcheck disable=SC2086
  kill -KILL $attempt "$launcher"
  eventually 20 all_gone
  launcher=
  [ -d "$folder" ]
  run "$DDPRUN" true
  [ -z "$(ls -A "$TMPDIR")" ]
}

@test "ranks get the standard streams and no other descriptor" {
  exec 9</dev/null
  run sh -c 'ls /proc/self/fd | wc -l; exec 8</dev/null; ls /proc/self/fd | wc -l'
  [ "${lines[1]}" -eq "$((lines[0] + 1))" ]  # the way of counting sees descriptors
  run "$DDPRUN" --nproc-per-node 2 sh -c 'echo "$(ls /proc/self/fd | tr "\n" " ")$(ulimit -n)"'
  echo "$output"
  [ "${lines[0]}" = "0 1 2 3 $(ulimit -n)" ]  # 3 is the folder that ls reads
  [ "${lines[1]}" = "0 1 2 3 $(ulimit -n)" ]
}

@test "closed standard streams are as if they led to /dev/null" {
  status=0
  "$DDPRUN" --nproc-per-node 2 sh -c 'echo x >&2; echo y; cat && touch "$NOTES/$RANK"' <&- >&- 2>&- || status=$?
  [ "$status" -eq 0 ]
  [ -e "$NOTES/0" ] && [ -e "$NOTES/1" ]
  "$DDPRUN" --nproc-per-node 2 sh -c 'echo x >&2; echo y; exit 3' 2>&- >"$NOTES/out" || status=$?
  [ "$status" -eq 3 ]
  [ "$(cat "$NOTES/out")" = $'y\ny' ]
}

@test "a --local-addr that this host does not have: the store listens at what it has, and ranks reach it" {
  reach='exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT" && echo "reached"'
  # An address for documentation (RFC 5737), as one of the gateway would be.
  run timeout -k 5 60 "$DDPRUN" --local-addr 192.0.2.1 --nproc-per-node 2 bash -c "$reach"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$output" = $'reached\nreached' ]
  # One node of those that may come, which tells others all its addresses.
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
  run timeout -k 5 60 "$DDPRUN" --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint "127.0.1.1:$port" \
    --rdzv-conf last_call_timeout=1 --local-addr 192.0.2.1 --nproc-per-node 2 bash -c "$reach"
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(grep -c '^reached$' <<<"$output")" -eq 2 ]
}
