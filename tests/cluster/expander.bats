#!/usr/bin/env bats
# ddprun --replace and --grow-to: nodes that a running job requests from Slurm, and what becomes of such requests.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  export XDG_STATE_HOME="$shared/state" # all nodes see it, as a home folder
  printf '#!/bin/bash\necho "UP $DDP_GENERATION $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $(hostname) $SEED"\n%s\n' \
    'echo "error of $(hostname)" >&2; while ! [ -e "$(dirname "$0")/go" ]; do sleep 0.1; done' >"$shared/worker"
  chmod +x "$shared/worker"
}

teardown() {
  [ -n "${BATS_TEST_COMPLETED:-}" ] || cat "$shared/out" || true
  cluster_jobs_teardown
}

# lead NODES OPTION...: a job on so many nodes
lead() {
  local nodes=$1
  shift
  SEED=5 start salloc -Q --no-kill --time=30 -N"$nodes" --exclusive "$bin/ddprun" --shutdown-timeout 3 "$@" "$shared/worker"
}
# up GENERATION RANKS: so many of it have said so
up() { [ "$(grep -c "^UP $1 ./$2 0 " "$shared/out")" -eq "$2" ]; }
three() { [ "$(grep -c '^UP [12] ./3 0 ' "$shared/out")" -eq 3 ]; }
lose() { "$cluster" on "$1" pkill -KILL -o -x ddprun; }
noted() { eventually 60 grep -Eq "^ddprun: $1" "$shared/out" || { cat "$shared/out"; return 1; }; }
jobs_are() { [ "$("$cluster" run squeue -h -o %T | sort | tr '\n' ' ')" = "$1" ]; }
clean_node() { ! "$cluster" on "$1" pgrep -x 'worker|ddprun|ddprun-attempt' >/dev/null; }
clean() {
  local node
  for node in n0 n1 n2 n3; do eventually 30 clean_node $node || { "$cluster" on $node ps axf; return 1; }; done
  eventually 30 eval '! "$cluster" run pgrep -x "srun|salloc|ddprun"'
  eventually 30 eval '[ -z "$("$cluster" run squeue -h)" ]'
  [ -z "$(ls "$shared/state/libddp/jobs")" ]
}
ends_well() {
  touch "$shared/go"
  finish
  succeeded
  clean
}

@test "--replace: another node of Slurm takes the lost one's place in a job of fixed size, on the same console" {
  lead 2 --replace
  eventually 60 up 0 2
  lose n1
  noted "requesting a node from Slurm: salloc .*--nodes=1 --time=[0-9:]+ --partition=main --cpus-per-task=16 ddprun --join [0-9]+$"
  eventually 60 up 1 2
  grep -q "^UP 1 1/2 0 n2 5$" "$shared/out"
  eventually 20 grep -q "^error of n2$" "$shared/out"
  grep -q "; 1 of 2 nodes continues with n2 (generation 1, no restart spent)$" "$shared/out"
  ends_well
}

@test "--grow-to: Slurm's free nodes join; the request for the rest is pending while the job runs, and ends with it" {
  start_other() { "$cluster" run sbatch --parsable -N1 -w n3 --exclusive --output=/dev/null --wrap "sleep 300"; }
  other=$(start_other)
  lead 1 --nnodes 1:4 --grow-to 4
  eventually 60 three
  noted "requesting up to 3 nodes from Slurm: salloc .*--nodes=1-3 "
  noted "Slurm job [0-9]+ is pending; this job continues without it$"
  "$cluster" run squeue -h -t PD -o %j | grep -qx ddprun
  touch "$shared/go"
  finish
  succeeded
  eventually 30 jobs_are "RUNNING "
  "$cluster" run scancel "$other"
  clean
}

@test "a request that Slurm refuses, or that is cancelled, is one line; the job continues, or ends where it needs the node" {
  start salloc -Q --no-kill -N2 --exclusive env SALLOC_PARTITION=none "$bin/ddprun" --nnodes 1:2 --replace "$shared/worker"
  eventually 60 up 0 2
  lose n1
  noted "no node came from Slurm: Job submit/allocate failed: Invalid partition name specified; none is requested until"
  eventually 60 up 1 1
  ends_well
  rm "$shared/go"
  other=$("$cluster" run sbatch --parsable -N2 -w n2,n3 --exclusive --output=/dev/null --wrap "sleep 300")
  lead 2 --replace
  eventually 60 up 0 2
  lose n1
  noted "Slurm job [0-9]+ is pending"
  "$cluster" run scancel --state=PENDING --user=root
  noted "no node came from Slurm: Slurm job [0-9]+: .*; none is requested until another is lost$"
  "$cluster" run scancel "$other"
  finish
  [ "$status" -ne 0 ]
  clean
}

@test "a ddprun that SIGKILL ends leaves neither a pending request nor nodes that Slurm has given" {
  other=$("$cluster" run sbatch --parsable -N1 -w n3 --exclusive --output=/dev/null --wrap "sleep 300")
  lead 1 --nnodes 1:4 --grow-to 4
  eventually 60 three
  noted "Slurm job [0-9]+ is pending"
  "$cluster" run pkill -KILL -f "^$bin/ddprun --shutdown" # not salloc
  finish
  eventually 60 jobs_are "RUNNING "
  "$cluster" run scancel "$other"
  rm "$shared/state/libddp/jobs/"*
  clean
}

@test "--replace and --grow-to where they mean nothing: one line each" {
  run -2 timeout 60 "$cluster" run "$bin/ddprun" --replace true
  [[ $output == "ddprun: "*"this ddprun does not lead a Slurm allocation of several nodes"* ]]
  run -2 timeout 60 "$cluster" run salloc -Q -N2 "$bin/ddprun" --grow-to 3 true
  [[ $output == *"--grow-to was given without --nnodes; give --nnodes MIN:3"* ]]
  run -2 timeout 60 "$cluster" run salloc -Q -N2 "$bin/ddprun" --nnodes 1:2 --grow-to 3 true
  [[ $output == *"--grow-to 3 is not within the --nnodes that was given"* ]]
}
