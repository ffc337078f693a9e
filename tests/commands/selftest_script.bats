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

# local_stack LINES: what Slurm says of its configuration, and the plugstack.conf that this names.
local_stack() {
  bin=${DDP_BIN_DIR:-$(cd "$BATS_TEST_DIRNAME/../.." && pwd)/build/dev/bin}
  plugin=${bin%/bin}/lib/slurm/spank_ddp.so
  printf '%s\n' "include $BATS_TEST_TMPDIR/plugstack.conf.d/*.conf" >"$BATS_TEST_TMPDIR/plugstack.conf"
  mkdir -p "$BATS_TEST_TMPDIR/plugstack.conf.d"
  printf '%s\n' "$1" >"$BATS_TEST_TMPDIR/plugstack.conf.d/ddp.conf"
  stub scontrol "[ \$1 != --version ] || { echo slurm-wlm ${2:-}; exit; }; echo 'PlugStackConfig         = $BATS_TEST_TMPDIR/plugstack.conf'"
}

# on_this_node STATUS OPTION...
on_this_node() {
  run "-$1" env PATH="$stubs:$PATH" SLURMD_NODENAME=n7 timeout -k 5 60 "$bin/ddp-selftest" --local "${@:2}"
  echo "$output"
}

@test "ddp-selftest --local: a node with everything passes, line by line" {
  local_stack "optional XX helper=YY"
  [ -e "$plugin" ] || skip "needs the plugin for srun, which was not built"
  [[ $plugin != *' '* ]] || skip "plugstack.conf has no names with blanks"
  local_stack "optional $plugin helper=$bin/ddp-step # libddp's"
  on_this_node 0 --expect-plugin
  for check in ddprun libraries plugin ddp-step; do [[ $output =~ (^|$'\n')n7" "+PASS" "+$check" " ]]; done
}

@test "ddp-selftest --local: without the plugin in plugstack.conf it warns, or fails where one is expected" {
  local_stack "# optional /nowhere/spank_ddp.so"
  on_this_node 0
  [[ $output =~ n7" "+WARN" "+plugin" "+[^$'\n']*plugstack.conf[^$'\n']*"spank_ddp.so" ]]
  on_this_node 1 --expect-plugin
  [[ $output =~ n7" "+FAIL" "+plugin ]]
  run -2 "$bin/ddp-selftest" --expect-plugin
  [[ $output == *"--expect-plugin needs --local"* ]]
}

@test "ddp-selftest --local: a plugin that is missing, cannot be loaded, or is for another Slurm; and a missing ddp-step" {
  local_stack "optional /nowhere/spank_ddp.so"
  on_this_node 1
  [[ $output =~ FAIL" "+plugin" "+[^$'\n']*/nowhere/spank_ddp.so ]]
  [ -e "$plugin" ] || skip "needs the plugin for srun, which was not built"
  [[ $plugin != *' '* ]] || skip "plugstack.conf has no names with blanks"
  echo "no library" >"$BATS_TEST_TMPDIR/spank_ddp.so"
  local_stack "optional $BATS_TEST_TMPDIR/spank_ddp.so"
  on_this_node 1
  [[ $output =~ FAIL" "+plugin" "+"it cannot be loaded" ]]
  local_stack "optional $plugin helper=$bin/ddp-step" 19.05.1
  on_this_node 1
  [[ $output =~ FAIL" "+plugin" "+[^$'\n']*"this host has 19.05.1" ]]
  local_stack "optional $plugin helper=/nowhere/ddp-step"
  on_this_node 1
  [[ $output =~ FAIL" "+ddp-step" "+[^$'\n']*/nowhere/ddp-step[^$'\n']*ENOENT ]]
  stub ddp-step 'echo ddp-step 9.8.7'
  local_stack "optional $plugin helper=$stubs/ddp-step"
  on_this_node 1
  [[ $output =~ FAIL" "+ddp-step" "+[^$'\n']*9.8.7 ]]
}
