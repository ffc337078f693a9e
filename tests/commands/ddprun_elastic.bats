#!/usr/bin/env bats
# Jobs with --nnodes MIN:MAX whose ddpruns are started by hand, all on this host: what follows when nodes are
# lost, join and leave.

load ddprun_agents_fixture

# A rank that notes its process id and place, and waits for the file go.
elastic='echo $$$$ >"$NOTES/pid.$DDP_GENERATION.$RANK"
echo "$DDP_GENERATION $RANK/$WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $MASTER_PORT"
while ! [ -e "$NOTES/go" ]; do sleep 0.02; done'

# run_nodes MIN:MAX NAME...: agents of which the first leads; they start once all have come.
run_nodes() {
  local nodes=$1 name first=1 last_call=1
  shift
  [ $# -eq 1 ] || last_call=10 # a busy machine starts them one after the other
  for name in "$@"; do
    start_agent "$name" --nnodes "$nodes" "${meet[@]}" --rdzv-conf last_call_timeout=$last_call --shutdown-timeout 5 sh -c "$elastic"
    [ $first -eq 0 ] || eventually 20 listening
    first=0
  done
  eventually 30 run_in 0 $#
}
# run_in GENERATION RANKS: so many of it have noted themselves.
run_in() { [ "$(find "$NOTES" -name "pid.$1.*" -size +0 | wc -l)" -eq "$2" ]; }

lose() { # NAME
  kill -KILL "${agents[$1]}"
  wait "${agents[$1]}" || true
  unset "agents[$1]"
}

# ends_well NAME...: all ranks may end, and all these agents succeed; output has what all said.
ends_well() {
  local name all=
  touch "$NOTES/go"
  for name in "$@"; do
    finish_agent "$name"
    [ "$status" -eq 0 ]
    all+=$output$'\n'
  done
  output=$all
  eventually 20 all_gone
}

@test "after the loss of a node the others go on, in another generation and without a restart" {
  run_nodes 2:3 a b c
  lose c
  eventually 30 run_in 1 2
  ends_well a b
  [ "$(grep -E '^1 [01]/2 0 [0-9]+$' <<<"$output" | cut -d' ' -f2 | sort)" = $'0/2\n1/2' ]
  [ "$(grep -E '^[01] ' <<<"$output" | cut -d' ' -f1,4 | sort -u | wc -l)" -eq 2 ]  # each has a store of its own
  [[ $output == *"ddprun: node $(hostname): "*" was lost: "*"; 2 of 3 nodes continue (generation 1, no restart spent)"* ]]
}

@test "below the minimum the job waits for another node, which takes the lost one's place" {
  run_nodes 2:3 a b
  lose b
  eventually 30 agent_said a "1 node is left, and --nnodes=2:3 needs 2: waiting for another ddprun at "
  run_in 1 0
  start_agent c --nnodes 2:3 "${meet[@]}" sh -c "$elastic"
  eventually 30 run_in 1 2
  ends_well a c
  [[ $output == *"; 1 of 2 nodes continues with $(hostname) (generation 1, no restart spent)"* ]]
}

@test "where no other node comes in time, the lost one is the cause of the end; a signal ends the wait, too" {
  for end in time signal; do
    rm -f "$NOTES"/pid.*
    port=$(free_port)
    meet[3]=localhost:$port
    limits=last_call_timeout=1
    [ $end = signal ] || limits+=,join_timeout=6
    for name in a b; do
      start_agent $name --nnodes 2:3 "${meet[@]}" --rdzv-conf "$limits" --shutdown-timeout 5 sh -c "$elastic"
      eventually 20 listening
    done
    eventually 30 run_in 0 2
    lost=${agents[b]}
    lose b
    eventually 30 agent_said a "waiting for another ddprun"
    [ $end = time ] || kill -TERM "${agents[a]}"
    finish_agent a
    [ "$status" -eq 1 ]
    [[ $output == *"Root Cause"*"(pid $lost) was lost"* ]]
    [ $end = signal ] || [[ $output == *"no other node joined within 6 s"* ]]
    eventually 20 all_gone
  done
}

@test "--crash-loop: a job that loses its ranks' processes again and again ends" {
  run_nodes 1:2 a
  for generation in 0 1 2; do
    eventually 30 run_in $generation 1
    kill -KILL "$(pgrep -P "${agents[a]}" ddprun-attempt)"
  done
  finish_agent a
  [ "$status" -eq 1 ]
  [ "$(grep -c "1 of 1 node continues (generation [12], no restart spent)" <<<"$output")" -eq 2 ]
  [[ $output == *"3 generations in a row lost a node within 60 s of their start: the job ends (--crash-loop)"* ]]
  eventually 20 all_gone
  rejects 2 "'3' is not N:SECONDS; give 3:60, or 0 for no limit" --crash-loop 3 true
  rejects 2 "'0'" --crash-loop 3:0 true
}

# join NAME NODES OPTION...: another agent, once the ranks run.
join() {
  local name=$1 nodes=$2
  shift 2
  start_agent "$name" --nnodes "$nodes" "${meet[@]}" --shutdown-timeout 5 "$@" sh -c "$elastic"
}

@test "late nodes join together, behind the others, without a restart" {
  run_nodes 1:4 a
  join b 1:4
  join c 1:4
  eventually 30 run_in 1 3
  run_in 2 0
  ends_well a b c
  [ "$(grep -cE '^1 [0-2]/3 0 ' <<<"$output")" -eq 3 ]
  [[ $output == *"the job is running; this node joins when its ranks have ended to start again"* ]]
  [[ $output == *" joined; 1 of 1 node continues with them (generation 1, no restart spent)"* ]]
}

@test "a full job keeps a spare, which takes the place of a lost node; one that is not needed exits with 0" {
  run_nodes 1:2 a b
  join c 1:2
  eventually 20 agent_said c "it has all its nodes, so this one is a spare for one that is lost"
  join d 1:2
  eventually 20 agent_said d "this one is a spare"
  run -1 "$DDPRUN" --nnodes 1:2 "${meet[@]}" true
  [[ $output == *"the job already has its 2 nodes and as many spares"* ]]
  lose b
  eventually 30 run_in 1 2
  ends_well a c d
  [ "$(grep -cE '^1 [01]/2 0 ' <<<"$output")" -eq 2 ]
  [[ $output == *"1 of 2 nodes continues with $(hostname) (generation 1, no restart spent)"* ]]
}

@test "SIGTERM or Ctrl-C to an agent that does not lead is its node's leave; to the one that leads it is the end" {
  for signal in TERM INT; do
    rm -f "$NOTES"/*
    port=$(free_port)
    meet[3]=localhost:$port
    run_nodes 1:3 a b c
    kill -$signal "${agents[c]}"
    finish_agent c
    [ "$status" -eq 0 ]
    eventually 30 run_in 1 2
    eventually 20 agent_said a " left; 2 of 3 nodes continue (generation 1, no restart spent)"
    if [ $signal = TERM ]; then
      ends_well a b
    else
      kill -TERM "${agents[a]}"
      for name in a b; do
        finish_agent $name
        [ "$status" -eq 143 ]
      done
    fi
    eventually 20 all_gone
  done
}

@test "with --nnodes N, SIGTERM to any agent ends the job, and late nodes are refused" {
  for name in a b; do
    start_agent $name --nnodes 2 "${meet[@]}" --shutdown-timeout 5 sh -c "$elastic"
    eventually 20 listening
  done
  eventually 30 run_in 0 2
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" sh -c "$elastic"
  [[ $output == *"nodes cannot join a running job"* ]]
  kill -TERM "${agents[b]}"
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 143 ]
  done
}

@test "a newcomer that cannot start its ranks leaves with its error, and interrupts nobody" {
  run_nodes 1:3 a
  run -127 env PATH=/nonexistent "$DDPRUN" --nnodes 1:3 "${meet[@]}" sh -c "$elastic"
  [[ $output == *"cannot start ranks"*"'sh'"* ]]
  sleep 3
  run_in 1 0
  ends_well a
}

@test "the report and the event log list generations with their reasons" {
  start_agent a --nnodes 1:2 "${meet[@]}" --rdzv-conf last_call_timeout=1 --shutdown-timeout 5 --report-json report.json \
    --event-log events.jsonl sh -c "$elastic"
  eventually 20 listening
  eventually 30 run_in 0 1
  join b 1:2
  eventually 30 run_in 1 2
  kill -TERM "${agents[b]}"
  finish_agent b
  eventually 30 run_in 2 1
  ends_well a
  python3 - "$(hostname)" <<'CHECK'
import json, sys
host = sys.argv[1]
report = json.load(open("report.json"))
generations = report["generations"]
assert [each["reason"] for each in generations] == ["start", "node_joined", "node_left"], generations
assert generations[1]["joined"] == [host] and generations[1]["survivors"] == 1, generations
assert generations[2]["left"] == [host] and generations[2]["lost"] == [], generations
assert report["success"] and report["attempt"] == 2, report
events = [json.loads(line) for line in open("events.jsonl")]
started = [each for each in events if each["event"] == "generation_started"]
assert [(each["attempt"], each["reason"]) for each in started] == [(1, "node_joined"), (2, "node_left")], started
CHECK
}

@test "--on-resize signal: ranks handle it and exit with 0; those that do not get SIGTERM after the grace" {
  reacts='echo $$$$ >"$NOTES/pid.$DDP_GENERATION.$RANK"
trap "[ -e \"\$DDP_CHANGE_DIR/pending\" ] && echo saved \$RANK && exit 0" USR2
trap "echo ended \$RANK; exit 143" TERM
while ! [ -e "$NOTES/go" ]; do sleep 0.02; done'
  deaf='echo $$$$ >"$NOTES/pid.$DDP_GENERATION.$RANK"
trap "" USR2
trap "echo ended \$RANK; exit 143" TERM
while ! [ -e "$NOTES/go" ]; do sleep 0.02; done'
  for program in "$reacts" "$deaf"; do
    rm -f "$NOTES"/*
    grace=600
    [ "$program" = "$reacts" ] || grace=1
    port=$(free_port)
    meet[3]=localhost:$port
    start_agent a --nnodes 1:3 "${meet[@]}" --rdzv-conf last_call_timeout=1 --on-resize signal=USR2 --resize-grace $grace \
      --nproc-per-node 2 sh -c "$program"
    eventually 20 listening
    eventually 30 run_in 0 2
    start_agent b --nnodes 1:3 "${meet[@]}" sh -c "$program"
    eventually 30 run_in 1 3
    ends_well a b
    if [ $grace = 600 ]; then
      [ "$(grep -cE '^.*saved [01]$' <<<"$output")" -eq 2 ]
      ! grep -qE '^.*ended [01]$' <<<"$output"
    else
      [ "$(grep -cE '^.*ended [01]$' <<<"$output")" -eq 2 ]
    fi
    [[ $output == *" joined; 1 of 1 node continues with it (generation 1, no restart spent)"* ]]
  done
}

@test "--on-resize finish: nodes wait until the ranks have ended by restart.RANK; an exit with 0 is the job's success" {
  asks='echo $$$$ >"$NOTES/pid.$DDP_GENERATION.$RANK"
while ! [ -e "$NOTES/go" ]; do
  if [ -e "$DDP_CHANGE_DIR/pending" ] && [ -e "$NOTES/may_restart" ]; then touch "$DDP_CHANGE_DIR/restart.$RANK"; exit 0; fi
  sleep 0.02
done'
  start_agent a --nnodes 1:3 "${meet[@]}" --rdzv-conf last_call_timeout=1,scale_up_delay=0 --on-resize finish --nproc-per-node 2 sh -c "$asks"
  eventually 20 listening
  eventually 30 run_in 0 2
  start_agent b --nnodes 1:3 "${meet[@]}" sh -c "$asks"
  eventually 20 agent_said b "this node joins when its ranks have ended to start again"
  sleep 1
  run_in 1 0
  touch "$NOTES/may_restart"
  eventually 30 run_in 1 3
  rm "$NOTES/may_restart"
  start_agent c --nnodes 1:3 "${meet[@]}" sh -c "$asks"
  eventually 20 agent_said c "this node joins when its ranks have ended to start again"
  sleep 1
  run_in 2 0
  ends_well a b c
  [[ $output == *" joined; 1 of 1 node continues with it (generation 1, no restart spent)"* ]]
  [[ $output != *"generation 2"* ]]
}

@test "--on-resize finish: a node that leaves waits for the grace; a rank that fails meanwhile is named and ends the wait" {
  fails='echo $$$$ >"$NOTES/pid.$DDP_GENERATION.$RANK"
while ! [ -e "$NOTES/go" ]; do
  if [ -e "$DDP_CHANGE_DIR/pending" ] && [ -e "$NOTES/fail" ] && [ $RANK = 0 ]; then exit 3; fi
  sleep 0.02
done'
  start_agent a --nnodes 1:3 "${meet[@]}" --rdzv-conf last_call_timeout=30 --on-resize finish --resize-grace 10 sh -c "$fails"
  eventually 20 listening
  for name in b c; do start_agent $name --nnodes 1:3 "${meet[@]}" --on-resize finish sh -c "$fails"; done
  eventually 30 run_in 0 3
  kill -TERM "${agents[c]}"
  finish_agent c
  [ "$status" -eq 0 ]
  eventually 60 run_in 1 2
  touch "$NOTES/fail"
  kill -TERM "${agents[b]}"
  finish_agent b
  [ "$status" -eq 0 ]
  eventually 30 run_in 2 1
  ends_well a
  [[ $output == *"rank 0 ended with exit code 3 while it was to end for a change of nodes"* ]]
  [ "$(grep -c "left; . of . node" <<<"$output")" -eq 2 ]
}

@test "--on-resize: how the ranks may end" {
  rejects 2 "'wait' is not known; give stop, signal, signal=USR2 or finish" --on-resize wait true
  rejects 2 "'signal=KILL' names no signal that ranks can handle" --on-resize signal=KILL true
  run -0 env DDP_CHANGE_DIR=/elsewhere "$DDPRUN" sh -c 'echo "<$DDP_CHANGE_DIR>"'  # of the job that this one is in
  [[ $output == *"<>"* ]]
}

@test "ranks that ask for another start as soon as they have begun end the job with one message; --crash-loop 0 lets them" {
  local again='n=$(cat "$NOTES/count" 2>/dev/null || echo 0); echo $((n + 1)) >"$NOTES/count"
[ $n -lt 4 ] || exit 0; : >"$DDP_CHANGE_DIR/restart.$RANK"'
  run -1 "$DDPRUN" --nnodes 1:2 "${meet[@]}" --rdzv-conf last_call_timeout=0.1 sh -c "$again"
  [ "$(cat "$NOTES/count")" -eq 3 ]
  [ "$(grep -c "3 generations in a row were ended by their ranks (restart_here), or lost a node, within 60 s" <<<"$output")" -eq 1 ]
  [[ $output == *"the job ends (--crash-loop)"* ]]
  rm "$NOTES/count"
  run -0 "$DDPRUN" --nnodes 1:2 "${meet[@]}" --rdzv-conf last_call_timeout=0.1 --crash-loop 0 sh -c "$again"
  [ "$(cat "$NOTES/count")" -eq 5 ]
}

@test "options for nodes that come and go: one line where nodes are fixed; refused where the leading ddprun has others" {
  run -0 "$DDPRUN" --on-resize finish --resize-grace 5 --crash-loop 4:5 sh -c 'echo ran'
  for option in on-resize resize-grace crash-loop; do
    [[ $output == *"ddprun: --$option is ignored: the job's nodes are fixed; --nnodes MIN:MAX and --spares let them change"*ran* ]]
  done
  run_nodes 1:3 a
  join b 1:3 --on-resize finish
  finish_agent b
  [ "$status" -eq 1 ]
  [[ $output == *"$(hostname) has --on-resize=finish, but the ddprun that leads has --on-resize=stop: give the same"* ]]
  ! run_in 1 1
  join c 1:3 --on-resize stop --resize-grace 120.0
  eventually 30 run_in 1 2
  ends_well a c
}

resize() { "${DDPRUN%/*}/ddp-info" resize "$@"; }

@test "ddp-info resize: a job continues on fewer nodes, then on more; surplus nodes wait as spares" {
  export DDP_RDZV_SECRET="a phrase"
  run_nodes 1:3 a b c
  unset DDP_RDZV_SECRET # another shell does not have it
  [ "$(stat -c %a "$XDG_STATE_HOME/libddp/jobs"/*)" = 600 ]
  run -0 resize "${agents[a]}" --nodes 1
  [ "$output" = "$(hostname), $(hostname) are to wait as spares" ]
  eventually 30 run_in 1 1
  eventually 20 agent_said a "wait as spares, asked by ddp-info resize on $(hostname); 1 of 3 nodes continues (generation 1, no restart spent)"
  for name in b c; do agent_said $name "this one is a spare for one that is lost"; done
  run -0 resize "$(hostname):${agents[a]}" --nodes 2
  [ "$output" = "$(hostname) is to join" ]
  eventually 30 run_in 2 2
  eventually 20 agent_said a "joined, asked by ddp-info resize on $(hostname); 1 of 1 node continues with it (generation 2, no restart spent)"
  run -1 resize "${agents[a]}" --nodes 4
  [[ $output == *"the job was started with --nnodes=1:3, so it cannot have 4"* ]]
  run -1 resize "${agents[a]}" --drain "$(hostname)"
  [[ $output == *"the ddprun that leads the job is on $(hostname)"* ]]
  run_in 3 0
  ends_well a b c
  [ "$(grep -cE '^2 [01]/2 0 ' <<<"$output")" -eq 2 ]
  [ -z "$(ls "$XDG_STATE_HOME/libddp/jobs")" ]
}

of_nobody() { [ "$(stat -c %u "/proc/$1")" = 65534 ]; }

@test "ddp-info resize: jobs that are unknown, of fixed nodes, gone or another user's are one line each" {
  local jobs=$XDG_STATE_HOME/libddp/jobs
  run -1 resize nowhere:1 --nodes 2
  [[ $output == *"ddp-info: finding job nowhere:1: this user has no such running job whose nodes may change"*"--nnodes=MIN:MAX"* ]]
  start --nproc-per-node 1 sh -c "$elastic"
  eventually 20 run_in 0 1
  run -1 resize "$launcher" --nodes 2
  [[ $output == *"process $launcher leads no running job whose nodes may change"* ]]
  touch "$NOTES/go"
  finish
  if [ "$(id -u)" -eq 0 ]; then
    setpriv --reuid 65534 --clear-groups sleep 60 3>&- &
    local other=$!
    eventually 20 of_nobody $other
    run -1 resize $other --nodes 2
    [[ $output == *"process $other belongs to nobody"*"users resize their own jobs only"* ]]
    kill $other
  fi
  rm -f "$NOTES"/*
  run_nodes 1:2 a b
  eventually 20 compgen -G "$jobs/*"
  chmod 640 "$jobs"/*
  run -1 resize "${agents[a]}" --nodes 1
  [[ $output == *"others may use it: its mode is 0640"* ]]
  chmod 600 "$jobs"/*
  kill -KILL "${agents[a]}"
  wait "${agents[a]}" || true
  run -1 resize "${agents[a]}" --nodes 1
  [[ $output == *"does not answer: "*"if that job is over, remove '$jobs/$(hostname):${agents[a]}'"* ]]
  finish_agent b
  for wrong in "" "1 2 --nodes 1" "1" "1 --nodes 1 --drain n1" "--nodes 1" "1 --nodes 0"; do run -2 resize $wrong; done
}
