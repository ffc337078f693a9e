#!/usr/bin/env bats
# Unmodified PyTorch on four nodes of a real Slurm under ddprun: torch's own rendezvous, collectives and DDP training.
# DDP_TORCH_PYTHON is a Python that has torch (default: build/venv's); all nodes must see it.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  export PYTHON_EXEC=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
  "$PYTHON_EXEC" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"
  torch_job="$root/tests/support/torch_job.py"
  export SHARED="$shared" LIMIT=300
}

# expect_checked RANKS TIMES CHECK...: each rank has said of each check, so many times, that it held.
expect_checked() {
  local ranks=$1 times=$2 check rank found
  shift 2
  for check in "$@"; do
    for ((rank = 0; rank < ranks; ++rank)); do
      found=$(grep -cx "CHECKED $check $rank" <<<"$output" || true)
      [ "$found" -eq "$times" ] || { echo "rank $rank: $check held $found times"; echo "$output"; return 1; }
    done
  done
}

# expect_jobs 'RANK LOCAL_RANK NODE ATTEMPT WORLD_SIZE HOST'...: the jobs' first lines.
expect_jobs() { diff <(grep '^JOB' <<<"$output" | sort) <(printf 'JOB %s\n' "$@"); }

@test "torch.distributed and DDP training over four nodes" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 1 "$torch_job" all
  succeeded
  expect_checked 4 1 store collectives point_to_point objects ddp data_loader children groups rpc
  expect_jobs '0 0 0 0 4 n0' '1 0 1 0 4 n1' '2 0 2 0 4 n2' '3 0 3 0 4 n3'
}

@test "when a rank of node 2 dies, all ranks begin again with an empty store, and training ends well" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 1 --max-restarts 1 "$torch_job" --die 2 store collectives point_to_point \
    objects ddp
  succeeded
  [[ $output == *"attempt 0 failed: rank 2 on n2 was ended by SIGKILL; restarting"* ]] || { echo "$output"; return 1; }
  expect_checked 4 2 store collectives point_to_point objects ddp
  [ "$(grep '^JOB' <<<"$output" | cut -d' ' -f5 | sort | tr '\n' ' ')" = '0 0 0 0 1 1 1 1 ' ]
}

@test "without restarts left, that rank's death is the job's end on all nodes" {
  run -137 allocation -N4 "$bin/ddprun" --nproc-per-node 1 "$torch_job" --die 2 store
  [[ $output == *"Root Cause"*"host      : n2"*"rank      : 2 (local_rank: 0)"*"SIGKILL"* ]] ||
    { echo "$output"; return 1; }
  run "$cluster" on n0 pgrep -f "$torch_job"
  [ "$status" -eq 1 ]
}

@test "several ranks on each node, started by srun over PMIx" {
  run timeout 300 "$cluster" run srun --mpi=pmix -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 "$torch_job" \
    collectives ddp
  succeeded
  expect_checked 4 1 collectives ddp
  expect_jobs '0 0 0 0 4 n0' '1 1 0 0 4 n0' '2 0 1 0 4 n1' '3 1 1 0 4 n1'
}

@test "an exception in a rank of another node, which @record kept, is in the one report" {
  run -85 allocation -N2 "$bin/ddprun" --nproc-per-node 1 --failure-grace 0 "$root/tests/support/torch_recorded.py"
  [ "$(grep -c FAILED <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
  [[ $output == *"host      : n1"*"rank      : 1 "*"traceback : Traceback"*"in main"*"ValueError: bad loss"* ]] ||
    { echo "$output"; return 1; }
}

@test "torchrun's variables are those of the whole job, on every node and in every attempt" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 1 --max-restarts 2 --rdzv-id seven --role trainer sh -c '
    echo "FACTS $RANK $TORCHELASTIC_RESTART_COUNT $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID" \
      "$TORCHELASTIC_USE_AGENT_STORE $TORCH_NCCL_ASYNC_ERROR_HANDLING $MASTER_ADDR" \
      "$ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE"
    case $TORCHELASTIC_ERROR_FILE in */attempt_$TORCHELASTIC_RESTART_COUNT/0/error.json) echo "FILE $RANK" ;; esac
    [ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
    touch "$SHARED/$RANK"
    [ $RANK = 3 ] || exec sleep 60
    timeout 60 sh -c "until [ -e $SHARED/0 -a -e $SHARED/1 -a -e $SHARED/2 ]; do sleep 0.1; done"
    exit 9'
  succeeded
  for attempt in 0 1; do
    for rank in 0 1 2 3; do
      expect_all 1 "FACTS $rank $attempt 2 seven True 1 10.78.0.1 trainer $rank 4"
      [ "$(grep -cx "FILE $rank" <<<"$output")" -eq 2 ] || { echo "$output"; return 1; }
    done
  done
}
