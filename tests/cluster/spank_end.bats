#!/usr/bin/env bats
# How a step with `srun --ddp` ends when a rank fails, and what is said of it: whose fault it was, and which node was not
# like the others.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  repairs=()
}
teardown() {
  [ -n "${cluster:-}" ] || return 0
  local repair
  for repair in ${repairs[@]+"${repairs[@]}"}; do eval "$repair" || true; done
  cluster_jobs_teardown
}

# without_plugin NODE: its plugstack.conf includes nothing.
without_plugin() {
  repairs+=("'$cluster' on $1 umount '$DDP_CLUSTER_DIR/etc/plugstack.conf.d'")
  "$cluster" on "$1" mount -t tmpfs tmpfs "$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
}

# in_place NODE PATH REPLACEMENT: the node sees another file there.
in_place() {
  repairs+=("'$cluster' on $1 umount '$2'")
  "$cluster" on "$1" mount --bind "$3" "$2"
}

failing='[ $RANK != 1 ] || { sleep 0.5; exit 3; }; exec sleep 97654'

@test "a rank that fails ends the step, and one line names rank, host and exit code" {
  SECONDS=0
  run srun --ddp -w n0,n1 -N2 -n4 sh -c "$failing"
  [ "$status" -ne 0 ] && [ "$SECONDS" -lt 20 ] || { echo "after $SECONDS s"; echo "$output"; return 1; }
  expect_all 1 "srun --ddp: rank"
  expect_all 1 "srun --ddp: rank 1 on n0 failed with exit code 3; the step ends"
  # then ddprun's report
  expect_all 1 "sh FAILED"
  expect_all 1 "4 ranks on 2 nodes"
  expect_all 1 "rank      : 1 (local_rank: 1)"
  expect_all 1 "exitcode  : 3 (pid: "
  expect_all 1 "3 other ranks were ended by Slurm."
  eventually 10 not_running -f 'sleep 97654'
  clean
}

@test "a rank that a signal ends is named by it, on every MPI type" {
  for mpi in pmix none; do
    run srun --ddp --mpi=$mpi -w n0,n1 -N2 -n2 sh -c '[ $RANK != 1 ] || { sleep 0.5; kill -SEGV $$; }; exec sleep 97654'
    [ "$status" -ne 0 ]
    expect_all 1 "srun --ddp: rank 1 on n1 was ended by SIGSEGV (11)"
  done
}

@test "the user's --kill-on-bad-exit, SLURM_KILL_BAD_EXIT and --no-kill win, and a task's own srun inherits nothing" {
  local goes_on='[ $RANK != 1 ] || exit 3; sleep 3; echo FACTS KILL=$SLURM_KILL_BAD_EXIT'
  local choice steps=()
  for choice in --kill-on-bad-exit=0 -K0 --no-kill; do # side by side
    srun --ddp $choice -w n0,n1 -N2 -n4 sh -c "$goes_on" >"$shared/out.$choice" 3>&- &
    steps+=($!)
  done
  for choice in --kill-on-bad-exit=0 -K0 --no-kill; do
    status=0
    wait "${steps[0]}" || status=$?
    steps=("${steps[@]:1}")
    output=$(cat "$shared/out.$choice")
    [ "$status" -eq 3 ] || { echo "$choice: $status"; echo "$output"; return 1; }
    expect_all 3 "FACTS KILL="
    expect_all 1 "rank 1 on n0 failed with exit code 3; the step continues"
  done
  run on_ctl env SLURM_KILL_BAD_EXIT=0 srun --ddp -w n0,n1 -N2 -n4 sh -c "$goes_on"
  expect_all 3 "FACTS KILL=0"
  run srun --ddp -N1 -n2 sh -c 'echo FACTS KILL=$SLURM_KILL_BAD_EXIT'
  [ "$(fact KILL)" = "" ]
  run srun -w n0,n1 -N2 -n4 sh -c '[ $SLURM_PROCID != 1 ] || exit 3; sleep 3; echo FACTS' # without --ddp, Slurm's default
  expect_all 3 FACTS
}

@test "a rank that ended with 0 early is named when another fails, and only then" {
  run srun --ddp -N4 -n4 sh -c '[ $RANK != 2 ] || exit 0; sleep 1.5; [ $RANK != 0 ] || exit 1; exec sleep 97654'
  [ "$status" -ne 0 ]
  expect_all 1 "rank 0 on n0 failed with exit code 1; the step ends"
  [[ $output =~ "Ended early: rank 2 (n2) ended with exit code 0, "[0-9.]+" s before the first failure" ]] || { echo "$output"; return 1; }
  run srun -Q --ddp -N4 -n4 sh -c '[ $RANK != 2 ] || exit 0; sleep 1.5'
  succeeded
  [ -z "$output" ] || { echo "$output"; return 1; }
}

@test "components of a step have ranks of the whole step in these lines" {
  unset SLURM_MPI_TYPE
  LIMIT=40 run on_ctl salloc -Q -w n0,n1 -N2 -n2 srun --ddp -N1 -n1 sleep 20 : -N1 -n1 sh -c 'sleep 1; exit 4'
  [ "$status" -ne 0 ]
  expect_all 1 "srun --ddp: rank 1 on n1 failed with exit code 4"
}

@test "a node without the plugin is named within the limit, though its task fails before the others have started" {
  without_plugin n2
  SECONDS=0
  run srun --ddp -N4 -n4 sh -c '[ -n "$RANK" ] || { sleep 2; echo "RANK expected"; exit 1; }; exec sleep 97654'
  [ "$status" -ne 0 ] && [ "$SECONDS" -lt 25 ] || { echo "after $SECONDS s"; echo "$output"; return 1; }
  expect_all 1 "RANK expected"
  [[ $output == *"n2 did not take part"*"plugin"* ]] || { echo "$output"; return 1; }
  expect_all 0 "srun --ddp: rank"
  eventually 10 not_running -f 'sleep 97654'
  clean
}

@test "a node whose plugin cannot be loaded, for want of a library, is like one without it" {
  echo "no library" >"$shared/plugin.so"
  in_place n1 "$SPANK_PLUGIN" "$shared/plugin.so"
  run srun --ddp -w n0,n1 -N2 -n2 sh -c '[ -n "$RANK" ] || { sleep 2; exit 1; }; exec sleep 97654'
  [ "$status" -ne 0 ]
  [[ $output == *"n1 did not take part"* ]] || { echo "$output"; return 1; }
}

@test "a node whose ddp-step is missing, lacks a library or is of another version is named with the reason" {
  printf '#!/bin/sh\necho "error while loading shared libraries: libhwloc.so.15" >&2; exit 127\n' >"$shared/unloadable"
  printf '#!/bin/bash\n%s "$@" | LC_ALL=C sed "s/$(%s --version | cut -d" " -f2)/9.8.7/"\n' "$shared/real" "$shared/real" >"$shared/other"
  chmod +x "$shared/unloadable" "$shared/other"
  cp "$DDP_STEP" "$shared/real"
  in_place n1 "$DDP_STEP" /dev/null
  in_place n2 "$DDP_STEP" "$shared/unloadable"
  in_place n3 "$DDP_STEP" "$shared/other"
  for node in n1 n2 n3; do srun --ddp -w n0,$node -N2 -n2 true >"$shared/out.$node" 3>&- & done # side by side
  wait
  output=$(cat "$shared/out.n1")
  [[ $output == *"ddp: warning: rank 1 on n1: "*"$DDP_STEP"*EACCES* ]] || { echo "$output"; return 1; }
  output=$(cat "$shared/out.n2")
  [[ $output == *"libhwloc.so.15"* && $output == *"ddp: warning: rank 1 on n2: "*"exit status 127"* ]] || { echo "$output"; return 1; }
  output=$(cat "$shared/out.n3")
  [[ $output == *"ddp: warning: rank 1 on n3: $DDP_STEP is of libddp 9.8.7"* ]] || { echo "$output"; return 1; }
}

@test "where no node has the plugin, that is said at the end" {
  for node in n0 n1; do without_plugin $node; done
  run srun --ddp -w n0,n1 -N2 -n2 sh -c 'sleep 3; exit 1'
  [ "$status" -ne 0 ]
  expect_all 1 "no node of this step has reported"
}
