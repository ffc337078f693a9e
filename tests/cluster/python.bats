#!/usr/bin/env bats
# The Python package on a real Slurm: libddp and libddp.torch by srun --mpi=pmix, and a script that says nothing of it under
# srun --ddp. Two nodes and few ranks where torch is imported, which takes longer than all else.
# DDP_TORCH_PYTHON is a Python that has torch and what scripts/python-package needs (default: build/venv's).

load ../support/spank_jobs

setup_file() {
  spank_jobs_setup_file
  [ -n "${DDP_CLUSTER_DIR:-}" ] || return 0
  local root
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export PACKAGE_PYTHON=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python} MISSING=
  "$PACKAGE_PYTHON" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || {
    export MISSING="needs PyTorch in build/venv (scripts/python-env)"
    return 0
  }
  use_package
  local status=0
  "$root/scripts/python-package" || status=$?
  [ $status -ne 77 ] || export MISSING="needs nanobind and scikit-build-core (scripts/python-env)"
  [ $status -eq 0 ] || [ $status -eq 77 ] || return 1
  [ -n "$MISSING" ] || "$PACKAGE_PYTHON" -m libddp.torch
}

# Equal to what tests/python set, so that the package and its adapter to PyTorch are made once.
use_package() {
  export PYTHONPATH=$root/build/python/site DDP_TORCH_CACHE=$root/build/python/cache OMP_NUM_THREADS=1
  ! command -v ccache >/dev/null || export CXX="ccache g++" CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
}

setup() {
  spank_jobs_setup
  [ -z "$MISSING" ] || skip "$MISSING"
  use_package
  unset SLURM_MPI_TYPE
  LIMIT=120
  job_script="$root/tests/support/libddp_cluster_job.py"
}

@test "pmix:// on two nodes: libddp's DistributedDataParallel is equal to torch's" {
  SOURCE=pmix run srun --mpi=pmix -N2 -n2 "$PACKAGE_PYTHON" "$job_script" training
  succeeded
  expect_all 1 "TRAINED 0 n0 2"
  expect_all 1 "TRAINED 1 n1 2"
}

@test "pmix:// on two nodes: rank 0's store serves another user on neither, and who was refused is said" {
  run srun --mpi=pmix -N2 -n2 "$PACKAGE_PYTHON" "$root/tests/support/pmix_store_job.py" own
  succeeded
  for rank in 0 1; do
    expect_all 1 "MET $rank False SERVED"
    expect_all 1 "OTHERS $rank REFUSED"
    expect_all 1 "AGAIN $rank"
  done
  [[ $output == *"the job's store refused a connection from 10.78.0."*": it belongs to uid 65534, not to the job's user (uid 0)"* ]] ||
    { echo "$output"; return 1; }
}

@test "libddp.horovod: operations by name between nodes, by PMIx and by PMI-2" {
  local way
  for way in pmix pmi2; do
    run srun --mpi=$way -N2 -n2 "$PACKAGE_PYTHON" "$root/tests/support/horovod_job.py" operations
    succeeded
    for rank in 0 1; do expect_all 1 "CHECKED operations $rank"; done
  done
}

@test "pmix:// under srun --ddp: the step's store is used" {
  run srun --ddp -N2 -n2 "$PACKAGE_PYTHON" "$root/tests/support/pmix_store_job.py" launchers
  succeeded
  for rank in 0 1; do
    expect_all 1 "MET $rank True SERVED"
    expect_all 1 "OTHERS $rank REFUSED"
  done
  clean
}

@test "a killed rank is named by the exception of every other one" {
  SOURCE=pmix run srun --mpi=pmix --kill-on-bad-exit=0 -N4 -n5 "$PACKAGE_PYTHON" "$job_script" death
  [ "$status" -ne 0 ]
  for rank in 0 1 2 3; do expect_all 1 "SURVIVOR $rank 2 4"; done
}

@test "srun --ddp --ddp-backend=ddp: a script that says nothing" {
  run srun --ddp --ddp-backend=ddp -N2 -n2 "$PACKAGE_PYTHON" "$job_script" says_nothing
  succeeded
  expect_all 1 "BACKEND ddp 0 0.5"
  expect_all 1 "BACKEND ddp 1 0.5"
  clean
}
