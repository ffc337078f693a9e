#!/usr/bin/env bats
# Interfaces and cores on a real Slurm cluster: which network nodes agree on and what runs over it, and that no rank
# leaves the processors that taskset or Slurm gave it.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  first_cpu=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
}

teardown() {
  [ -n "${cluster:-}" ] || return 0
  for node in n0 n1; do
    for name in second docker0; do "$cluster" on $node ip link del $name 2>/dev/null || true; done
  done
  "$cluster" run ip link del second 2>/dev/null || true
  cluster_jobs_teardown
}

srun() { on_ctl srun --kill-on-bad-exit=0 "$@"; }

sent_bytes() { "$cluster" on "$1" cat "/sys/class/net/$2/statistics/tx_bytes"; }

@test "among an unroutable network, a docker bridge and the routable one, the routable one is used" {
  # On both nodes: a cable that leads nowhere with addresses of one subnet, and docker0 with the same address.
  for i in 0 1; do
    "$cluster" on n$i ip link add second type veth peer name nowhere
    "$cluster" on n$i ip addr add 10.99.0.$((i + 1))/24 dev second
    "$cluster" on n$i ip link set second up
    "$cluster" on n$i ip link set nowhere up
    "$cluster" on n$i ip link add docker0 type bridge
    "$cluster" on n$i ip addr add 172.17.0.1/16 dev docker0
    "$cluster" on n$i ip link set docker0 up
  done
  for pmi in pmix pmi2; do
    run srun --mpi=$pmi -w n0,n1 -N2 -n4 "$rank_program" world
    expect_all 4 '"interface": "eth0"'
  done
  run srun --mpi=pmix -w n0,n1 -N2 -n2 --export=ALL,DDP_LOG_LEVEL=debug "$rank_program" world
  expect_all 2 "its subnet 10.78.0.0/24 is on all 2 nodes and routes to them"
  expect_all 2 "network not chosen: 10.99.0.0/24: routes to the peers on 0 of 2 nodes"
  expect_all 2 "interface not usable: docker0 (172.17.0.1): reaches only this host"

  # 64 MiB and more of all_reduce must have left each node by eth0, and nearly nothing by the others.
  before=$(sent_bytes n0 eth0) before_second=$(sent_bytes n0 second)
  run srun --mpi=pmix -w n0,n1 -N2 -n2 "$rank_program" traffic 64
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  sent=$(($(sent_bytes n0 eth0) - before)) sent_second=$(($(sent_bytes n0 second) - before_second))
  [ "$sent" -ge $((60 * 1024 * 1024)) ] || { echo "only $sent bytes left by eth0"; return 1; }
  [ "$sent_second" -le 100000 ] || { echo "$sent_second bytes left by second"; return 1; }
}

# A second network, in which no node of the job is, on the host of the coordinator.
@test "the coordinator listens in the network of the nodes alone" {
  for host in ctl n0; do
    local at="run" node='' address=10.78.0.254
    [ $host = ctl ] || { at="on" node=n0 address=10.78.0.1; }
    "$cluster" $at $node ip link add second type veth peer name nowhere
    "$cluster" $at $node ip addr add 10.99.0.7/24 dev second
    "$cluster" $at $node ip link set second up
    "$cluster" $at $node ip link set nowhere up
    local launch=(salloc -Q -N2)
    [ $host = ctl ] || launch=(srun --mpi=pmix -w n0,n1 -N2 --ntasks-per-node=1)
    start "${launch[@]}" "$bin/ddprun" --nproc-per-node 1 sh -c 'echo UP; until [ -e "$0" ]; do sleep 0.1; done' "$shared/go"
    says 2 UP
    run "$cluster" $at $node ss -Htlnp
    listening=$(awk '$6 ~ /^users:.."ddprun",[^()]*..$/ { print $4 }' <<<"$output") # without Slurm's, which it inherits
    [[ $listening =~ ^$address:([0-9]+)$ ]] || { echo "$output"; return 1; }
    port=${BASH_REMATCH[1]}
    "$cluster" $at $node timeout 10 bash -c "exec 3<>/dev/tcp/$address/$port"
    for other in 10.99.0.7 127.0.0.1; do
      run "$cluster" $at $node timeout 10 bash -c "exec 3<>/dev/tcp/$other/$port"
      [[ $output == *"Connection refused"* ]] || { echo "$other: $output"; return 1; }
    done
    touch "$shared/go"
    finish
    succeeded
    rm "$shared/go"
    "$cluster" $at $node ip link del second
  done
}

@test "a name that one node does not have is an error that names the node and what it has" {
  "$cluster" on n0 ip link add second type bridge
  "$cluster" on n0 ip addr add 10.99.0.1/24 dev second
  "$cluster" on n0 ip link set second up
  local variable steps=()
  for variable in NCCL_SOCKET_IFNAME=second NCCL_SOCKET_IFNAME==second GLOO_SOCKET_IFNAME=second DDP_SOCKET_IFNAME=second; do
    srun --mpi=pmix -w n0,n1 -N2 -n2 --export=ALL,DDP_INIT_TIMEOUT=5,$variable "$rank_program" world >"$shared/$variable" 3>&- &
    steps+=("$! $variable")
  done
  for step in "${steps[@]}"; do
    read -r step variable <<<"$step"
    ! wait "$step" || { echo "$variable was accepted"; return 1; }
    output=$(cat "$shared/$variable")
    expect_all 1 "choosing the network interface on host n1: $variable names no interface of this host"
    [[ $output == *"eth0 (10.78.0.2)"* ]]
  done
}

@test "DDP_BIND: ranks of a node are bound inside what taskset leaves, by a topology that is read once a node" {
  for pmi in pmix pmi2; do
    run srun --mpi=$pmi -N2 -n8 --export=ALL,DDP_BIND=numa,DDP_LOG_LEVEL=debug "$rank_program" binding
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 8 DONE
    expect_all 2 "read the topology of this machine"
    expect_all 0 "placed=no"
    run srun --mpi=$pmi -N2 -n8 --export=ALL,DDP_BIND=core taskset -c "$first_cpu" "$rank_program" binding
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 8 "cpus=$first_cpu placed=$first_cpu"
  done
  if [ "$(nproc)" -ge 2 ]; then # each of two ranks has its own part of the processors
    run srun --mpi=pmix -N1 -n2 --export=ALL,DDP_BIND=numa "$rank_program" binding
    [ "$(sed -n 's/^BINDING rank=. cpus=\([^ ]*\) .*/\1/p' <<<"$output" | sort -u | wc -l)" -eq 2 ] || { echo "$output"; return 1; }
  fi
  run srun --mpi=pmix -N2 -n4 --export=ALL,DDP_BIND=none "$rank_program" binding
  expect_all 4 "placed=no"
  run srun --mpi=pmix -N2 -n2 --export=ALL,DDP_BIND=nuna "$rank_program" binding
  expect_all 2 "'nuna' is not one of numa, core, socket, none; did you mean 'numa'"
}

@test "DDP_BIND: the mask of Slurm's task/affinity is never left" {
  cores=$(nproc)
  [ "$cores" -ge 2 ] || skip "needs two processors"
  # A second cluster, inside the first, whose nodes have the processors that are there.
  run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR/shared/affinity-$$" timeout 120 "$cluster" with --cpus "$cores,$cores" --affinity -- \
    srun --mpi=pmix -N2 -n4 -c1 --cpu-bind=cores --export=ALL,DDP_BIND=numa \
    bash -c 'echo "GIVEN $SLURM_PROCID $(taskset -cp $$ | sed "s/.*: //")"; exec "$0" binding' "$rank_program"
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  for rank in 0 1 2 3; do
    given=$(sed -n "s/^GIVEN $rank //p" <<<"$output")
    bound=$(sed -n "s/^BINDING rank=$rank cpus=\([^ ]*\) .*/\1/p" <<<"$output")
    [ -n "$given" ] && [ "$given" = "$bound" ] || { echo "rank $rank was given '$given' and runs on '$bound'"; echo "$output"; return 1; }
  done
}

@test "ddp-info topo in a job: one report by rank 0, nodes of equal shape folded" {
  for pmi in pmix pmi2; do
    run srun --mpi=$pmi -N3 --ntasks-per-node=2 "$bin/ddp-info" topo
    [ "$status" -eq 0 ] || { echo "$output"; return 1; }
    expect_all 1 "nodes n[0-2] (3 nodes, ranks 0-5)"
    expect_all 1 "RANK"
  done
  run srun --mpi=pmix -N2 --ntasks-per-node=2 --export=ALL,DDP_BIND=numa "$bin/ddp-info" topo --json
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  python3 -c 'import json, sys; assert json.load(sys.stdin)["schema"] == "ddp-info-topo/1"' <<<"$output"
}
