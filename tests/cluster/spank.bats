#!/usr/bin/env bats
# `srun --ddp` on a real Slurm: the environment and store of tasks, the MPI type, nothing without --ddp, each way to start
# a step. Programs are in spank_programs.bats; what happens when things die or are missing, in spank_faults.bats.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  check="$root/tests/support/check_step_environment.py"
  # What a task says of itself, in one write.
  report="echo ENV \$(hostname) \$(env | grep -E '^(SLURM_(PROCID|NODEID|LOCALID|STEP_NUM_TASKS|JOB_ID|STEP_ID|DDP_STEP)|(ROLE|LOCAL|GROUP|NODE|TORCHELASTIC|MASTER)_[A-Z_]*|RANK|WORLD_SIZE)=')"
  facts='echo "FACTS RANK=$RANK WORLD_SIZE=$WORLD_SIZE PORT=$MASTER_PORT PMIX=$PMIX_NAMESPACE PMI_FD=$PMI_FD CPUS=$SRUN_CPUS_PER_TASK"'
}

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

@test "--ddp-as and --ddp-imitate: variables of Horovod's and Open MPI's ranks, which are 3, 1 and 1 of a node" {
  run srun --ddp --ddp-as mpi4py --ddp-imitate=mpirun,horovodrun -N3 -n5 sh -c \
    'echo "VALUES $DDP_AS $OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE $HOROVOD_RANK $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE"'
  succeeded
  [ "$(grep ^VALUES <<<"$output" | sort)" = "VALUES mpi4py 0/5 0 0/3 0/3
VALUES mpi4py 1/5 1 1/3 0/1
VALUES mpi4py 2/5 2 2/3 0/1
VALUES mpi4py 3/5 3 0/1 1/3
VALUES mpi4py 4/5 4 0/1 2/3" ] || { echo "$output"; return 1; }
  run srun --ddp -n1 sh -c 'echo "VALUES ${DDP_AS-none} ${HOROVOD_RANK-none} ${OMPI_COMM_WORLD_RANK-none}"'
  [[ $output == *"VALUES none none none"* ]]
}

@test "the environment is right where the user names each task's node" {
  printf '%s\n' n2 n0 n2 n1 n0 >"$shared/hosts"
  run on_ctl env SLURM_HOSTFILE="$shared/hosts" srun --ddp -n5 -m arbitrary sh -c "$report"
  succeeded
  "$check" 5 3 <<<"$output"
  # The check itself sees a wrong rank, a port of another store and the plugin's own variable.
  local right=$output
  for wrong in "${right/ RANK=4/ RANK=3}" "${right/MASTER_PORT=/MASTER_PORT=7}" "${right/ENV n2/ENV n2 SLURM_DDP_STEP=1}"; do
    [ "$wrong" != "$right" ]
    run -1 "$check" 5 3 <<<"$wrong"
  done
}

@test "what the user has set stays: settings of OpenMP, NCCL and PyTorch's gloo" {
  run on_ctl env OMP_NUM_THREADS=7 NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0 TORCH_NCCL_ASYNC_ERROR_HANDLING=3 \
    OMP_PROC_BIND=close srun --ddp -N1 -n2 sh -c 'echo "FACTS OMP=$OMP_NUM_THREADS NCCL=$NCCL_SOCKET_IFNAME GLOO=$GLOO_SOCKET_IFNAME ASYNC=$TORCH_NCCL_ASYNC_ERROR_HANDLING PROC=$OMP_PROC_BIND"'
  succeeded
  expect_facts 2 OMP=7 NCCL=eth0 GLOO=eth0 ASYNC=3 PROC=close
  run srun --ddp -N1 -n2 sh -c 'echo "FACTS OMP=$OMP_NUM_THREADS GLOO=$GLOO_SOCKET_IFNAME"'
  [ "$(fact OMP)" != 7 ] && [ -n "$(fact OMP)" ] && [ "$(fact GLOO)" = lo ] || { echo "$output"; return 1; }
}

@test "what a batch script has exported for torchrun is replaced by what is true" {
  run on_ctl env RANK=9 WORLD_SIZE=99 LOCAL_RANK=9 MASTER_ADDR=nowhere MASTER_PORT=1 srun --ddp -N2 -n3 sh -c "$report"
  succeeded
  "$check" 3 2 <<<"$output"
}

# The environment, limits, open files and processors of a task. Values of these variables differ from step to step: times, ids
# of job, process and namespace, ports, and folders that have an id in their name; so do the numbers of descriptors.
task_view() {
  srun -Q -N1 -n1 -w n0 "$@" bash -c 'env; cat /proc/self/limits; umask; find /proc/self/fd -printf "open %l\n" | sed -E "s/[0-9]+//g"; grep -i -e allowed -e "^Sig[BIC]" /proc/self/status' |
    sed -E 's/^(SLURM_(JOBID|JOB_ID|JOB_START_TIME|JOB_END_TIME|TASK_PID|SRUN_COMM_PORT|STEP_LAUNCHER_PORT|PMIXP_ABORT_AGENT_PORT)|PMI_(JOBID|FD)|PMIX_(NAMESPACE|SERVER_URI[0-9]*|DSTORE_[A-Z0-9_]*|SERVER_TMPDIR)|OMPI_MCA_orte_precondition_transports)=.*/\1/' | sort
}

@test "without --ddp a step is the same with the plugin and without it" {
  for mpi in none pmix pmi2; do task_view --mpi=$mpi >"$shared/with.$mpi"; done
  spank_jobs_teardown_file
  for mpi in none pmix pmi2; do task_view --mpi=$mpi >"$shared/without.$mpi"; done
  use_helper "$DDP_STEP"
  for mpi in none pmix pmi2; do
    grep -q ^SLURM_PROCID=0 "$shared/with.$mpi"
    diff "$shared/without.$mpi" "$shared/with.$mpi"
  done
  task_view --mpi=pmix --ddp >"$shared/asked"
  run -1 diff "$shared/without.pmix" "$shared/asked"
  [[ $output == *"> MASTER_PORT="* ]]
}

@test "--ddp as an argument of the program is the program's" {
  run srun -N1 -n2 sh -c "$facts"' PROGRAM=$1' program --ddp
  succeeded
  expect_facts 2 RANK= PORT= PMIX= PROGRAM=--ddp
  run srun -N1 -n2 -- sh -c "$facts; echo \"\$@\"" program --ddp --ddp-bind=nuam
  succeeded
  expect_facts 2 RANK= PORT= PMIX=
  expect_all 2 "--ddp --ddp-bind=nuam"
}

@test "PMIx is chosen when the user chooses nothing, and the user's choice wins" {
  unset SLURM_MPI_TYPE
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
  unset SLURM_MPI_TYPE
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
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N2 -n3 sh -c "$facts; exec python3 ${root@Q}/tests/support/c10d_client.py"
  succeeded
  expect_facts 3 PMIX= PMI_FD=
  expect_all 3 "STORE "
  expect_all 1 "no PMI for this step"
  expect_all 1 warning
}

@test "a site whose default is PMIx has it, and PMI-2 for a heterogeneous job's components" {
  unset SLURM_MPI_TYPE
  private_slurm MpiDefault=pmix
  sed -i '/MpiDefault=none/d' "$private_conf"
  run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N1 -n1 sh -c "$facts"
  succeeded
  [[ $(fact PMIX) == slurm.pmix.* ]] || { echo "$output"; return 1; }
  LIMIT=20 run on_ctl env SLURM_CONF="$private_conf" srun --ddp -N1 -n1 sh -c "$facts" : -N1 -n1 sh -c "$facts"
  succeeded
  expect_facts 2 PMIX= WORLD_SIZE=2
  [ -n "$(fact PMI_FD)" ] || { echo "$output"; return 1; }
}

@test "SrunPortRange holds for the store, too" {
  private_slurm SrunPortRange=61000-61063
  # on rank 0's host, where the store is the one beside srun
  run "$cluster" on n0 env SLURM_CONF="$private_conf" SLURM_MPI_TYPE=pmi2 srun --ddp -w n0 -N1 -n1 sh -c "$facts"
  succeeded
  local port
  port=$(fact PORT)
  [ "$port" -ge 61000 ] && [ "$port" -le 61063 ] || { echo "$output"; return 1; }
}

@test "srun in a batch script, in salloc, and in each task of a job array" {
  batch "srun --ddp sh -c '$facts'" -N2 --ntasks-per-node=2
  succeeded
  expect_facts 4 WORLD_SIZE=4
  run on_ctl salloc -Q -N2 -n3 srun --ddp sh -c "$facts"
  succeeded
  expect_facts 3 WORLD_SIZE=3
  batch "srun --ddp sh -c '$facts'" -a 0-2 -N1 -n2
  succeeded
  expect_facts 6 WORLD_SIZE=2
}

@test "sbatch --ddp and salloc --ddp are for the steps inside, and neither for the script" {
  batch "env | grep -E '^(RANK|MASTER_PORT|SLURM_DDP_STEP)='; srun sh -c '$facts'; srun --ddp-bind=core -N1 -n1 sh -c '$facts'" -N2 -n2 \
    --ddp --ddp-verbose
  succeeded
  expect_all 3 FACTS
  expect_all 3 "ddp: rank"
  expect_all 1 ": 1 core (processors 0)"
  [ "$(grep -cE '^(RANK|MASTER_PORT|SLURM_DDP_STEP)=' <<<"$output")" -eq 0 ]
  run on_ctl salloc -Q -N2 -n2 --ddp srun sh -c "$facts"
  expect_facts 2 WORLD_SIZE=2
}

@test "SLURM_DDP=1 is --ddp, SLURM_DDP=0 is not" {
  unset SLURM_MPI_TYPE
  run on_ctl env SLURM_DDP=1 srun -N2 -n2 sh -c "$facts"
  succeeded
  expect_facts 2 WORLD_SIZE=2
  [ -n "$(fact PORT)" ]
  [[ $(fact PMIX) == slurm.pmix.* ]]
  run on_ctl env SLURM_DDP=0 srun -N2 -n2 sh -c "$facts"
  expect_facts 2 WORLD_SIZE= PORT= PMIX=
  for word in no false OFF; do
    run on_ctl env SLURM_DDP=$word srun -N1 -n1 sh -c "$facts"
    expect_facts 1 WORLD_SIZE= PORT= PMIX=
  done
  run on_ctl salloc -Q -N1 -n1 --ddp env SLURM_DDP=0 srun sh -c "$facts" # one step that does not want it
  expect_facts 1 WORLD_SIZE= PORT= PMIX=
  run on_ctl salloc -Q -N1 -n1 env SLURM_DDP=0 srun --ddp sh -c "$facts" # the command line is nearer
  expect_facts 1 WORLD_SIZE=1
}

@test "an option that changes --ddp says so when there is none" {
  run srun --ddp-bind=core -N1 -n1 sh -c "$facts"
  succeeded
  expect_facts 1 WORLD_SIZE=
  [[ $output == *"without --ddp, --ddp-bind has no effect"* ]] || { echo "$output"; return 1; }
}

@test "--cpus-per-task of sbatch reaches the tasks, unless srun has its own" {
  batch "srun --ddp sh -c '$facts'; srun --ddp -c1 sh -c '$facts'; srun sh -c '$facts'" -N1 -n2 --cpus-per-task=2
  succeeded
  expect_all 6 FACTS
  expect_all 2 CPUS=2
}

@test "two steps of one job at once have two stores" {
  local client="python3 ${root@Q}/tests/support/c10d_client.py 40"
  batch "srun --ddp --exact --mem=0 -N2 -n2 $client & srun --ddp --exact --mem=0 -N2 -n2 $client & wait -n && wait -n" -N2 -n4
  succeeded
  [ "$(sed -n 's/^STORE \([01]\) [0-9]* 40$/\1/p' <<<"$output" | sort | tr -d '\n')" = 0011 ] || { echo "$output"; return 1; }
  [ "$(sed -n 's/^STORE . \([0-9]*\) 40$/\1/p' <<<"$output" | sort -u | wc -l)" -eq 2 ]
}

@test "steps that share an allocation: --overlap, --exclusive, and a step inside a task" {
  batch "srun --ddp -n1 -N1 --overlap sh -c '$facts; sleep 1' & srun --ddp -n2 -N2 --overlap sh -c '$facts'
    wait; srun --ddp --exclusive -n1 -N1 sh -c '$facts'" -N2 -n2
  succeeded
  expect_all 4 FACTS
  [ "$(fact PORT | wc -l)" -eq 3 ] || { echo "$output"; return 1; }
}

@test "a step inside a task: without --ddp it has no store of its own and no secret, with it its own" {
  local inner="srun --overlap --mem=0 -N1 -n1"
  run srun --ddp -N1 -n1 --overlap sh -c "$facts; $inner sh -c 'echo INNER \$RANK \$MASTER_PORT \${SLURM_DDP_STEP-no secret}'
    $inner --ddp sh -c 'echo OWN \$RANK \$MASTER_PORT \${SLURM_DDP_STEP-no secret}'"
  succeeded
  # What is in a task's environment, it hands on as any program does.
  expect_all 1 "INNER 0 $(fact PORT) no secret"
  expect_all 1 "OWN 0 "
  expect_all 2 "no secret"
  expect_all 0 "OWN 0 $(fact PORT)"
}

@test "a step inside a task is bound by its own rules, not by those of the task" {
  [ "$(nproc)" -ge 2 ] || skip "needs two processors"
  run srun --ddp -N1 -n1 -c2 --overlap srun --ddp --ddp-verbose --overlap --mem=0 -N1 -n2 -c1 true
  succeeded
  expect_all 2 "1 core (processors"
}

@test "--export=NONE, --multi-prog, --pty" {
  run srun --ddp --export=NONE -N2 -n2 /bin/sh -c "$facts"
  succeeded
  expect_facts 2 WORLD_SIZE=2
  [ -n "$(fact PORT)" ]
  printf '%s\n' "$facts" >"$shared/report.sh"
  printf '0 sh %s\n1-3 sh %s other\n' "$shared/report.sh" "$shared/report.sh" >"$shared/programs"
  run srun --ddp -N2 -n4 --multi-prog "$shared/programs"
  succeeded
  expect_facts 4 WORLD_SIZE=4
  [ "$(fact RANK | tr -d '\n')" = 0123 ]
  SHELL=/bin/sh run script -qec "timeout --foreground -k 5 30 ${cluster@Q} run srun --ddp --pty -n1 sh -c 'test -t 0 && echo PTY \$RANK \$MASTER_PORT; stty size'" \
    /dev/null </dev/null
  succeeded
  [[ $output =~ PTY\ 0\ [1-9] ]] || { echo "$output"; return 1; }
}

# Over PMI-2 they would wait for each other forever.
@test "components in an ordinary allocation are one world at the store" {
  unset SLURM_MPI_TYPE
  local client="python3 ${root@Q}/tests/support/c10d_client.py"
  local each="$facts; $client; exec ${rank_program@Q} world"
  run on_ctl salloc -Q -N3 -n3 srun --ddp -N1 -n1 sh -c "$each" : -N2 -n2 sh -c "$each"
  succeeded
  expect_facts 3 WORLD_SIZE=3 PMIX= PMI_FD=
  [ "$(fact RANK | tr -d '\n')" = 012 ]
  [ "$(fact PORT | wc -l)" -eq 1 ]
  expect_all 3 "STORE "
  expect_all 3 '"world_size": 3'
  expect_all 1 "no PMI for this step"
  run on_ctl salloc -Q -N3 -n3 srun --ddp --mpi=pmi2 -N1 -n1 true : -N2 -n2 true
  [ "$status" -ne 0 ]
  [[ $output == *"PMI-2 does not join the components"* ]] || { echo "$output"; return 1; }
}

@test "a heterogeneous job: all of its components, and one of them" {
  unset SLURM_MPI_TYPE
  cat >"$shared/job" <<JOB
#!/bin/bash
#SBATCH -N1 -n1
#SBATCH hetjob
#SBATCH -N1 -n2
srun --ddp --het-group=0,1 sh -c '$facts'
srun --ddp --het-group=1 sh -c '$facts" ONE=1"'
echo ENDED
JOB
  run on_ctl sbatch -o "$shared/batch" "$shared/job"
  succeeded
  run on_ctl srun --ddp -N1 -n1 sh -c "$facts; exec ${rank_program@Q} world" : -N1 -n2 sh -c "$facts; exec ${rank_program@Q} world"
  succeeded
  expect_facts 3 WORLD_SIZE=3 PMIX=
  [ "$(fact PORT | wc -l)" -eq 1 ]
  expect_all 3 '"source": "pmi2"'
  eventually 60 grep -q ENDED "$shared/batch"
  output=$(grep -v ONE=1 "$shared/batch")
  expect_facts 3 WORLD_SIZE=3 PMIX=
  output=$(grep ONE=1 "$shared/batch")
  expect_facts 2 WORLD_SIZE=2
  [ -n "$(fact PMIX)" ] || { echo "$output"; return 1; } # as any step of one component
}

# The highest number of a job that Slurm knows.
newest_job() { on_ctl scontrol show job -o | sed -n 's/^JobId=\([0-9]*\).*/\1/p' | sort -n | tail -n 1 | grep . || echo 0; }

@test "a word that is not accepted ends the command before there is a job, and says what is" {
  local before
  before=$(newest_job)
  run srun --ddp --ddp-bind=nuam -n1 true
  [ "$status" -ne 0 ]
  [[ $output == *"'nuam'"*"numa, core, socket, none"*"did you mean 'numa'"* ]] || { echo "$output"; return 1; }
  for words in --ddp SLURM_DDP=1; do
    run on_ctl env DDP_GPUS=some ${words#--ddp} srun ${words%SLURM_DDP=1} -n1 true
    [ "$status" -ne 0 ]
    [[ $output == *"DDP_GPUS"*"'some'"*"all, one, none"* ]] || { echo "$output"; return 1; }
  done
  run on_ctl sbatch --ddp --ddp-backend=MPI --wrap true
  [ "$status" -ne 0 ]
  [[ $output == *"'MPI'"*"auto, host, cpu, gloo, nccl"* ]] || { echo "$output"; return 1; }
  run srun --ddp --ddp-as=numpy -n1 true
  [ "$status" -ne 0 ]
  [[ $output == *"'numpy' is neither horovod nor mpi4py"* ]] || { echo "$output"; return 1; }
  run srun --ddp --ddp-backend=ncll -n1 true
  [ "$status" -ne 0 ]
  [[ $output == *"there is no backend 'ncll'"*"did you mean 'nccl'"* ]] || { echo "$output"; return 1; }
  run on_ctl env DDP_BACKEND=mine srun --ddp -n1 true
  [ "$status" -ne 0 ]
  [[ $output == *"DDP_BACKEND"*"there is no backend 'mine'"* ]] || { echo "$output"; return 1; }
  [ "$(newest_job)" -le "$before" ] # Slurm forgets old ones meanwhile
  run on_ctl env DDP_GPUS=some srun -n1 echo STARTED
  [ "$output" = STARTED ]
}
