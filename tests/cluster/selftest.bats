#!/usr/bin/env bats
# The admins' self-test on four nodes of a real Slurm: what passes, and which node is blamed for what.

load ../support/batch_jobs

selftest() { submit SELFTEST_TIMEOUT=10 -N4 "$@" "$root/scripts/ddp-selftest.sbatch"; finish 400; }

# result NODE: its line of the summary.
result() { sed -n '/^==== summary/,$p' <<<"$output" | grep "^$1 "; }

@test "self-test: healthy nodes pass, alone, together, and under ddprun" {
  selftest
  [ "$status" -eq 0 ]
  [[ $output == *"the srun plugin is not installed here; not tested"* ]]
  for node in n0 n1 n2 n3; do [[ $(result $node) =~ ^$node" "+PASS" "+PASS" "+PASS" "*$ ]]; done
  [[ $output == *"all 4 nodes passed"* ]]
}

@test "self-test: where the plugin is installed, srun --ddp is tested, too" {
  install_plugin
  selftest
  [ "$status" -eq 0 ]
  for node in n0 n1 n2 n3; do [[ $(result $node) =~ ^$node" "+PASS" "+PASS" "+PASS" "+PASS" "*$ ]]; done
}

# in_place NODE PATH REPLACEMENT: the node sees another file there.
in_place() {
  repairs+=("'$cluster' on $1 umount '$2'")
  "$cluster" on "$1" mount --bind "$3" "$2"
}

@test "self-test: nodes without the plugin, without ddp-step, with one that lacks a library, fail with the reason; the others pass" {
  install_plugin
  printf '#!/bin/sh\necho "error while loading shared libraries: libhwloc.so.15" >&2; exit 127\n' >"$shared/unloadable"
  chmod +x "$shared/unloadable"
  repairs+=('"$cluster" on n1 umount "$plugins"')
  "$cluster" on n1 mount -t tmpfs tmpfs "$plugins"
  in_place n2 "$bin/ddp-step" /dev/null
  in_place n3 "$bin/ddp-step" "$shared/unloadable"
  selftest
  [ "$status" -eq 1 ]
  [[ $(result n0) =~ ^n0" "+PASS" "+PASS" "+PASS" "+PASS" "*$ ]]
  [[ $(result n1) =~ ^n1" "+PASS" "+PASS" "+FAIL" "+PASS" "+"ddp: plugin: ".*plugstack.conf.*spank_ddp.so ]]
  [[ $(result n2) =~ ^n2" "+PASS" "+PASS" "+FAIL" "+PASS" "+"ddp: ddp-step: ".*"$(without_blanks "$bin")/ddp-step".*EACCES ]]
  [[ $(result n3) =~ ^n3" "+PASS" "+PASS" "+FAIL" "+PASS" "+"ddp: ddp-step: ".*127.*libhwloc.so.15 ]]
}

@test "self-test: a node whose ddp-step says another version while it serves is a warning with the reason" {
  install_plugin
  cp "$bin/ddp-step" "$shared/real"
  printf '#!/bin/bash\n[ "$1" != --version ] || exec %s --version\n%s "$@" | LC_ALL=C sed "s/$(%s --version | cut -d" " -f2)/9.8.7/"\n' "$shared/real" "$shared/real" "$shared/real" >"$shared/other"
  chmod +x "$shared/other"
  in_place n2 "$bin/ddp-step" "$shared/other"
  selftest
  [ "$status" -eq 0 ]
  [[ $(result n2) =~ ^n2" "+PASS" "+PASS" "+WARN" "+PASS" "+"ddp: ".*9\.8\.7 ]]
  for node in n0 n1 n3; do [[ $(result $node) =~ ^$node" "+PASS" "+PASS" "+PASS" "+PASS" "*$ ]]; done
}

@test "self-test: a node whose link is cut is named in time, and the others are tested without it" {
  repairs+=('"$cluster" on n2 ip link set eth0 up')
  "$cluster" on n2 ip link set eth0 down
  selftest
  [ "$status" -eq 1 ]
  [[ $(result n2) =~ ^n2" "+FAIL" "+-" "+-" "+alone:.*n2 ]]
  for node in n0 n1 n3; do [[ $(result $node) =~ ^$node" "+PASS" "+PASS" "+PASS ]]; done
  [[ $output == *"1 of 4 nodes did not pass: n2"* ]]
}

# Slurm's PMIx passes data on from node to node, so others may be kept from meeting, too, and are named then.
@test "self-test: nodes that do not reach each other do not pass" {
  repairs+=('"$cluster" on n1 ip route del blackhole 10.78.0.3/32')
  "$cluster" on n1 ip route add blackhole 10.78.0.3/32
  selftest
  [ "$status" -eq 1 ]
  [[ $(result n1) =~ ^n1" "+PASS" "+FAIL || $(result n2) =~ ^n2" "+PASS" "+FAIL ]]
  for node in n0 n3; do [[ $(result $node) =~ ^$node" "+PASS ]]; done
}

@test "self-test: a program that one node lacks is a failure of that node" {
  repairs+=('"$cluster" on n1 umount "$bin/ddp-selftest"')
  "$cluster" on n1 mount --bind /dev/null "$bin/ddp-selftest"
  selftest
  [ "$status" -eq 1 ]
  [[ $(result n1) =~ ^n1" "+FAIL" ".*ddp-selftest ]]
  for node in n0 n2 n3; do [[ $(result $node) =~ ^$node" "+PASS" "+PASS" "+PASS ]]; done
}

@test "self-test: a node with fewer processors passes with a warning" {
  cores=$(nproc)
  [ "$cores" -ge 2 ] || skip "needs two processors"
  first_cpu=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
  slurmd=$("$cluster" on n3 pgrep -o slurmd)
  all=$("$cluster" on n3 taskset -cp "$slurmd" | sed 's/.*: //')
  repairs+=('"$cluster" on n3 taskset -acp "$all" "$slurmd"')
  "$cluster" on n3 taskset -acp "$first_cpu" "$slurmd"
  selftest
  [ "$status" -eq 0 ]
  [[ $(result n3) =~ ^n3" "+WARN" ".*"share 1 processor ($first_cpu)" ]]
  [[ $(result n0) =~ ^n0" "+PASS ]]
}

@test "self-test: bad input is refused" {
  submit SELFTEST_TIMEOUT=soon -N1 "$root/scripts/ddp-selftest.sbatch"
  finish
  [ "$status" -eq 2 ]
  [[ $output == *"SELFTEST_TIMEOUT must be a number of seconds"* ]]
  for arguments in "--timeout 0" "--timeout 3601" "--timeout" "--timeout=x" "--quick"; do
    run -2 "$bin/ddp-selftest" $arguments
    [[ $output == "ddp-selftest: reading "* ]]
  done
  run -2 "$bin/ddp-selftest" --expectstore
  [[ $output == *"did you mean '--expect-store'?" ]]
  run -0 "$bin/ddp-selftest" --vers
}

@test "ddp-selftest: a rank that never comes is named by all others within the limit" {
  SECONDS=0
  run timeout 120 "$cluster" run srun --mpi=pmix -N3 --ntasks-per-node=2 --kill-on-bad-exit=0 bash -c \
    '[ $SLURM_PROCID != 3 ] || exec sleep 20; exec "$0" --timeout 10' "$bin/ddp-selftest"
  [ "$status" -ne 0 ]
  [ "$SECONDS" -lt 60 ]
  expect_all 5 "did not arrive before the deadline (rank 3)"
  expect_all 2 "ddp-selftest: n2: rank"
  [[ $output != *PASS* ]]
}

@test "ddp-selftest: a node that does not reach the store fails, and those that waited for it do not" {
  run timeout 120 "$cluster" run salloc -Q -N3 "$bin/ddprun" --nproc-per-node 1 --failure-grace 20 sh -c \
    '[ $GROUP_RANK != 1 ] || export MASTER_PORT=1; exec "$0" --timeout 10 --expect-store' "$bin/ddp-selftest"
  [ "$status" -eq 1 ]
  echo "$output"
  [[ $(grep '^n1 ' <<<"$output") =~ ^n1" "+FAIL" "+1" "+"store: rank 1: connecting to "[0-9.]+":1: Connection refused" ]]
  for node in n0 n2; do grep -qE "^$node +---- +. +store: .*rank 1" <<<"$output"; done
  [[ $output == *"0 of 3 nodes passed"* ]]
}
