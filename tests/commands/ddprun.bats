#!/usr/bin/env bats
# What a user of ddprun sees: the ranks' environment, exit codes, reports, bad input, and that nothing is left behind.
# DDP_BIN_DIR names the folder with the program; default: build/bin, then build/dev/bin.

load ../support/ddprun_jobs

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
  [ "$("$DDPRUN" printf '%s|' --nproc-per-node 2 -- -v 2>remark)" = "--nproc-per-node|2|--|-v|" ]
  grep -q "'--nproc-per-node' comes after the program, which gets it" remark
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
    'echo $$$$ >"$NOTES/pid.$RANK"; if [ "$RANK" = 1 ]; then exit 3; fi; sleep 1000'
  echo "$output"
  [ "$status" -eq 3 ]
  [ "$SECONDS" -lt 60 ]
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
  [ "$taken_ms" -ge 1500 ] && [ "$taken_ms" -lt 25000 ] # without the option it takes 30 s
  [[ $output == *"1 other rank was ended by ddprun, 1 by SIGKILL."* ]]
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
  TMPDIR=/dev/null rejects 1 "set TMPDIR" true
}

@test "a backend that is not there is refused before a rank starts" {
  rejects 1 "there is no backend 'ncll': no libddp_ncll.so in" --backend ncll sh -c 'echo STARTED'
  [[ $output == *"did you mean 'nccl'?"* ]]
  rejects 1 "there is no backend 'mine'" --backend cpu:host,cuda:mine true
  DDP_BACKEND=mine rejects 1 "reading the environment variable DDP_BACKEND: there is no backend 'mine'" true
  rejects 2 "'cpu:' is not the name of a backend" --backend cpu: true
  touch "$BATS_TEST_TMPDIR/libddp_mine.so"
  DDP_BACKEND_PATH=$BATS_TEST_TMPDIR run -0 "$DDPRUN" --backend mine sh -c 'echo $DDP_BACKEND'
  [ "$output" = mine ]
  LD_LIBRARY_PATH=$BATS_TEST_TMPDIR run -0 "$DDPRUN" --backend cuda:mine sh -c 'echo $DDP_BACKEND'
  [ "$output" = cuda:mine ]
  run -0 "$DDPRUN" --backend gloo sh -c 'echo $DDP_BACKEND'
}

@test "--help has examples and --version a number" {
  run "$DDPRUN" --help
  [ "$status" -eq 0 ]
  [[ $output == *"Examples:"*"--nproc-per-node"* ]]
  run "$DDPRUN" --version
  [ "$status" -eq 0 ]
  [[ $output =~ ^"ddprun (libddp) "[0-9]+\.[0-9]+\.[0-9]+$ ]]
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
