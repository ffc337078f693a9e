#!/usr/bin/env bats
# A stranger at every listener of a job; see `stranger` for what it does, and for longer runs.

load ../support/spank_jobs

# stranger LAUNCHER: another user of the same hosts, another host, then the job's own user, each in all ways at once. A limit
# of ours that a job waits for takes 5 s at least; the rest is for a busy machine.
stranger() { DDP_BIN_DIR=$bin run "$BATS_TEST_DIRNAME/stranger" --launcher "$1" --how all --slower 4; }

@test "ddprun: neither another user, another host nor a program of the same user does harm" {
  stranger ddprun
  succeeded
}

@test "srun --ddp: neither another user, another host nor a program of the same user does harm" {
  stranger srun
  succeeded
}

@test "ddpruns by hand on several hosts: neither another user, another host nor a program of the same user does harm" {
  stranger hand
  succeeded
}
