# For bats files that start jobs of ranks: where the programs are, and what to run as a task.

load ../support/outer_settings

rank_jobs_setup() {
  root=$(cd "$BATS_TEST_DIRNAME/../.." && pwd)
  bin=${DDP_BIN_DIR:-$root/build/dev/bin}
  [ -x "$bin/rank_program" ] || { echo "no rank_program in $bin; build first, or set DDP_BIN_DIR" >&2; return 1; }
  check_world="$root/tests/support/check_world.py"
  rank_program="$bin/rank_program"
  sharded_training="$bin/sharded_training"
  forget_outer_settings
}

# A command line for `bash -c`: says what the launcher says of this task, then runs the program in its place.
# task_facts 'RANK' 'LOCAL_RANK' 'NODE' PROGRAM...
task_facts() {
  local facts="echo TASK $1 $2 $3 \$(hostname)"
  shift 3
  echo "$facts; exec ${*@Q}"
}

slurm_facts() { task_facts '$SLURM_PROCID' '$SLURM_LOCALID' '$SLURM_NODEID' "$@"; }

# expect_all COUNT TEXT: as many lines of $output contain TEXT.
expect_all() {
  local found
  found=$(grep -cF -- "$2" <<<"$output" || true)
  [ "$found" -eq "$1" ] || { echo "$found lines, not $1, contain '$2':"; echo "$output"; return 1; }
}
