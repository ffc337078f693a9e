#!/usr/bin/env bats
# The commands of examples/kubernetes, with the variables and files that operators give their pods. Pods are processes here.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  examples=$(cd "$BATS_TEST_DIRNAME/../../examples/kubernetes" && pwd)
  export PATH="${DDPRUN%/*}:$PATH" DDP_RDZV_SECRET="a phrase of a Secret, long enough"
  port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  export PYTHONPATH=$BATS_TEST_DIRNAME/../support/whole_lines
  cd "$BATS_TEST_TMPDIR"
  echo 'import os; print(*(os.environ[name] for name in ("RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK")), flush=True)' >train.py
}

# pod FILE [FROM TO]...: the container's command in FILE, with $(NAME) replaced as Kubernetes does, and words of this host's.
pod() {
  python3 -c '
import json, os, re, sys
line = next(line for line in open(sys.argv[1]) if "command: [\"ddprun\"" in line)
words = [re.sub(r"\$\((\w+)\)", lambda name: os.environ[name[1]], word) for word in json.loads(line.split("command:")[1])]
for old, new in zip(sys.argv[2::2], sys.argv[3::2]):
    assert any(old in word for word in words), old
    words = [word.replace(old, new) for word in words]
os.execvp(words[0], words)' "$@"
}

expect_ranks() { [ "$(sort out)" = "$1" ] || { cat out; return 1; }; }

@test "Kubeflow Trainer: the runtime's PET_ variables are enough" {
  export PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_MASTER_ADDR=127.0.0.1 PET_MASTER_PORT=$port
  PET_NODE_RANK=1 pod "$examples/trainer.yaml" >>out 2>&1 &
  PET_NODE_RANK=0 pod "$examples/trainer.yaml" >>out 2>&1
  wait $!
  expect_ranks $'0 4 0 0\n1 4 0 1\n2 4 1 0\n3 4 1 1'
}

@test "JobSet: the completion index is the node's rank" {
  words=(train-node-0-0.train 127.0.0.1 --nproc-per-node=gpu --nproc-per-node=1)
  export PET_MASTER_PORT=$port
  JOB_COMPLETION_INDEX=1 pod "$examples/jobset.yaml" "${words[@]}" >>out 2>&1 &
  JOB_COMPLETION_INDEX=0 pod "$examples/jobset.yaml" "${words[@]}" >>out 2>&1
  wait $!
  expect_ranks $'0 2 0 0\n1 2 1 0'
}

@test "MPI operator: the launcher's hostfile, over what stands for ssh" {
  printf 'train-worker-0.train.ns.svc slots=2\ntrain-worker-1.train.ns.svc slots=2\n' >hostfile
  printf '#!/bin/bash\nexec sh -c "${*: -1}"\n' >ssh
  chmod +x ssh
  PATH="$PWD:$PATH" pod "$examples/mpi-operator.yaml" /etc/mpi/hostfile "$PWD/hostfile" >out 2>&1
  expect_ranks $'0 4 0 0\n1 4 0 1\n2 4 1 0\n3 4 1 1'
}

@test "the YAML of the examples parses, and no other command is in them" {
  python3 -c 'import yaml' 2>/dev/null || skip "needs PyYAML"
  for file in "$examples"/*.yaml; do
    python3 -c 'import sys, yaml; assert yaml.safe_load(open(sys.argv[1]))["kind"]' "$file"
  done
}
