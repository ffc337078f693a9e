#!/usr/bin/env bats
# Some of the random joins, leaves and losses of `elastic`, which repeats them at length by hand.
# DDP_TORCH_PYTHON is a Python that has numpy and what scripts/python-package needs (default: build/venv's).

load ../support/cluster_jobs

@test "a job of ddpruns started by hand trains on through random joins, leaves and losses, and uses each sample once" {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  export DDP_TORCH_PYTHON=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python} DDP_BIN_DIR=$bin
  "$DDP_TORCH_PYTHON" -c 'import numpy' 2>/dev/null || skip "needs numpy in build/venv (scripts/python-env)"
  local made=0
  "$root/scripts/python-package" || made=$?
  [ $made -ne 77 ] || skip "needs nanobind and scikit-build-core (scripts/python-env)"
  [ $made -eq 0 ]
  run "$BATS_TEST_DIRNAME/elastic" 12 7
  succeeded
}
