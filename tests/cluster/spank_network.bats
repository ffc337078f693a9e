#!/usr/bin/env bats
# Over which network the nodes of a step with `srun --ddp` talk: they agree before the program starts, and a node that does
# not take part is named.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  names='echo "FACTS NODE=$(hostname) GLOO=$GLOO_SOCKET_IFNAME NCCL=$NCCL_SOCKET_IFNAME RANK=$RANK"'
}

teardown() {
  [ -n "${cluster:-}" ] || return 0
  local node
  for node in n0 n1 n2 n3; do
    "$cluster" on $node ip link del rail0 2>/dev/null || true
    "$cluster" on $node ip route del 10.79.0.2/32 2>/dev/null || true
  done
  cluster_jobs_teardown
}

# Each node gets a second network, 10.79.0.0/24. To n1 the way to the other nodes seems to be that one.
second_network() {
  local i
  for i in 0 1 2 3; do
    "$cluster" on n$i ip link add rail0 type veth peer name rail0-end
    "$cluster" on n$i ip addr add 10.79.0.$((i + 1))/24 dev rail0
    "$cluster" on n$i ip link set rail0-end up
    "$cluster" on n$i ip link set rail0 up
  done
  for i in 1 3 4; do
    "$cluster" on n1 ip route add 10.78.0.$i/32 dev eth0 src 10.79.0.2
    "$cluster" on n$((i - 1)) ip route add 10.79.0.2/32 via 10.78.0.2 # the way back
  done
}

@test "nodes that would choose differently agree, as World does" {
  second_network
  # rank 0's node serves the store, which nodes that come later than its end would miss
  names+='; here='$shared'/$SLURM_JOB_ID; : >"$here.$SLURM_PROCID"; tries=600
until [ $SLURM_PROCID != 0 ] || [ $(ls "$here".* | wc -l) = $WORLD_SIZE ] || [ $((tries -= 1)) = 0 ]; do sleep 0.1; done'
  run srun --ddp --ddp-verbose -N4 -n4 sh -c "$names"
  succeeded
  expect_all 4 FACTS
  expect_all 0 warning
  expect_all 4 'agreeing with the other 3 nodes on a network took '
  [ "$(fact GLOO)" = eth0 ] && [ "$(fact NCCL)" = "=eth0" ] || { echo "$output"; return 1; }
  run srun --mpi=pmi2 -N4 -n4 "$rank_program" world
  expect_all 4 '"interface": "eth0"'
  run srun --ddp -N1 -n2 sh -c "$names"
  succeeded
  [ "$(fact GLOO)" = lo ]
}

@test "what the user names on all nodes is what they agree on" {
  second_network
  run on_ctl env DDP_SOCKET_IFNAME=rail0 srun --ddp -N4 -n4 sh -c "$names"
  succeeded
  [ "$(fact GLOO)" = rail0 ] || { echo "$output"; return 1; }
  expect_all 0 warning
}

@test "a loopback interface that the user names is reported once, by ddprun, too" {
  for variable in NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME; do
    run on_ctl env $variable=lo srun --ddp -w n0,n1 -N2 -n2 sh -c "$names"
    succeeded
    expect_all 2 FACTS
    expect_all 1 'ddp: warning: the network interface lo reaches only host n0, but the job has others'
    expect_all 1 "($variable=lo names it)"
  done
  run on_ctl salloc -w n0,n1 -N2 env NCCL_SOCKET_IFNAME=lo "$bin/ddprun" --nproc-per-node 1 sh -c "$names"
  expect_all 2 FACTS
  expect_all 1 'ddprun: warning: the network interface lo reaches only host n0, but the job has others'
}

@test "what NCCL's file sets is left to it" {
  printf 'NCCL_SOCKET_IFNAME=eth\n' >"$shared/site.conf"
  run on_ctl env NCCL_CONF_FILE="$shared/site.conf" srun --ddp -N2 -n2 sh -c "$names"
  succeeded
  expect_all 2 ' GLOO=eth0 NCCL= '
  run on_ctl env NCCL_CONF_FILE="$shared/site.conf" salloc -N2 "$bin/ddprun" --nproc-per-node 1 sh -c "$names"
  expect_all 2 ' GLOO=eth0 NCCL= '
}

@test "a node without the plugin is named in one line, and the others use their routes" {
  second_network
  "$cluster" on n2 mount -t tmpfs tmpfs "$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
  run srun --ddp -N4 -n4 sh -c "$names"
  "$cluster" on n2 umount "$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
  succeeded
  expect_all 4 FACTS
  expect_all 1 warning
  [[ $output == *"do not agree on a network: n2 did not take part within "*"plugin"* ]] || { echo "$output"; return 1; }
  [[ $output == *"NODE=n0 GLOO=eth0 "* && $output == *"NODE=n1 GLOO=rail0 "* && $output == *"NODE=n2 GLOO= "* ]]
}
