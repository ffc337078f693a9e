#!/usr/bin/env bats
# The batch scripts that users copy, on four nodes of a real Slurm: each does what its head says, refuses wrong
# input before anything starts, and says what is wrong.

load ../support/batch_jobs
load ../support/fake_pyxis

setup() {
  batch_jobs_setup
  templates="$root/scripts/sbatch"
}

# rejected WORDS ...: the script ends with 2 and one line that has the words, and starts nothing.
rejected() {
  local words=$1
  shift
  batch "$@"
  [ "$status" -eq 2 ]
  [ "$(wc -l <<<"$output")" -eq 1 ]
  [[ $output == *.sbatch:*"$words"* ]]
}

facts='echo "FACTS $RANK $LOCAL_RANK $WORLD_SIZE $(hostname)"'

@test "every template is valid bash, says how it is called, and begins with its directives" {
  for script in "$templates"/*.sbatch "$root/scripts/ddp-selftest.sbatch"; do
    bash -n "$script"
    [ -x "$script" ]
    grep -q "^# .*sbatch .*${script##*/}" "$script"
    # Slurm stops reading at the first command.
    [ "$(grep -n '^#SBATCH' "$script" | tail -n 1 | cut -d: -f1)" -lt "$(grep -n '^die()' "$script" | cut -d: -f1)" ]
  done
}

@test "every template refuses to run without a program, and those for srun a Python file" {
  for script in "$templates"/*.sbatch; do
    [ "${script##*/}" = joiners.sbatch ] && what="no job to join; give its id" || what="no program; give it"
    rejected "$what after the script: sbatch ${script##*/}" --gpus-per-node=0 "$script"
  done
  for name in multi_node one_task_per_gpu; do
    rejected "sbatch $name.sbatch python train.py" --gpus-per-node=0 "$templates/$name.sbatch" train.py
  done
}

@test "no template runs outside of a job" {
  for script in "$templates"/*.sbatch "$root/scripts/ddp-selftest.sbatch"; do
    run -2 env -u SLURM_JOB_ID PATH="$bin:$PATH" CONTAINER_IMAGE=x "$script" true
    [[ $output == *"start it with sbatch"* ]]
  done
}

@test "templates for ddprun say that it is missing, and load the module where there are modules" {
  for name in single_node ddprun_per_node requeue elastic joiners; do
    submit PATH=/usr/bin:/bin "$templates/$name.sbatch" true
    finish
    [ "$status" -eq 2 ]
    [[ $output == *"no ddprun in PATH"* ]]
  done
  # A function, exported as Lmod does.
  printf 'module() { echo "MODULE $*"; PATH=%q:$PATH; }; export -f module; exec sbatch "$@"\n' "$bin" >"$shared/modules"
  job=$(timeout 60 "$cluster" run env PATH=/usr/bin:/bin PROCS_PER_NODE=1 bash "$shared/modules" --parsable \
    --output="$shared/out" "$templates/single_node.sbatch" echo ran)
  finish
  [ "$status" -eq 0 ]
  [ "$output" = $'MODULE load libddp\nran' ]
  printf 'module() { echo "no such module" >&2; return 1; }; export -f module; exec sbatch "$@"\n' >"$shared/modules"
  job=$(timeout 60 "$cluster" run env PATH=/usr/bin:/bin bash "$shared/modules" --parsable --output="$shared/out" \
    "$templates/single_node.sbatch" echo ran)
  finish
  [ "$status" -eq 2 ]
  [ "$output" = "no such module" ]
}

@test "single_node: ranks on one node; a failure is the job's; two nodes and missing GPUs are refused" {
  batch PROCS_PER_NODE=3 "$templates/single_node.sbatch" sh -c "$facts"
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = $'FACTS 0 0 3 n0\nFACTS 1 1 3 n0\nFACTS 2 2 3 n0' ]
  batch PROCS_PER_NODE=2 "$templates/single_node.sbatch" sh -c '[ $RANK = 0 ] || exit 85; exec sleep 60'
  [ "$status" -eq 85 ]
  [[ $output == *"Root Cause"*"rank      : 1"* ]]
  rejected "the job has 2 nodes" PROCS_PER_NODE=2 -N2 "$templates/single_node.sbatch" true
  batch CUDA_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES= ZE_AFFINITY_MASK= "$templates/single_node.sbatch" true
  [ "$status" -ne 0 ]
  [[ $output == *"this host has no GPU"* ]]
}

@test "ddprun_per_node: ranks on all nodes, logs and a report; a rank's failure is the job's, or a restart" {
  batch PROCS_PER_NODE=2 LOG_DIR=logs -N3 "$templates/ddprun_per_node.sbatch" sh -c "$facts"
  [ "$status" -eq 0 ]
  expect_all 6 "FACTS"
  for node in n0 n1 n2; do expect_all 2 " 6 $node"; done
  [ "$(find "$shared/logs" -name stdout.log | wc -l)" -eq 6 ]
  python3 -c 'import json, sys; assert json.load(open(sys.argv[1]))["success"]' "$shared/ddprun-$job.json"
  once='[ $RANK != 3 ] || [ $TORCHELASTIC_RESTART_COUNT != 0 ] || exit 85'
  batch PROCS_PER_NODE=2 -N2 "$templates/ddprun_per_node.sbatch" sh -c "$once; echo ended"
  [ "$status" -eq 85 ]
  batch PROCS_PER_NODE=2 MAX_RESTARTS=1 -N2 "$templates/ddprun_per_node.sbatch" sh -c "$once; echo ended"
  [ "$status" -eq 0 ]
}

@test "ddprun_per_node trains with libddp" {
  batch PROCS_PER_NODE=1 -N2 "$templates/ddprun_per_node.sbatch" "$bin/train_digits" --epochs 2
  [ "$status" -eq 0 ]
  [[ $output == *[Ee]poch*2* ]]
}

@test "ddprun_per_node trains with PyTorch" {
  python=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
  "$python" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"
  batch PROCS_PER_NODE=1 PYTHON_EXEC="$python" -N2 "$templates/ddprun_per_node.sbatch" \
    "$root/tests/support/torch_job.py" collectives ddp
  [ "$status" -eq 0 ]
  expect_all 2 "CHECKED ddp"
}

@test "elastic: joiners bring a node, scancel takes it away, and the training continues to its end" {
  export XDG_STATE_HOME="$shared/state"
  wait_for_go='while ! [ -e go ]; do sleep 0.1; done'
  submit PROCS_PER_NODE=1 "$templates/elastic.sbatch" sh -c "echo \"UP \$WORLD_SIZE\"; $wait_for_go"
  base=$job
  says 2 "UP 2"
  grep -q "^elastic.sbatch: more nodes: sbatch -N COUNT joiners.sbatch $base$" "$shared/out"
  joiner=$("$cluster" run timeout 60 env PATH="$bin:$PATH" sbatch --parsable --chdir="$shared" --output="$shared/joined" \
    "$templates/joiners.sbatch" "$base")
  says 2 "UP 3"
  grep -q "^UP 3$" "$shared/joined"
  "$cluster" run scancel "$joiner"
  says 4 "UP 2"
  grep -q "left; 2 of 3 nodes continue (generation 2, no restart spent)" "$shared/out"
  touch "$shared/go"
  finish
  [ "$status" -eq 0 ]
  [ -z "$(ls "$shared/state/libddp/jobs")" ]
  batch REPLACE=1 PROCS_PER_NODE=1 "$templates/elastic.sbatch" sh -c 'grep -qz "^--replace$" /proc/[0-9]*/cmdline && echo REPLACES'
  expect_all 2 REPLACES
  rejected "MIN_NODES is 2 and MAX_NODES is 2; no node could come or go" MIN_NODES=2 MAX_NODES=2 "$templates/elastic.sbatch" true
}

@test "templates for srun --ddp say so where the plugin is not installed" {
  rejected "this srun has no --ddp" "$templates/multi_node.sbatch" true
  rejected "this srun has no --ddp" SLURM_GPUS_ON_NODE=2 --gpus-per-node=0 "$templates/one_task_per_gpu.sbatch" true
}

@test "multi_node: each task is a rank; a failure is the job's" {
  install_plugin
  batch -N3 --ntasks-per-node=2 "$templates/multi_node.sbatch" sh -c "$facts"
  [ "$status" -eq 0 ]
  expect_all 6 "FACTS"
  for node in n0 n1 n2; do expect_all 2 " 6 $node"; done
  batch "$templates/multi_node.sbatch" "$bin/train_digits" --epochs 2
  [ "$status" -eq 0 ]
  [[ $output == *[Ee]poch*2* ]]
  batch "$templates/multi_node.sbatch" sh -c '[ $RANK != 1 ] || exit 85; exec sleep 60'
  [ "$status" -ne 0 ] # the highest of all tasks: srun ends the others
  [[ $output == *"task 1: Exited with exit code 85"* ]]
}

@test "one_task_per_gpu: no GPUs, or one for each task, is refused" {
  rejected "the job has no GPUs" --gpus-per-node=0 "$templates/one_task_per_gpu.sbatch" true
  rejected "--gpus-per-task was given" SLURM_GPUS_ON_NODE=2 SLURM_GPUS_PER_TASK=1 --gpus-per-node=0 \
    "$templates/one_task_per_gpu.sbatch" true
}

@test "one_task_per_gpu: as many ranks as GPUs" {
  install_plugin
  # These nodes have no GPUs: the job is told that it has, which srun does not need to know.
  batch SLURM_GPUS_ON_NODE=3 --gpus-per-node=0 "$templates/one_task_per_gpu.sbatch" sh -c "$facts"
  [ "$status" -eq 0 ]
  for node in n0 n1; do expect_all 3 " 6 $node"; done
}

@test "container: a missing image, pyxis or plugin is refused before anything starts" {
  rejected "set CONTAINER_IMAGE" "$templates/container.sbatch" true
  rejected "the image './nothing.sqsh' cannot be read" CONTAINER_IMAGE=./nothing.sqsh "$templates/container.sbatch" true
  rejected "pyxis is not installed" CONTAINER_IMAGE=ubuntu:24.04 "$templates/container.sbatch" true
  install_pyxis
  rejected "this srun has no --ddp" CONTAINER_IMAGE=ubuntu:24.04 "$templates/container.sbatch" true
}

@test "container: srun gets image, mounts and working folder, and each task is a rank" {
  install_plugin
  install_pyxis
  batch CONTAINER_IMAGE=ubuntu:24.04 CONTAINER_MOUNTS=/data:/data:ro "$templates/container.sbatch" \
    sh -c "$facts"' "$FAKE_IMAGE $FAKE_MOUNTS $FAKE_WORKDIR"'
  [ "$status" -eq 0 ]
  expect_all 4 "ubuntu:24.04 $shared:$shared,/data:/data:ro $shared"
  for node in n0 n1; do expect_all 2 " 4 $node "; done
}

# ---- Queueing again --------------------------------------------------------------------------------------------------

# A program that counts to $2 and keeps its place in $1.RANK. It saves on SIGUSR1 and, as it should, every now and then.
write_counter() {
  cat >"$shared/counter" <<'PROGRAM'
#!/bin/bash
stop=false
trap 'stop=true' USR1
step=$(cat "$1.$RANK" 2>/dev/null || echo 0)
echo "START $RANK at $step"
while [ "$step" -lt "$2" ]; do
  step=$((step + 1)) last=$stop # the signal may come between the next two lines
  if $last || [ $((step % 5)) -eq 0 ]; then echo $step >"$1.$RANK.new" && mv "$1.$RANK.new" "$1.$RANK"; fi
  if $last; then echo "SAVED $RANK at $step"; exit 0; fi
  sleep 0.05
done
echo "ENDED $RANK at $step"
PROGRAM
  chmod +x "$shared/counter"
}

# run_again: lets a job begin that Slurm holds back for two minutes after it has been queued again. Were it to begin while
# the end of its last run is still on the way to slurmctld, that would count as the end of the new one.
run_again() {
  for _ in $(seq 300); do
    [ "$(job_field Restarts)" = "$1" ] && ! "$cluster" run pgrep -f "slurmstepd: \[$job\." >/dev/null && break
    sleep 0.2
  done
  sleep 1
  for _ in $(seq 300); do
    if [ "$(job_field Restarts)" = "$1" ] && [ "$(job_field JobState)" != COMPLETING ]; then
      "$cluster" run scontrol update JobId="$job" StartTime=now 2>/dev/null || true
      if [ "$(job_field JobState)" = RUNNING ]; then return 0; fi
    fi
    sleep 0.2
  done
  echo "job $job did not run again:"
  "$cluster" run scontrol show job "$job"
  cat "$shared/out"
  return 1
}

# expect_resumed: the ranks started for the second time where they had saved.
expect_resumed() {
  local rank saved
  for rank in 0 1 2 3; do
    saved=$(sed -nE "s/^SAVED $rank at (.*)/\1/p" <<<"$output")
    [ -n "$saved" ] && [ "$(grep "^START $rank " <<<"$output" | tail -n 1)" = "START $rank at $saved" ]
  done
}

@test "requeue: on SIGUSR1 all ranks save, the job is requeued, and resumes where it was" {
  write_counter
  # So far that only a job that goes on reaches it in time: the second run gets what is left.
  submit PROCS_PER_NODE=2 "$templates/requeue.sbatch" "$shared/counter" "$shared/checkpoint" 100
  says 1 "START 3 at 0"
  "$cluster" run scancel --signal=USR1 --batch "$job"
  eventually 60 grep -qF "requeueing job $job" "$shared/out"
  run_again 1
  finish
  [ "$status" -eq 0 ]
  [[ $output == *"run 1 of at most 20"*"run 2 of at most 20"* ]]
  expect_all 4 "SAVED"
  expect_all 4 "ENDED"
  expect_resumed
}

@test "requeue: after preemption the job resumes from the last checkpoint" {
  write_counter
  submit PROCS_PER_NODE=2 "$templates/requeue.sbatch" "$shared/counter" "$shared/checkpoint" 200
  for rank in 0 1 2 3; do
    for _ in $(seq 300); do [ ! -e "$shared/checkpoint.$rank" ] || break; sleep 0.1; done
    [ -e "$shared/checkpoint.$rank" ]
  done
  "$cluster" run scontrol requeue "$job" # what preemption with PreemptMode=REQUEUE does
  run_again 1
  finish
  [ "$status" -eq 0 ]
  expect_all 4 "ENDED"
  expect_all 8 "START"
  expect_all 4 "at 0"
  expect_all 0 "SAVED"
}

@test "requeue: a program that fails, has no handler, or never makes progress is not requeued" {
  batch PROCS_PER_NODE=1 "$templates/requeue.sbatch" sh -c 'exit 85'
  [ "$status" -eq 85 ]
  submit PROCS_PER_NODE=1 "$templates/requeue.sbatch" sh -c 'echo READY; exec sleep 100'
  says 1 READY
  "$cluster" run scancel --signal=USR1 --batch "$job"
  finish
  [ "$status" -eq 138 ]
  [[ $output == *"(138: no handler); not requeued"* ]]
  rejected "this would be run 3, and MAX_RUNS is 2" SLURM_RESTART_COUNT=2 MAX_RUNS=2 "$templates/requeue.sbatch" true
}
