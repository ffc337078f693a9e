#!/usr/bin/env bats
# `srun --ddp` when something dies, is missing or does not answer: steps run on with one line of warning, or end, and
# afterwards no process, port or file of the plugin's is left anywhere, and no node was taken out of service.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  [ -z "$(store_ports)" ]
  left_files >"$shared/files.before"
  facts='echo "FACTS RANK=$RANK WORLD_SIZE=$WORLD_SIZE PORT=$MASTER_PORT USES=$TORCHELASTIC_USE_AGENT_STORE CPUS=$(taskset -cp $$ | sed "s/.*: //")"'
  worker='echo "UP $RANK $MASTER_PORT"; exec sleep 98765'
}

teardown() {
  [ -z "${DDP_STEP:-}" ] || { use_helper "$DDP_STEP"; cancel_jobs; }
  cluster_jobs_teardown
}

cancel_jobs() { on_ctl sh -c 'squeue -h -t R -o %i | xargs -r scancel'; }

# helper NAME COMMANDS: makes $shared/NAME, a program that takes the place of ddp-step.
helper() {
  printf '#!/bin/bash\n%s\n' "$2" >"$shared/$1"
  chmod +x "$shared/$1"
}

# srun_with HELPER SRUN_OPTION...: srun has this helper; the nodes have the right one.
srun_with() {
  echo "optional $SPANK_PLUGIN helper=$1" >"$shared/plugstack.conf"
  sed "s|^PlugStackConfig=.*|PlugStackConfig=$shared/plugstack.conf|" "$DDP_CLUSTER_DIR/etc/slurm.conf" >"$shared/slurm.conf"
  cp "$DDP_CLUSTER_DIR/etc/cgroup.conf" "$shared/"
  shift
  on_ctl env SLURM_CONF="$shared/slurm.conf" srun --ddp "$@"
}

# start_step OPTION...: two nodes, two tasks each, that say that they are up and stay.
start_step() {
  start srun --ddp -w n0,n1 -N2 --ntasks-per-node=2 "$@" sh -c "$worker"
  eventually 40 said 4 UP
  port=$(store_ports)
  ranks_port=$(store_ports on n0) # on rank 0's node
  [ -n "$port" ] && [ "$(sed -n 's/^UP . //p' "$shared/out" | sort -u)" = "$ranks_port" ]
}

# leaves_nothing: after the step has ended, store, port and files go.
leaves_nothing() {
  eventually 20 not_running -x ddp-step || { "$cluster" run ps axf; return 1; }
  port_is_free "$port" run
  [ -z "${ranks_port:-}" ] || port_is_free "$ranks_port" on n0
  eventually 40 not_running -f 'sleep 98765' # Slurm may take KillWait (30 s) where srun is dead
  eventually 10 same_files
  clean
}
same_files() { diff "$shared/files.before" <(left_files); }

# expect_no_store TASKS WORDS: all tasks run without a store, and one line says why.
expect_no_store() {
  succeeded
  expect_all "$1" FACTS
  [ "$(fact WORLD_SIZE)" = "$1" ] && [ -z "$(fact PORT)" ] && [ "$(fact USES)" = False ] || { echo "$output"; return 1; }
  expect_all 1 "srun: ddp: warning:"
  expect_all 1 "the step starts without a store"
  [[ $output == *"$2"* ]] || { echo "no '$2'"; echo "$output"; return 1; }
}

@test "SIGKILL to srun" {
  start_step
  "$cluster" run pkill -KILL -x srun
  eventually 20 not_running -x ddp-step # its input ended with srun
  finish
  [ "$status" -ne 0 ]
  cancel_jobs # Slurm keeps the job of a killed srun, unless InactiveLimit is set
  leaves_nothing
}

no_ddprun() { ! "$cluster" on "$1" pgrep '^ddprun'; }

@test "the folders that a killed ddprun left are removed by the next step: in /tmp or TMPDIR, and in memory" {
  mkdir -m 1777 "$shared/tmp"
  local at node
  for at in '' "TMPDIR=$shared/tmp"; do
    start env $at salloc -Q -w n0,n1 -N2 "$bin/ddprun" --nproc-per-node 1 --max-restarts 1 --failure-grace 0 sh -c 'echo "UP $RANK"; exec sleep 98765'
    eventually 40 said 2 UP
    step=$("$cluster" run squeue -h -s -o %i | grep '\.[0-9]*$' | head -n 1)
    "$cluster" run scancel --signal=KILL "$step"
    finish
    for node in n0 n1; do eventually 30 no_ddprun $node; done # who still uses its folder keeps it
    left=$(for node in n0 n1; do "$cluster" on $node env $at sh -c 'ls -d ${TMPDIR:-/tmp}/ddprun.* /dev/shm/ddprun.* || true'; done)
    [[ $left == *"/dev/shm/"* ]] || { echo "$output"; return 1; } # an agent that hears of another's death first removes its own
    run on_ctl env $at srun --ddp -w n0,n1 -N2 sh -c '
      for i in $(seq 300); do ls -d ${TMPDIR:-/tmp}/ddprun.* /dev/shm/ddprun.* 2>/dev/null | grep . || exit 0; sleep 0.1; done; exit 1'
    succeeded
  done
}

@test "scancel of the job" {
  start_step
  cancel_jobs
  finish
  [ "$status" -ne 0 ]
  leaves_nothing
}

@test "scancel of a batch script: ranks that save their state still have the store" {
  local client="python3 $shared/c10d_client.py"
  cp "$root/tests/support/c10d_client.py" "$shared"
  # The shell of a rank goes on at SIGTERM; then it is a client of the store.
  printf '#!/bin/bash\n%s\n' "trap '' TERM
    srun --ddp -N1 -n1 bash -c 'trap \"sleep 1; $client && echo SAVED; exit 0\" TERM; echo UP 0 \$MASTER_PORT; while :; do sleep 0.1; done'" \
    >"$shared/script"
  id=$(on_ctl sbatch --parsable -N1 -n1 -o "$shared/out" "$shared/script")
  eventually 40 said 1 UP
  port=$(store_ports)
  "$cluster" run scancel "$id"
  eventually 20 said 1 SAVED || { cat "$shared/out"; return 1; }
  leaves_nothing
}

@test "SIGKILL to a rank, over PMIx and PMI-2 and without" {
  for mpi in pmix pmi2 none; do
    start_step --mpi=$mpi --kill-on-bad-exit=1
    "$cluster" on n1 pkill -KILL -o -f 'sleep 98765'
    finish
    [ "$status" -gt 128 ] && [[ $output == *"Killed"* ]] || { echo "$mpi: status $status"; echo "$output"; return 1; }
    leaves_nothing
  done
}

@test "SIGKILL to ddp-step: the step goes on and ends as it would" {
  start srun --ddp --kill-on-bad-exit=0 -N2 -n2 sh -c 'echo "UP $RANK"; sleep 1.5; exit 5'
  eventually 20 said 2 UP
  "$cluster" run pkill -KILL -x ddp-step
  finish
  [ "$status" -eq 5 ] || { echo "$output"; return 1; }
  clean
}

@test "SIGSTOP to ddp-step does not hold up srun's end" {
  start srun --ddp -N2 -n2 sh -c 'echo "UP $RANK"; sleep 1'
  eventually 20 said 2 UP
  "$cluster" run pkill -STOP -x ddp-step
  finish
  succeeded
  eventually 20 not_running -f 'ddp-step coordinator'
  # Those of the nodes see the end when they go on; proctrack/cgroup would end them with the step.
  "$cluster" run pkill -CONT -x ddp-step
  clean
}

@test "interrupting srun as at a terminal" {
  start_step
  "$cluster" run pkill -INT -o -x srun
  "$cluster" run pkill -INT -o -x srun
  finish
  [ "$status" -ne 0 ]
  leaves_nothing
}

# Slurm's limits are whole minutes, and it looks for what is over every half.
@test "the time limit" {
  start_step --time=5
  # The limit is a minute at the least. slurmctld looks every 30 s.
  "$cluster" run scontrol update JobId="$("$cluster" run squeue -h -o %A)" EndTime=now+1
  finish
  [ "$status" -ne 0 ] && [[ $output == *"DUE TO TIME LIMIT"* ]] || { echo "status $status"; echo "$output"; return 1; }
  leaves_nothing
}

@test "the loss of a node" {
  # In a cluster of its own, since the node does not come back.
  cat >"$shared/lose" <<'STEPS'
cp "$2" "$DDP_CLUSTER_DIR/etc/plugstack.conf.d/"
srun --ddp --mpi=pmi2 -N3 -n3 sh -c 'echo "UP $RANK"; exec sleep 98765' >"$1/out" 2>&1 &
until [ "$(grep -c UP "$1/out")" = 3 ]; do sleep 0.05; done
kill -KILL "$(cat "$DDP_CLUSTER_DIR/node/n1/pid")"
scontrol update node=n1 state=down reason=lost # sooner than SlurmdTimeout
wait $! && echo "srun did not notice"
for ((i = 0; i < 100; ++i)); do pgrep -x ddp-step >/dev/null || break; sleep 0.1; done
if pgrep -x ddp-step; then echo "ddp-step is left"; fi
if ss -Hltnp | grep ddp-step; then echo "its port is left"; fi
cat "$1/out"
echo ENDED
STEPS
  run env DDP_CLUSTER_DIR="$DDP_CLUSTER_DIR/shared/lost-$$" timeout -k 5 60 "$cluster" with --cpus 2,2,2 -- \
    bash "$shared/lose" "$shared" "$(plugin_line)"
  [[ $output == *ENDED* && $output != *"did not notice"* && $output != *"is left"* ]] || { echo "$output"; return 1; }
}

@test "ddp-step is missing, not executable, or ends at once beside srun: one line, and no store" {
  run srun_with /nonexistent/ddp-step -N2 -n3 sh -c "$facts"
  expect_no_store 3 "ENOENT"
  [[ $output == *"/nonexistent/ddp-step"*"helper="* ]]
  helper plain 'exit 0'
  chmod -x "$shared/plain"
  run srun_with "$shared/plain" -N2 -n3 sh -c "$facts"
  expect_no_store 3 "EACCES"
  helper ends 'exit 3'
  run srun_with "$shared/ends" -N2 -n3 sh -c "$facts"
  expect_no_store 3 "exit status 3"
  clean
}

@test "ddp-step of another version, or one that cannot serve, is told apart" {
  helper other 'read -r secret; echo ddp-step 0 port 1; exec cat'
  run srun_with "$shared/other" -N2 -n3 sh -c "$facts"
  expect_no_store 3 "'ddp-step 0 port 1'"
  [[ $output == *"from one package"* ]]
  helper cannot 'read -r secret; echo "error listening on port 5: no more ports"; exit 1'
  run srun_with "$shared/cannot" -N2 -n3 sh -c "$facts"
  expect_no_store 3 "no more ports"
  not_running -f "$shared"
}

@test "the next version's ddp-step on the nodes, or its plugin on srun's host: a line on each node names both" {
  local own next file
  own=$(sed -n 's/.*DDP_VERSION_STRING "\(.*\)"/\1/p' "$root/libddp/include/ddp/version.hpp")
  next=${own%?}$(((${own: -1} + 1) % 10))
  for file in "$DDP_STEP" "$SPANK_PLUGIN"; do "$root/tests/support/other_version.py" "$file" "$shared/${file##*/}" "$own" "$next"; done
  use_helper "$shared/ddp-step"
  run on_ctl srun --ddp -w n0,n1 -N2 -n3 sh -c "$facts"
  use_helper "$DDP_STEP"
  succeeded
  expect_all 2 "ddp-step is of libddp $next, the plugin here of $own; install them from one package"
  SPANK_PLUGIN=$shared/spank_ddp.so run srun_with "$DDP_STEP" -w n0,n1 -N2 -n3 sh -c "$facts"
  succeeded
  expect_all 2 "libddp's plugin here is of version $own, that of srun's host of $next; install one on all"
}

@test "ddp-step that does not end with srun is killed" {
  helper stubborn 'read -r secret; echo "ddp-step 0 port 1"; exec sleep 98765 </dev/null'
  run srun_with "$shared/stubborn" -N1 -n1 sh -c "$facts"
  expect_no_store 1 "its version differs"
  eventually 5 not_running -f 'sleep 98765'
}

@test "ddp-step that hangs beside srun: the step starts after a limit" {
  helper hangs 'exec sleep 98764'
  run srun_with "$shared/hangs" -N2 -n3 sh -c "$facts"
  expect_no_store 3 ETIMEDOUT
  not_running -f 'sleep 98764'
}

@test "a store that does not answer a node, or by another protocol: one line from each node, in time, and the step runs" {
  helper silent 'exec python3 -c "
import socket, sys
server = socket.create_server((\"\", 0))
print(\"ddp-step 1 port\", server.getsockname()[1], flush=True)
sys.stdin.read()"'
  local before=$SECONDS
  run srun_with "$shared/silent" -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  [ $((SECONDS - before)) -lt 30 ]
  expect_all 2 "does a firewall block that way"
  helper refuses 'echo ddp-step 1 port 9; exec cat'
  run srun_with "$shared/refuses" -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  expect_all 2 ECONNREFUSED
  helper newer 'exec python3 -c "
import socket, sys, threading
server = socket.create_server((\"\", 0))
print(\"ddp-step 1 port\", server.getsockname()[1], flush=True)
def answer():
    while True:
        connection = server.accept()[0]
        greeting = bytearray(connection.recv(100))
        greeting[11] += 1 # the version
        connection.sendall(greeting)
threading.Thread(target=answer, daemon=True).start()
sys.stdin.read()"'
  run srun_with "$shared/newer" -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  expect_all 2 "; install one version of libddp on all nodes and on srun's host"
}

@test "ddp-step is missing on one node: its tasks are not bound, and the store does not serve them; a line says so" {
  local place="/tmp/ddp-step-$$"
  ln -s "$DDP_STEP" "$place"
  "$cluster" on n0 ln -s "$DDP_STEP" "$place"
  "$cluster" run ln -sf "$DDP_STEP" "$place"
  use_helper "$place"
  run srun --ddp --ddp-bind=core -w n0,n1 -N2 -n4 sh -c "$facts"
  rm -f "$place"
  "$cluster" on n0 rm -f "$place"
  succeeded
  expect_all 4 FACTS
  expect_all 1 " on n1: tasks of this node "
  [[ $output == *"on n1: "*"not bound"*"ENOENT"*"nor will they reach the step's store"* ]] || { echo "$output"; return 1; }
}

@test "ddp-step that fails, hangs or says nonsense on the nodes: tasks are not bound, and one line of each node says so" {
  # srun's own works
  local real="if [ \$1 != agent ]; then exec ${DDP_STEP@Q} \"\$@\"; fi"
  helper fails "$real; cat >/dev/null; exit 3"
  use_helper "$shared/fails"
  run srun --ddp -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  expect_all 2 "exit status 3"
  helper nonsense "$real; cat >/dev/null; echo nonsense"
  use_helper "$shared/nonsense"
  run srun --ddp -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  expect_all 2 "ddp: warning:"
  helper hangs "$real; exec sleep 98764"
  use_helper "$shared/hangs"
  local before=$SECONDS
  run srun --ddp -N2 -n4 sh -c "$facts"
  succeeded
  expect_all 4 FACTS
  expect_all 2 "ddp: warning:"
  expect_all 2 ETIMEDOUT
  [ $((SECONDS - before)) -lt 35 ]
  not_running -f 'sleep 98764'
  clean
}

@test "the user's LD_LIBRARY_PATH does not reach ddp-step" {
  echo "no library" >"$shared/libhwloc.so.15"
  run on_ctl env LD_LIBRARY_PATH="$shared" srun --ddp --ddp-bind=core -N1 -n2 sh -c "$facts"'" LIBRARIES=$LD_LIBRARY_PATH"'
  succeeded
  expect_all 2 FACTS
  expect_all 0 warning
  [[ $(fact CPUS | head -n 1) =~ ^[0-9]+$ ]] || { echo "$output"; return 1; }
  [ "$(fact LIBRARIES)" = "$shared" ]
  # The library is the one that ddp-step would take.
  run -127 on_ctl env LD_LIBRARY_PATH="$shared" "$DDP_STEP" --version
}
