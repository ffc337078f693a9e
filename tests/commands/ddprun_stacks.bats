#!/usr/bin/env bats
# When nothing moves: where each rank stands, read before ranks are ended, by whatever tool the node has.

load ../support/ddprun_jobs

# A program that stops in a function with a known name. Rank 1 stands elsewhere.
stuck_program() {
  type cc gdb >/dev/null || skip "needs a C compiler and gdb"
  cat >stuck.c <<'END'
#include <stdlib.h>
#include <unistd.h>
volatile int go;
void __attribute__((noinline)) waits_for_nobody(void) { while (!go) pause(); }
void __attribute__((noinline)) waits_for_rank_one(void) { while (!go) pause(); }
int main(void) {
  if (atoi(getenv("RANK")) == 1) waits_for_nobody(); else waits_for_rank_one();
  return 0;
}
END
  cc -g -O0 -o stuck stuck.c
}

# A folder for PATH with the given programs of this host alone.
only() {
  mkdir -p only
  for program in "$@"; do ln -sf "$(type -P "$program")" only/; done
  ln -sf "$(python3 -c 'import sys; print(sys.executable)')" only/python3
}

json() { python3 -c 'import json, sys; r = json.load(open("report.json")); sys.exit(not all(eval(t) for t in sys.argv[1:]))' "$@"; }

@test "--timeout reports the function in which each rank stands, equal ranks together" {
  stuck_program
  run "$DDPRUN" --nproc-per-node 4 --timeout 6 --report-json report.json ./stuck
  echo "$output"
  [ "$status" -eq 124 ]
  [[ $output == "ddprun: --timeout: reading the stacks of 4 ranks, up to 25 s; "*"ddprun: where the ranks stood before they were ended:"*"  ranks 0, 2, 3 (gdb):"*" waits_for_rank_one () at "*"  rank 1 (gdb):"*" waits_for_nobody () at "* ]]
  [[ ${lines[-1]} == "ddprun: ended by --timeout: all ranks got SIGTERM; 4 ranks ended after it" ]]
  json '[g["ranks"] for g in r["stacks"]] == [[0, 2, 3], [1]]' 'all(g["tool"] == "gdb" for g in r["stacks"])' \
    '"waits_for_nobody" in r["stacks"][1]["text"]' 'r["stack_notes"] == []' 'r["timed_out"]'
}

@test "ranks of Python programs are read by py-spy" {
  type -P py-spy >/dev/null || skip "needs py-spy: pip install py-spy"
  printf 'import time\ndef waits_for_the_others(): time.sleep(1000)\nwaits_for_the_others()\n' >train.py
  run "$DDPRUN" --nproc-per-node 2 --timeout 8 train.py
  echo "$output"
  [ "$status" -eq 124 ]
  [[ $output == *"  ranks 0, 1 (py-spy):"*"waits_for_the_others (train.py:2)"*"<module> (train.py:3)"* ]]
}

@test "without tools there is what the kernel says, and what would give more" {
  only sleep
  PATH=$PWD/only run "$DDPRUN" --nproc-per-node 2 --timeout 4 sleep 1000
  echo "$output"
  [ "$status" -eq 124 ]
  [[ $output == *"  ranks 0, 1 (proc):"*'thread "sleep"'*"state S (sleeping)"*": gdb is not installed"* ]]
  [[ $output != *py-spy* ]]
  # A shell that waits stands for what it started.
  only sh
  PATH=$PWD/only run "$DDPRUN" --timeout 5 sh -c 'python3 -c "import time; time.sleep(1000)"; true'
  echo "$output"
  [[ $output == *'thread "python3"'*"py-spy is not installed: pip install py-spy"* ]]
}

@test "a debugger that hangs delays the end by its limit, and leaves nothing behind" {
  mkdir fake
  printf '#!/bin/sh\necho $$ >"$NOTES/pid.gdb$$"\nsleep 1000 &\necho $! >"$NOTES/pid.below$$"\nwait\n' >fake/gdb
  chmod +x fake/gdb
  SECONDS=0
  PATH=$PWD/fake:$PATH run "$DDPRUN" --nproc-per-node 2 --timeout 3 sleep 1000
  echo "$output"
  [ "$status" -eq 124 ]
  [ "$SECONDS" -lt 60 ]
  [[ $output == *" (proc):"*"gdb did not end in time"* ]]
  noted 4
  all_gone
}

@test "a second SIGQUIT reads the stacks of ranks that ignore the first one, and kills them" {
  start --nproc-per-node 2 --shutdown-timeout 100 --report-json report.json sh -c \
    'trap "" QUIT; echo $$$$ >"$NOTES/pid.$RANK"; exec sleep 1000'
  eventually 20 noted 2
  kill -QUIT "$launcher"
  eventually 60 grep -q "SIGQUIT: waiting up to .*press Ctrl-. again to read their stacks" "$BATS_TEST_TMPDIR/err"
  kill -QUIT "$launcher"
  finish
  echo "$output"
  [ "$status" -eq 131 ]
  [[ $output == *"where the ranks stood before they were ended:"*"  ranks 0, 1 ("*'"sleep"'*"2 had to be killed" ]]
  json 'r["signal"]["name"] == "SIGQUIT"' 'r["killed"] == 2' 'r["stacks"][0]["ranks"] == [0, 1]'
}

@test "the stacks of several nodes are folded together" {
  stuck_program
  local port
  port=$(free_port)
  for node in 0 1; do
    start_agent "$node" --nnodes 2 --nproc-per-node 2 --node-rank "$node" --master-addr 127.0.0.1 --master-port "$port" \
      --timeout 10 ./stuck
  done
  finish_agent 1
  finish_agent 0
  [ "$status" -eq 124 ]
  [[ $output == *"  ranks 0, 2, 3 (gdb):"*" waits_for_rank_one () at "*"  rank 1 (gdb):"*" waits_for_nobody () at "* ]]
}

@test "Ctrl-C says whom it waits for, then who ignores it, and what the next one does" {
  start --nproc-per-node 3 --shutdown-timeout 100 sh -c \
    '[ "$RANK" = 2 ] || trap "" INT; echo $$$$ >"$NOTES/pid.$RANK"; while :; do sleep 0.1; done'
  eventually 20 noted 3
  kill -INT "$launcher"
  eventually 60 grep -Eq '^ddprun: SIGINT: waiting up to [0-9]+ s for 2 ranks on [^,;]+; press Ctrl-C again to kill them$' \
    "$BATS_TEST_TMPDIR/err"
  eventually 60 grep -Eq '^ddprun: SIGINT: still running: rank 0 \(pid [0-9]+ on [^ ]+\), rank 1 \(pid [0-9]+ on [^ ]+\); SIGKILL' \
    "$BATS_TEST_TMPDIR/err"
  kill -INT "$launcher"
  finish
  [ "$status" -eq 130 ]
}

@test "a failure says whom it waits for, too" {
  start --nproc-per-node 2 --failure-grace 0 --shutdown-timeout 10 sh -c \
    'trap "" TERM; echo $$$$ >"$NOTES/pid.$RANK"; until [ -s "$NOTES/pid.0" ]; do sleep 0.1; done
     [ "$RANK" = 0 ] || exit 5; while :; do sleep 0.1; done'
  finish
  echo "$output"
  [ "$status" -eq 5 ]
  [[ $output == *"ddprun: a rank failed: waiting up to "*" s for 1 rank on "*"press Ctrl-C twice"* ]]
}
