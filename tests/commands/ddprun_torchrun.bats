#!/usr/bin/env bats
# torchrun's command lines mean the same to ddprun: options, defaults, what is executed, and what is refused.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  cat >train.py <<'PYTHON'
import os, sys
line = " ".join([os.environ["RANK"], os.environ["LOCAL_RANK"], *sys.argv]) + "\n"
sys.stdout.write(line)
PYTHON
}

sorted_output() { sort <<<"$output"; }

@test "dashes, underscores, prefixes and '=' are the same" {
  for option in --nproc-per-node=2 --nproc_per_node=2 --nproc_per-node=2 --nproc=2; do
    run "$DDPRUN" "$option" sh -c 'echo $RANK'
    [ "$status" -eq 0 ]
    [ "$(sorted_output)" = $'0\n1' ]
  done
  run "$DDPRUN" --nproc_per_node 2 --redirect=3 --log_dir logs sh -c 'echo $RANK'
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  [ "$(cat logs/none_*/attempt_0/1/stdout.log)" = 1 ]
  # A prefix of several options is none of them, and a name that is almost right is not guessed.
  rejects 2 "option '--n' is ambiguous; write one of --nnodes, --nproc-per-node" --n 2 true
  rejects 2 "unknown option '--redirekts'; did you mean '--redirects'?" --redirekts=3 true
  rejects 2 "unknown option '--max-restart-count'" --max-restart-count 1 true
  rejects 2 "unknown option '--zzz'; 'ddprun --help' lists the options" --zzz true
}

@test "PET_ variables are defaults that the command line overrides" {
  PET_NPROC_PER_NODE=3 run "$DDPRUN" sh -c 'echo $RANK'
  [ "$(sorted_output)" = $'0\n1\n2' ]
  PET_NPROC_PER_NODE=3 run "$DDPRUN" --nproc-per-node 1 sh -c 'echo $RANK'
  [ "$output" = 0 ]
  PET_ROLE=trainer PET_MAX_RESTARTS=5 PET_RDZV_ID=mine run "$DDPRUN" --max-restarts 1 sh -c \
    'echo $ROLE_NAME $TORCHELASTIC_MAX_RESTARTS $TORCHELASTIC_RUN_ID'
  [ "$output" = "trainer 1 mine" ]
  PET_TEE=3 PET_LOG_DIR=logs run "$DDPRUN" echo hello
  [ "$output" = "[default0]:hello" ]
  # Flags are numbers.
  PET_MODULE=1 run "$DDPRUN" json.tool --help
  [ "$status" -eq 0 ]
  [[ $output == *"json.tool"* ]]
  PET_MODULE=0 PET_NO_PYTHON= run "$DDPRUN" train.py
  [ "$output" = "0 0 train.py" ]
  PET_MODULE=1 PET_NO_PYTHON=1 rejects 2 "PET_MODULE and PET_NO_PYTHON are mutually exclusive" train.py
  PET_MODULE=yes rejects 2 "reading PET_MODULE: 'yes' is not a number" train.py
  PET_NPROC_PER_NODE=many rejects 2 "reading PET_NPROC_PER_NODE: 'many'" train.py
  # These two have no variable.
  PET_NUMA_BINDING=nonsense PET_LOGS_SPECS=nonsense run "$DDPRUN" true
  [ "$status" -eq 0 ]
  [ -z "$output" ]
}

@test "torch.distributed.launch: scripts get --local-rank by --pass-local-rank, and none by --use-env" {
  run "$DDPRUN" --nproc_per_node=2 --pass-local-rank train.py --epochs 3
  [ "$(sorted_output)" = $'0 0 train.py --local-rank=0 --epochs 3\n1 1 train.py --local-rank=1 --epochs 3' ]
  for option in --use-env --use_env; do
    run "$DDPRUN" "$option" train.py --epochs 3
    [ "$output" = "0 0 train.py --epochs 3" ]
  done
  run "$DDPRUN" --pass-local-rank python3 -W ignore train.py 7
  [ "$output" = "0 0 train.py --local-rank=0 7" ]
  run "$DDPRUN" --pass-local-rank --run-path train.py 7
  [ "$output" = "0 0 train.py --local-rank=0 7" ]
  run "$DDPRUN" --pass-local-rank -m train 7
  [[ "$output" == "0 0 $PWD/train.py --local-rank=0 7" ]]
  run "$DDPRUN" --pass-local-rank echo 7
  [ "$output" = "--local-rank=0 7" ]
  rejects 2 "--use-env and --pass-local-rank are mutually exclusive" --use-env --pass-local-rank train.py
}

@test "everything after the script is the script's" {
  run "$DDPRUN" --nproc-per-node 1 train.py --nproc-per-node 4 --help -- -x
  [ "$output" = "0 0 train.py --nproc-per-node 4 --help -- -x" ]
  run "$DDPRUN" -- train.py --
  [ "$output" = "0 0 train.py --" ]
}

@test "the macro \${local_rank} is replaced in all arguments" {
  run "$DDPRUN" --nproc-per-node 2 train.py '--device=${local_rank}' '${local_rank}.$local_rank' '$$' '$rank'
  [ "$(sorted_output)" = '0 0 train.py --device=0 0.0 $ $rank
1 1 train.py --device=1 1.1 $ $rank' ]
}

@test "a script is run by Python, unbuffered; PYTHON_EXEC is another interpreter" {
  run "$DDPRUN" train.py a 'b c'
  [ "$status" -eq 0 ]
  [ "$output" = "0 0 train.py a b c" ]
  PYTHON_EXEC=echo run "$DDPRUN" train.py a
  [ "$output" = "-u train.py a" ]
  PYTHON_EXEC=echo run "$DDPRUN" -m package.train a
  [ "$output" = "-u -m package.train a" ]
  PYTHON_EXEC=nosuchpython rejects 127 "the Python interpreter 'nosuchpython'" train.py
  PYTHON_EXEC=$PWD/train.py rejects 126 "correct or unset PYTHON_EXEC" train.py
  rejects 127 "'nosuch.py': there is no such file" nosuch.py
}

@test "native programs and those of PATH are executed without Python" {
  cp "$(type -P true)" ./native
  PYTHON_EXEC=false run "$DDPRUN" ./native
  [ "$status" -eq 0 ]
  PYTHON_EXEC=false run "$DDPRUN" native
  [ "$status" -eq 0 ]
  PYTHON_EXEC=false run "$DDPRUN" true
  [ "$status" -eq 0 ]
  printf '#!/bin/sh\necho "shell $1"\n' >script.sh
  chmod +x script.sh
  PYTHON_EXEC=false run "$DDPRUN" ./script.sh x
  [ "$output" = "shell x" ]
  chmod -x script.sh
  rejects 126 "chmod +x" ./script.sh
  PYTHON_EXEC=false run "$DDPRUN" train.py  # what PYTHON_EXEC=false proves
  [ "$status" -eq 1 ]
}

@test "-m, --no-python and --run-path" {
  mkdir package
  cp train.py package/train.py
  run "$DDPRUN" -m package.train x
  [ "$status" -eq 0 ]
  [[ $output == "0 0 "*"/package/train.py x" ]]
  run "$DDPRUN" --no-python sh -c 'echo "$RANK"'
  [ "$output" = 0 ]
  { echo "#!$(type -P python3)"; cat train.py; } >direct.py
  chmod +x direct.py
  PYTHON_EXEC=false run "$DDPRUN" --no-python ./direct.py x
  [ "$output" = "0 0 ./direct.py x" ]
  rejects 2 "--module and --no-python are mutually exclusive" -m --no-python package.train
  echo 'import sys; print(__name__, sys.argv, flush=True); sys.exit(int(sys.argv[1]))' >exit.py
  run "$DDPRUN" --run-path --no-python exit.py 0
  [ "$status" -eq 0 ]
  [ "$output" = "__main__ ['exit.py', '0']" ]
  run "$DDPRUN" --run-path exit.py 7
  [ "$status" -eq 7 ]
  rejects 127 "there is no such file" --run-path nosuch.py
}

@test "options without a meaning here say so once" {
  run "$DDPRUN" --nproc-per-node 3 --start-method fork --monitor-interval 5 --event-log-handler console \
    --logs-specs mine --numa-binding exclusive --rdzv-conf heartbeat_timeout=3 true
  echo "$output"
  [ "$status" -eq 0 ]
  for name in --start-method --monitor-interval --event-log-handler --logs-specs "heartbeat_timeout in --rdzv-conf"; do
    [ "$(grep -c "^ddprun: $name is ignored: " <<<"$output")" -eq 1 ]
  done
  [ "$(grep -c 'numa-binding exclusive means --bind numa' <<<"$output")" -eq 1 ]
  [ "${#lines[@]}" -eq 6 ]
  # Their defaults, and variables, are no reason for a word.
  PET_MONITOR_INTERVAL=1 run "$DDPRUN" --start-method spawn --event-log-handler null --numa-binding node true
  [ "$status" -eq 0 ]
  [ -z "$output" ]
}

@test "what torchrun refuses is refused, with a hint" {
  rejects 2 "'1:2:3' has more than one colon" --nnodes 1:2:3 true
  rejects 2 "'3:2' has a minimum above its maximum; did you mean 2:3?" --nnodes 3:2 true
  rejects 2 "'0' is too small" --nnodes 0 true
  rejects 2 "'0' is too small" --nnodes 0:2 true
  rejects 2 "'' is not a whole number" --nnodes : true
  rejects 2 "'all' is neither a number from 1 to 4096 nor cpu, gpu or auto" --nproc-per-node all true
  rejects 2 "torch.accelerator.device_count()" --nproc-per-node npu true  # of a privateuse1 backend of torch
  rejects 2 "did you mean 'gpu'?" --nproc-per-node GPU true
  rejects 2 "'etcd' is not supported" --rdzv-backend etcd true
  rejects 2 "'zeus' is not one of static, c10d" --rdzv-backend zeus true
  rejects 2 "'::1:29500' has more than one colon: an IPv6 address needs brackets" --rdzv-endpoint ::1:29500 true
  rejects 2 "'host:x' has no valid port" --rdzv-endpoint host:x true
  rejects 2 "'host:65536' has no valid port" --rdzv-endpoint host:65536 true
  rejects 2 "did you mean 'join_timeout'?" --rdzv-conf join_timout=3 true
  rejects 2 "'soon' is not a number of seconds" --rdzv-conf join_timeout=soon true
  rejects 2 "gives no value for timeout" --rdzv-conf timeout true
  rejects 2 "'-1' is too small" --max-restarts -1 true
  rejects 2 "'1.5' is not a whole number" --max-restarts 1.5 true
  rejects 2 "'-1' is out of range" --shutdown-timeout -1 true
  rejects 2 "'11' does not select streams" -r 11 true
  rejects 2 "'0:1,' does not select streams" -t 0:1, true
  rejects 2 "'0:4' does not select streams" --redirects 0:4 true
  rejects 2 "'0,x' is not a list of ranks" --local-ranks-filter 0,x true
  rejects 2 "'threads' is not one of spawn, fork, forkserver" --start-method threads true
  rejects 2 "'near' is not one of node" --numa-binding near true
  rejects 2 "'65536' is too large" --master-port 65536 true
  rejects 2 "'x' is not a whole number" --node-rank x true
  rejects 2 "node rank 2 does not exist in a job of at most 2 nodes" --nnodes 2 --node-rank 2 true
  rejects 2 "--standalone is a job on one node" --standalone --nnodes 2 true
  rejects 2 "option '--module' takes no value" --module=1 x
  rejects 2 "option '--nnodes' needs a value, and '--standalone' looks like an option" --nnodes --standalone true
  rejects 2 "cannot be part of a folder name" --rdzv-id a/b true
}

@test "odd requests that torchrun accepts are accepted" {
  run "$DDPRUN" --signals-to-handle SIGFOO,SIGTERM true
  [ "$status" -eq 0 ]
  [ "$output" = "ddprun: 'SIGFOO' in --signals-to-handle is ignored: no such signal" ]
  run "$DDPRUN" --tee 7:3 --log-dir logs --nproc-per-node 2 true
  [ "$status" -eq 0 ]
  [ "$output" = "ddprun: --tee names local rank 7, but local ranks are 0 to 1" ]
  run "$DDPRUN" --rdzv-backend c10d --node-rank 3 true
  [ "$status" -eq 0 ]
  [ "$output" = "ddprun: --node-rank is ignored: it is for --rdzv-backend static" ]
  run "$DDPRUN" --nnodes 1:1 --nproc-per-node 1 --shutdown-timeout 0 --max-restarts 0 true
  [ "$status" -eq 0 ]
}

@test "--standalone twice at the same time, each with a store of its own" {
  local name
  for name in a b; do
    # The settings of a rendezvous endpoint have no effect, which is said.
    start_agent $name --standalone --rdzv-endpoint localhost:1 --nproc-per-node 2 sh -c \
      "touch $NOTES/$name.\$RANK; while [ \$(ls $NOTES | grep -c '^[ab]') -lt 4 ]; do sleep 0.02; done
       echo port \$MASTER_PORT \$WORLD_SIZE"
  done
  local ports=
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == *"--rdzv-endpoint is ignored: --standalone"* ]]
    [ "$(grep -c '^port [0-9]* 2$' <<<"$output")" -eq 2 ]
    ports+=$(grep '^port' <<<"$output" | sort -u)$'\n'
  done
  [ "$(sort -u <<<"${ports%$'\n'}" | wc -l)" -eq 2 ]
}

@test "MASTER_ADDR and MASTER_PORT lead to a store that answers while the job runs" {
  cat >ask.py <<'PYTHON'
import os, socket, struct
peer = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
with socket.create_connection(peer, 10) as store:
    store.sendall(struct.pack("<BI", 0, 0x3C85F7CE) + struct.pack("<BI", 13, 4711))  # VALIDATE, PING
    assert struct.unpack("<I", store.recv(4, socket.MSG_WAITALL)) == (4711,)
with open(os.environ["NOTES"] + "/peer", "w") as file:
    print(*peer, os.environ["TORCHELASTIC_USE_AGENT_STORE"], file=file)
PYTHON
  run "$DDPRUN" ask.py
  echo "$output"
  [ "$status" -eq 0 ]
  read -r address port shared <"$NOTES/peer"
  [ "$shared" = True ]
  # And not afterwards.
  run -1 python3 -c "import socket; socket.create_connection(('$address', $port), 2)"
}

@test "--role and --virtual-local-rank" {
  run "$DDPRUN" --nproc-per-node 2 --role trainer sh -c 'echo $ROLE_NAME $ROLE_RANK $ROLE_WORLD_SIZE $LOCAL_RANK'
  [ "$(sorted_output)" = $'trainer 0 2 0\ntrainer 1 2 1' ]
  run "$DDPRUN" --nproc-per-node 2 --virtual-local-rank sh -c 'echo $RANK $LOCAL_RANK'
  [ "$(sorted_output)" = $'0 0\n1 0' ]
  rejects 2 "--virtual-local-rank and --gpus=all are mutually exclusive" --virtual-local-rank --gpus all true
}

@test "a ddprun in a rank is a job of its own" {
  run "$DDPRUN" --nproc-per-node 2 sh -c \
    '"$DDPRUN" --nproc-per-node 3 sh -c "echo $RANK: \$RANK of \$WORLD_SIZE at \$MASTER_PORT not $MASTER_PORT"'
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(cut -d' ' -f1-4 <<<"$output" | sort)" = "0: 0 of 3
0: 1 of 3
0: 2 of 3
1: 0 of 3
1: 1 of 3
1: 2 of 3" ]
  [ "$(awk '$6 == $8' <<<"$output" | wc -l)" -eq 0 ]
  run "$DDPRUN" sh -c '"$DDPRUN" --nproc-per-node 2 sh -c "exit 7"'
  [ "$status" -eq 7 ]
}

@test "NODE_RANK stays as it was given; what the srun plugin has set for ddprun's own task does not" {
  run env NODE_RANK=7 "$DDPRUN" sh -c 'echo "${NODE_RANK-none}"'
  [ "$output" = 7 ]
  run env -u NODE_RANK "$DDPRUN" sh -c 'echo "${NODE_RANK-none}"'
  [ "$output" = none ]
  run env OWN=7 SLURM_DDP_SETTINGS=1.0::OWN=86019796 "$DDPRUN" sh -c 'echo "${OWN-none}"'
  [ "$output" = none ]
}
