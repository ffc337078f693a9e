#!/usr/bin/env bats
# ddprun --join: nodes of a second allocation join a running job, leave it, and are refused where they do not belong.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  export XDG_STATE_HOME="$shared/state" # all nodes see it, as a home folder
  printf '#!/bin/bash\necho "UP $DDP_GENERATION $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $(hostname) $SEED"\n%s\n' \
    'while ! [ -e "$(dirname "$0")/go" ]; do sleep 0.1; done' >"$shared/worker"
  chmod +x "$shared/worker"
  joiners=()
}

teardown() {
  [ -n "${cluster:-}" ] || return 0
  local each
  for each in ${joiners[@]+"${joiners[@]}"}; do kill -KILL "$each" 2>/dev/null || true; done
  cluster_jobs_teardown
  "$cluster" run scontrol delete PartitionName=urgent 2>/dev/null || true # of the test of preemption
  "$cluster" run scontrol update PartitionName=main GraceTime=0 || true
  sed -i '/^SchedulerParameters=/s/,disable_job_shrink//' "$DDP_CLUSTER_DIR/etc/slurm.conf"
  "$cluster" run scontrol reconfigure || true
}

# lead OPTION...: a job on two nodes, whose id is then in leader.
lead() {
  SEED=5 start salloc -Q --exclusive -N2 "$bin/ddprun" --shutdown-timeout 3 "$@" "$shared/worker"
  eventually 30 has_file
  leader=$(ls "$shared/state/libddp/jobs" | sed 's/.*[.]//')
}
has_file() { [ -n "$(ls "$shared/state/libddp/jobs" 2>/dev/null)" ]; }
# join NODES [COMMAND...]: in a second allocation; its output goes to $shared/joined.
join() {
  local nodes=$1
  shift
  timeout -k 5 120 "$cluster" run env -u SEED salloc -Q --exclusive -N"$nodes" "$@" "$bin/ddprun" --join "$leader" \
    >>"$shared/joined" 2>&1 3>&- &
  joiners+=($!)
}
joined_ends() { # STATUS
  local status=0
  wait "${joiners[-1]}" || status=$?
  unset 'joiners[-1]'
  [ "$status" -eq "$1" ] || { echo "status $status, not $1"; cat "$shared/joined" "$shared/out"; return 1; }
}
# up GENERATION RANKS: so many of it have said so; each allocation's ranks on its own console.
up() { [ "$(cat "$shared"/{out,joined} 2>/dev/null | grep -c "^UP $1 ./$2 0 ")" -eq "$2" ]; }
clean_node() { ! "$cluster" on "$1" pgrep -x 'worker|ddprun|ddprun-attempt' >/dev/null; }
clean() {
  local node
  for node in n0 n1 n2 n3; do eventually 20 clean_node $node || { "$cluster" on $node ps axf; return 1; }; done
  eventually 20 eval '! "$cluster" run pgrep -x "srun|ddprun"'
  eventually 30 eval '[ -z "$("$cluster" run squeue -h)" ]'
}
ends_well() {
  touch "$shared/go"
  finish
  succeeded
  ! has_file
  clean
}

@test "nodes of a second allocation join behind the first, with its program and environment, and end with the job" {
  lead --nnodes 2:4
  [ "$(stat -c %a "$shared/state/libddp/jobs/"*)" = 600 ]
  join 2
  eventually 60 up 1 4
  [ "$(grep '^UP 1 [01]/4' "$shared/out" | cut -d' ' -f5 | sort | tr '\n' ' ')" = "n0 n1 " ]
  [ "$(grep -c '^UP 1 [23]/4 0 n[23] 5$' "$shared/joined")" -eq 2 ]
  grep -q "^ddprun: n2, n3 joined; 2 of 2 nodes continue with them (generation 1, no restart spent)$" "$shared/out"
  ends_well
  joined_ends 0
}

@test "scancel, SIGTERM to its ddprun and the loss of a node end only the second allocation's part" {
  lead --nnodes 1:4
  join 1
  eventually 60 up 1 3
  second=$("$cluster" run squeue -h -o %i | grep -vx "$leader")
  "$cluster" run scancel "$second"
  eventually 60 up 2 2
  grep -q "^ddprun: n2 left; 2 of 3 nodes continue (generation 2, no restart spent)$" "$shared/out"
  wait "${joiners[-1]}" || true
  unset 'joiners[-1]'
  join 1
  eventually 60 up 3 3
  "$cluster" run pkill -TERM -f 'ddprun --join'
  eventually 60 up 4 2
  joined_ends 0
  join 1
  eventually 60 up 5 3
  "$cluster" on n2 pkill -KILL -o -x ddprun
  eventually 60 up 6 2
  grep -q "^ddprun: node n2: .*was lost.*; 2 of 3 nodes continue (generation 6, no restart spent)$" "$shared/out"
  wait "${joiners[-1]}" || true
  unset 'joiners[-1]'
  ends_well
}

# With a GraceTime, Slurm sends SIGTERM to the steps only, and ends the allocation when they have ended or that time is over.
@test "a second allocation that Slurm preempts leaves at once, and its node goes to the job that wants it" {
  lead --nnodes 1:4
  "$cluster" run scontrol update PartitionName=main GraceTime=600
  "$cluster" run scontrol create PartitionName=urgent Nodes=n2 PriorityTier=2
  join 1
  eventually 60 up 1 3
  second=$("$cluster" run squeue -h -o %i | grep -vx "$leader")
  [ "$(timeout 90 "$cluster" run srun -Q -p urgent --exclusive hostname)" = n2 ]
  "$cluster" run scontrol show job "$second" | grep -q 'PreemptTime=2' # a time, not None
  eventually 60 up 2 2
  grep -q "^ddprun: n2 left; 2 of 3 nodes continue (generation 2, no restart spent)$" "$shared/out"
  wait "${joiners[-1]}" || true
  unset 'joiners[-1]'
  ends_well
}

@test "a job with --spares takes another allocation's nodes as spares, and refuses more with one line" {
  lead --spares 1
  join 1
  joined_ends 1
  grep -q "^ddprun: Slurm job $leader refuses these nodes: the job already has its 1 node and 1 spare$" "$shared/joined"
  "$cluster" on n0 pkill -KILL -o -x ddprun
  eventually 60 up 1 1
  grep -q '^UP 1 0/1 0 n1 5$' "$shared/out"
  join 1
  eventually 30 grep -q "n[23]: the job is running; it has all its nodes, so this one is a spare" "$shared/joined"
  ends_well
  joined_ends 0
}

@test "what cannot be joined: one line each" {
  # refused STATUS WORDS COMMAND...: in an allocation of one node
  refused() {
    local wanted=$1 words=$2
    shift 2
    run timeout 100 "$cluster" run "$@"
    output=$(grep -v '^srun: error: n[0-9]: task 0: Exited' <<<"$output")
    mapfile -t lines <<<"$output"
    [ "$status" -eq "$wanted" ] && [ "${#lines[@]}" -eq 1 ] && [[ $output == "ddprun: "*"$words"* ]] ||
      { echo "$status: $output"; return 1; }
  }
  refused 2 "this is not a Slurm allocation" "$bin/ddprun" --join 987654
  refused 2 "--join takes program and options from the job, but 'train.py' was given too" "$bin/ddprun" --join 987654 train.py
  refused 2 "but --max-restarts was given too" "$bin/ddprun" --max-restarts 1 --join 987654
  refused 2 "this is a task of a Slurm step" srun -Q -N1 "$bin/ddprun" --join 987654
  # a static job has no file
  start salloc -Q --exclusive -N2 "$bin/ddprun" --shutdown-timeout 3 "$shared/worker"
  eventually 30 eval 'grep -q "^UP" "$shared/out"'
  leader=$("$cluster" run squeue -h -o %i)
  refused 1 "has no ddprun that nodes can join: there is no file" \
    env PET_RDZV_CONF=read_timeout=1 salloc -Q -N1 "$bin/ddprun" --join "$leader"
  touch "$shared/go"
  finish
  rm "$shared/go"
  # of a dead job, of another version, readable by others, another user's
  lead --nnodes 1:4
  file=$(echo "$shared/state/libddp/jobs/"*)
  cp "$file" "$shared/kept"
  sed '1s/^ddprun-agent [^ ]*/ddprun-agent 0.0.1/' "$shared/kept" >"$file"
  refused 1 "the frontend is version 0.0.1, but ddprun on" salloc -Q -N1 "$bin/ddprun" --join "$leader"
  cat "$shared/kept" >"$file"
  chmod 644 "$file"
  refused 1 "others may use it: its mode is 0644" salloc -Q -N1 "$bin/ddprun" --join "$leader"
  chmod 600 "$file"
  chown 65534 "$file"
  refused 1 "it belongs to user 65534, but this is user 0" salloc -Q -N1 "$bin/ddprun" --join "$leader"
  chown 0 "$file"
  touch "$shared/go"
  finish
  succeeded
  ! has_file
  install -m 600 "$shared/kept" "$file"
  refused 1 "does not answer: " salloc -Q -N1 "$bin/ddprun" --join "$leader"
  [[ $output == *"if that job is over, remove '$file'"* ]]
}

is_idle() { [ "$("$cluster" run sinfo -h -n "$1" -o %T)" = idle ]; }

@test "a node that is set DOWN is lost; resumed, it joins by another allocation; scancel ends all" {
  SEED=5 start salloc -Q --exclusive --no-kill -N2 "$bin/ddprun" --shutdown-timeout 3 --nnodes 1:3 "$shared/worker"
  eventually 30 has_file
  leader=$(ls "$shared/state/libddp/jobs" | sed 's/.*[.]//')
  eventually 60 up 0 2
  "$cluster" run scontrol update NodeName=n1 State=DOWN Reason=test
  eventually 60 up 1 1
  grep -q "^ddprun: node n1: .*; 1 of 2 nodes continues (generation 1, no restart spent)$" "$shared/out"
  # refused where the node's slurmd has registered again meanwhile, which resumes it, too (ReturnToService=2)
  "$cluster" run scontrol update NodeName=n1 State=RESUME || true
  eventually 30 is_idle n1
  join 1 -w n1
  eventually 60 up 2 2
  "$cluster" run scancel "$leader"
  finish
  [ "$status" -ne 0 ]
  wait "${joiners[-1]}" || true
  unset 'joiners[-1]'
  ! has_file
  clean
}

resize() { "$cluster" run "$bin/ddp-info" resize "$@"; }

@test "ddp-info resize from another shell: a job's own node waits, takes part again, and leaves" {
  lead --nnodes 1:3
  [ "$(resize "$leader" --nodes 1)" = "n1 is to wait as a spare" ]
  eventually 60 up 1 1
  grep -Eq "^ddprun: n1 waits as a spare, asked by ddp-info resize on [^ ]+; 1 of 2 nodes continues \(generation 1, no restart spent\)$" "$shared/out"
  [ "$(resize "$leader" --nodes 3)" = "n1 is to join; up to 3 will, once other nodes have joined" ]
  eventually 60 up 2 2
  [ "$(resize "$leader" --drain n1)" = "n1 is to leave" ]
  eventually 60 up 3 1
  grep -Eq "^ddprun: n1 left, asked by ddp-info resize on [^ ]+; 1 of 2 nodes continues" "$shared/out"
  clean_node n1
  run -1 resize 987654 --nodes 1
  [[ $output == *"ddp-info: asking the nodes of job 987654: "* ]]
  ends_well
}

says_to_user() { eventually 30 grep -q "^ddprun: $1$" "$shared/out" || { cat "$shared/out"; return 1; }; }
nodes_of() { "$cluster" run squeue -h -j "$1" -o %N; }

@test "ddp-info resize --spares: Slurm gets nodes of both allocations back, and others have them; a site may forbid it" {
  lead --nnodes 1:4
  join 2
  eventually 60 up 1 4
  second=$("$cluster" run squeue -h -o %i | grep -vx "$leader")
  [ "$(resize "$leader" --nodes 3 --spares 0)" = "n3 is to leave" ]
  eventually 60 up 2 3
  says_to_user "Slurm has n3 back from job $second"
  [ "$(nodes_of "$second")" = n2 ]
  [ "$(resize "$leader" --nodes 1)" = "n1, n2 are to leave" ]
  eventually 60 up 3 1
  joined_ends 0
  says_to_user "Slurm has n1 back from job $leader"
  [ "$(nodes_of "$leader")" = n0 ]
  [ "$(timeout 60 "$cluster" run srun -Q -N3 --exclusive hostname | sort | tr '\n' ' ')" = "n1 n2 n3 " ]
  [ -z "$(find . "$shared" -maxdepth 1 -name 'slurm_job_*_resize.*')" ] # scontrol's, for shells of an allocation
  ends_well
  rm "$shared/go"
  sed -i '/^SchedulerParameters=/s/$/,disable_job_shrink/' "$DDP_CLUSTER_DIR/etc/slurm.conf"
  "$cluster" run scontrol reconfigure
  lead --nnodes 1:2
  [ "$(resize "$leader" --drain n1)" = "n1 is to leave" ]
  eventually 60 up 1 1
  says_to_user "n1 is idle in Slurm job $leader, which keeps it: .*"
  ends_well
}

@test "ddp-info resize of a step of srun: JOB.STEP; a node waits, and leaves" {
  SEED=5 start srun -Q --mpi=pmix -N3 --exclusive "$bin/ddprun" --shutdown-timeout 3 --nnodes 1:3 "$shared/worker"
  eventually 30 has_file
  step=$(ls "$shared/state/libddp/jobs" | sed 's/^[^.]*[.]//')
  [[ $step =~ ^[0-9]+[.]0$ ]]
  [ "$(resize "$step" --nodes 2)" = "n2 is to wait as a spare" ]
  eventually 60 up 1 2
  [ "$(resize "$step" --drain n1)" = "n1 is to leave" ]
  eventually 60 up 2 2
  [ "$(grep "^UP 2" "$shared/out" | cut -d' ' -f5 | sort | tr '\n' ' ')" = "n0 n2 " ]
  ends_well
}

@test "a job that may lose nodes warns where its allocation lacks --no-kill, with what to add" {
  warned() { grep -c "^ddprun: warning: Slurm ends this $1" "$shared/out" || true; }
  start salloc -Q -N2 --exclusive "$bin/ddprun" --nnodes 1:2 true
  finish
  succeeded
  [ "$(warned "allocation when one of its nodes fails: give --no-kill to salloc$")" -eq 1 ]
  quiet() {
    start salloc -Q --exclusive "$@" true
    finish
    succeeded
    [ "$(warned "")" -eq 0 ]
  }
  quiet --no-kill -N2 "$bin/ddprun" --nnodes 1:2
  quiet -N2 "$bin/ddprun"
  printf '#!/bin/bash\n#SBATCH -N2 --exclusive\n"%s" --nnodes 1:2 "%s"\n' "$bin/ddprun" "$shared/worker" >"$shared/train.sh"
  "$cluster" run sbatch --output="$shared/out" "$shared/train.sh"
  eventually 30 grep -q "warning: Slurm ends this job.*: add '#SBATCH --no-kill' to the batch script$" "$shared/out"
  touch "$shared/go"
  clean
}
