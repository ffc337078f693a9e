#!/usr/bin/env bats
# Some of the random faults of `chaos`, which repeats them at length by hand.

load ../support/cluster_jobs

@test "random faults end jobs in time, with the right report, and leave nothing" {
  DDP_BIN_DIR=$bin run "$BATS_TEST_DIRNAME/chaos" 8 3798
  succeeded
}
