#!/usr/bin/env bats
# The task pages in docs/howto that need Slurm, run as they stand on four nodes, and the batch script that README.md begins with;
# tests/commands/howto.bats runs the other pages. What this cluster lacks is left out of the commands: GPUs, a module system.
# DDP_TORCH_PYTHON: a Python that has torch (default: build/venv's), which some pages need.

load ../support/spank_jobs
load ../support/fake_pyxis
load ../support/pages

setup() {
  spank_jobs_setup
  LIMIT=900 # torch is imported ten times
  export root bin PATH="$bin:$PATH" SLURM_MPI_TYPE=pmi2
  command -v python >/dev/null || fake python <<<'exec python3 "$@"' # as on Debian
  use_helper "$DDP_STEP" # the admins' page takes it away
  export LIBDDP_ROOT=$shared/libddp
  mkdir -p "$LIBDDP_ROOT/share/libddp" "$shared/page"
  ln -s "$root/scripts/sbatch" "$LIBDDP_ROOT/share/libddp/scripts"
  cd "$shared/page"
  cat >train.py <<'PROGRAM'
import os
print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}", flush=True)
PROGRAM
  cp train.py a.py
  cp train.py b.py
  export -f module without_gpus srun salloc ddprun sbatch job_has_ended
}
teardown() {
  [ -z "${cluster:-}" ] || remove_pyxis
  cluster_jobs_teardown
}

# ---- For the pages' commands: what does not exist here ---------------------------------------------------------------

module() {
  [ "$*" = "load libddp" ] || { echo "module $*?"; return 1; }
  export CPLUS_INCLUDE_PATH=$root/libddp/include LIBRARY_PATH=${bin%/bin}/lib LD_LIBRARY_PATH=${bin%/bin}/lib
}

# Sets words: the given ones without GPUs, and two ranks a node in place of eight or one per GPU.
without_gpus() {
  local word
  words=()
  for word; do
    case $word in
      --gpus-per-node=* | --gpus=*) ;;
      --ntasks-per-node=8) words+=(--ntasks-per-node=2) ;;
      --nproc-per-node=gpu | --nproc-per-node=8) words+=(--nproc-per-node=2) ;;
      *) words+=("$word") ;;
    esac
  done
}
srun() { without_gpus "$@" && command srun "${words[@]}"; }
salloc() { without_gpus "$@" && command salloc "${words[@]}"; }
ddprun() { without_gpus "$@" && command ddprun "${words[@]}"; }

# Waits for the job, shows its output, and fails with it.
sbatch() {
  local id options=(--gpus-per-node=0 --output="$PWD/sbatch.out")
  ! cat "$@" 2>/dev/null | grep -q -e --ntasks-per-node=8 || options+=(--ntasks-per-node=2)
  without_gpus "$@"
  id=$(PROCS_PER_NODE=2 command sbatch --parsable "${options[@]}" "${words[@]}") || return 1
  until job_has_ended "$id"; do sleep 0.2; done
  cat "$(scontrol show job "$id" | sed -n 's/^ *StdOut=//p')"
  [[ $(scontrol show job "$id") == *JobState=COMPLETED* ]]
}
job_has_ended() { [[ $(scontrol show job "$1") =~ JobState=(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL) ]]; }

# ---- The pages -------------------------------------------------------------------------------------------------------

@test "howto: README's batch script starts a rank for each task" {
  page_block "$root/README.md" bash >job.sbatch
  run sbatch job.sbatch
  succeeded
  for rank in 0 1 2 3; do [[ $output == *"rank $rank of 4"* ]]; done
}

@test "howto: the quickstart" {
  use_torch
  run_page "$root/docs/quickstart.md"
}

@test "howto: an sbatch file" {
  howto sbatch
  for rank in 0 3; do grep -q "rank $rank of 4" log; done
  grep -q "rank 7 of 8" log
}

@test "howto: from torchrun" {
  use_torch
  howto torchrun
}

@test "howto: two jobs in one allocation" {
  howto several-jobs
  [ "$(grep -c "rank 7 of 8" log)" -eq 2 ]
  [ "$(grep -c "rank 3 of 4" log)" -eq 2 ]
}

@test "howto: preemption" {
  howto preemption
  grep -qE "^rank 0 starts at step [1-9]" log # where the first run was asked to stop
}

# fake PROGRAM: a script in PATH, from standard input.
fake() {
  mkdir -p "$shared/fake"
  { echo '#!/bin/bash'; cat; } >"$shared/fake/$1"
  chmod +x "$shared/fake/$1"
  export PATH="$shared/fake:$PATH"
}

@test "howto: containers and virtual environments" {
  install_pyxis
  python3 -m venv --without-pip venv
  touch pytorch.sqsh pytorch.sif
  fake apptainer <<<'[[ "$1 $2 $3 $4 $5" == "exec --nv --bind $PWD pytorch.sif" ]] || exit 2; shift 5; exec "$@"'
  howto containers
  [ "$(grep -c "rank 3 of 4" log)" -eq 4 ] # the two batch scripts, pyxis and Apptainer
}

@test "howto: install, check, upgrade, uninstall" {
  unset -f module
  . /usr/share/lmod/lmod/init/bash || skip "needs Lmod"
  export SLURM_CONF
  mkdir build
  ln -s "${bin%/bin}" build/release
  howto admin "s|/opt/libddp/0.1.0|$shared/opt|"
}

@test "howto: my job hangs" {
  start srun --mpi=pmix -N2 --ntasks-per-node=2 --job-name=hangs "$bin/rank_program" hang sleep 3
  says 4 READY
  local id
  id=$(command squeue -h -n hangs -o %A)
  eventually 60 hangs "$id"
  howto hang "s/status 1234/status --job $id/"
  command scancel --signal=KILL "$id"
}
hangs() { ! command ddp-info status --job "$1" >/dev/null; }
