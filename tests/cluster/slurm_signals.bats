#!/usr/bin/env bats
# Slurm's signals to a job reach each of ddprun's ranks, at once and once, whichever processes of a step slurmstepd signals:
# that is a matter of ProctrackType. (proctrack/cgroup needs a host's cgroups; like pgid it signals tasks and not their children.)

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  rm -r "$shared"
  # A cluster of its own, whose end the outer one's is at the latest.
  export DDP_CLUSTER_DIR=$DDP_CLUSTER_DIR/shared/signals-$$
  unset SLURM_CONF
  shared="$DDP_CLUSTER_DIR/shared"
  worker="$shared/worker"
}

teardown() { [ -z "${cluster:-}" ] || "$cluster" down; }

# A rank that counts: it writes a line for each signal, of SIGUSR2 with the time, and ends a second after the first SIGTERM.
# Bash runs a trap during wait, but not during a command.
start_cluster() {
  "$cluster" up --cpus 4,4 --proctrack "$1"
  cat >"$worker" <<'END'
#!/bin/bash
trap 'echo "CHECKPOINT $RANK"' USR1
trap 'echo "TIMED $RANK $EPOCHREALTIME"' USR2
trap 'echo "SAVED $RANK"; saved=yes' TERM
echo "UP $RANK"
until [ -n "$saved" ]; do sleep 1 & wait; done
for _ in {1..10}; do sleep 0.1; done
exit 0
END
  chmod +x "$worker"
}

# exactly COUNT WORD: that many lines begin with it, and each rank wrote one.
exactly() { diff <(grep "^$2 " "$shared/out" | sort) <(for ((rank = 0; rank < $1; ++rank)); do echo "$2 $rank"; done); }

# batch COMMAND: as a batch script on both nodes; sets job. The shell outlives SIGTERM, or Slurm would kill its steps.
batch() {
  printf '#!/bin/bash\ntrap : TERM\n%s\n' "$1" >"$shared/script"
  rm -f "$shared/out"
  job=$("$cluster" run sbatch --parsable -N2 --ntasks-per-node=1 -o "$shared/out" "$shared/script")
  eventually 60 said 4 UP || { cat "$shared/out"; return 1; }
}
job_ended() { ! "$cluster" run scontrol show job -o "$job" | grep -Eq 'JobState=(PENDING|RUNNING|COMPLETING)'; }
nothing_left() { ! "$cluster" run pgrep 'ddprun|worker' >/dev/null; }

# checkpoint_and_end SCANCEL_ARGUMENT...: SIGUSR1 to the step, then scancel.
checkpoint_and_end() {
  "$cluster" run scancel --signal=USR1 "$job.0"
  eventually 20 said 4 CHECKPOINT || { cat "$shared/out"; return 1; }
  "$cluster" run scancel "$@"
  eventually 20 said 4 SAVED || { cat "$shared/out"; return 1; }
  eventually 60 job_ended
  eventually 20 nothing_left || { "$cluster" run ps axf; return 1; }
  exactly 4 CHECKPOINT && exactly 4 SAVED || { cat "$shared/out"; return 1; }
}

# The best of five times from scancel's start to the last rank's trap must be below 0.4 s: agents that waited in vain for
# Slurm to signal another node would need 0.5 s more (decision 0015).
arrives_at_once() {
  local try sent last best=9
  for try in {1..5}; do
    sent=$EPOCHREALTIME
    "$cluster" run scancel --signal=USR2 "$job.0"
    eventually 20 said $((4 * try)) TIMED || { cat "$shared/out"; return 1; }
    last=$(grep '^TIMED ' "$shared/out" | cut -d' ' -f3 | sort -n | tail -n1)
    best=$(awk -v a="$last" -v b="$sent" -v best="$best" 'BEGIN { d = a - b; print d < best ? d : best }')
  done
  echo "after $best s"
  awk -v best="$best" 'BEGIN { exit !(best < 0.4) }'
}

signals_arrive() {
  start_cluster "$1"
  batch "${bin@Q}/ddprun --nproc-per-node 2 $worker"
  arrives_at_once
  checkpoint_and_end --signal=TERM "$job.0"
  batch "${bin@Q}/ddprun --nproc-per-node 2 $worker"
  checkpoint_and_end "$job"
  batch "srun --mpi=pmix ${bin@Q}/ddprun --nproc-per-node 2 $worker"
  checkpoint_and_end "$job"
}

@test "all processes of a step are signalled (proctrack/linuxproc)" { signals_arrive linuxproc; }
@test "tasks are signalled, and ranks are none (proctrack/pgid)" { signals_arrive pgid; }
