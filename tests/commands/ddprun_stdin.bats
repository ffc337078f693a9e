#!/usr/bin/env bats
# Which ranks read ddprun's standard input, and what a temporary folder that cannot be used leads to.

load ../support/ddprun_jobs

reads='while read -r line; do echo "$RANK got $line"; done; echo "$RANK at the end"'

@test "standard input goes to rank 0; the others have none" {
  run "$DDPRUN" --nproc-per-node 3 sh -c "$reads" < <(printf 'a\nb\n')
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = $'0 at the end\n0 got a\n0 got b\n1 at the end\n2 at the end' ]
  [ "$("$DDPRUN" --nproc-per-node 2 sh -c "$reads" </dev/null | wc -l)" -eq 2 ]
}

@test "--stdin all lets all ranks inherit it, none gives it to no rank" {
  printf 'one line\n' >input
  run "$DDPRUN" --stdin all --nproc-per-node 2 readlink /proc/self/fd/0 <input
  [ "$output" = "$PWD/input"$'\n'"$PWD/input" ]
  run "$DDPRUN" --stdin none --nproc-per-node 2 readlink /proc/self/fd/0 <input
  [ "$output" = $'/dev/null\n/dev/null' ]
  run "$DDPRUN" --nproc-per-node 2 sh -c 'echo "$RANK $(readlink /proc/self/fd/0)"' <input
  [ "$(sort <<<"$output")" = "0 $PWD/input"$'\n1 /dev/null' ]
  rejects 2 "'first'" --stdin first true
}

@test "a rank 0 that never reads holds up nothing" {
  run timeout -s KILL 60 "$DDPRUN" --nproc-per-node 2 sh -c 'echo done' < <(yes & echo $! >"$NOTES/pid.yes"; wait)
  [ "$output" = $'done\ndone' ]
}

@test "after a restart, rank 0 reads on where the first one ended" {
  run "$DDPRUN" --max-restarts 1 --nproc-per-node 2 sh -c \
    '[ "$RANK" = 0 ] || exec sleep 1; read -r line; echo "$TORCHELASTIC_RESTART_COUNT $line"; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ]' \
    < <(printf 'first\nsecond\n')
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *"0 first"*"1 second"* ]]
}

@test "by hand, it is that of rank 0's node" {
  local port
  port=$(free_port)
  for node in 0 1; do
    echo "from node $node" >"input.$node"
    "$DDPRUN" --nnodes 2 --nproc-per-node 2 --node-rank "$node" --master-addr 127.0.0.1 --master-port "$port" \
      sh -c "$reads" <"input.$node" >"agent.$node" 2>&1 3>&- &
    agents[$node]=$!
  done
  finish_agent 1
  [ "$(sort <<<"$output")" = $'2 at the end\n3 at the end' ]
  finish_agent 0
  [ "$(sort <<<"$output")" = $'0 at the end\n0 got from node 0\n1 at the end' ]
}

# one_line WORDS...: the output is one line of ddprun's with all of these.
one_line() {
  echo "$output"
  [ "$status" -ne 0 ] && [ "${#lines[@]}" -eq 1 ] || return 1
  for word in "ddprun: " "$@"; do [[ $output == *"$word"* ]] || { echo "without $word"; return 1; }; done
}

@test "a temporary folder without room is one line, with its file system" {
  mkdir full
  mount -t tmpfs -o size=64k tmpfs full 2>/dev/null || skip "needs to mount a tmpfs"
  TMPDIR=$PWD/full run "$DDPRUN" --nproc-per-node 2 sh -c 'echo started'
  find full -mindepth 1 >left
  umount full
  one_line "'$PWD/full'" "tmpfs mounted at $PWD/full" "of 64 KiB free" "No space left on device" "TMPDIR"
  [ ! -s left ]
}

@test "without the folder of TMPDIR, /tmp does, and one line says so" {
  local folder
  for folder in "$PWD/missing" /nonexistent/job.1 "$PWD/input.txt/below"; do
    : >input.txt
    TMPDIR=$folder run "$DDPRUN" --nproc-per-node 2 sh -c 'echo "started ${TMPDIR-without}"'
    echo "$output"
    [ "$status" -eq 0 ] && [ "${#lines[@]}" -eq 3 ]
    [ "$(grep -c "no folder '$folder' (TMPDIR) here: ddprun and the ranks use /tmp" <<<"$output")" -eq 1 ]
    [ "$(grep -cx "started without" <<<"$output")" -eq 2 ]
  done
}

@test "a temporary folder that cannot be written to is one line, with its file system" {
  (ulimit -f 8; TMPDIR=$PWD run "$DDPRUN" sh -c 'echo started'; one_line "'$PWD'" "ulimit -f")
}
