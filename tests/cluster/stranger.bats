#!/usr/bin/env bats
# A stranger at every listener of a job; see `stranger` for what it does, and for longer runs.

load ../support/spank_jobs

stranger() { DDP_BIN_DIR=$bin run "$BATS_TEST_DIRNAME/stranger" "$@"; }

@test "ddprun: another user of the same hosts does no harm" {
  stranger --from user --how all
  succeeded
}

@test "ddprun: another host does no harm" {
  stranger --from host --how all
  succeeded
}

@test "srun --ddp: another user of the same hosts does no harm" {
  stranger --launcher srun --from user --how all
  succeeded
}

# Gloo's listeners believe whoever comes first (docs/security.md). When this test fails, they no longer do: attack them in
# the tests above, too, and remove this one.
@test "expected to fail: a scan of Gloo's listeners does no harm" {
  stranger --from user --how scan --gloo --limit 25
  [ "$status" -ne 0 ]
}
