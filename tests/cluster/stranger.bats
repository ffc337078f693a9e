#!/usr/bin/env bats
# A stranger at every listener of a job; see `stranger` for what it does, and for longer runs.

load ../support/spank_jobs

# stranger LAUNCHER: another user of the same hosts, then another host, each in all ways at once. A limit of ours that a job
# waits for takes 10 s at least; the rest is for a busy machine.
stranger() { DDP_BIN_DIR=$bin run "$BATS_TEST_DIRNAME/stranger" --launcher "$1" --how all --slower 8; }

@test "ddprun: neither another user of the same hosts nor another host does harm" {
  stranger ddprun
  succeeded
}

@test "srun --ddp: neither another user of the same hosts nor another host does harm" {
  stranger srun
  succeeded
}

@test "ddpruns by hand on several hosts: neither another user of the same hosts nor another host does harm" {
  stranger hand
  succeeded
}
