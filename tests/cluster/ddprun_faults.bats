#!/usr/bin/env bats
# ddprun on four nodes when something dies, stops or is cut off: the report names the cause, the exit code is right, and
# afterwards no process of the job is left on any node.

load ../support/cluster_jobs

setup() {
  cluster_jobs_setup
  write_worker 'sleep 98765 & setsid sleep 98765 & disown; wait %1' # a child, and a detached daemon
}

# write_worker COMMANDS: what every rank runs, after it has said that it is up.
write_worker() {
  printf '#!/bin/bash\necho "UP $RANK $TORCHELASTIC_RESTART_COUNT $WORLD_SIZE"\n%s\n' "$1" >"$shared/worker"
  chmod +x "$shared/worker"
}

start_front() { start salloc -Q -N4 "$bin/ddprun" --nproc-per-node 2 --failure-grace 0 --shutdown-timeout 3 "$@"; }

up() { [ "$(grep -c "^UP .* $2 " "$shared/out")" -ge "$1" ]; }

clean_node() { ! "$cluster" on "$1" pgrep -f 'sleep 98765|ddprun' >/dev/null; }
clean() {
  local node
  for node in n0 n1 n2 n3; do eventually 20 clean_node $node || { "$cluster" on $node ps axf; return 1; }; done
  ! "$cluster" run pgrep -x 'srun|ddprun'
}

# agent_on NODE: the process id of the agent there; its child is the attempt process.
agent_on() { "$cluster" on "$1" pgrep -o -x ddprun; }

@test "SIGKILL to a worker" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n2 sh -c 'kill -KILL $(pgrep -x worker | head -n 1)'
  finish
  [ "$status" -eq 137 ] || { echo "$output"; return 1; }
  [[ $output == *"host      : n2"*"signal    : SIGKILL"* ]]
  [ "$(grep -c FAILED <<<"$output")" -eq 1 ]
  clean
}

@test "SIGKILL to an agent" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n1 kill -KILL "$(agent_on n1)"
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n1"*"connection to ddprun's agent on n1"*"was lost"* ]] || { echo "$output"; return 1; }
  clean
}

@test "SIGKILL to the process of an attempt" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n3 pkill -KILL -x ddprun-attempt
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n3"*"own process for the ranks on n3"*"SIGKILL"* ]] || { echo "$output"; return 1; }
  clean
}

# In the next two, Slurm itself kills the step. What a rank has detached, Slurm finds with proctrack/cgroup only, which
# this cluster does not have.
@test "SIGKILL to the front" {
  write_worker 'sleep 98765'
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -KILL -x ddprun
  finish
  clean
}

@test "SIGKILL to srun" {
  write_worker 'sleep 98765'
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -KILL -x srun
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"srun ended"* ]] || { echo "$output"; return 1; }
  clean
}

@test "SIGKILL to the coordinator's agent, where srun started the agents" {
  start srun --mpi=pmix --kill-on-bad-exit=0 -N4 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 \
    --shutdown-timeout 3 "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n0 kill -KILL "$(agent_on n0)"
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"n1: the connection to"*"was lost"* ]] || { echo "$output"; return 1; }
  clean
}

@test "a worker's failure restarts the ranks of all nodes, with a new store and count" {
  start_front --max-restarts 1 "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n2 sh -c 'kill -KILL $(pgrep -x worker | head -n 1)'
  eventually 30 up 8 1
  "$cluster" on n3 sh -c 'kill -KILL $(pgrep -x worker | head -n 1)'
  finish
  [ "$status" -eq 137 ]
  [[ $output == *"restarting"*"host      : n3"* ]] || { echo "$output"; return 1; }
  clean
}

@test "after the loss of an agent the job goes on with the nodes that are left, if they are enough" {
  start_front --nnodes 3:4 "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n3 kill -KILL "$(agent_on n3)"
  went_on() { [ "$(grep -c '^UP . 0 6' "$shared/out")" -eq 6 ]; } # no restart is spent
  eventually 40 went_on
  grep -q "^ddprun: node n3: .* was lost.*; 3 of 4 nodes continue (generation 1, no restart spent)$" "$shared/out"
  "$cluster" on n0 sh -c 'kill -KILL $(pgrep -x worker | head -n 1)'
  finish
  [ "$status" -eq 137 ] || { echo "$output"; return 1; }
  clean
}

@test "--spares: the last node of the allocation runs no rank until it takes a lost node's place" {
  start_front --spares 1 "$shared/worker"
  eventually 30 up 6 0
  for node in n0 n1 n2; do "$cluster" on $node pgrep -x worker; done
  ! "$cluster" on n3 pgrep -x worker || return 1
  grep -q "^ddprun: n3: .*this one is a spare for one that is lost$" "$shared/out"
  "$cluster" on n0 kill -KILL "$(agent_on n0)" # that of rank 0, and of the store
  replaced() { [ "$(grep -c '^UP . 0 6' "$shared/out")" -eq 12 ]; } # no restart is spent
  eventually 40 replaced
  grep -q "^ddprun: node n0: .* was lost.*; 2 of 3 nodes continue with n3 (generation 1, no restart spent)$" "$shared/out"
  "$cluster" on n3 kill -KILL "$(agent_on n3)"
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n3"*"was lost"*"Generations:"*" 1 at "*": n0 was lost, n3 joined"* ]] || { echo "$output"; return 1; }
  clean
}

@test "--spares: one that is lost is only noted; at the end of the job the others have succeeded; too many are refused" {
  start_front --nnodes 2:3 --spares 1 "$shared/worker"
  eventually 30 up 6 0
  "$cluster" on n3 kill -KILL "$(agent_on n3)"
  eventually 20 grep -q "ddprun: the agent on n3 .* was lost while it waited for a place" "$shared/out"
  "$cluster" run pkill -TERM -x ddprun
  finish
  [ "$status" -eq 143 ] || { echo "$output"; return 1; }
  clean
  write_worker 'sleep 1'
  start_front --spares 2 "$shared/worker"
  finish
  [ "$status" -eq 0 ] || { echo "$output"; return 1; }
  [ "$(grep -c '^UP . 0 4$' <<<"$output")" -eq 4 ]
  start_front --spares 4 "$shared/worker"
  finish
  [ "$status" -eq 2 ]
  [[ $output == *"--spares=4 was given, but the allocation has 4 nodes; hold back fewer, or request more nodes"* ]]
}

is_idle() { [ "$("$cluster" run sinfo -h -n "$1" -o %T)" = idle ]; }
back() { # NODE: Slurm would wait for it for minutes
  "$cluster" run scontrol update node="$1" state=down reason="it did not answer"
  eventually 60 clean_node "$1"
  "$cluster" run scontrol update node="$1" state=resume || true # it may have come back by itself
  eventually 90 is_idle "$1"
}

@test "a node that is cut off ends the attempt on all others" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n2 ip link set eth0 down
  for node in n0 n1 n3; do eventually 40 clean_node $node; done
  finish # srun would wait until Slurm gives the node up
  "$cluster" on n2 ip link set eth0 up
  [ "$status" -ne 0 ]
  [[ $output == *"host      : n2"*"was lost"* ]] || { echo "$output"; return 1; }
  back n2
}

# ends_in SECONDS: the job ends, with all that srun and salloc need for it; 10 s are for a busy machine.
ends_in() {
  local began=$SECONDS
  finish
  [ $((SECONDS - began)) -le $(($1 + 10)) ] || { echo "took $((SECONDS - began)) s: $output"; return 1; }
}

# The front is the oldest of all; the controller sees the nodes' processes, too.

@test "SIGTERM while a node is cut off: the job ends in time and names the node" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n2 ip link set eth0 down
  sleep 1
  "$cluster" run pkill -o -TERM -x ddprun
  ends_in 8
  "$cluster" on n2 ip link set eth0 up
  [ "$status" -eq 143 ] || { echo "$output"; return 1; }
  [[ $output == *"ended by SIGTERM"*"n2 did not answer"* ]] || { echo "$output"; return 1; }
  [[ $output != *"did not end even after SIGKILL"* ]]
  back n2
}

@test "--timeout while an agent is stopped: the job ends in time and names the node" {
  start_front --timeout 6 "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n1 kill -STOP "$(agent_on n1)"
  ends_in 14
  [ "$status" -eq 124 ] || { echo "$output"; return 1; }
  [[ $output == *"ended by --timeout"*"n1 did not answer"* ]] || { echo "$output"; return 1; }
  clean
}

@test "a failure while an attempt process is stopped: the job ends in time" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n3 pkill -STOP -x ddprun-attempt
  "$cluster" on n0 sh -c 'kill -KILL $(pgrep -x worker | head -n 1)'
  ends_in 8
  [ "$status" -eq 137 ] || { echo "$output"; return 1; }
  [[ $output == *"own process for the ranks on n3"*"stopped answering"* ]] || { echo "$output"; return 1; }
  clean
}

@test "SIGTERM while srun is stopped: the job ends in time" {
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -STOP -x srun
  "$cluster" run pkill -o -TERM -x ddprun
  ends_in 8
  [ "$status" -eq 143 ] || { echo "$output"; return 1; }
  clean
}

@test "an agent that is stopped is lost after DDP_PEER_TIMEOUT" {
  DDP_PEER_TIMEOUT=6 start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" on n1 kill -STOP "$(agent_on n1)"
  ends_in 15
  [ "$status" -eq 1 ] || { echo "$output"; return 1; }
  [[ $output == *"host      : n1"*"nothing has come from it for"* ]] || { echo "$output"; return 1; }
  clean
}

@test "an agent that is stopped at the end of a job is lost, too, and the job has succeeded" {
  # A daemon that rank 2 leaves gets SIGTERM after all ranks have ended.
  write_worker '[ $RANK = 2 ] || exit 0
agent=$(ps -o ppid= -p $PPID)
setsid bash -c "trap \"kill -STOP $agent; exit\" TERM; touch $0.trapped; while :; do sleep 0.1; done" &
until [ -e $0.trapped ]; do sleep 0.1; done'
  DDP_PEER_TIMEOUT=6 start_front "$shared/worker"
  ends_in 25
  succeeded
  [[ $output == *"agent on n1"*"was lost: nothing has come from it"* ]] || { echo "$output"; return 1; }
  clean
}

@test "a front that is stopped is lost for its agents" {
  write_worker 'sleep 98765'
  DDP_PEER_TIMEOUT=6 start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -o -STOP -x ddprun
  for node in n0 n1 n2 n3; do eventually 30 clean_node $node; done
  "$cluster" run pkill -o -CONT -x ddprun
  finish
  [ "$status" -ne 0 ]
  [[ $output == *"failure   : "*"was lost: "*", after this ddprun"*"had not run for "*"SIGSTOP"* ]] || { echo "$output"; return 1; }
  clean
}

@test "Ctrl-Z to the front stops the ranks of all nodes, for longer than DDP_PEER_TIMEOUT, too" {
  write_worker 'until [ -e $0.go ]; do sleep 0.1; done'
  stopped() { # with what a worker was just starting
    local node states
    for node in n0 n1 n2 n3; do
      states=$("$cluster" on $node ps -C worker -o stat=)
      [ -n "$states" ] && ! grep -qv '^T' <<<"$states" || return 1
    done
  }
  DDP_PEER_TIMEOUT=6 start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -o -TSTP -x ddprun
  eventually 20 stopped
  touch "$shared/worker.go"
  sleep 9
  stopped
  "$cluster" run pkill -o -CONT -x ddprun
  finish
  succeeded
  clean
}

@test "scontrol suspend stops agents that srun started for longer than DDP_PEER_TIMEOUT, and resume continues them" {
  write_worker 'until [ -e $0.go ]; do sleep 0.1; done'
  states() { # of all ranks
    local node
    for node in n0 n1 n2; do "$cluster" on $node ps -C worker -o stat= | grep -q "^$1" || return 1; done
  }
  DDP_PEER_TIMEOUT=6 start srun -N3 --mpi=pmi2 "$bin/ddprun" --nproc-per-node 1 "$shared/worker"
  eventually 30 up 3 0
  id=$("$cluster" run squeue -h -o %i | head -n 1)
  "$cluster" run scontrol suspend "$id"
  eventually 20 states T
  sleep 8
  "$cluster" run scontrol resume "$id"
  eventually 20 states S
  touch "$shared/worker.go"
  finish
  succeeded
  clean
}

@test "an agent that is stopped and goes on does no harm" {
  write_worker 'sleep 5'
  start_front "$shared/worker"
  eventually 30 up 8 0
  agent=$(agent_on n1)
  "$cluster" on n1 kill -STOP "$agent"
  sleep 3
  "$cluster" on n1 kill -CONT "$agent"
  finish
  succeeded
  clean
}

@test "SIGTERM to the front ends the ranks of all nodes in order" {
  write_worker 'trap "echo BYE $RANK; exit 0" TERM; while :; do sleep 0.1; done'
  start_front "$shared/worker"
  eventually 30 up 8 0
  "$cluster" run pkill -TERM -x ddprun
  finish
  [ "$status" -eq 143 ] || { echo "$output"; return 1; }
  [ "$(grep -c BYE <<<"$output")" -eq 8 ]
  clean
}

@test "scancel ends the job, and its --signal=USR1 only tells the ranks" {
  write_worker 'trap "echo CHECKPOINT $RANK" USR1; while :; do sleep 0.1; done'
  start_front "$shared/worker"
  eventually 30 up 8 0
  step=$("$cluster" run squeue -h -s -o %i | grep '\.[0-9]*$' | head -n 1)
  "$cluster" run scancel --signal=USR1 "$step"
  told() { [ "$(grep -c CHECKPOINT "$shared/out")" -eq 8 ]; }
  eventually 20 told || { cat "$shared/out"; return 1; }
  "$cluster" run scancel "${step%.*}"
  finish
  [ "$status" -ne 0 ]
  clean
}

@test "the folders that a step killed by Slurm leaves are removed by the next ddprun" {
  folders() { for node in n0 n1 n2 n3; do "$cluster" on $node sh -c 'ls -d /tmp/ddprun.* 2>/dev/null || true'; done; }
  start_front "$shared/worker"
  eventually 30 up 8 0
  step=$("$cluster" run squeue -h -s -o %i | grep '\.[0-9]*$' | head -n 1)
  "$cluster" run scancel --signal=KILL "$step"
  finish
  [ -n "$(folders)" ] # an agent that hears of another's death before its own signal comes removes its own
  allocation -N4 "$bin/ddprun" true
  [ -z "$(folders)" ] || { folders; return 1; }
}
