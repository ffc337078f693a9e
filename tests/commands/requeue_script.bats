#!/usr/bin/env bats
# scripts/sbatch/requeue.sbatch with stand-ins for ddprun and scontrol: whenever SIGUSR1 comes, ddprun gets it once it can,
# and the job is requeued. With Slurm: tests/cluster/templates.bats.

bats_require_minimum_version 1.5.0
load ../support/eventually

setup() {
  cd "$BATS_TEST_TMPDIR"
  script=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/scripts/sbatch/requeue.sbatch
  mkdir bin
  # Like ddprun: USR1 ends it for the first $SLOW seconds; then it holds the signal, and passes it on.
  cat >bin/ddprun <<'PROGRAM'
#!/usr/bin/env python3
import os, signal, sys, time
open("started", "w").close()
time.sleep(float(os.environ["SLOW"]))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
open("holds", "w").close()
end = time.monotonic() + 20  # sigtimedwait(2) would unblock it meanwhile, ddprun's signalfd(2) does not
while signal.SIGUSR1 not in signal.sigpending() and time.monotonic() < end:
    time.sleep(0.02)
got = signal.SIGUSR1 in signal.sigpending()
print("PASSED ON" if got else "NOTHING CAME", flush=True)
sys.exit(0 if got else 9)
PROGRAM
  printf '#!/bin/sh\necho "SCONTROL $*"\n' >bin/scontrol
  chmod +x bin/*
  export PATH="$PWD/bin:$PATH" SLURM_JOB_ID=7
  unset SLURM_RESTART_COUNT MAX_RUNS PROCS_PER_NODE
}

# signalled_after FILE: starts the script, and signals it as soon as FILE is there.
signalled_after() {
  bash "$script" train.py >out 2>&1 3>&- &
  local pid=$!
  [ -z "$1" ] || eventually 20 test -e "$1"
  kill -USR1 "$pid"
  status=0
  wait "$pid" || status=$?
  output=$(cat out)
}

requeued() {
  [ "$status" -eq 0 ] && [[ $output == *"PASSED ON"*"SCONTROL requeue 7"* ]] || { echo "$status: $output"; return 1; }
}

@test "while ddprun starts, SIGUSR1 waits until ddprun holds it" {
  export SLOW=1.5
  signalled_after started
  requeued
}

@test "when ddprun holds it, SIGUSR1 is passed on" {
  export SLOW=0
  signalled_after holds
  requeued
}

@test "at any moment of the start" {
  export SLOW=0.2
  local i
  for i in 1 2 3 4 5 6; do
    rm -f started holds
    bash "$script" train.py >out 2>&1 3>&- &
    local pid=$!
    # The script's own first instructions cannot be guarded: it has its handler once bash catches the signal (bit 9).
    eventually 20 grep -q '^SigCgt:.*[2367abef]..$' "/proc/$pid/status"
    sleep "0.0$((i * 7 % 10))"
    kill -USR1 "$pid"
    status=0
    wait "$pid" || status=$?
    output=$(cat out)
    requeued
  done
}
