# For bats files that submit batch scripts to the cluster: jobs and their output, the plugin for srun in the cluster's
# configuration, and nodes made whole again for the next test.

load ../support/cluster_jobs

batch_jobs_setup() {
  cluster_jobs_setup
  # The templates' own settings.
  unset PROCS_PER_NODE LOG_DIR MAX_RESTARTS MAX_RUNS SELFTEST_TIMEOUT CONTAINER_IMAGE CONTAINER_MOUNTS
  plugins="$DDP_CLUSTER_DIR/etc/plugstack.conf.d"
  repairs=()
}

batch_jobs_teardown() {
  [ -n "${cluster:-}" ] || return 0
  local repair
  for repair in ${repairs[@]+"${repairs[@]}"}; do eval "$repair" || true; done
  [ -z "$job" ] || "$cluster" run scancel "$job" 2>/dev/null || true
  end_jobs_of_failed_test
  # The next test counts on all nodes.
  for _ in $(seq 600); do
    [ "$("$cluster" run sinfo -h -N -o %T | grep -cvx idle)" != 0 ] || break
    sleep 0.2
  done
  rm -f "$plugins/ddp.conf" "$plugins/zz_container.conf"
  rm -rf "$shared"
}

setup() { batch_jobs_setup; }
teardown() { batch_jobs_teardown; }

# install_plugin: srun --ddp on this cluster, if it has been built.
install_plugin() {
  local plugin
  plugin=$(realpath "$bin/../lib/slurm/spank_ddp.so" 2>/dev/null) && [ -e "$plugin" ] ||
    skip "needs the plugin for srun, which was not built: $bin/../lib/slurm/spank_ddp.so"
  echo "optional $(without_blanks "${plugin%/lib/*}")/lib/slurm/spank_ddp.so helper=$(without_blanks "$bin")/ddp-step" >"$plugins/ddp.conf"
}

# submit [NAME=VALUE]... [SBATCH_OPTION]... SCRIPT ARGUMENT...: sets job; its output goes to $shared/out.
submit() {
  local variables=()
  while [[ $1 == [A-Z]*=* ]]; do variables+=("$1"); shift; done
  rm -f "$shared/out" # scripts may append to it
  job=$("$cluster" run timeout 60 env PATH="$bin:$PATH" "${variables[@]}" \
    sbatch --parsable --chdir="$shared" --output="$shared/out" "$@")
}

job_field() { "$cluster" run scontrol show job "$job" | sed -nE "s/.*\b$1=([^ ]*).*/\1/p" | head -n 1; }

# finish [SECONDS]: waits for the job; like run, sets status and output.
finish() {
  local state deadline=$((SECONDS + ${1:-120}))
  while :; do
    state=$(job_field JobState)
    case $state in PENDING | CONFIGURING | RUNNING) ;; *) break ;; esac # COMPLETING lasts as long as a node is away
    [ $SECONDS -lt $deadline ] || { echo "job $job is still $state"; cat "$shared/out"; return 1; }
    sleep 0.2
  done
  status=$(job_field ExitCode)
  status=${status%%:*}
  output=$(cat "$shared/out")
  echo "job $job: $state, exit status $status"
  echo "$output"
}

# batch ...: submit and finish.
batch() {
  submit "$@"
  finish
}
