#!/usr/bin/env bats
# ddprun on the four nodes of a real Slurm: ways to start it, ranks and environment, and one report for the whole job.
# What happens when its processes die is in ddprun_faults.bats.

load ../support/cluster_jobs

facts='echo "FACTS $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $GROUP_RANK $GROUP_WORLD_SIZE $(hostname)"'

# expect_blocks SIZE...: ranks are consecutive on nodes n0, n1, ... with so many ranks.
expect_blocks() {
  local expected='' rank=0 node=0 local_rank size world=0
  for size in "$@"; do world=$((world + size)); done
  for size in "$@"; do
    for ((local_rank = 0; local_rank < size; ++local_rank)); do
      expected+="FACTS $rank $local_rank $world $size $node $# n$node"$'\n'
      rank=$((rank + 1))
    done
    node=$((node + 1))
  done
  diff <(grep FACTS <<<"$output" | sort -k2n) <(printf %s "$expected")
}

# blocks_are SIZE...: the same of a batch script's output, so far.
blocks_are() {
  output=$(cat "$shared/out")
  expect_blocks "$@" >/dev/null
}

@test "in an allocation, ddprun starts an agent on each node by itself" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 3 sh -c "$facts"
  succeeded
  expect_blocks 3 3 3 3
}

@test "words that mean something to srun or a shell are the program's" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 sh -c 'printf "WORD(%s)" "$@"; echo' name : --nodes=9 "a 'b' \"c\" \$d" : ''
  succeeded
  expect_all 2 "WORD(:)WORD(--nodes=9)WORD(a 'b' \"c\" \$d)WORD(:)WORD()"
}

@test "a batch script needs nothing but the call" {
  printf '#!/bin/sh\n#SBATCH -N3 --ntasks-per-node=2 --cpus-per-task=2\n"%s" --nproc-per-node 2 sh -c %q\n' \
    "$bin/ddprun" "$facts" >"$shared/job.sh"
  on_ctl sbatch -o "$shared/out" "$shared/job.sh"
  eventually 60 blocks_are 2 2 2
}

# sbatch and salloc hand on what describes the task (SLURM_STEP_ID, ...), as under `srun --pty bash`.
@test "a batch script and an allocation that were made inside a task are no tasks" {
  printf '#!/bin/sh\n"%s" --nproc-per-node 2 sh -c %q\n' "$bin/ddprun" "$facts" >"$shared/job.sh"
  srun -w n3 -N1 -n1 sbatch -N3 -o "$shared/out" "$shared/job.sh"
  eventually 60 blocks_are 2 2 2
  run srun -w n3 -N1 -n1 salloc -Q -N2 "$bin/ddprun" --nproc-per-node 2 sh -c "$facts"
  succeeded
  expect_blocks 2 2
}

@test "--nnodes takes some nodes of an allocation, and refuses more than it has" {
  run allocation -N4 "$bin/ddprun" --nnodes 2 --nproc-per-node 1 sh -c "$facts"
  [ "$status" -eq 0 ]
  expect_blocks 1 1
  run allocation -N2 "$bin/ddprun" --nnodes 3 true
  [ "$status" -eq 2 ]
  [[ $output == *"--nnodes=3 was given, but the allocation has 2 nodes"* ]]
}

@test "srun may start the agents, over PMIx and PMI-2" {
  for pmi in pmix pmi2; do
    run srun --mpi=$pmi -N4 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 sh -c "$facts"
    succeeded
    expect_blocks 2 2 2 2
  done
}

@test "nodes may have different numbers of ranks" {
  run srun --mpi=pmix -N3 --ntasks-per-node=1 sh -c \
    'exec "$0" --nproc-per-node $((SLURM_NODEID + 1)) sh -c "$1"' "$bin/ddprun" "$facts"
  succeeded
  expect_blocks 1 2 3
}

@test "without Slurm's PMI, agents meet at an endpoint: c10d and static" {
  run srun --mpi=none -N2 --ntasks-per-node=1 "$bin/ddprun" --nnodes 2 --nproc-per-node 2 \
    --rdzv-backend c10d --rdzv-endpoint 10.78.0.1:29401 --rdzv-id seven sh -c "$facts"
  succeeded
  expect_blocks 2 2
  run srun --mpi=none -N2 --ntasks-per-node=1 sh -c \
    'exec "$0" --nnodes 2 --node-rank $((1 - SLURM_NODEID)) --master-addr 10.78.0.2 --nproc-per-node 1 sh -c "$1"' \
    "$bin/ddprun" 'echo "$GROUP_RANK $(hostname)"'
  succeeded
  [ "$(sort <<<"$output")" = $'0 n1\n1 n0' ]
}

@test "an endpoint's port that is in use is an error that says so" {
  run srun --mpi=none -N1 -n1 sh -c '
    python3 -c "import socket, time; s = socket.create_server((\"\", 29500)); print(flush=True); time.sleep(60)" |
      { read -r _; "$0" --nnodes 2 --master-addr 127.0.0.1 true; status=$?; pkill -x python3; exit $status; }' "$bin/ddprun"
  [ "$status" -ne 0 ]
  [[ $output == *29500*EADDRINUSE* ]]
}

@test "a step with several tasks on a node, or without PMI, is refused with the remedy" {
  run srun --mpi=pmix -N2 --ntasks-per-node=2 "$bin/ddprun" true
  [[ $output == *"--ntasks-per-node=1"* ]]
  run srun --mpi=none -N2 --ntasks-per-node=1 "$bin/ddprun" true
  [[ $output == *"--mpi=pmix"* ]]
}

@test "a ddprun inside a worker starts ranks on its node only" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 "$bin/ddprun" --nproc-per-node 2 sh -c 'echo "$RANK/$WORLD_SIZE"'
  succeeded
  [ "$(sort <<<"$output" | tr '\n' ' ')" = "0/2 0/2 1/2 1/2 " ]
}

@test "a batch job that a worker submits is no worker" {
  printf '#!/bin/bash\n"%s" --nproc-per-node 2 sh -c %q\n' "$bin/ddprun" "$facts" >"$shared/script"
  run allocation -N1 "$bin/ddprun" sbatch -Q -W -N2 -o "$shared/out" "$shared/script"
  succeeded
  blocks_are 2 2 || { expect_blocks 2 2; return 1; }
}

@test "libddp's World works over nodes, from PMIx alone and from torchrun's variables alone" {
  echo_task='echo TASK $RANK $LOCAL_RANK $GROUP_RANK $(hostname)'
  run allocation -N4 "$bin/ddprun" --nproc-per-node 2 bash -c "$echo_task; exec ${rank_program@Q} world"
  succeeded
  echo "$output" | "$check_world" 8 pmix 2,2,2,2
  run allocation -N4 "$bin/ddprun" --nproc-per-node 2 bash -c \
    "$echo_task; DDP_LAUNCH=torchrun exec ${rank_program@Q} world"
  succeeded
  echo "$output" | "$check_world" 8 torchrun 2,2,2,2
}

@test "every collective over nodes" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 1 "$rank_program" collectives
  succeeded
}

@test "exit code 85 of one rank is the job's, with one report that names rank and node" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 2 --failure-grace 0 sh -c \
    'if [ $RANK = 5 ]; then echo last words >&2; exit 85; fi; exec sleep 60'
  [ "$status" -eq 85 ]
  [ "$(grep -c FAILED <<<"$output")" -eq 1 ] || { echo "$output"; return 1; }
  [[ $output == *"host      : n2"*"rank      : 5 (local_rank: 1)"*"exitcode  : 85"*"last words"* ]]
  [[ $output == *"7 other ranks were ended by ddprun."* ]]
}

@test "a program that is missing on one node is an error that names the node" {
  run -127 allocation -N3 "$bin/ddprun" --nproc-per-node 1 /tmp/only-somewhere
  [ "$status" -eq 127 ]
  for node in n0 n2; do
    printf '#!/bin/sh\nexec sleep 60\n' | "$cluster" on $node sh -c 'cat >/tmp/only-somewhere; chmod +x /tmp/only-somewhere'
  done
  run -127 allocation -N3 "$bin/ddprun" --nproc-per-node 1 /tmp/only-somewhere
  [ "$status" -eq 127 ] || { echo "$output"; return 1; }
  [[ $output == *"host      : n1"*"there is no such file"* ]] || { echo "$output"; return 1; }
}

@test "agents that would run different programs or belong to different runs do not start" {
  run srun --mpi=pmix -N2 --ntasks-per-node=1 sh -c 'exec "$0" true$SLURM_NODEID' "$bin/ddprun"
  [ "$status" -ne 0 ]
  [[ $output == *"n0 runs 'true0', but n1 runs 'true1'"* ]] || [[ $output == *"n1 runs 'true1', but n0 runs 'true0'"* ]]
}

@test "a store that a firewall hides is an error with the addresses that were tried" {
  "$cluster" on n1 ip route add blackhole 10.78.0.1/32
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 sleep 60
  "$cluster" on n1 ip route del blackhole 10.78.0.1/32
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n1"*"reaching the job's store"*"10.78.0.1:"* ]] || { echo "$output"; return 1; }
}

@test "the interface that the user names need not be on the host of the front" {
  run allocation -N2 env NCCL_SOCKET_IFNAME=eth0 "$bin/ddprun" --nproc-per-node 1 sh -c 'echo "OWN $NCCL_SOCKET_IFNAME"'
  succeeded
  expect_all 2 "OWN eth0"
}

@test "a node that cannot take part says so at once: an interface that is only missing there, no GPU for --nproc-per-node" {
  run srun --mpi=pmix -N3 --ntasks-per-node=1 sh -c \
    'if [ $SLURM_NODEID = 1 ]; then export NCCL_SOCKET_IFNAME=ib7; fi; exec "$0" sleep 60' "$bin/ddprun"
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n1"*ib7* ]] || { echo "$output"; return 1; }
  run srun --mpi=pmix -N2 --ntasks-per-node=1 sh -c \
    'if [ $SLURM_NODEID = 1 ]; then set -- --nproc-per-node gpu; export CUDA_VISIBLE_DEVICES= ROCR_VISIBLE_DEVICES= ZE_AFFINITY_MASK=; fi
     exec "$0" "$@" sleep 60' "$bin/ddprun"
  [ "$status" -eq 2 ]
  [[ $output == *"host      : n1"*"has no GPU"* ]] || { echo "$output"; return 1; }
}

@test "agents have all processors of their nodes, also where Slurm binds tasks" {
  run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR/shared/bound-$$" timeout 120 "$cluster" with --cpus 2,2 --affinity -- \
    salloc -Q -N2 "$bin/ddprun" --nproc-per-node 1 --bind none sh -c 'echo "HAS $(nproc)"'
  succeeded
  expect_all 2 "HAS 2"
}

@test "a heterogeneous allocation: one world over its components, by ddprun itself and under srun" {
  local options=(-N1 -n1 -c2 : -N2 -n2) where='echo "WHERE $RANK/$WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $(hostname) $MASTER_ADDR"'
  run on_ctl salloc -Q "${options[@]}" "$bin/ddprun" --nproc-per-node=2 sh -c "$where"
  succeeded
  expect_all 6 "WHERE"
  for rank in 0 1 2 3 4 5; do expect_all 1 "WHERE $rank/6 $((rank / 2))/3 n$((rank / 2)) 10.78.0."; done
  run on_ctl salloc -Q "${options[@]}" "$bin/ddprun" --nnodes=2 --nproc-per-node=1 sh -c "$where"
  succeeded
  expect_all 2 "WHERE"
  expect_all 1 "WHERE 1/2 1/2 n1"
  run on_ctl salloc -Q "${options[@]}" srun --het-group=0,1 --ntasks-per-node=1 --mpi=pmi2 "$bin/ddprun" --nproc-per-node=1 sh -c "$where"
  succeeded
  expect_all 1 "WHERE 2/3 2/3 n2"
  run on_ctl salloc -Q "${options[@]}" "$bin/ddprun" --nproc-per-node=1 sh -c '[ $RANK != 2 ] || exit 7; exec sleep 98764'
  [ "$status" -eq 7 ]
  [[ $output == *"n2"* ]] || { echo "$output"; return 1; }
  run ! "$cluster" run pgrep -f "sleep 98764"
}

@test "512 workers on four nodes" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 128 sh -c 'echo "$RANK"'
  [ "$status" -eq 0 ] || { echo "$output" | tail -20; return 1; }
  diff <(sort -n <<<"$output") <(seq 0 511)
}

@test "--dry-run tells what every rank would get, and starts none" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 2 --dry-run touch "$shared/started"
  succeeded
  [[ $output == *"rank 3 on n1 (local rank 1)"* && $output == *"  MASTER_ADDR=10.78.0.1"* ]]
  [ ! -e "$shared/started" ]
}

# ---- standard input, and stacks ----------------

# Each rank says what it reads, to the end.
reads='while read -r line; do echo "READ $RANK $line"; done; echo "END $RANK"'
inputs_are() { diff <(grep -E '^(READ|END) ' <<<"$output" | sort) <(printf '%s\n' "$@" | sort); }

@test "from a frontend, standard input reaches rank 0 alone, to its end" {
  run allocation -N3 "$bin/ddprun" --nproc-per-node 2 sh -c "$reads" < <(seq 2)
  succeeded
  inputs_are "READ 0 1" "READ 0 2" "END "{0..5}
  run allocation -N2 "$bin/ddprun" --stdin none --nproc-per-node 1 sh -c "$reads" < <(seq 2)
  inputs_are "END "{0,1}
  run allocation -N2 "$bin/ddprun" --stdin all --nproc-per-node 1 sh -c "$reads" < <(seq 1)
  inputs_are "READ "{0,1}" 1" "END "{0,1}
}

@test "a rank 0 that never reads holds up no job, from a frontend or under srun" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 sh -c 'echo "END $RANK"' < <(yes & echo $! >"$shared/pid"; wait)
  kill "$(cat "$shared/pid")" 2>/dev/null || true
  succeeded
  inputs_are "END "{0,1}
  run srun --mpi=pmix -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 sh -c "$reads" < <(seq 2)
  succeeded
  inputs_are "READ 0 1" "READ 0 2" "END "{0..3}
}

@test "what is typed at a frontend's terminal reaches rank 0" {
  type script >/dev/null || skip "needs script, of util-linux"
  run timeout 120 script -qec "${cluster@Q} run salloc -Q -N2 ${bin@Q}/ddprun --nproc-per-node 1 sh -c '$reads'" /dev/null \
    < <(printf 'typed\n\004')
  echo "$output"
  [ "$status" -eq 0 ]
  # The terminal has the typed line and ddprun's progress, too.
  [[ $output == *"READ 0 typed"* && $output == *"END 0"* && $output == *"END 1"* && $output != *"READ 1"* ]]
}

@test "--timeout collects the stacks of all nodes" {
  run allocation -N3 "$bin/ddprun" --nproc-per-node 2 --timeout 8 sleep 1000
  echo "$output"
  [ "$status" -eq 124 ]
  [[ $output == *"where the ranks stood before they were ended:"*"  ranks 0-5 ("*'thread "sleep"'*"ended by --timeout"*"6 ranks"* ]]
}
