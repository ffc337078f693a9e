#!/usr/bin/env bats
# `srun --ddp` on a real Slurm: the environment and store of tasks, the MPI type, nothing without --ddp, each way to start
# a step. Programs are in spank_programs.bats; what happens when things die or are missing, in spank_faults.bats.

bats_require_minimum_version 1.5.0
load ../support/spank_jobs

setup_file() { spank_jobs_setup_file; }
teardown_file() { spank_jobs_teardown_file; }

setup() {
  spank_jobs_setup
  check="$root/tests/support/check_step_environment.py"
  # What a task says of itself, in one write.
  report="echo ENV \$(hostname) \$(env | grep -E '^(SLURM_(PROCID|NODEID|LOCALID|STEP_NUM_TASKS|JOB_ID|STEP_ID|DDP_STEP)|(ROLE|LOCAL|GROUP|NODE|TORCHELASTIC|MASTER)_[A-Z_]*|RANK|WORLD_SIZE)=')"
  facts='echo "FACTS RANK=$RANK WORLD_SIZE=$WORLD_SIZE PORT=$MASTER_PORT PMIX=$PMIX_NAMESPACE PMI_FD=$PMI_FD STEP=$SLURM_STEP_ID CPUS=$SRUN_CPUS_PER_TASK"'
}

teardown() { spank_jobs_teardown; }

# right_environment TASKS NODES SRUN_OPTION...
right_environment() {
  local tasks=$1 nodes=$2
  shift 2
  run srun --ddp -n "$tasks" "$@" sh -c "$report"
  succeeded
  "$check" "$tasks" "$nodes" <<<"$output" || { echo "srun --ddp -n $tasks $*"; return 1; }
}

# private_slurm LINE...: sets private_conf, a configuration for the commands that name it.
private_slurm() {
  private_conf="$shared/slurm.conf"
  grep -v -e '^PluginDir=' "$DDP_CLUSTER_DIR/etc/slurm.conf" >"$private_conf"
  printf '%s\n' "$@" >>"$private_conf"
  cp "$DDP_CLUSTER_DIR"/etc/cgroup.conf "$shared/"
}

# expect_facts COUNT NAME=VALUE...: so many tasks reported, and all say this.
expect_facts() {
  expect_all "$1" FACTS
  shift
  local each
  for each in "$@"; do
    [ "$(fact "${each%%=*}")" = "${each#*=}" ] || { echo "not all tasks have $each"; echo "$output"; return 1; }
  done
}

@test "the environment is right for every placement" {
  right_environment 8 4 -N4 --ntasks-per-node=2
  right_environment 7 3 -N3
  right_environment 7 3 -N3 -m cyclic
  right_environment 9 3 -N3 -m plane=2
  right_environment 1 1 -N1
  right_environment 16 4 -N4
}

@test "the environment is right where the user names each task's node" {
  printf '%s\n' n2 n0 n2 n1 n0 >"$shared/hosts"
  LIMIT=60 run on_ctl env SLURM_HOSTFILE="$shared/hosts" srun --ddp -n5 -m arbitrary sh -c "$report"
  succeeded
  "$check" 5 3 <<<"$output"
  # The check itself sees a wrong rank, a port of another store and the plugin's own variable.
  ! "$check" 5 3 <<<"${output/ RANK=4/ RANK=3}"
  ! sed 's/\(SLURM_PROCID=4 .*MASTER_PORT=\)[0-9]*/\17/; s/MASTER_PORT=[0-9]*\(.*SLURM_PROCID=4\)/MASTER_PORT=7\1/' \
    <<<"$output" | "$check" 5 3
  ! sed 's/$/ SLURM_DDP_STEP=1;2/' <<<"$output" | "$check" 5 3
}

@test "what the user has set stays: OpenMP, NCCL and Gloo settings" {
  run on_ctl env OMP_NUM_THREADS=7 NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0 TORCH_NCCL_ASYNC_ERROR_HANDLING=3 \
    OMP_PROC_BIND=close srun --ddp -N1 -n2 sh -c 'echo "FACTS OMP=$OMP_NUM_THREADS NCCL=$NCCL_SOCKET_IFNAME GLOO=$GLOO_SOCKET_IFNAME ASYNC=$TORCH_NCCL_ASYNC_ERROR_HANDLING PROC=$OMP_PROC_BIND"'
  succeeded
  expect_facts 2 OMP=7 NCCL=eth0 GLOO=eth0 ASYNC=3 PROC=close
  run srun --ddp -N1 -n2 sh -c 'echo "FACTS OMP=$OMP_NUM_THREADS GLOO=$GLOO_SOCKET_IFNAME"'
  [ "$(fact OMP)" != 7 ] && [ -n "$(fact OMP)" ] && [ "$(fact GLOO)" = lo ] || { echo "$output"; return 1; }
}

@test "what a batch script has exported for torchrun is replaced by what is true" {
  run on_ctl env RANK=9 WORLD_SIZE=99 LOCAL_RANK=9 MASTER_ADDR=nowhere MASTER_PORT=1 NODE_RANK=9 srun --ddp -N2 -n3 sh -c "$report"
  succeeded
  "$check" 3 2 <<<"$output"
}

# The environment, limits, descriptors and processors of a task. Values of these variables differ from step to step: ids
# of job, process and namespace, ports, and folders that have an id in their name.
task_view() {
  srun -N1 -n1 -w n0 "$@" bash -c 'env; cat /proc/self/limits; umask; ls /proc/self/fd; grep -i -e allowed -e ^Sig /proc/self/status' |
    sed -E 's/^(SLURM_(JOBID|JOB_ID|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|PMIXP_ABORT_AGENT_PORT)|PMI_JOBID|PMIX_(NAMESPACE|SERVER_URI[0-9]*|DSTORE_[A-Z0-9_]*|SERVER_TMPDIR))=.*/\1/' | sort
}

@test "without --ddp a step is the same with the plugin and without it" {
  for mpi in none pmix pmi2; do task_view --mpi=$mpi >"$shared/with.$mpi"; done
  task_view sh -c 'shift; exec "$@"' --ddp bash >"$shared/argument.raw" || true
  spank_jobs_teardown_file
  for mpi in none pmix pmi2; do task_view --mpi=$mpi >"$shared/without.$mpi"; done
  use_helper "$DDP_STEP"
  for mpi in none pmix pmi2; do
    grep -q ^SLURM_PROCID=0 "$shared/with.$mpi"
    diff "$shared/without.$mpi" "$shared/with.$mpi"
  done
  task_view --mpi=pmix --ddp >"$shared/asked"
  ! diff "$shared/without.pmix" "$shared/asked" >"$shared/difference"
  grep -q '> MASTER_PORT=' "$shared/difference"
}

@test "--ddp as an argument of the program is the program's" {
  run srun -N1 -n2 sh -c "$facts"' PROGRAM=$1' program --ddp
  succeeded
  expect_facts 2 RANK= PORT= PMIX= "PROGRAM="
  run srun -N1 -n2 -- sh -c "$facts; echo \"\$@\"" program --ddp --ddp-bind=nuam
  succeeded
  expect_facts 2 RANK= PORT= PMIX=
  expect_all 2 "--ddp --ddp-bind=nuam"
}

@test "PMIx is chosen when the user chooses nothing, and the user's choice wins" {
  run srun --ddp -N2 -n2 sh -c "$facts"
  succeeded
  [[ $(fact PMIX) == slurm.pmix.* ]]
  run srun --ddp --mpi=pmi2 -N2 -n2 sh -c "$facts"
  expect_facts 2 PMIX=
  [ -n "$(fact PMI_FD)" ]
  run srun --mpi=none --ddp -N2 -n2 sh -c "$facts"
  expect_facts 2 PMIX= PMI_FD= WORLD_SIZE=2
  [ -n "$(fact PORT)" ]
  run on_ctl env SLURM_MPI_TYPE=pmi2 srun --ddp -N2 -n2 sh -c "$facts"
  expect_facts 2 PMIX=
  [ -n "$(fact PMI_FD)" ]
}

@test "a Slurm without PMIx gives PMI-2; one without both, the store and one warning" {
  local folder
  folder=$(on_ctl scontrol show config | sed -n 's/^PluginDir *= //p')
  mkdir "$shared/plugins"
  ln -s "$folder"/*.so "$shared/plugins/"
  rm "$shared"/plugins/mpi_pmix*
  private_slurm "PluginDir=$shared/plugins"
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N2 -n3 sh -c "$facts"
  succeeded
  expect_facts 3 PMIX= WORLD_SIZE=3
  [ -n "$(fact PMI_FD)" ] || { echo "$output"; return 1; }
  expect_all 0 warning
  rm "$shared"/plugins/mpi_pmi2*
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N2 -n3 sh -c "$facts; exec python3 $root/tests/support/c10d_client.py"
  succeeded
  expect_facts 3 PMIX= PMI_FD=
  expect_all 3 "STORE "
  expect_all 1 "neither PMIx nor PMI-2"
  expect_all 1 warning
}

@test "a site whose default is PMIx has it once, and its default for several components is not taken" {
  private_slurm MpiDefault=pmix
  sed -i '/MpiDefault=none/d' "$private_conf"
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N2 -n2 sh -c "$facts; echo CHOSEN=\$SLURM_MPI_TYPE"
  succeeded
  [[ $(fact PMIX) == slurm.pmix.* ]] || { echo "$output"; return 1; }
  LIMIT=20 run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N1 -n1 sh -c "$facts" : -N1 -n1 sh -c "$facts"
  succeeded
  expect_facts 2 PMIX= WORLD_SIZE=2
}

@test "SrunPortRange holds for the store, too" {
  private_slurm SrunPortRange=61000-61063
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N1 -n1 sh -c "$facts"
  succeeded
  local port
  port=$(fact PORT)
  [ "$port" -ge 61000 ] && [ "$port" -le 61063 ] || { echo "$output"; return 1; }
}

@test "srun in a batch script, in salloc, and in each task of a job array" {
  batch job "srun --ddp sh -c '$facts'" -N2 --ntasks-per-node=2
  succeeded
  expect_facts 4 WORLD_SIZE=4
  run on_ctl salloc -Q -N2 -n3 srun --ddp sh -c "$facts"
  succeeded
  expect_facts 3 WORLD_SIZE=3
  batch array "srun --ddp sh -c '$facts'" -a 0-2 -N1 -n2
  succeeded
  expect_facts 6 WORLD_SIZE=2
  rm "$shared"/batch.*
}

@test "sbatch --ddp and salloc --ddp are for the steps inside, and neither for the script" {
  batch job "env | grep -E '^(RANK|MASTER_PORT|SLURM_DDP_STEP)='; srun sh -c '$facts'; srun --ddp-bind=none -n1 sh -c '$facts'" -N2 -n2 \
    --ddp --ddp-verbose
  succeeded
  expect_all 3 FACTS
  expect_all 3 "ddp: rank"
  expect_all 1 "not bound"
  expect_all 0 "^MASTER_PORT"
  [ "$(grep -cE '^(RANK|MASTER_PORT|SLURM_DDP_STEP)=' <<<"$output")" -eq 0 ]
  run on_ctl salloc -Q -N2 -n2 --ddp srun sh -c "$facts"
  expect_facts 2 WORLD_SIZE=2
}

@test "SLURM_DDP=1 is --ddp, SLURM_DDP=0 is not" {
  run on_ctl env SLURM_DDP=1 srun -N2 -n2 sh -c "$facts"
  succeeded
  expect_facts 2 WORLD_SIZE=2
  [ -n "$(fact PORT)" ] && [[ $(fact PMIX) == slurm.pmix.* ]]
  run on_ctl env SLURM_DDP=0 srun -N2 -n2 sh -c "$facts"
  expect_facts 2 WORLD_SIZE= PORT= PMIX=
}

@test "--cpus-per-task of sbatch reaches the tasks, unless srun has its own" {
  batch job "srun --ddp sh -c '$facts'; srun --ddp -c1 sh -c '$facts'; srun sh -c '$facts'" -N1 -n2 --cpus-per-task=2
  succeeded
  expect_all 6 FACTS
  expect_all 2 CPUS=2
}

@test "two steps of one job at once have two stores" {
  local client="python3 $root/tests/support/c10d_client.py 40"
  batch job "srun --ddp --exact --mem=0 -N2 -n2 $client & srun --ddp --exact --mem=0 -N2 -n2 $client & wait -n && wait -n" -N2 -n4
  succeeded
  [ "$(sed -n 's/^STORE \([01]\) [0-9]* 40$/\1/p' <<<"$output" | sort | tr -d '\n')" = 0011 ] || { echo "$output"; return 1; }
  [ "$(sed -n 's/^STORE . \([0-9]*\) 40$/\1/p' <<<"$output" | sort -u | wc -l)" -eq 2 ]
}
