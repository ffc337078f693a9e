# For bats files that run on the Slurm cluster: commands on its controller, jobs in the background, and the file's own
# setup() and teardown() where it has none.

bats_require_minimum_version 1.5.0
load ../support/rank_jobs
load ../support/eventually

# Sets cluster, shared (a folder that all nodes see) and those of rank_jobs_setup.
cluster_jobs_setup() {
  [ -n "${DDP_CLUSTER_DIR:-}" ] || skip "needs a cluster: tests/cluster/slurm_cluster with -- bats $BATS_TEST_FILENAME"
  rank_jobs_setup
  unset TMPDIR # jobs inherit it, but nodes have a /tmp of their own
  cluster="$BATS_TEST_DIRNAME/slurm_cluster"
  shared="$DDP_CLUSTER_DIR/shared/${BATS_TEST_FILENAME##*/}-$BATS_TEST_NUMBER"
  mkdir -p "$shared"
  chmod 1777 "$shared"
  export XDG_CONFIG_HOME="$shared/config" # not the user's own key file
  job=
}

cluster_jobs_teardown() {
  [ -n "${cluster:-}" ] || return 0
  [ -z "$job" ] || kill -KILL "$job" 2>/dev/null || true
  end_jobs_of_failed_test
  rm -rf "$shared"
}

# A failed test may leave jobs, whose nodes the next tests count on: shows what they do, and ends them.
end_jobs_of_failed_test() {
  local jobs
  [ -z "${BATS_TEST_COMPLETED:-}" ] || return 0
  jobs=$("$cluster" run squeue -h -o "%i %T %M %R %j") && [ -n "$jobs" ] || return 0
  printf 'jobs left (id, state, time, nodes or reason, name):\n%s\nprocesses:\n' "$jobs"
  "$cluster" run ps -eo pid,ppid,stat,etimes,time,wchan:24,args --cols 160 |
    grep -Ev ' (slurmctld|munged|ps|bash [^ ]*slurm_cluster|bash [^ ]*bats)' || true
  "$cluster" run scancel --signal=KILL $(cut -d' ' -f1 <<<"$jobs") || true
  "$cluster" run scancel $(cut -d' ' -f1 <<<"$jobs") || true
}

setup() { cluster_jobs_setup; }
teardown() { cluster_jobs_teardown; }

# on_ctl COMMAND...: on the controller, where a login shell would be; both its streams. In a step that waits forever
# (Slurm's PMIx in a step of several components does) only SIGKILL ends srun.
on_ctl() { timeout -k 5 "${LIMIT:-120}" "$cluster" run "$@" 2>&1; }
srun() { on_ctl srun "$@"; }
allocation() { on_ctl salloc -Q "$@"; }

# start COMMAND...: the same in the background; its output goes to $shared/out.
start() {
  : >"$shared/out" # before said() looks at that of an earlier step
  timeout -k 5 "${LIMIT:-120}" "$cluster" run "$@" >>"$shared/out" 2>&1 3>&- &
  job=$!
}
# finish: waits for it; like run, sets status and output.
finish() {
  status=0
  wait "$job" || status=$?
  job=
  output=$(cat "$shared/out")
}

# said COUNT TEXT: at least so many lines of $shared/out begin with it; says COUNT TEXT waits for them.
said() { [ -e "$shared/out" ] && [ "$(grep -c "^$2" "$shared/out")" -ge "$1" ]; }
says() { eventually 60 said "$@" || { cat "$shared/out"; return 1; }; }

# without_blanks FOLDER: another path of it where it has blanks: plugstack.conf has no quotes.
without_blanks() {
  local link=$1
  [[ $1 != *[[:space:]]* ]] || { link=$DDP_CLUSTER_DIR/$(sha256sum <<<"$1" | head -c 8) && ln -sfn "$1" "$link"; }
  echo "$link"
}

# succeeded: shows the output when it did not.
succeeded() { [ "$status" -eq 0 ] || { echo "status $status"; echo "$output"; return 1; }; }
