#!/usr/bin/env bats
# Output of ranks on several nodes under Slurm: lines stay whole, whatever their length, and nothing is lost.

load ../support/cluster_jobs

# Each rank writes 300 lines of 10 to 60,000 characters of its own: "LINE <rank> <number> <length> xxx...".
write_program() {
  cat >"$shared/lines.py" <<'PROGRAM'
import os, random, sys
rank = int(os.environ["RANK"])
dice = random.Random(rank)
for number in range(300):
    length = dice.choice((10, 100, 990, 1100, 5000, 60000)) + dice.randrange(10)
    sys.stdout.write("LINE %d %d %d %s\n" % (rank, number, length, chr(97 + rank) * length))
PROGRAM
}

# check_lines FORM [FILE]: all lines are there, each rank's in order. FORM: prefix, json or plain.
check_lines() {
  python3 - "$1" "${2:-$shared/out}" <<'PROGRAM'
import collections, json, sys
form, path = sys.argv[1:]
seen, bad = collections.Counter(), 0
for line in open(path, "rb").read().decode().split("\n"):
    if form == "json" and line.startswith("{"):
        fields = json.loads(line)
        prefix, line = str(fields["rank"]), fields["line"]
    elif form == "prefix" and line.startswith("["):
        prefix, line = line[1:].split("]:", 1)
    else:
        prefix = None
    words = line.split(" ")
    if words[0] != "LINE":
        bad += bool(line)
        continue
    _, rank, number, length, text = words
    if prefix not in (None, rank) or int(number) != seen[rank] or text != chr(97 + int(rank)) * int(length):
        sys.exit("rank %s, line %s: prefix %s, %d characters of %s" % (rank, number, prefix, len(text), length))
    seen[rank] += 1
print(dict(seen), bad, "other lines")
assert bad == 0 and len(seen) == 8 and set(seen.values()) == {300}
PROGRAM
}

# run_lines COMMAND...: output in $shared/out, which no pipe delays.
run_lines() { timeout -k 5 240 "$cluster" run "$@" >"$shared/out" 2>"$shared/err" || { cat "$shared/err"; tail -c 3000 "$shared/out"; return 1; }; }

@test "2,400 lines of 10 to 60,000 characters stay whole and in order: prefixed, JSON, filtered" {
  write_program
  run_lines salloc -Q -N4 "$bin/ddprun" --nproc-per-node 2 -t 3 --log-dir /dev/null "$shared/lines.py"
  check_lines prefix
  run_lines salloc -Q -N4 "$bin/ddprun" --nproc-per-node 2 --log-format json "$shared/lines.py"
  check_lines json
  run_lines salloc -Q -N4 "$bin/ddprun" --nproc-per-node 2 --ranks-filter 0-7 "$shared/lines.py"
  check_lines plain
}

@test "under srun, too" {
  write_program
  run_lines srun --mpi=pmix -N4 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 2 -t 3 --log-dir /dev/null "$shared/lines.py"
  check_lines prefix
}

# Ranks wait meanwhile, for longer than DDP_PEER_TIMEOUT, and no agent looks dead.
@test "a reader that stops for long loses nothing" {
  write_program
  mkfifo "$shared/fifo"
  (exec <"$shared/fifo"; head -c 1000; sleep 20; exec cat) >"$shared/out" &
  local reader=$!
  DDP_PEER_TIMEOUT=5 timeout -k 5 240 "$cluster" run salloc -Q -N4 "$bin/ddprun" --nproc-per-node 2 -t 3 --log-dir /dev/null \
    "$shared/lines.py" >"$shared/fifo" 2>"$shared/err" || { cat "$shared/err"; return 1; }
  wait $reader
  check_lines prefix
}

# Rank 1 fails when rank 0 has written.
@test "a failure and a restart lose nothing" {
  local program="echo \"attempt \$TORCHELASTIC_RESTART_COUNT of \$RANK\"
    [ \$RANK != 0 ] || { touch '$shared/written'; exec sleep 60; }
    until [ -e '$shared/written' ]; do sleep 0.05; done
    exit 3"
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 --max-restarts 1 -t 1 --log-dir /dev/null sh -c "$program"
  [ "$status" -eq 3 ]
  expect_all 1 "[0]:attempt 0 of 0"
  expect_all 1 "[1]:attempt 0 of 1"
  expect_all 1 "[1]:attempt 1 of 1"
  rm "$shared/written"
  run srun --mpi=pmix -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 1 --max-restarts 1 -t 1 --log-dir /dev/null \
    sh -c "$program"
  expect_all 1 "[0]:attempt 0 of 0"
  expect_all 1 "[1]:attempt 0 of 1"
  expect_all 1 "[1]:attempt 1 of 1"
}

# Stopped, not killed: Slurm would end the step.
@test "when the leading task is lost, the others write to their own output" {
  DDP_PEER_TIMEOUT=5 start srun --mpi=pmix -N2 --ntasks-per-node=1 "$bin/ddprun" --nproc-per-node 1 -t 1 --log-dir /dev/null \
    --shutdown-timeout 3 sh -c 'trap "echo LAST OF \$RANK; exit" TERM; echo READY; while :; do sleep 0.1; done'
  says 1 '\[0\]:READY'
  says 1 '\[1\]:READY'
  "$cluster" on n0 pkill -STOP -x ddprun
  says 1 '\[1\]:LAST OF 1'
  "$cluster" on n0 pkill -KILL -x ddprun
  finish
}

@test "times come before prefixes, and the user's template is obeyed" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 --log-timestamps sh -c 'echo "from $RANK"'
  succeeded
  [ "$(grep -cE '^20[0-9-]{8}T[0-9:]{8}\.[0-9]{3}Z \[[01]\]:from [01]$' <<<"$output")" -eq 2 ] || { echo "$output"; return 1; }
  run allocation -N2 env TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='<${local_rank}>' "$bin/ddprun" --nproc-per-node 1 -t 1 \
    --log-dir /dev/null sh -c 'echo "from $RANK"'
  expect_all 1 "<0>from 0"
  expect_all 1 "<0>from 1"
}

@test "--dry-run over nodes is one text in the order of ranks" {
  run allocation -N4 "$bin/ddprun" --nproc-per-node 2 --dry-run true
  succeeded
  diff <(grep -oE '^rank [0-9]+ on n[0-9]' <<<"$output") <(for rank in {0..7}; do echo "rank $rank on n$((rank / 2))"; done)
  [ "$(grep -A2 '^rank 5 ' <<<"$output" | tail -1)" = "  RANK=5" ]
  [ "$(grep -c '^  PMIX_.*=' <<<"$output")" -eq 0 ]
}

@test "a filter of ranks that do not exist is an error" {
  run allocation -N2 "$bin/ddprun" --nproc-per-node 1 --ranks-filter 9 true
  [ "$status" -eq 2 ] || { echo "$output"; return 1; }
  [[ $output == *"--ranks-filter names rank 9, but the ranks are 0 to 1"* ]]
}
