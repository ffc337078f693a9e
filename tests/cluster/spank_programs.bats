#!/usr/bin/env bats
# Programs under `srun --ddp` on a real Slurm, none of which knows of it: libddp's own over PMIx, PMI-2 and the store alone,
# libtorch, PyTorch with env://, Open MPI, ddprun, and one that uses nothing of it.
# DDP_TORCH_PYTHON is a Python that has torch (default: build/venv's); all nodes must see it.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  python=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
  job_script="$root/tests/support/torch_job.py"
}

needs_torch() {
  "$python" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch in build/venv (scripts/python-env)"
}

# expect_checked RANKS CHECK...: each rank has said of each check that it held.
expect_checked() {
  local ranks=$1 check
  shift
  succeeded
  for check in "$@"; do
    [ "$(sed -n "s/.*CHECKED $check \([0-9]*\)$/\1/p" <<<"$output" | sort -n | tr '\n' ' ')" = "$(seq -s' ' 0 $((ranks - 1))) " ] ||
      { echo "not all ranks said that $check held"; echo "$output"; return 1; }
  done
}

@test "libddp's World over PMIx, PMI-2 and the store alone" {
  local source
  for mpi in pmix pmi2 none; do
    source=${mpi/none/torchrun}
    run srun --ddp --mpi=$mpi -N3 -n7 bash -c "$(slurm_facts "$rank_program" world)"
    succeeded
    "$check_world" 7 "$source" 5,1,1 <<<"$output"
    run srun --ddp --mpi=$mpi -N4 -n4 -m cyclic "$rank_program" collectives
    succeeded
    expect_all 4 DONE
  done
}

@test "training of digits over PMIx, PMI-2 and the store alone" {
  for mpi in pmix pmi2 none; do
    run srun --ddp --mpi=$mpi -N2 -n4 "$bin/train_digits" --epochs 2
    succeeded
    [[ $output == *accuracy* ]] || { echo "$output"; return 1; }
  done
}

@test "a libddp program is bound once, by the plugin" {
  run srun --ddp --ddp-bind=core -N2 -n4 "$rank_program" binding
  succeeded
  expect_all 4 DONE
  expect_all 4 "placed=no"
  if [ "$(nproc)" -ge 2 ]; then
    [ "$(sed -n 's/^BINDING .* cpus=\([0-9]*\) .*/\1/p' <<<"$output" | sort | uniq -c | wc -l)" -eq 2 ] || { echo "$output"; return 1; }
  fi
}

@test "PyTorch with env:// on one node, and its example on two" {
  needs_torch
  unset SLURM_MPI_TYPE
  LIMIT=120 run srun --ddp -N1 -n2 "$python" "$job_script" store collectives ddp
  expect_checked 2 store collectives ddp
  LIMIT=120 run srun --ddp -N2 -n3 "$python" "$BATS_TEST_DIRNAME/../../examples/p2p.py" --elements 10
  [[ $output == *"rank 0 exchanged 10 elements with 2 ranks by gloo"* ]] || { echo "$output"; return 1; }
}

@test "the example with libtorch by srun alone, and under --ddp" {
  needs_torch
  "$root/tests/torch/build" "$python" "${bin%/bin}/package" train_libtorch
  unset SLURM_MPI_TYPE
  for how in --mpi=pmix '--ddp --mpi=none'; do
    # shellcheck disable=SC2086 # several options
    OMP_NUM_THREADS=1 LIMIT=120 run srun $how -N2 -n3 "$root/build/torch/libtorch/train_libtorch" 3
    succeeded
    [[ $output == *"epoch 3: test accuracy 0."[89]* ]] || { echo "$output"; return 1; }
  done
}

@test "PyTorch with env:// on four nodes, uneven and without PMI" {
  needs_torch
  LIMIT=120 run srun --ddp --mpi=none -N4 -n5 "$python" "$job_script" store collectives objects rpc
  expect_checked 5 store collectives objects rpc
}

@test "two PyTorch steps of one job at once" {
  needs_torch
  local step="srun --ddp --mem=0 --overlap -N2 -n2 ${python@Q} ${job_script@Q} store collectives"
  batch "$step & $step & wait -n && wait -n" -N2 -n2
  succeeded
  [ "$(grep -c 'CHECKED store [01]$' <<<"$output")" -eq 4 ] || { echo "$output"; return 1; }
}

@test "an Open MPI program is the same with --ddp" {
  unset SLURM_MPI_TYPE
  command -v mpicc >/dev/null || skip "needs mpicc (Debian: libopenmpi-dev)"
  mpicc -o "$shared/sum" "$root/tests/support/mpi_sum.c"
  run srun --ddp -N4 -n5 "$shared/sum"
  succeeded
  for rank in 0 1 2 3 4; do expect_all 1 "SUM $rank of 5 is 10"; done
  run srun --ddp --mpi=none -N1 -n2 "$shared/sum" # without PMIx, MPI makes worlds of one: the type matters
  expect_all 0 "of 2 is"
}

@test "a program that never uses the store, and one that ends at once" {
  run srun -Q --ddp -N4 -n8 true
  succeeded
  [ -z "$output" ] || { echo "$output"; return 1; }
  run srun --ddp --kill-on-bad-exit=0 -N4 -n4 sh -c 'exit 7'
  [ "$status" -eq 7 ]
  run srun -Q --ddp -N1 -n1 cat <<<"from standard input"
  [ "$output" = "from standard input" ] || { echo "$output"; return 1; }
  clean
}

@test "ddprun's agents under srun --ddp make one job of all nodes" {
  local report='echo "FACTS RANK=$RANK WORLD_SIZE=$WORLD_SIZE NODES=$GROUP_WORLD_SIZE HOST=$(hostname) STORE=$MASTER_ADDR OMP=$OMP_NUM_THREADS CPUS=$(taskset -cp $$$$ | sed "s/.*: //")"'
  unset SLURM_MPI_TYPE
  run srun --ddp -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node=2 sh -c "$report"
  succeeded
  expect_all 4 FACTS
  [ "$(fact RANK | tr -d '\n')" = 0123 ] && [ "$(fact WORLD_SIZE)" = 4 ] && [ "$(fact NODES)" = 2 ] ||
    { echo "$output"; return 1; }
  [[ $(fact STORE) == 10.78.0.[12] ]] || { echo "$output"; return 1; } # ddprun's, not srun's
  # nor are cores and settings those of the agent
  [ "$(nproc)" -lt 2 ] || [ "$(fact CPUS | wc -l)" -ge 2 ] || { echo "$output"; return 1; }
  [ "$(nproc)" -ne 2 ] || [ "$(fact OMP)" = 1 ] || { echo "$output"; return 1; }
}

@test "--ddp-dump and --ddp-doctor: before the program, of any; errors keep it from starting" {
  # Nothing is said of healthy nodes, nothing is left in the environment; the file has all tasks.
  run srun -Q --ddp --ddp-dump="$shared/dump.json" --ddp-doctor -N4 -n4 sh -c \
    '! env | grep -E "SLURM_DDP_(STEP|BEFORE)"; exec python3 '"${root@Q}/tests/support/c10d_client.py"
  succeeded
  expect_all 4 "STORE "
  # What a container around the cluster lacks is no matter of this test.
  [ -z "$(sed -nE 's/^(error|warning) ([a-z-]+): .*/\2/p' <<<"$output" | grep -vxE 'cpu-quota|memlock|one-core')" ] ||
    { echo "$output"; return 1; }
  [ "$(python3 -c 'import json, sys; d = json.load(sys.stdin)
v = {x["name"]: x["values"] for x in d["variables"]}
print(d["ranks"], len(d["findings"]), len(v["RANK"]), v["OMP_NUM_THREADS"][0]["origin"])' <"$shared/dump.json")" = "4 0 4 srun --ddp" ]

  # Warnings are said, and it starts. A name on two ranks that is wrong, in the table, too.
  run on_ctl env NCCL_SOCKET_INFAME=eth0 srun -Q --ddp --ddp-doctor --ddp-dump -N2 -n2 sh -c 'echo STARTED'
  succeeded
  expect_all 2 STARTED
  expect_all 1 "ddp-info doctor: "
  expect_all 1 "warning env-misspelt: unrecognized variable name"
  expect_all 1 "2 ranks on 2 hosts: n0 (rank 0), n1 (rank 1)"

  # Errors end it before any program has started; salloc passes the options on.
  local before=$(date +%s)
  run on_ctl env NCCL_SOCKET_IFNAME=nowhere salloc -Q --ddp --ddp-doctor --ddp-dump="$shared/of_salloc.json" -N4 \
    srun -Q -n4 sh -c 'echo STARTED'
  [ "$status" -eq 2 ] || { echo "$status $output"; return 1; }
  [[ $output == *"ddp-info doctor: 1 error"*": 4 nodes, 4 ranks, "*"error interface-missing: "* && $output != *STARTED* ]] ||
    { echo "$output"; return 1; }
  [ $(($(date +%s) - before)) -le 40 ]
  [ -s "$shared/of_salloc.json" ]
}

@test "nothing of it needs root" {
  id nobody >/dev/null
  others_can_run "$DDP_STEP" || skip "the programs are in a folder of root's"
  run on_ctl setpriv --reuid nobody --regid nogroup --clear-groups env HOME=/ \
    srun --ddp --chdir=/ -N2 -n3 sh -c "echo USER \$(id -un); exec python3 ${root@Q}/tests/support/c10d_client.py"
  succeeded
  expect_all 3 "USER nobody"
  expect_all 3 "STORE "
  start setpriv --reuid nobody --regid nogroup --clear-groups env HOME=/ srun --ddp --chdir=/ -N1 -n1 sh -c 'echo UP; sleep 98765'
  eventually 20 said 1 UP
  [ "$("$cluster" run ps -o user= -C ddp-step | sort -u)" = nobody ] # the store, and the witness of the node
  "$cluster" run pkill -INT -x -o srun
  "$cluster" run pkill -INT -x -o srun
  finish
  clean
}
