#!/usr/bin/env bats
# Checkpoints that nodes also keep in memory: a restart that reads no file of the folder, and what follows where the
# copies are gone or damaged. Agents that are started by hand stand for nodes.

load ddprun_agents_fixture

setup_file() {
  ddprun_jobs_setup_file
  export PROGRAM=${DDPRUN%/*}/rank_program
  [ -x "$PROGRAM" ]
}

# run_nodes HOW NAME NAME: agents with two ranks each, which have saved twice into the folder run.
run_nodes() {
  local how=$1 name
  shift
  for name in "$@"; do
    start_agent "$name" --nnodes "1:2" "${meet[@]}" --rdzv-conf last_call_timeout=30 --nproc-per-node 2 --max-restarts 1 \
      --shutdown-timeout 5 "$PROGRAM" checkpoints_in_memory "$PWD/run" "$how"
    eventually 20 listening
  done
  for name in "$@"; do eventually 40 saved "$name"; done
}
saved() { [ "$(grep -c SAVED "agent.$1")" -eq 2 ]; }
place_of() { sed -n 's/.*SAVED [0-9]* [0-9]* //p' "agent.$1" | head -1; }
kill_rank_of() { kill -KILL "$(sed -n 's/.*SAVED [0-9]* \([0-9]*\) .*/\1/p' "agent.$1" | head -1)"; }
restored() { [ "$(grep -h "RESTORED 2" agent.* | wc -l)" -eq "$1" ]; }

# ends_well NAME...: all agents succeed, and leave nothing.
ends_well() {
  local name all=
  places=$(for name in "$@"; do place_of "$name"; done)
  for name in "$@"; do
    finish_agent "$name"
    [ "$status" -eq 0 ]
    all+=$output$'\n'
  done
  output=$all
  for name in $places; do
    [[ $name == /dev/shm/ddprun.?????? ]]
    [ ! -e "$name" ]
  done
}

@test "after a rank's death all ranks are restored from memory, without the folder" {
  for how in whole shards; do
    port=$(free_port)
    meet[3]=localhost:$port
    run_nodes $how a b
    [ "$(stat -c %a "$(place_of a)")" = 700 ]
    mv run away
    kill_rank_of b
    ends_well a b
    restored 4
    [ ! -e run ]
    rm -r away agent.*
  done
}

@test "what rank 0 has saved is restored from any node that still has it" {
  run_nodes whole a b
  mv run away
  rm -r "$(place_of a)"/checkpoints.*
  kill_rank_of a
  ends_well a b
  restored 4
  [ ! -e run ]
}

@test "a copy that is truncated, changed or gone: one line, and the folder is read" {
  for damage in truncate flip remove; do
    port=$(free_port)
    meet[3]=localhost:$port
    run_nodes shards a b
    copy=$(ls "$(place_of a)"/checkpoints.*/step-2/rank-1-of-4.*)
    [ "$(ls -d "$(place_of a)"/checkpoints.*/step-*)" = "${copy%/*}" ]  # the last save alone
    case $damage in
      truncate) truncate -s -1 "$copy" ;;
      flip) printf x | dd of="$copy" bs=1 seek=5000 conv=notrunc status=none ;;
      remove) rm "$copy" ;;
    esac
    kill_rank_of a
    ends_well a b
    restored 4
    lines=$(grep -c "as the copy of step 2 in memory cannot be used: reading '$copy': it" <<<"$output" || true)
    [ "$lines" -eq $([ $damage = remove ] && echo 0 || echo 1) ]
    rm -r run agent.*
  done
}

@test "jobs that cannot restart keep nothing in memory, and nested programs do not see another job's" {
  run -0 "$DDPRUN" sh -c 'echo "<$DDP_NODE_CACHE>"'
  [[ $output == *"<>"* ]]
  run -0 env DDP_NODE_CACHE=/elsewhere "$DDPRUN" sh -c 'echo "<$DDP_NODE_CACHE>"'
  [[ $output == *"<>"* ]]
  run -0 "$DDPRUN" --max-restarts 1 sh -c 'stat -c "<%a %n>" "$DDP_NODE_CACHE"'
  [[ $output == *"<700 /dev/shm/ddprun."* ]]
}
