#!/usr/bin/env bats
# scripts/ddp-selftest.sbatch where Slurm does not answer; tests/cluster/selftest.bats runs it in a Slurm.

bats_require_minimum_version 1.5.0

setup() {
  script=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/scripts/ddp-selftest.sbatch
  stubs=$BATS_TEST_TMPDIR/stubs
  mkdir "$stubs"
  for program in ddp-selftest ddprun srun; do stub "$program" 'exit 1'; done
  export SLURM_JOB_ID=1 SLURM_JOB_NODELIST='n[1-2]' SELFTEST_TIMEOUT=1
}

# stub NAME COMMAND
stub() {
  printf '#!/bin/sh\n%s\n' "$2" >"$stubs/$1"
  chmod +x "$stubs/$1"
}

@test "without the nodes' names, nothing has passed" {
  for answer in 'echo "slurm_load: no connection" >&2; exit 1' 'exit 0' 'echo n1; exit 1'; do
    stub scontrol "$answer"
    run -2 env PATH="$stubs:$PATH" timeout -k 5 60 "$script"
    echo "$output"
    [[ $output == *"ddp-selftest.sbatch: scontrol does not list the nodes of 'n[1-2]'"* ]]
    [[ $output != *passed* ]]
  done
}

@test "the nodes that scontrol names are those that are tested" {
  stub scontrol 'printf "n1\nn2\n"'
  run -1 env PATH="$stubs:$PATH" timeout -k 5 60 "$script"
  echo "$output"
  [[ $output == *"2 of 2 nodes did not pass: n1,n2"* ]]
}
