#!/usr/bin/env bats
# The cluster fixture itself: that it is a real Slurm with the nodes asked for, and that it leaves nothing behind however
# it ends. Every test starts clusters of its own, beside the one that the other tests may be running in.

bats_require_minimum_version 1.5.0 # run --separate-stderr
load ../support/outer_settings

slurm_cluster="$BATS_TEST_DIRNAME/slurm_cluster"

setup() {
  [ "$(id -u)" = 0 ] || skip "needs root"
  command -v slurmctld >/dev/null || [ -x /usr/sbin/slurmctld ] || skip "needs Debian's slurm-wlm"
  # Inside another cluster, whose end removes these, too.
  export DDP_CLUSTER_DIR=${DDP_CLUSTER_DIR:+$DDP_CLUSTER_DIR/shared/fixture-$$}
  export DDP_CLUSTER_DIR=${DDP_CLUSTER_DIR:-/run/ddp-fixture-$$}
  forget_outer_settings
  unset SLURM_CONF TMPDIR # jobs inherit the latter, and plain users may not write to it
  snapshot >"$BATS_TEST_TMPDIR/before"
}

teardown() { "$slurm_cluster" down; }

# What a cluster could leave on the host. Processes: those that name the state folder, and all of Slurm's.
snapshot() {
  echo "namespaces:" && (ls /run/netns 2>/dev/null || true)
  echo "links:" && ip -o link | cut -d: -f2 | sort
  echo "mounts:" && cat /proc/self/mounts
  echo "state:" && (ls -d "$DDP_CLUSTER_DIR"* 2>/dev/null || true)
  echo "processes:" && ps -eo pid=,stat=,args= | awk '$2 !~ /^Z/ { $2 = ""; print }' |
    grep -E "$DDP_CLUSTER_DIR|slurmctld|slurmd|slurmstepd|munged|ddp-fixture-task" | grep -v "grep" || true
}

# Nothing is there that was not there before. What was there may have ended: a step of the cluster around this one. The
# child of an up that was killed ends when it finds the cluster's folder gone.
expect_nothing_left() {
  local left deadline=$((SECONDS + 10))
  while left=$(comm -13 <(sort "$BATS_TEST_TMPDIR/before") <(snapshot | sort)) && [ -n "$left" ]; do
    [ $SECONDS -lt $deadline ] || { echo "left: $left" >&2; return 1; }
    sleep 0.1
  done
}

# wait_until SECONDS COMMAND...: until COMMAND succeeds.
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || { echo "waited in vain for: $*" >&2; return 1; }
    sleep 0.05
  done
}

has_ended() { [ ! -d "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status"; }

@test "up gives four idle nodes of 16 CPUs and says nothing; down leaves nothing" {
  run "$slurm_cluster" up
  [ "$status" -eq 0 ]
  [ "$output" = "" ]
  run "$slurm_cluster" run sinfo -h -N -o "%N %T %c"
  [ "$output" = $'n0 idle 16\nn1 idle 16\nn2 idle 16\nn3 idle 16' ]
  run "$slurm_cluster" status
  [ "$status" -eq 0 ]
  [[ "$output" == "up in $DDP_CLUSTER_DIR"*"n3 idle"* ]]
  run expect_nothing_left
  [ "$status" -ne 0 ] # the check does see a cluster
  run "$slurm_cluster" down
  [ "$status" -eq 0 ]
  [ "$output" = "" ]
  expect_nothing_left
  run "$slurm_cluster" status
  [ "$status" -eq 1 ]
  [ "$output" = "down" ]
}

@test "srun places tasks on all nodes, each with its own name, address, /tmp, /dev/shm and process ids" {
  "$slurm_cluster" up
  run "$slurm_cluster" run srun --quiet -N4 -n8 hostname
  [ "$(sort <<<"$output" | uniq -c | tr -s ' ')" = $' 5 n0\n 1 n1\n 1 n2\n 1 n3' ]
  run "$slurm_cluster" run srun --quiet -N4 -n4 -l sh -c 'ip -o -4 addr show dev eth0 | grep -o "10\.78\.0\.[0-9]*/"'
  [ "$(sort <<<"$output")" = $'0: 10.78.0.1/\n1: 10.78.0.2/\n2: 10.78.0.3/\n3: 10.78.0.4/' ]
  for folder in /tmp /dev/shm; do
    "$slurm_cluster" on n1 touch $folder/mark
    run "$slurm_cluster" run srun --quiet -N4 -n4 -l test -e $folder/mark
    [ "$(grep -c 'task.*Exited with exit code 1' <<<"$output")" -ge 1 ]
    [[ "$output" != *"task 1:"* ]]
  done
  run "$slurm_cluster" on n2 ps -eo comm=
  [[ "$output" == *slurmd* ]]
  [[ "$output" != *slurmctld* ]]
}

@test "nodes can have different sizes" {
  "$slurm_cluster" up --cpus 16,16,8,4
  run "$slurm_cluster" run sinfo -h -N -o "%N %c"
  [ "$output" = $'n0 16\nn1 16\nn2 8\nn3 4' ]
  run "$slurm_cluster" run srun -n44 hostname
  [ "$(sort <<<"$output" | uniq -c | tr -s ' ')" = $' 16 n0\n 16 n1\n 8 n2\n 4 n3' ]
  run "$slurm_cluster" run srun --immediate=1 -n45 true
  [ "$status" -ne 0 ]
}

@test "PMIx connects the ranks, for root and for a plain user" {
  "$slurm_cluster" up
  for user in root nobody; do
    run "$slurm_cluster" run setpriv --reuid $user --clear-groups srun -N4 -n8 --mpi=pmix sh -c 'echo $PMIX_RANK $(id -un)'
    echo "$output"
    [ "$status" -eq 0 ]
    [ "$(sort <<<"$output")" = "$(for rank in {0..7}; do echo $rank $user; done)" ]
  done
}

@test "run and on pass arguments, stdin, exit codes, signals and the working directory" {
  "$slurm_cluster" up --cpus 2,2
  for where in "run" "on n1"; do
    run "$slurm_cluster" $where sh -c 'exit 7'
    [ "$status" -eq 7 ]
    run "$slurm_cluster" $where printf '<%s>' 'a b' '' '$HOME'
    [ "$output" = '<a b><><$HOME>' ]
    [ "$("$slurm_cluster" $where cat <<<"from stdin")" = "from stdin" ]
    [ "$(cd /usr/share && "$slurm_cluster" $where pwd)" = /usr/share ]
    run "$slurm_cluster" $where sh -c 'kill -SEGV $$'
    [ "$status" -eq 139 ]
    run "$slurm_cluster" $where grep -E "SigIgn:.0*$" /proc/self/status
    [ "$status" -eq 0 ]
  done
  run "$slurm_cluster" run srun -n1 sh -c 'grep SigIgn /proc/self/status; exit 5'
  [ "$status" -eq 5 ]
  [[ "$output" =~ SigIgn:.0+[^1-9a-f] ]]
  run "$slurm_cluster" on n2 true
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: no node 'n2'; there are n0 n1" ]
}

@test "a command ends with the wrapper that runs it" {
  "$slurm_cluster" up --cpus 1
  "$slurm_cluster" on n0 sleep 1234 3>&- &
  wait_until 5 "$slurm_cluster" on n0 pgrep -xf "sleep 1234"
  kill -KILL $!
  wait_until 5 sh -c "! '$slurm_cluster' on n0 pgrep -xf 'sleep 1234'"
}

@test "it works from any folder and through a symbolic link" {
  mkdir "$BATS_TEST_TMPDIR/elsewhere"
  ln -s "$slurm_cluster" "$BATS_TEST_TMPDIR/elsewhere/link"
  cd "$BATS_TEST_TMPDIR/elsewhere"
  ./link up --cpus 1
  [ "$(./link on n0 hostname)" = n0 ]
  ./link down
}

@test "inside the cluster, the same commands work, and it cannot be ended or started again" {
  "$slurm_cluster" up --cpus 1,1
  [ "$("$slurm_cluster" run "$slurm_cluster" on n1 hostname)" = n1 ]
  [ "$("$slurm_cluster" run "$slurm_cluster" run hostname)" = ctl ]
  run "$slurm_cluster" run "$slurm_cluster" down
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: cannot end the cluster from inside it" ]
  run "$slurm_cluster" run "$slurm_cluster" up
  [ "$status" -eq 1 ]
  "$slurm_cluster" status
}

@test "two clusters run side by side, one inside the other's controller too" {
  "$slurm_cluster" up --cpus 3
  run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR-b" "$slurm_cluster" with --cpus 5,5 -- sinfo -h -o "%D %c"
  [ "$output" = "2 5" ]
  run "$slurm_cluster" run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR-c" "$slurm_cluster" with --cpus 7,7,7 -- sinfo -h -o "%D %c"
  [ "$output" = "3 7" ]
  run "$slurm_cluster" run sinfo -h -o "%D %c"
  [ "$output" = "1 3" ]
}

@test "what lies in /tmp is on the nodes when it is shared, and in the shared folder always" {
  mkdir "$BATS_TEST_TMPDIR/shown"
  [[ "$BATS_TEST_TMPDIR" == /tmp/* ]] || skip "BATS_TMPDIR is not in /tmp"
  "$slurm_cluster" up --cpus 1,1 --share "$BATS_TEST_TMPDIR/shown"
  "$slurm_cluster" run srun -N2 -n2 sh -c "touch $BATS_TEST_TMPDIR/shown/\$(hostname) $DDP_CLUSTER_DIR/shared/\$(hostname)"
  [ "$(cd "$BATS_TEST_TMPDIR/shown" && echo *)" = "n0 n1" ]
  [ "$(cd "$DDP_CLUSTER_DIR/shared" && echo *)" = "n0 n1" ]
  "$slurm_cluster" down
  [ "$(cd "$BATS_TEST_TMPDIR/shown" && echo *)" = "n0 n1" ] # down deletes the cluster's files, not the user's
}

@test "the state folder may lie in /tmp" {
  export DDP_CLUSTER_DIR=/tmp/ddp-fixture-$$
  [ "$("$slurm_cluster" with --cpus 1,1 -- srun -N2 -n2 --mpi=pmix hostname | sort)" = $'n0\nn1' ]
  [ ! -e "$DDP_CLUSTER_DIR" ]
}

@test "with returns the command's exit code and leaves nothing, not even what the command's jobs left running" {
  # srun may warn on standard error where the machine is slow.
  run --separate-stderr "$slurm_cluster" with --cpus 2,2 -- sh -c \
    'srun -N2 -n2 sh -c "setsid sleep 4321 >/dev/null 2>&1 & exec true"; (setsid sleep 4321 &); sinfo -h -o %D; exit 6'
  echo "output: '$output', errors: '$stderr'"
  [ "$status" -eq 6 ]
  [ "$output" = 2 ]
  run pgrep -xf "sleep 4321"
  [ "$status" -ne 0 ]
  expect_nothing_left
}

@test "with cleans up when it is interrupted or ended, while starting and while the command runs" {
  for signal in INT TERM HUP; do
    for moment in 0 0.03 0.1 running; do
      env --default-signal "$slurm_cluster" with -- srun -N4 -n4 sh -c "exec sleep 5432" 3>&- &
      with=$!
      # Its first trace: before that there is nothing to clean up.
      wait_until 10 [ -e "$DDP_CLUSTER_DIR/.slurm_cluster" ]
      if [ $moment = running ]; then wait_until 10 pgrep -xf "sleep 5432"; else sleep $moment; fi
      kill -$signal $with
      wait_until 10 has_ended $with
      status=0
      wait $with || status=$?
      echo "signal $signal after $moment: exit code $status"
      [ "$status" -eq $((128 + $(kill -l $signal))) ]
      expect_nothing_left
    done
  done
  run pgrep -xf "sleep 5432"
  [ "$status" -ne 0 ]
}

@test "with that is killed takes its processes along, and down removes the rest" {
  "$slurm_cluster" with -- srun -N4 -n4 sh -c "exec sleep 6543" 3>&- &
  wait_until 10 pgrep -xf "sleep 6543"
  kill -KILL $!
  wait_until 5 sh -c '! pgrep -xf "sleep 6543" && ! pgrep -f -- "--state=$DDP_CLUSTER_DIR\$"'
  "$slurm_cluster" down
  expect_nothing_left
}

@test "an up that was killed halfway is cleaned up by down, and down can be repeated" {
  for moment in 0.01 0.03 0.06 0.1; do
    "$slurm_cluster" up 3>&- &
    sleep $moment
    kill -KILL $! || true
    "$slurm_cluster" down
    "$slurm_cluster" down
    expect_nothing_left
  done
}

@test "a node that loses its slurmd is gone, and the others go on" {
  "$slurm_cluster" up --cpus 1,1
  "$slurm_cluster" on n1 pkill -KILL slurmd || true # the node takes pkill along
  wait_until 5 sh -c "! '$slurm_cluster' on n1 true"
  run "$slurm_cluster" on n1 true
  [[ "$output" == *"node n1 has ended"* ]]
  [ "$("$slurm_cluster" run srun -w n0 hostname)" = n0 ]
}

@test "a node with the file keep outlives its slurmd, and starts another when the file goes" {
  "$slurm_cluster" up --cpus 1
  touch "$DDP_CLUSTER_DIR/node/n0/keep"
  "$slurm_cluster" on n0 pkill -KILL -x slurmd
  wait_until 10 sh -c "! '$slurm_cluster' on n0 pgrep -x slurmd"
  [ "$("$slurm_cluster" on n0 hostname)" = n0 ]
  rm "$DDP_CLUSTER_DIR/node/n0/keep"
  wait_until 10 "$slurm_cluster" on n0 pgrep -x slurmd
  [ "$("$slurm_cluster" run timeout 60 srun -w n0 hostname)" = n0 ]
}

@test "a daemon that does not start makes up fail with its last words and leave nothing" {
  mkdir "$BATS_TEST_TMPDIR/bin"
  printf '#!/bin/sh\necho this slurmd is broken >&2; exit 1\n' >"$BATS_TEST_TMPDIR/bin/slurmd"
  chmod +x "$BATS_TEST_TMPDIR/bin/slurmd"
  PATH="$BATS_TEST_TMPDIR/bin:$PATH" run "$slurm_cluster" up --share "$BATS_TEST_TMPDIR/bin"
  [ "$status" -eq 1 ]
  [[ "$output" == *"this slurmd is broken"* ]]
  [[ "${lines[-1]}" == "slurm_cluster: the cluster ended while starting"* ]]
  expect_nothing_left
}

@test "wrong use is one clear line" {
  run "$slurm_cluster" up --cpus 4,x
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: --cpus needs CPUs per node like 16,16,8,4, not '4,x'" ]
  run "$slurm_cluster" up --nodes 4
  [ "$output" = "slurm_cluster: unknown option '--nodes'; known are --cpus N,N,..., --affinity, --proctrack TYPE and --share DIR" ]
  run "$slurm_cluster" run true
  [ "$output" = "slurm_cluster: no cluster is up in $DDP_CLUSTER_DIR; slurm_cluster up starts it" ]
  run setpriv --reuid nobody "$slurm_cluster" up
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: the cluster needs root (namespaces, slurmd); run it with sudo" ]
  run env DDP_CLUSTER_DIR=/usr/share "$slurm_cluster" down
  [ "$status" -eq 1 ]
  [[ "$output" == *"is not a cluster's state folder"* ]]
  [ -d /usr/share/doc ]
  "$slurm_cluster" up --cpus 1
  run "$slurm_cluster" up
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: a cluster is up in $DDP_CLUSTER_DIR already; slurm_cluster down ends it" ]
}

@test "a missing program is named with its package" {
  # /usr/sbin is always searched, so it is hidden in a mount namespace, as on a machine without Slurm.
  run unshare --mount sh -c 'mount -t tmpfs tmpfs /usr/sbin && exec "$0" up' "$slurm_cluster"
  [ "$status" -eq 1 ]
  [ "$output" = "slurm_cluster: slurmctld is missing; apt-get install slurm-wlm" ]
}
