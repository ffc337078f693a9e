#!/usr/bin/env bats
# Where ddprun puts ranks: their processors, their network interface, and the variables that follow.
# DDP_BIN_DIR names the folder with the program; default: build/bin, then build/dev/bin.

load ../support/ddprun_jobs

@test "ranks are bound to processors of their own, inside ddprun's mask" {
  mask='grep Cpus_allowed_list /proc/self/status | cut -f2'
  [ "$(nproc)" -ge 2 ] || skip "needs two processors"
  run "$DDPRUN" --nproc-per-node 2 sh -c "$mask"
  [ "$status" -eq 0 ]
  [ "$(sort -u <<<"$output" | wc -l)" -eq 2 ] || { echo "$output"; return 1; }
  own=$(sh -c "$mask")
  run "$DDPRUN" --bind none --nproc-per-node 2 sh -c "$mask"
  [ "$(sort -u <<<"$output")" = "$own" ]
  run env DDP_BIND=none "$DDPRUN" --nproc-per-node 2 sh -c "$mask"
  [ "$(sort -u <<<"$output")" = "$own" ]
  first=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
  run taskset -c "$first" "$DDPRUN" --nproc-per-node 3 sh -c "$mask"
  [ "$(sort -u <<<"$output")" = "$first" ]
  run -2 "$DDPRUN" --bind nuam true
  [[ $output == *"did you mean 'numa'?"* ]]
}

@test "the interface that the user names is the one that ranks get" {
  run "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME'
  [ "$output" = "lo =lo" ]
  other=$(ip -o -4 address | awk '$2 != "lo" { print $2; exit }')
  [ -n "$other" ] || skip "needs an interface besides loopback"
  run env DDP_SOCKET_IFNAME="$other" "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME'
  [ "$output" = "$other =$other" ]
  run env NCCL_SOCKET_IFNAME="$other" "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME'
  [ "$output" = "$other $other" ]
  run -1 env DDP_SOCKET_IFNAME=nosuch "$DDPRUN" true
  [[ $output == *"DDP_SOCKET_IFNAME=nosuch names no interface of this host"* ]]
}

@test "threads per rank are the rank's share of the cores, unless the user has set them" {
  run "$DDPRUN" --nproc-per-node 2 sh -c 'echo "$OMP_NUM_THREADS"'
  cores=$(python3 -c 'import os
path = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list"
print(len({open(path % cpu).read() for cpu in os.sched_getaffinity(0)}))')
  share=$((cores / 2))
  [ "${lines[0]}" = "$((share > 0 ? share : 1))" ]
  run "$DDPRUN" sh -c 'echo "${OMP_NUM_THREADS-unset}"'
  [ "$output" = "$cores" ]
  OMP_NUM_THREADS=11 run "$DDPRUN" --nproc-per-node 2 sh -c 'echo "$OMP_NUM_THREADS"'
  [ "${lines[1]}" = 11 ]
}
