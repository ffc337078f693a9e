#!/usr/bin/env bats
# Whom the store serves, with ddprun and with `srun --ddp`: the job's user on every node, and nobody else there, nor from
# other hosts. One line says who was refused, and why.

load ../support/spank_jobs

# The job of each test: ranks say what the store answers to them, to nobody (uid 65534) on their nodes, and to root.
setup() {
  spank_jobs_setup
  cat >"$shared/ask" <<'SCRIPT'
#!/bin/bash
# ask WHO: VALIDATE and PING, as any client begins
exec 3<>"/dev/tcp/$MASTER_ADDR/$MASTER_PORT" || exit
printf '\0\316\367\205\074\r\147\022\0\0' >&3
answer=$(timeout 10 head -c 4 <&3 2>/dev/null | od -An -tx1 | tr -d ' ')
[ "$answer" = 67120000 ] && echo "SERVED $1 $RANK" || echo "REFUSED $1 $RANK"
SCRIPT
  cat >"$shared/rank" <<SCRIPT
#!/bin/bash
$shared/ask own
[ \$(id -u) != 0 ] || setpriv --reuid=65534 --regid=65534 --clear-groups $shared/ask nobody
$shared/ask own_again
# the store of srun --ddp ends with the tasks of rank 0's node
mkdir -p $shared/asked.\$MASTER_PORT
touch $shared/asked.\$MASTER_PORT/\$RANK
for _ in {1..300}; do [ \$(ls $shared/asked.\$MASTER_PORT | wc -l) -lt \$WORLD_SIZE ] || break; sleep 0.1; done
SCRIPT
  chmod 755 "$shared/ask" "$shared/rank"
}

# expect_only_own TASKS
expect_only_own() {
  succeeded
  expect_all "$1" "SERVED own "
  expect_all "$1" "REFUSED nobody "
  expect_all "$1" "SERVED own_again "
  expect_all 0 "SERVED nobody"
  [[ $output == *"store refused a connection from 10.78.0."*": it belongs to uid 65534, not to the job's user (uid 0)"* ]] ||
    { echo "$output"; return 1; }
}

@test "ddprun on three nodes: another user is refused on each" {
  run allocation -N3 "$bin/ddprun" --report-json "$shared/report.json" --nproc-per-node 1 "$shared/rank"
  expect_only_own 3
  [ "$(grep -c "n0: the job's store refused a connection from 10.78.0." "$shared/report.json")" -eq 3 ] ||
    { cat "$shared/report.json"; return 1; }
  expect_all 3 "ddprun: n0: the job's store refused a connection from 10.78.0."
}

@test "ddprun on one node: another user is refused" {
  run allocation -N1 "$bin/ddprun" --nproc-per-node 2 "$shared/rank"
  succeeded
  expect_all 2 "SERVED own "
  expect_all 2 "REFUSED nobody "
  expect_all 2 "store refused a connection from 10.78.0.1:"
}

@test "srun --ddp: another user is refused on each node and on that of srun" {
  run srun --ddp -N3 -n3 "$shared/rank"
  expect_only_own 3
  expect_all 3 "srun: ddp: warning: the step's store refused a connection from 10.78.0."
  batch "srun --ddp -N2 -n2 $shared/rank" -N2 -n2 # beside a task
  expect_only_own 2
  clean
}

@test "hosts that are no node of the job are refused" {
  start srun --ddp -w n0,n1 -N2 -n2 sh -c 'echo "UP $RANK $MASTER_ADDR $MASTER_PORT"; sleep 5'
  says 2 UP
  local address port
  read -r _ _ address port <"$shared/out"
  output=$("$cluster" on n2 env RANK=9 MASTER_ADDR="$address" MASTER_PORT="$port" "$shared/ask" stranger)
  [[ $output == "REFUSED stranger 9" ]] || { echo "$output"; return 1; }
  finish
  succeeded
  [[ $output == *"refused a connection from 10.78.0.3:"*": no node of the job has that address"* ]] ||
    { echo "$output"; return 1; }
}

@test "a job of a plain user: root is refused, too" {
  local job="$bin/ddprun"
  others_can_run "$job" || skip "the programs are in a folder of root's"
  LIMIT=60 start setpriv --reuid=65534 --regid=65534 --clear-groups salloc -Q -N2 "$job" --nproc-per-node 1 \
    bash -c "$shared/ask own; echo \"UP \$RANK \$MASTER_ADDR \$MASTER_PORT\"; sleep 5"
  says 2 UP
  local address port node
  read -r _ _ address port < <(grep ^UP "$shared/out")
  for node in n0 n1; do
    output=$("$cluster" on $node env RANK=9 MASTER_ADDR="$address" MASTER_PORT="$port" "$shared/ask" root)
    [[ $output == "REFUSED root 9" ]] || { echo "$output"; return 1; }
  done
  finish
  succeeded
  expect_all 2 "SERVED own "
  expect_all 2 "it belongs to uid 0, not to the job's user (uid 65534)"
}

@test "each node has one agent, which ends with the step, however srun ends" {
  start srun --ddp -w n0,n1 -N2 --ntasks-per-node=2 sh -c 'echo "UP $RANK"; exec sleep 98763'
  says 4 UP
  eventually 10 agents 2
  "$cluster" run pkill -KILL -x srun
  eventually 5 not_running -x ddp-step
  finish
  on_ctl sh -c 'squeue -h -t R -o %i | xargs -r scancel'
  eventually 40 not_running -f 'sleep 98763'
}
agents() { [ "$("$cluster" run pgrep -fc 'ddp-step agent')" -eq "$1" ]; }
