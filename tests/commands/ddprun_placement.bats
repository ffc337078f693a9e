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
  run "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME $TP_SOCKET_IFNAME'
  [ "$output" = "lo =lo lo" ]
  other=$(ip -o -4 address | awk '$2 != "lo" { print $2; exit }')
  [ -n "$other" ] || skip "needs an interface besides loopback"
  run env DDP_SOCKET_IFNAME="$other" "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME'
  [ "$output" = "$other =$other" ]
  run env NCCL_SOCKET_IFNAME="$other" "$DDPRUN" sh -c 'echo $GLOO_SOCKET_IFNAME $NCCL_SOCKET_IFNAME'
  [ "$output" = "$other $other" ]
  run -1 env DDP_SOCKET_IFNAME=nosuch "$DDPRUN" true
  [[ $output == *"DDP_SOCKET_IFNAME=nosuch names no interface of this host"* ]]
}

@test "a second ddprun in an allocation says that its ranks get the first one's processors" {
  [ "$(nproc)" -ge 2 ] || skip "needs two processors"
  export SLURM_JOB_ID=77
  "$DDPRUN" --standalone --nproc-per-node 2 sh -c 'echo $$$$ >"$NOTES/pid.$RANK"; exec sleep 60' 3>&- &
  launcher=$!
  eventually 60 noted 2
  run -0 --separate-stderr "$DDPRUN" --standalone --nproc-per-node 2 true
  [[ $stderr == "ddprun: warning: ranks of another launch in this allocation (process $(sort -n "$NOTES"/pid.* | head -1))"*"docs/reference/slurm.md" ]] || { echo "$stderr"; return 1; }
  for arguments in "--bind none" "--nproc-per-node 1"; do # neither shares a core with a bound rank, or tells
    run -0 --separate-stderr "$DDPRUN" --standalone $arguments true
    [[ $arguments != *none || -z $stderr ]] || { echo "$arguments: $stderr"; return 1; }
  done
  SLURM_JOB_ID=78 run -0 --separate-stderr "$DDPRUN" --standalone --nproc-per-node 2 true
  [ -z "$stderr" ] || { echo "$stderr"; return 1; }
  unset SLURM_JOB_ID
  run -0 --separate-stderr "$DDPRUN" --nproc-per-node 2 true
  [ -z "$stderr" ] || { echo "$stderr"; return 1; }
  kill "$launcher"
}

@test "what NCCL's files set, ddprun leaves to them" {
  show='echo "${NCCL_SOCKET_IFNAME-unset} $GLOO_SOCKET_IFNAME"'
  printf '# of the site\nNCCL_SOCKET_IFNAME=lo\n' >site.conf
  NCCL_CONF_FILE=$PWD/site.conf run -0 "$DDPRUN" sh -c "$show"
  [ "$output" = "unset lo" ]
  mkdir home
  cp site.conf home/.nccl.conf
  HOME=$PWD/home run -0 "$DDPRUN" sh -c "$show"
  [ "$output" = "unset lo" ]
  printf 'NCCL_DEBUG=WARN\n' >home/.nccl.conf # another variable
  HOME=$PWD/home run -0 "$DDPRUN" sh -c "$show"
  [ "$output" = "=lo lo" ]
  HOME=$PWD/home NCCL_CONF_FILE=/nowhere run -0 "$DDPRUN" sh -c "$show"
  [ "$output" = "=lo lo" ]
  printf 'NCCL_SOCKET_IFNAME=nosuch\n' >site.conf
  NCCL_CONF_FILE=$PWD/site.conf run -0 --separate-stderr "$DDPRUN" sh -c "$show"
  [ "$output" = "unset lo" ]
  [[ $stderr == *"NCCL_SOCKET_IFNAME=nosuch is kept, but it leaves none of this machine's interfaces"*"site.conf has it"* ]]
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
