#!/usr/bin/env bats
# Ranks started by Slurm itself, over PMIx and PMI-2: rank, sizes and node map compared with Slurm's own variables, the
# key-value store, every collective, and sharded training against the whole batch.

load ../support/cluster_jobs

srun() { on_ctl srun --kill-on-bad-exit=0 "$@"; }

# placement PMI EXPECTED SRUN_OPTION...
placement() {
  local pmi=$1 expected=$2 size=0 part
  shift 2
  for part in ${expected//,/ }; do size=$((size + part)); done
  run srun --mpi="$pmi" -n "$size" "$@" bash -c "$(slurm_facts "$rank_program" world)"
  succeeded
  echo "$output" | "$check_world" "$size" "$pmi" "$expected"
}

placements() {
  placement "$1" 2,2,2,2 -N4 --ntasks-per-node=2
  placement "$1" 1,1,1,1 -N4
  placement "$1" 5,1,1,1 -N4
  placement "$1" 5,1,1,1 -N4 -m cyclic
  placement "$1" 9,1,1 -N3 -m plane=2
  placement "$1" 6 -N1
  placement "$1" 1 -N1
}

@test "PMIx: even, uneven, cyclic and plane placements" { placements pmix; }

@test "PMI-2: even, uneven, cyclic and plane placements" { placements pmi2; }

@test "nodes of different sizes" {
  for pmi in pmix pmi2; do
    # a second cluster, inside the first
    run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR/shared/sizes-$$" timeout 120 "$cluster" with --cpus 8,4,2,1 -- \
      srun --mpi=$pmi -N4 -n15 bash -c "$(slurm_facts "$rank_program" world)"
    succeeded
    echo "$output" | "$check_world" 15 $pmi 8,4,2,1
  done
}

@test "64 ranks on four nodes" {
  placement pmix 16,16,16,16 -N4
}

@test "Open MPI's mpirun on two nodes of an allocation" {
  facts=$(task_facts '$OMPI_COMM_WORLD_RANK' '$OMPI_COMM_WORLD_LOCAL_RANK' - "$rank_program" world)
  run timeout 120 "$cluster" run salloc -N2 -n4 mpirun --allow-run-as-root --bind-to none -n 4 bash -c "$facts"
  succeeded
  grep -v '^salloc:' <<<"$output" | "$check_world" 4 pmix 3,1
  for scenario in kvs fewer-stores; do
    run timeout 120 "$cluster" run salloc -N2 -n4 mpirun --allow-run-as-root --bind-to none -n 4 "$rank_program" $scenario
    succeeded
    expect_all 4 DONE
  done
}

# 4.1 does not know the server of ddprun.
@test "Open MPI 5 under ddprun on two nodes: its world is the job's" {
  [[ $(mpirun --version 2>/dev/null) == *"(Open MPI) 5."* ]] || skip "needs Open MPI 5 (Debian 13: libopenmpi-dev)"
  mpicc -o "$shared/sum" "$root/tests/support/mpi_sum.c"
  run timeout 120 "$cluster" run salloc -Q -N2 "$bin/ddprun" --nproc-per-node 2 "$shared/sum"
  succeeded
  for rank in 0 1 2 3; do expect_all 1 "SUM $rank of 4 is 6, 2 on the node"; done
}

@test "a task that is alone in its step needs no PMI" {
  run srun --mpi=none -n1 "$rank_program" world
  [ "$status" -eq 0 ]
  [[ "$output" == *'"source": "slurm"'* ]]
}

@test "several tasks without PMI are told to use one" {
  run srun --mpi=none -N2 -n2 "$rank_program" world
  [ "$status" -ne 0 ]
  expect_all 2 "this Slurm step has 2 tasks but no PMI"
  expect_all 2 "--mpi=pmix"
}

@test "values of any size and any bytes go through the store of PMIx and PMI-2" {
  for pmi in pmix pmi2; do
    run srun --mpi=$pmi -N4 -n8 "$rank_program" kvs
    succeeded
    expect_all 8 DONE
  done
  run srun --mpi=pmi2 -N4 -n8 "$bin/kvs_exercise" --store pmi2 --timeout-ms 110000 # up to 1 MiB
  succeeded
}

@test "every collective, sub-groups, order and the reducer between nodes" {
  for pmi in pmix pmi2; do
    for scenario in collectives subgroups ordering reducer; do
      run srun --mpi=$pmi -N4 -n4 "$rank_program" $scenario
      [ "$status" -eq 0 ] || { echo "$pmi $scenario"; echo "$output"; return 1; }
      expect_all 4 DONE
    done
  done
}

@test "sharded training equals the whole batch with 1 to 4 ranks between nodes" {
  for pmi in pmix pmi2; do
    for ranks in 1 2 3 4; do
      for dtype in float32 float64; do
        run srun --mpi=$pmi -N$ranks -n$ranks "$sharded_training" --dtype $dtype
        [ "$status" -eq 0 ] || { echo "$pmi, $ranks ranks, $dtype"; echo "$output"; return 1; }
        expect_all 1 "sharded training equals the whole batch: W=$ranks"
      done
    done
  done
}

@test "the interface that routes to the other nodes is chosen; DDP_SOCKET_IFNAME and GLOO_SOCKET_IFNAME are obeyed" {
  run srun --mpi=pmix -N2 -n2 "$rank_program" world
  expect_all 2 '"interface": "eth0"'
  for node in n0 n1; do
    "$cluster" on $node ip link add second type bridge
    "$cluster" on $node ip addr add 10.99.0.1/24 dev second
    "$cluster" on $node ip link set second up
  done
  run srun --mpi=pmi2 -N2 -n2 "$rank_program" world
  expect_all 2 '"interface": "eth0"'
  for variable in DDP_SOCKET_IFNAME GLOO_SOCKET_IFNAME; do
    run srun --mpi=pmix -w n0,n1 -N2 -n2 --export=ALL,$variable=second "$rank_program" world
    expect_all 2 '"interface": "second"'
  done
  for node in n0 n1; do "$cluster" on $node ip link del second; done
  run srun --mpi=pmix -N2 -n2 --export=ALL,DDP_SOCKET_IFNAME=nosuch "$rank_program" world
  [ "$status" -ne 0 ]
  expect_all 2 "DDP_SOCKET_IFNAME=nosuch names no interface"
  [[ "$output" == *"eth0 (10.78.0."* ]]
}
