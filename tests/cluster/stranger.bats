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
