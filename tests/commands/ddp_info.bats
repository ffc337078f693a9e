#!/usr/bin/env bats
# What a user of ddp-info sees: a machine, a recorded machine, a job, bad input, and outputs that cannot be written.
# DDP_BIN_DIR names the folder with the programs; default: build/bin, then build/dev/bin.

bats_require_minimum_version 1.5.0

load ../support/outer_settings

setup_file() {
  local folder
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export MACHINES=$root/tests/topologies
  for folder in "${DDP_BIN_DIR:-$root/build/bin}" "$root/build/dev/bin"; do
    if [ -x "$folder/ddp-info" ]; then
      export INFO=$folder/ddp-info DDPRUN=$folder/ddprun
      break
    fi
  done
  [ -n "$INFO" ] || { echo "no ddp-info found; set DDP_BIN_DIR" >&2; return 1; }
}

setup() {
  forget_outer_settings
  cd "$BATS_TEST_TMPDIR"
}

# rejects CODE WORDS ARGUMENTS...: exactly one line on standard error, which begins with "ddp-info: " and has the words.
rejects() {
  local code=$1 words=$2
  shift 2
  run "-$code" "$INFO" "$@"
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ ${lines[0]} == "ddp-info: "* ]]
  [[ ${lines[0]} == *$words* ]]
}

@test "help and version" {
  for arguments in "--help" "topo --help" "version --help" "flight --help" "trace --help"; do
    run -0 "$INFO" $arguments
    [[ ${lines[0]} == "Usage: ddp-info"* || $output == *"Usage: ddp-info topo"* ]]
  done
  run -0 "$INFO" flight --help
  [[ $output == *"Usage: ddp-info flight DIR"*"Examples:"*"Exit status:"* ]]
  run -0 "$INFO" topo --help
  [[ $output == *"Examples:"*"Exit status:"* ]]
  run -0 "$INFO" version
  [[ $output =~ ^"ddp-info (libddp) "[0-9]+\.[0-9]+\.[0-9]+$ ]]
}

@test "without a command, ddp-info lists its commands on standard error" {
  run --separate-stderr -2 "$INFO"
  [ -z "$output" ]
  [[ $stderr == "Usage: ddp-info COMMAND"*"Commands:"*"  topo "* ]]
}

@test "lines of help fit a terminal" {
  for command in "" doctor env flight resize status topo trace; do
    run -0 "$INFO" $command --help
    for line in "${lines[@]}"; do [ "${#line}" -le 125 ] || { echo "$command: $line"; false; }; done
  done
}

@test "env: names that nobody knows or has are an error" {
  NCCL_DEBUG=INFO run -0 "$INFO" env NCCL_DEBUG
  run -1 "$INFO" env NCCL_DEBG
  [[ $output == *"NCCL_DEBG is not known, and no rank has it; did you mean NCCL_DEBUG?"* ]]
  MY_OWN=7 run -0 "$INFO" env MY_OWN
  [[ $output == *"MY_OWN"*7* ]]
  run -1 "$INFO" env NCCL_DEBUG MY_OWN
}

@test "bad input is one clear line" {
  rejects 2 "unknown option '--vresion'; did you mean '--version'?" --vresion
  rejects 2 "unknown command 'tpo'; did you mean 'topo'?" tpo
  rejects 2 "'version' takes no arguments" version now
  rejects 2 "no folder is given" flight
  rejects 1 "ENOENT" flight nowhere
  mkdir dumps
  rejects 1 "no file there is called *.json" flight dumps
  echo '{"pg_config": {}}' >dumps/a.json
  rejects 1 "'a.json': a dump of PyTorch, not of libddp" flight dumps
  rejects 2 "give the one that the ranks wrote their traces to" trace
  rejects 1 "'a.json': 'traceEvents' is missing" trace dumps
  rm dumps/a.json
  rejects 1 "no file there is called *.json" trace dumps
  rejects 2 "'0' is too small; give a whole number from 1 to 4096" topo --nproc 0
  rejects 2 "'-1' is too small" topo --nproc -1
  rejects 2 "'4097' is too large" topo --nproc 4097
  rejects 2 "'many' is not a whole number" topo --nproc many
  rejects 2 "'' is not a whole number" topo --nproc=
  rejects 2 "needs a value" topo --nproc
  rejects 2 "did you mean 'socket'?" topo --bind sockets
  rejects 2 "did you mean 'one'?" topo --gpus ones
  rejects 2 "did you mean '--explain'?" topo --explian 1
  rejects 2 "there is no rank 2 among 2" topo --nproc 2 --explain 2
  rejects 2 "there is no rank 8 among 8" topo --xml "$MACHINES/eight-gpus-four-switches.xml" --explain 8
  rejects 2 "--export and --xml exclude each other" topo --export a.xml --xml b.xml
  rejects 2 "--json and --explain exclude each other" topo --json --explain 0
}

@test "ddprun --trace: the ranks' traces of 50 steps; training goes on where they cannot be written" {
  run -0 "$DDPRUN" --nproc-per-node 2 --trace "tr aces" "${DDPRUN%/*}/train_digits" --epochs 12
  run -0 "$INFO" trace "tr aces"
  for bar in step backward gradients waiting exchange; do
    for rank in 0 1; do [ "$(grep -c "\"name\": \"$bar\".*\"pid\": $rank," <<<"$output")" -ge 50 ]; done
  done
  [ "$(grep -c '"name": "step"' <<<"$output")" -eq 100 ]
  run -0 "$DDPRUN" --trace /proc/none "${DDPRUN%/*}/train_digits" --epochs 1
  [ "$(grep -c "writing the trace that DDP_TRACE_DIR asks for: .*/proc/none" <<<"$output")" -eq 1 ]
  run -2 "$DDPRUN" --trace= true
  [[ $output == *"give the path of a folder"* ]]
}

@test "files that are no topology" {
  rejects 1 "ENOENT" topo --xml nosuch.xml
  rejects 1 "EISDIR" topo --xml /
  rejects 1 "it is empty" topo --xml /dev/null
  rejects 1 "not an hwloc topology" topo --xml /etc/passwd
  head -c 2000 "$MACHINES/no-gpu.xml" >cut.xml
  rejects 1 "truncated" topo --xml cut.xml
}

@test "this machine: one rank by default without GPUs, and as many as asked for" {
  run -0 "$INFO" topo
  [[ ${lines[0]} == "what "*" on this machine would get"* ]]
  run -0 "$INFO" topo --nproc 3
  [ "$(grep -cE '^[0-2] ' <<<"$output")" -eq 3 ]
  [[ ! $output =~ [^[:print:][:space:]] ]]
}

@test "another machine: eight GPUs, each with the adapter behind its switch" {
  run -0 "$INFO" topo --xml "$MACHINES/eight-gpus-four-switches.xml"
  echo "$output"
  [ "$(grep -cE '^[0-7] .* PIX ' <<<"$output")" -eq 8 ]
  run -0 "$INFO" topo --xml "$MACHINES/no-gpu.xml" --nproc 2
  [[ $output == *"GPUs: none"* ]]
}

@test "another machine: nothing of this shell is mixed in" {
  run -0 "$INFO" topo --xml "$MACHINES/eight-gpus-four-switches.xml"
  plain=$output
  CUDA_VISIBLE_DEVICES=3 OMP_NUM_THREADS=7 DDP_BIND=core DDP_GPUS=one \
    run -0 taskset -c 0 "$INFO" topo --xml "$MACHINES/eight-gpus-four-switches.xml"
  [ "$output" = "$plain" ]
}

@test "this machine stays inside the mask and the variables of the shell" {
  run -0 taskset -c 0 "$INFO" topo
  if [ "$(nproc --all)" -gt 1 ]; then [[ $output == *"allowed: 1 of "* ]]; fi
  OMP_NUM_THREADS=1 run -0 "$INFO" topo
  [[ $output == *"OMP_NUM_THREADS=1"*"(kept: the environment has it)"* ]]
  DDP_BIND=core run -0 "$INFO" topo
  [[ ${lines[0]} == *"--bind core"* ]]
}

@test "a written machine reads back as the same one" {
  run -0 "$INFO" topo --export here.xml
  [ -z "$output" ]
  "$INFO" topo --export - >there.xml
  [ -s there.xml ]
  "$INFO" topo --json --no-job >live.json
  "$INFO" topo --json --xml here.xml >read.json
  python3 - <<'PYTHON'
import json
live, read = (json.load(open(name))["nodes"][0]["machine"] for name in ("live.json", "read.json"))
assert live["shape"] == read["shape"], (live["shape"], read["shape"])
assert live.pop("source") != read.pop("source")
assert live == read
PYTHON
  [ "$(ls)" = "here.xml
live.json
read.json
there.xml" ]
}

@test "--json is one document of the documented schema" {
  "$INFO" topo --json --xml "$MACHINES/eight-gpus-four-switches.xml" >topo.json
  python3 - <<'PYTHON'
import json
top = json.load(open("topo.json"))
assert top["schema"] == "ddp-info-topo/1" and top["job"] is None
node, = top["nodes"]
assert [rank["gpu"] for rank in node["ranks"]] == list(range(8))
assert len({rank["nics"][0] for rank in node["ranks"]}) == 8
assert all(rank["decisions"] for rank in node["ranks"])
assert len(node["machine"]["distances"]["gpu_nic"]) == 8
PYTHON
}

@test "--explain gives reasons" {
  run -0 "$INFO" topo --xml "$MACHINES/eight-gpus-four-switches.xml" --explain 5
  echo "$output"
  [[ ${lines[0]} == "rank 5, local rank 5 of 8"* ]]
  [[ $output == *"GPU: "*"NIC: "*"  not "*"settings:"* ]]
}

@test "what cannot be written is an error, and leaves no file" {
  run -1 bash -c '"$INFO" topo >/dev/full'
  [[ $output == "ddp-info: writing to standard output: "*ENOSPC* ]]
  run -1 bash -c 'set -o pipefail; "$INFO" topo --json | (exec <&-; sleep 0.5; true)'
  [[ $output == *EPIPE* ]]
  rejects 1 "ENOENT" topo --export no/folder.xml
  rejects 1 "EISDIR" topo --export /
  rejects 1 "ENOSPC" topo --export /dev/full
  [ -z "$(ls)" ]
}

@test "in a job, rank 0 prints once for all" {
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 3 "$INFO" topo
  echo "$output"
  [[ ${lines[0]} == "job of 3 ranks on 1 node, started by pmix"* ]]
  [ "$(grep -c '^job of' <<<"$output")" -eq 1 ]
  [ "$(grep -cE '^[0-2] ' <<<"$output")" -eq 3 ]
  [[ $output != *"(not set)"* ]]  # ddprun has set all that it should
}

@test "in a job, what the launcher has not done is said" {
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 env -u OMP_NUM_THREADS -u OMP_PROC_BIND "$INFO" topo
  [[ $output == *"OMP_NUM_THREADS="*"(not set)"* ]]
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 bash -c \
    'if [ "$RANK" = 1 ]; then export OMP_NUM_THREADS=4097; fi; exec "$INFO" topo'
  [[ $output == *"warning: rank 1: OMP_NUM_THREADS=4097: "* ]]
  [ "$(nproc)" -gt 1 ] || skip "needs two processors"
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 --bind none "$INFO" topo
  echo "$output"
  [ "$(grep -cE '^[01] .* not bound$' <<<"$output")" -eq 2 ]
  [[ $output == *"warning: ranks 0-1: not bound"* ]]
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 --bind numa "$INFO" topo
  [ "$(grep -cE '^[01] .* bound as placed$' <<<"$output")" -eq 2 ]
}

@test "in a job, --json and --explain concern the job" {
  timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --json >job.json
  python3 -c 'import json; top = json.load(open("job.json")); assert top["job"]["world_size"] == 2
assert [rank["ranks"][0]["rank"] for rank in top["nodes"][0]["ranks"]] == [0, 1]'
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --explain 1
  [ "$(grep -c '^rank 1, local rank 1 of 2' <<<"$output")" -eq 1 ]
  run -2 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --explain 2
  [ "$(grep -c '^ddp-info: reading --explain: there is no rank 2 among 2' <<<"$output")" -eq 1 ]
}

@test "in a job, questions about one machine are answered by rank 0, and --no-job by everyone" {
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --xml "$MACHINES/no-gpu.xml"
  [ "$(grep -c '^what ' <<<"$output")" -eq 1 ]
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --nproc 1
  [ "$(grep -c '^what 1 rank ' <<<"$output")" -eq 1 ]
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --no-job
  [ "$(grep -c '^what ' <<<"$output")" -eq 2 ]
}

@test "a rank that does not come is named by the deadline" {
  DDP_INIT_TIMEOUT=2 run timeout 60 "$DDPRUN" --nproc-per-node 2 --failure-grace 0 bash -c \
    'if [ "$RANK" = 1 ]; then exec sleep 50; else exec "$INFO" topo; fi'
  echo "$output"
  [ "$status" -eq 1 ]
  [[ $output == *"ddp-info: "*"rank 1"* ]]
}

@test "a rank that cannot tell what it has is named, with exit status 1" {
  run timeout 60 "$DDPRUN" --nproc-per-node 2 bash -c \
    'if [ "$RANK" = 1 ]; then export OMP_PLACES=$(printf "%070000d" 0); fi; exec "$INFO" topo'
  echo "$output"
  [ "$status" -eq 1 ]
  [ "$(grep -c '^ddp-info: ' <<<"$output")" -eq 1 ]
  [[ $output == *"rank 1 on "*": "*"bytes"* ]]
}

@test "--explain in a job says who chose the interface: ddprun and why, or the user" {
  run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --explain 0
  echo "$output"
  [[ $output == *"interface for sockets: lo "*"ddprun chose it: all ranks are on this host"* ]]
  [[ $output != *"GLOO_SOCKET_IFNAME=lo names it"* ]]
  [[ $output == *'NCCL_SOCKET_IFNAME="=lo"'*"the = asks NCCL for exactly this name"* ]]
  GLOO_SOCKET_IFNAME=lo run -0 timeout 60 "$DDPRUN" --nproc-per-node 2 "$INFO" topo --explain 0
  [[ $output == *"GLOO_SOCKET_IFNAME=lo names it"* ]]
}

@test "a file that cannot be written is named as the user named it" {
  rejects 1 "writing '/nosuchfolder/machine.xml'" topo --export /nosuchfolder/machine.xml
}

@test "variables that describe no job that can be joined" {
  RANK=0 WORLD_SIZE=2 rejects 1 "--no-job" topo
  RANK=0 WORLD_SIZE=2 run -0 "$INFO" topo --no-job
  DDP_LAUNCH=pmix rejects 1 "PMIX_NAMESPACE" topo
}
