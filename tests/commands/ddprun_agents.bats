#!/usr/bin/env bats
# Several ddpruns that meet at a host and port, all on this host: who gets which ranks, who is refused, and what the end of
# one means for the others.

load ddprun_agents_fixture

@test "with several nodes the prefix is the rank, each node writes to its own console, and --dry-run likewise" {
  start_agent a --nnodes 2 "${meet[@]}" -t 1 --log-dir /dev/null --nproc-per-node 2 sh -c 'echo "this is $RANK"'
  start_agent b --nnodes 2 "${meet[@]}" -t 1 --log-dir /dev/null --nproc-per-node 2 sh -c 'echo "this is $RANK"'
  finish_agent a
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = $'[0]:this is 0\n[1]:this is 1' ] || [ "$(sort <<<"$output")" = $'[2]:this is 2\n[3]:this is 3' ]
  finish_agent b
  [ "$status" -eq 0 ]
  start_agent a --nnodes 2 "${meet[@]}" --dry-run true
  start_agent b --nnodes 2 "${meet[@]}" --dry-run true
  finish_agent a
  [ "$(grep -c '^rank [01] on ' <<<"$output")" -eq 1 ]
  finish_agent b
  [ "$(grep -c '^rank [01] on ' <<<"$output")" -eq 1 ]
}

@test "two agents with different numbers of ranks and roles form one world" {
  start_agent a --nnodes 2 "${meet[@]}" --nproc-per-node 1 --role a sh -c "$facts"
  start_agent b --nnodes 2 "${meet[@]}" --nproc-per-node 3 --role b sh -c "$facts"
  finish_agent a
  [ "$status" -eq 0 ]
  all=$output$'\n'
  finish_agent b
  [ "$status" -eq 0 ]
  all=$(sort <<<"$all$output")
  # Either may have been first; ranks of an agent are consecutive.
  [ "$all" = "a: 0/2 0/4 0/1 0/1
b: 1/2 1/4 0/3 0/3
b: 1/2 2/4 1/3 1/3
b: 1/2 3/4 2/3 2/3" ] || [ "$all" = "a: 1/2 3/4 0/1 0/1
b: 0/2 0/4 0/3 0/3
b: 0/2 1/4 1/3 1/3
b: 0/2 2/4 2/3 2/3" ]
}

@test "static: nodes have the numbers that they were given, whoever comes first" {
  static=(--nnodes 3 --master-addr 127.0.0.1 --master-port "$port")
  for node in 2 1 0; do start_agent $node "${static[@]}" --node-rank $node sh -c "$facts"; done
  for node in 0 1 2; do
    finish_agent $node
    [ "$status" -eq 0 ]
    [ "$output" = "default: $node/3 $node/3 0/1 $node/3" ]
  done
}

@test "two agents with the same node rank: the job fails at once and says why" {
  static=(--nnodes 3 --master-port "$port")
  start_agent 0 "${static[@]}" --node-rank 0 true
  start_agent 1 "${static[@]}" --node-rank 1 true
  start_agent again "${static[@]}" --node-rank 1 true
  finish_agent 0
  [ "$status" -eq 1 ]
  [[ $output == *"both say that they are node 1: give each its own --node-rank; 2 of 3 nodes have joined"* ]]
  [[ $output != *"node      : -1"* ]]
  finish_agent 1
  [ "$status" -eq 1 ]
  finish_agent again
  [ "$status" -eq 1 ]
}

@test "a second node 0 says that the port is taken" {
  start_agent 0 --nnodes 2 --master-port "$port" --node-rank 0 true
  eventually 20 listening
  rejects 1 "Address already in use" --nnodes 2 --master-port "$port" --node-rank 0 true
  start_agent 1 --nnodes 2 --master-port "$port" --node-rank 1 true
  finish_agent 0
  [ "$status" -eq 0 ]
}

@test "an agent of another run is refused; the job goes on" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$facts"
  eventually 20 listening
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" --rdzv-id other sh -c "$facts"
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: "*"belongs to run 'other', but this is run 'meeting': give all agents the same --rdzv-id" ]]
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$facts"
  finish_agent a
  [ "$status" -eq 0 ]
  [[ $output == *"default: 0/2 "* ]]
  finish_agent b
  [ "$status" -eq 0 ]
}

@test "another program on one node: the job fails at once" {
  start_agent a --nnodes 2 "${meet[@]}" true
  start_agent b --nnodes 2 "${meet[@]}" false
  finish_agent a
  [ "$status" -eq 1 ]
  one=$output
  finish_agent b
  [ "$status" -eq 1 ]
  [[ $one$output == *"start the same program on all nodes (or give --role)"* ]]
}

@test "a node that cannot take part is the root cause, also where the others know the plan before it has said why" {
  start_agent a -v --nnodes 3 "${meet[@]}" true
  eventually 20 listening
  PATH=/nonexistent start_agent b --nnodes 3 "${meet[@]}" true
  eventually 20 agent_said a "has joined with 0 ranks"
  kill -STOP "${agents[b]}"
  start_agent c --nnodes 3 "${meet[@]}" true
  joined() { [ "$(grep -c "has joined with 1 rank" agent.a)" -eq 2 ]; }
  eventually 20 joined
  sleep 0.5  # time for a and c to do what is wrong
  kill -CONT "${agents[b]}"
  for name in a b c; do
    finish_agent $name
    [ "$status" -eq 127 ]
  done
  [[ $(cat agent.a) == *"Root Cause"*"(0 ranks)"*"'true'"* ]]
  [[ $(cat agent.a) != *"has 0 ranks"* ]]
}

@test "an agent that comes too late is refused; the job goes on" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 noted 2
  run -1 "$DDPRUN" --nnodes 2 "${meet[@]}" sh -c "$waiting"
  echo "$output"
  [[ $output == *"run 'meeting' has already started; nodes cannot join a running job" ]]
  touch "$NOTES/go"
  finish_agent a
  [ "$status" -eq 0 ]
  finish_agent b
  [ "$status" -eq 0 ]
}

@test "with --nnodes MIN:MAX, the job starts at MAX at once, and else after the last call" {
  for name in a b c; do start_agent $name --nnodes 2:3 "${meet[@]}" --rdzv-conf last_call_timeout=60 sh -c "$facts"; done
  for name in a b c; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == "default: "?"/3 "?"/3 "* ]]
  done
  port=$(free_port)
  meet[3]=localhost:$port
  for name in a b; do start_agent $name --nnodes 2:3 "${meet[@]}" --rdzv-conf last_call_timeout=2 sh -c "$facts"; done
  sleep 1
  # Not yet: a third could still come.
  [ ! -s agent.a ] && [ ! -s agent.b ]
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
    [[ $output == "default: "?"/2 "?"/2 "* ]]
  done
}

@test "nodes that do not come are a failure that says how many did" {
  run -1 "$DDPRUN" --nnodes 3 "${meet[@]}" --rdzv-conf join_timeout=1 true
  echo "$output"
  [[ $output == *"not all nodes joined within 1 s; 1 of 3 nodes has joined: "* ]]
  run -1 "$DDPRUN" --nnodes 2 --master-port "$port" --node-rank 1 --rdzv-conf timeout=1 true
  echo "$output"
  [ "${#lines[@]}" -eq 1 ]
  [[ $output == "ddprun: connecting to the job's coordinator: "*":$port: "*"has the job's first node been started"* ]]
}

@test "a signal that is to be passed on does not end an agent that waits for its peer; one that ends jobs does" {
  static=(--nnodes 2 --master-port "$port")
  holds_usr1() { (($((0x$(sed -n 's/^SigBlk:\t//p' "/proc/$1/status"))) & 1 << 9)); }
  # Nothing of it reaches the ranks.
  job=(sh -c 'grep -q "^SigBlk:[^1-9a-f]*$" /proc/self/status')
  start_agent 1 "${static[@]}" --node-rank 1 "${job[@]}"
  eventually 20 holds_usr1 "${agents[1]}"
  kill -USR1 "${agents[1]}"
  start_agent 0 "${static[@]}" --node-rank 0 "${job[@]}"
  finish_agent 0
  [ "$status" -eq 0 ]
  finish_agent 1
  [ "$status" -eq 0 ]
  start_agent 1 "${static[@]}" --node-rank 1 "${job[@]}"
  eventually 20 holds_usr1 "${agents[1]}"
  kill -TERM "${agents[1]}"
  finish_agent 1
  [ "$status" -eq 143 ]
}

@test "the death of an agent ends the ranks of all, and the report names it" {
  start_agent a --nnodes 2 "${meet[@]}" --failure-grace 0.2 --event-log events.jsonl sh -c "$waiting"
  eventually 20 listening
  start_agent b --nnodes 2 "${meet[@]}" --failure-grace 0.2 sh -c "$waiting"
  eventually 20 noted 2
  lost=${agents[b]}
  kill -KILL "$lost"
  wait "$lost" || true
  finish_agent a
  [ "$status" -eq 1 ]
  [[ $output == *"the connection to ddprun's agent on $(hostname) (pid $lost) was lost"*"1 other rank was ended by ddprun"* ]]
  grep -q "\"event\":\"node_lost\".*\"host\":\"$(hostname)\",\"num_ranks\":1,\"message\":\"the connection to ddprun's agent" events.jsonl
  grep -q '"event":"rank_ended".*"exit_code":null,"signal":{"number":15,"name":"SIGTERM"}' events.jsonl
  eventually 20 all_gone
}

@test "the death of the coordinator ends the ranks of all" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 listening
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 noted 2
  kill -KILL "${agents[a]}"
  wait "${agents[a]}" || true
  finish_agent b
  [ "$status" -eq 1 ]
  [[ $output == *"the connection to the coordinator at "*" was lost"*"ending the ranks of this node"* ]]
  eventually 20 all_gone
}

@test "after the death of the coordinator, what ranks have detached ends with ranks that had to be killed" {
  options=(--nnodes 2 "${meet[@]}" --shutdown-timeout 1)
  deaf='trap "" TERM; setsid sleep 1000 & echo $! >"$NOTES/pid.detached.$RANK"; '$waiting
  start_agent a "${options[@]}" sh -c "$deaf"
  eventually 20 listening
  start_agent b "${options[@]}" sh -c "$deaf"
  eventually 20 noted 4
  kill -KILL "${agents[a]}"
  wait "${agents[a]}" || true
  finish_agent b
  [ "$status" -eq 1 ]
  eventually 20 all_gone
}

@test "a rank's failure on one node ends the job with the same exit status on all" {
  start_agent a --nnodes 2 "${meet[@]}" --role good --failure-grace 0 sh -c "$waiting"
  start_agent b --nnodes 2 "${meet[@]}" --role bad --failure-grace 0 sh -c 'exit 85'
  finish_agent a
  [ "$status" -eq 85 ]
  finish_agent b
  [ "$status" -eq 85 ]
  [[ $(cat agent.a agent.b) == *"Root Cause"*"exitcode  : 85 "* ]]
  eventually 20 all_gone
}

# state PID LETTER: of proc(5).
state() { [[ $(sed 's/.*) \(.\).*/\1/' "/proc/$1/stat" 2>/dev/null) == ["$2"] ]]; }
# D: stopped while the shell's child had not become `sleep` yet, for which vfork() waits.
ranks_are_stopped() {
  local note
  for note in "$NOTES"/pid.*; do state "$(cat "$note")" TD || return 1; done
}

@test "Ctrl-Z to an agent on a terminal stops the ranks of all nodes for as long as it likes; fg continues all" {
  type script >/dev/null || skip "needs script, of util-linux"
  export DDP_PEER_TIMEOUT=5
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 listening
  mkfifo keys
  TERM=dumb SHELL=/bin/sh script -qfec "bash --noprofile --norc -i" /dev/null <keys >agent.b 2>&1 3>&- &
  agents[b]=$!
  exec 9>keys
  printf '%q ' "$DDPRUN" --nnodes 2 "${meet[@]}" sh -c "$waiting" >&9
  echo >&9
  eventually 30 noted 2
  printf '\032' >&9
  eventually 30 ranks_are_stopped || { cat agent.a agent.b; return 1; }
  eventually 30 agent_said a "was stopped by SIGTSTP: the ranks of all nodes wait for it"
  touch "$NOTES/go"
  sleep 7 # more than the timeout
  ranks_are_stopped || { cat agent.a agent.b; return 1; }
  printf 'fg\nexit $?\n' >&9
  exec 9>&-
  for name in b a; do
    finish_agent $name
    [ "$status" -eq 0 ]
  done
}

@test "of two agents that were stopped, both must go on; a signal that came meanwhile ends the job" {
  start_agent a --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 listening
  start_agent b --nnodes 2 "${meet[@]}" sh -c "$waiting"
  eventually 20 noted 2
  kill -TSTP "${agents[b]}"
  eventually 20 state "${agents[b]}" T
  eventually 20 ranks_are_stopped
  kill -TSTP "${agents[a]}" # its coordinator has heard of b
  eventually 20 state "${agents[a]}" T
  kill -CONT "${agents[a]}"
  sleep 0.5
  ranks_are_stopped
  kill -TERM "${agents[b]}"
  kill -CONT "${agents[b]}"
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 143 ]
  done
  eventually 20 all_gone
}

@test "node 0 with another host's address is told so" {
  rejects 1 "$(hostname), node 0, has no address '192.0.2.1'" --nnodes 2 --node-rank 0 --master-addr 192.0.2.1 true
  [[ $output == *"is_host=1"* ]]
}
