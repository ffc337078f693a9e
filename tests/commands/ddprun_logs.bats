#!/usr/bin/env bats
# Where ranks' output goes: files, the console, filters, and what happens if one of these cannot take it.

load ../support/ddprun_jobs

both='echo "out $RANK"; echo "err $RANK" >&2'

# The log files below logs/, without the job's own folder, and what they contain, lines separated by '|'.
# Removes them, so that the next job's are alone.
contents() {
  local file
  (cd logs/*_* && find . -type f | sort -V | while read -r file; do echo "${file#./} $(tr '\n' '|' <"$file")"; done)
  rm -r logs
}

@test "without options, output passes through unchanged, each stream to its own" {
  "$DDPRUN" --nproc-per-node 2 sh -c "$both" >out 2>err
  [ "$(sort out)" = $'out 0\nout 1' ]
  [ "$(sort err)" = $'err 0\nerr 1' ]
  run "$DDPRUN" printf 'no newline'
  [ "$output" = "no newline" ]
}

@test "-r 3: files only, in torchrun's layout; each job and each attempt has its own" {
  run "$DDPRUN" --nproc-per-node 2 -r 3 --log-dir logs --rdzv-id job sh -c "$both"
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  [[ $(ls logs) == job_* ]]
  run contents
  [ "$output" = "attempt_0/0/stderr.log err 0|
attempt_0/0/stdout.log out 0|
attempt_0/1/stderr.log err 1|
attempt_0/1/stdout.log out 1|" ]
  run "$DDPRUN" -r 1 --log-dir logs --max-restarts 1 sh -c 'echo "attempt $TORCHELASTIC_RESTART_COUNT"; exit $((1 - TORCHELASTIC_RESTART_COUNT))'
  [ "$status" -eq 0 ]
  run contents
  [ "$output" = "attempt_0/0/stdout.log attempt 0|
attempt_1/0/stdout.log attempt 1|" ]
  "$DDPRUN" -r 3 --log-dir logs true
  "$DDPRUN" -r 3 --log-dir logs true
  [ "$(ls -d logs/none_* | wc -l)" -eq 2 ]
  [ "$(stat -c %a logs/none_*/attempt_0/0 | sort -u)" = 700 ]
}

@test "--log-layout rank: horovodrun's and mpirun's, a folder for each rank of the job" {
  run "$DDPRUN" --nproc-per-node 11 -r 3 --log-layout rank --log-dir "my logs" sh -c "$both"
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  [ "$(cd "my logs" && echo *)" = "rank.00 rank.01 rank.02 rank.03 rank.04 rank.05 rank.06 rank.07 rank.08 rank.09 rank.10" ]
  [ "$(cat "my logs/rank.07/stdout")" = "out 7" ]
  [ "$(cat "my logs/rank.10/stderr")" = "err 10" ]
  [ "$(stat -c %a "my logs/rank.00")" = 700 ]
  run "$DDPRUN" --nproc-per-node 2 -t 1 --log-layout rank --log-dir "my logs" sh -c 'echo again; exit $RANK'
  [ "$status" -eq 1 ]
  [[ "$output" == *"stdout_log: $PWD/my logs/rank.1/stdout"* ]]
  [ "$(cat "my logs/rank.1/stdout")" = again ]
  ln -s / "my logs/rank.2"
  run "$DDPRUN" --nproc-per-node 3 -r 1 --log-layout rank --log-dir "my logs" true
  [ "$status" -eq 1 ]
  [[ "$output" == *"making the log folder '$PWD/my logs/rank.2'"* ]]
  run "$DDPRUN" -r 3 --log-layout rank true
  [ "$status" -eq 2 ]
  [[ "$output" == *"give one by --log-dir"* ]]
  run "$DDPRUN" -t 3 --log-layout rank --log-dir x --duplicate-stdout-filters a true
  [ "$status" -eq 2 ]
  [[ "$output" == *"--duplicate-stdout-filters"* ]]
}

@test "-t 3: files and, with a prefix, the console" {
  "$DDPRUN" --nproc-per-node 2 -t 3 --log-dir logs sh -c "$both" >out 2>err
  [ "$(sort out)" = $'[default0]:out 0\n[default1]:out 1' ]
  [ "$(sort err)" = $'[default0]:err 0\n[default1]:err 1' ]
  run contents
  [ "$output" = "attempt_0/0/stderr.log err 0|
attempt_0/0/stdout.log out 0|
attempt_0/1/stderr.log err 1|
attempt_0/1/stdout.log out 1|" ]
  run "$DDPRUN" -t 1 --log-dir logs --role trainer echo hello
  [ "$output" = "[trainer0]:hello" ]
  run "$DDPRUN" -t 1 --log-dir logs printf 'no newline'
  [ "$output" = "[default0]:no newline" ]
}

@test "-r and -t without --log-dir: the files outlive the job, in a folder that is named" {
  export TMPDIR=$PWD/scratch
  mkdir scratch
  run "$DDPRUN" true
  [ -z "$output" ]
  [ -z "$(ls -A scratch)" ]
  run "$DDPRUN" -r 0:1 --failure-grace 0 sh -c 'echo hello; exit 3'
  echo "$output"
  [ "$status" -eq 3 ]
  [[ ${lines[0]} == "ddprun: the log files are in $TMPDIR/ddprun_logs_"*" on $(hostname)" ]]
  [ "$(cat scratch/*/none_*/attempt_0/0/stdout.log)" = hello ]
  [ "$(ls -A scratch | wc -l)" -eq 1 ]
}

@test "-r and -t for some local ranks" {
  "$DDPRUN" --nproc-per-node 3 -r 0:1,1:2 --log-dir logs sh -c "$both" >out 2>err
  [ "$(sort out)" = $'out 1\nout 2' ]
  [ "$(sort err)" = $'err 0\nerr 2' ]
  run contents
  [ "$output" = "attempt_0/0/stdout.log out 0|
attempt_0/1/stderr.log err 1|" ]
  run "$DDPRUN" --nproc-per-node 1 -r 0:2 -t 0:1 --log-dir logs sh -c "$both"
  [ "$output" = "[default0]:out 0" ]
  run contents
  [ "$output" = "attempt_0/0/stderr.log err 0|
attempt_0/0/stdout.log out 0|" ]
  # Ranks may have several digits.
  run "$DDPRUN" --nproc-per-node 12 -r 3 -t 11:1 --log-dir logs sh -c "$both"
  [ "$output" = "[default11]:out 11" ]
  run contents
  [ "${#lines[@]}" -eq 24 ]
  [ "${lines[22]}" = "attempt_0/11/stderr.log err 11|" ]
}

@test "filters by local rank and by rank: files fill all the same" {
  run "$DDPRUN" --nproc-per-node 12 --local-ranks-filter 3,10-11 sh -c 'echo "out $RANK"'
  [ "$(sort -V <<<"$output")" = $'out 3\nout 10\nout 11' ]
  run "$DDPRUN" --nproc-per-node 3 --ranks-filter 2 -t 3 --log-dir logs sh -c "$both"
  [ "$(sort <<<"$output")" = $'[default2]:err 2\n[default2]:out 2' ]
  run contents
  [ "${#lines[@]}" -eq 6 ]
  [ "${lines[1]}" = "attempt_0/0/stdout.log out 0|" ]
  rejects 2 "there are at most 3 ranks" --nnodes 1 --nproc-per-node 3 --ranks-filter 3 true
}

@test "lines with certain texts also go to one file of all ranks" {
  run "$DDPRUN" --nproc-per-node 3 -t 3 --log-dir logs --duplicate-stdout-filters 'loss,a,,b' --duplicate-stderr-filters \
    'warn' sh -c 'echo "loss $RANK"; echo "step $RANK"; echo a,b; echo "warn $RANK" >&2; echo "loss" >&2'
  [ "$status" -eq 0 ]
  attempt=$(echo logs/none_*/attempt_0)
  [ "$(sort "$attempt/filtered_stdout.log")" = "[default0]:a,b
[default0]:loss 0
[default1]:a,b
[default1]:loss 1
[default2]:a,b
[default2]:loss 2" ]
  [ "$(sort "$attempt/filtered_stderr.log")" = $'[default0]:warn 0\n[default1]:warn 1\n[default2]:warn 2' ]
  rm -r logs
  # Only what -t shows is looked at.
  run "$DDPRUN" --nproc-per-node 2 -r 3 --log-dir logs --duplicate-stdout-filters loss echo loss
  [ ! -s logs/none_*/attempt_0/filtered_stdout.log ]
}

@test "the prefix has a template" {
  export TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE='[${role_name}-${local_rank}:$rank|$$|${unknown}] '
  run "$DDPRUN" --nproc-per-node 2 -t 3 --log-dir logs --role r sh -c 'echo hello'
  [ "$(sort <<<"$output")" = '[r-0:0|$|${unknown}] hello
[r-1:1|$|${unknown}] hello' ]
  run "$DDPRUN" echo hello  # without -t there is none
  [ "$output" = hello ]
}

@test "--log-format json: one object a line, whatever the ranks write" {
  "$DDPRUN" --nproc-per-node 2 --log-format json python3 -c '
import os, sys
rank = os.environ["RANK"]
os.write(1, b"plain " + rank.encode() + b"\n\xff \"quoted\"\tand \x00\n")
os.write(2, b"unfinished")' >out 2>err
  python3 - <<'PYTHON'
import json
lines = [json.loads(line) for line in open("out")]
assert len(lines) == 4, lines
assert sorted(line["line"] for line in lines if line["rank"] == 1) == ["plain 1", "\ufffd \"quoted\"\tand \x00"], lines
assert all(line["stream"] == "stdout" and line["local_rank"] == line["rank"] and line["host"] and line["time"].endswith("Z")
           for line in lines), lines
assert [json.loads(line)["line"] for line in open("err")] == ["unfinished"] * 2
PYTHON
}

@test "--log-timestamps: the time before the prefix, also without -t" {
  "$DDPRUN" --nproc-per-node 2 --log-timestamps sh -c "$both" >out 2>err
  [ "$(grep -cE '^20[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{3}Z \[default[01]\]:out [01]$' out)" -eq 2 ]
  [ "$(grep -cE 'Z \[default[01]\]:err [01]$' err)" -eq 2 ]
}

@test "a progress bar behind a prefix gives few lines, its last state among them, and whole log files" {
  "$DDPRUN" -t 1 --log-dir logs python3 -c '
import time
for percent in range(101):
    print("\r%3d%%" % percent, end="", flush=True)
    time.sleep(0.002)
print()' >out
  [ "$(tail -1 out)" = "[default0]:100%" ]
  [ "$(wc -l <out)" -lt 10 ]
  [ "$(grep -o '%' logs/*/attempt_0/0/stdout.log | wc -l)" -eq 101 ]
}

@test "--ranks-filter with ranks that do not exist is an error, with some of them a warning" {
  rejects 2 "--ranks-filter names rank 9, but the ranks are 0 to 1" --nproc-per-node 2 --ranks-filter 9 touch started
  [ ! -e started ]
  run "$DDPRUN" --nproc-per-node 2 --ranks-filter 1,9 sh -c 'echo $RANK'
  [ "$status" -eq 0 ]
  [[ $output == *"ddprun: warning: --ranks-filter names rank 9, but the ranks are 0 to 1"* ]]
  [ "${lines[-1]}" = 1 ]
}

@test "--log-dir=/dev/null: no files and no error file" {
  run "$DDPRUN" --log-dir=/dev/null -r 3 -t 1 sh -c "$both"'; echo "[$TORCHELASTIC_ERROR_FILE]"'
  [ "$status" -eq 0 ]
  [ "$(sort <<<"$output")" = $'[default0]:[]\n[default0]:out 0\nerr 0' ]
  run "$DDPRUN" sh -c 'case $TORCHELASTIC_ERROR_FILE in */attempt_0/0/error.json) test -d "${TORCHELASTIC_ERROR_FILE%/*}" ;; *) exit 3 ;; esac'
  [ "$status" -eq 0 ]
}

@test "a log folder that cannot be is an error before any rank starts" {
  touch file
  rejects 1 "'file' is a file; give a folder, or /dev/null for no log files" --log-dir file touch started
  rejects 1 "Not a directory" --log-dir file/below touch started
  [ ! -e started ]
  [ "$(id -u)" -eq 0 ] || skip "needs to be root to become somebody else"
  mkdir closed
  as_nobody=(setpriv --reuid 65534 --regid 65534 --clear-groups)
  others_can_run "$DDPRUN" || skip "the programs are in a folder of root's"
  run -1 "${as_nobody[@]}" env TMPDIR=/tmp "$DDPRUN" --log-dir "$PWD/closed" true
  echo "$output"
  [[ $output == *"Permission denied"* ]]
}

@test "a full file system: the ranks go on, and each file's loss is said once" {
  unshare -rm mount -t tmpfs -o size=64k none "$PWD" 2>/dev/null || skip "cannot mount a small file system"
  mkdir small
  run unshare -rm sh -c 'mount -t tmpfs -o size=64k none small
    "$DDPRUN" --nproc-per-node 2 -r 1 -t 1 --log-dir small sh -c "seq 50000; touch \$NOTES/done.\$RANK"; status=$?
    [ "$(stat -fc %f small)" -eq 0 ] || echo not full
    exit $status'
  [ "$status" -eq 0 ]
  [ -e "$NOTES/done.0" ] && [ -e "$NOTES/done.1" ]
  [ "$(grep -c '^\[default[01]\]:[0-9]*$' <<<"$output")" -eq 100000 ]  # the console has it all
  run grep -v '^\[default' <<<"$output"
  echo "$output"
  [ "${#lines[@]}" -eq 2 ]
  [ "$(grep -c '^ddprun: writing the log file .*stdout.log.: No space left on device .*lines are dropped' <<<"$output")" -eq 2 ]
}

@test "64 ranks with 2000 lines each: none is lost, torn or out of order" {
  # Whole lines go straight to the console.
  "$DDPRUN" --nproc-per-node 64 sh -c 'i=0; while [ $i -lt 2000 ]; do echo "$RANK $i"; i=$((i + 1)); done' >out
  # Blocks that begin and end anywhere come through pipes.
  "$DDPRUN" --nproc-per-node 64 -t 3 --log-dir logs sh -c 'seq -f "$RANK %g" 0 1999' >tee
  sed -i -E 's/^\[default([0-9]+)\]:\1 /\1 /' tee
  whole() {
    awk 'NF != 2 || $2 != next_line[$1]++ { print FILENAME ": " FNR ": " $0; wrong = 1; exit }
         END { exit wrong || NR != 128000 }' "$1"
  }
  whole out
  whole tee
  # The check does find a line that is missing, torn, or duplicated.
  for edit in 100000d '500s/ .*//' 128000p; do
    sed "$edit" tee >broken
    run -1 whole broken
  done
  [ "$(awk 'END { print NR }' logs/none_*/attempt_0/*/stdout.log)" -eq 128000 ]
  [ "$(cut -d' ' -f2 logs/none_*/attempt_0/63/stdout.log)" = "$(seq 0 1999)" ]
}

@test "a reader that stops for a while loses nothing; one that goes away does no harm" {
  # 4 MB exceed what the pipes and ddprun hold, so the ranks must wait for the reader.
  status=0
  { "$DDPRUN" --nproc-per-node 4 -t 1 --log-dir logs0 sh -c 'seq -f "%08g" 125000; touch "$NOTES/done.$RANK"'; echo "$?" >code; } | {
    read -r first
    sleep 2
    ls "$NOTES" >done_while_stopped
    echo "$first"
    cat
  } >out
  [ "$(cat code)" -eq 0 ]
  [ ! -s done_while_stopped ]
  [ "$(wc -l <out)" -eq 500000 ]
  for rank in 0 1 2 3; do
    grep -F "[default$rank]:" out | cut -d: -f2 | cmp - <(seq -f "%08g" 125000)
  done
  { "$DDPRUN" --nproc-per-node 2 -t 1 --log-dir logs sh -c 'seq 100000; touch "$NOTES/gone.$RANK"'; echo "$?" >code; } 2>err | head -n 1
  cat err
  [ "$(cat code)" -eq 0 ]
  [ -e "$NOTES/gone.0" ] && [ -e "$NOTES/gone.1" ]
  [ "$(tail -n 1 logs/none_*/attempt_0/1/stdout.log)" = 100000 ]
}

# Reads standard input to its end, BYTES at a time, ten times a second.
slow_reader() {
  python3 -c '
import os, sys, time
while chunk := os.read(0, int(sys.argv[1])):
    os.write(1, chunk)
    time.sleep(0.1)' "$1"
}

@test "a slow reader gets everything, however long that takes after the end of the ranks" {
  # 1.1 MB, most of which ddprun holds when the rank ends: 12 s and more.
  { "$DDPRUN" -t 1 --log-dir logs --no-python seq 60000 2>err; echo "$?" >code; } | slow_reader 8000 >out
  cat err
  [ "$(cat code)" -eq 0 ]
  [ ! -s err ]
  cut -d: -f2 out | cmp - <(seq 60000)
}

@test "a reader that pauses gets everything, and the report" {
  { "$DDPRUN" --no-python sh -c 'seq 20000 >&2; touch "$NOTES/done"; exit 7' 2>&1 || echo "$?" >code; } | {
    eventually 20 [ -e "$NOTES/done" ]
    sleep 8
    cat
  } >out
  [ "$(cat code)" -eq 7 ]
  head -n 20000 out | cmp - <(seq 20000)
  tail -n +20001 out >report
  cat report
  grep -q '^Root Cause' report
  grep -q 'exitcode  : 7 ' report
  [ "$(tail -n 1 report)" = "$(head -n 1 report | tr -c '\n' =)" ]
}

@test "a reader that never reads does not hold up the end that a signal wants" {
  # The ranks have ended by themselves, or still run: in both cases with more output than the pipe holds.
  local last pid pipe readers=()
  for last in 'exit 7' 'exec sleep 1000'; do
    pipe=pipe.${#readers[@]}
    mkfifo "$pipe"
    exec {reader}<>"$pipe"
    readers+=("$reader")
    "$DDPRUN" --no-python sh -c 'seq 20000 >&2; touch "$NOTES/ready.$1"; '"$last" sh ${#readers[@]} >"$pipe" 2>&1 3>&- &
    launcher+=" $!"
  done
  eventually 20 [ -e "$NOTES/ready.1" -a -e "$NOTES/ready.2" ]
  sleep 1
  for pid in $launcher; do run ! gone "$pid"; done # it waits for its reader, or for the rank
  kill -TERM $launcher
  for pid in $launcher; do
    eventually 20 gone "$pid"
    wait "$pid" || true
  done
  launcher=
  for reader in "${readers[@]}"; do exec {reader}<&-; done
}

@test "lines are in the files and on the console while the rank runs" {
  wait_and_go='while ! [ -e "$NOTES/go" ]; do sleep 0.05; done; echo " now" >&2'
  start -t 3 --log-dir logs sh -c "echo first; printf unfinished >&2; $wait_and_go"
  file_has() { grep -qsx "$1" logs/none_*/attempt_0/0/"$2"; }
  eventually 20 file_has first stdout.log
  eventually 20 file_has unfinished stderr.log
  eventually 20 grep -qx '\[default0\]:first' out
  [ ! -s err ]  # behind a prefix, a line waits for its end
  kill -0 "$launcher"
  touch "$NOTES/go"
  finish
  [ "$status" -eq 0 ]
  [ "$output" = "[default0]:unfinished now" ]
  [ "$(cat logs/none_*/attempt_0/0/stderr.log)" = "unfinished now" ]
  # Without a prefix it does not: it may be a question.
  rm "$NOTES/go"
  start sh -c "printf unfinished >&2; $wait_and_go"
  eventually 20 grep -qx 'unfinished' err
  touch "$NOTES/go"
  finish
  [ "$output" = "unfinished now" ]
}

@test "error.json in torch's format is in the report, and is passed on to an outer launcher" {
  cat >fails.py <<'PYTHON'
import json, os, sys, time
if os.environ["RANK"] == "1":  # fails second
    while not os.path.exists("failing"):
        time.sleep(0.01)
    time.sleep(0.3)
    sys.exit(3)
call = "Traceback (most recent call last):\n  File \"fails.py\", line 3, in main\nValueError: bad batch\n"
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    json.dump({"message": {"message": "ValueError: bad batch",
                           "extraInfo": {"py_callstack": call, "timestamp": "1700000000"}}}, file)
open("failing", "w").close()
os._exit(9)
PYTHON
  TORCHELASTIC_ERROR_FILE=$PWD/outer.json run "$DDPRUN" --nproc-per-node 2 --log-dir logs --report-json report.json fails.py
  echo "$output"
  [ "$status" -eq 9 ]
  [[ $output == *"rank      : 0 "*"exitcode  : 9 "*"error_file: $PWD/logs/none_"*"/attempt_0/0/error.json"* ]]
  [[ $output == *"traceback : Traceback (most recent call last):"*"in main"*"ValueError: bad batch"* ]]
  [[ $output == *"Other Failures"*"exitcode  : 3 "*"error_file: <N/A>"* ]]
  python3 - <<'PYTHON'
import json
outer = json.load(open("outer.json"))["message"]
assert outer["message"] == "ValueError: bad batch" and outer["errorCode"] == 9, outer
assert outer["extraInfo"]["timestamp"] == "1700000000", outer
error = json.load(open("report.json"))["failures"][0]["error"]
assert error["message"] == "ValueError: bad batch" and error["time"] == "2023-11-14T22:13:20.000Z", error
PYTHON
  # A launcher in a rank: the outer one reports its root cause, too.
  run "$DDPRUN" --log-dir logs2 sh -c '"$DDPRUN" --nproc-per-node 2 fails.py'
  [ "$status" -eq 9 ]
  grep -q '"errorCode":9' logs2/none_*/attempt_0/0/error.json
  # A malformed error file is shown unchanged.
  run "$DDPRUN" sh -c 'echo "{broken" >"$TORCHELASTIC_ERROR_FILE"; exit 4'
  [ "$status" -eq 4 ]
  [[ $output == *"traceback : {broken"* ]]
}
