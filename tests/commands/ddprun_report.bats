#!/usr/bin/env bats
# What ddprun says of a job at its end: the report on standard error, --report-json, and the summary on terminals.

load ddprun_report_fixture

@test "--report-json: success, failure with the last lines of standard error, signal" {
  run "$DDPRUN" --nproc-per-node 2 --report-json report.json true
  [ "$status" -eq 0 ]
  report 'r["schema"] == "ddprun-report/1"' 'r["success"] is True' 'r["exit_status"] == 0' 'r["root_cause"] is None' \
    'r["world_size"] == 2 and r["num_nodes"] == 1 and r["attempt"] == 0 and r["program"] == "true"' \
    '0 < r["seconds_until_started"] <= r["seconds_total"]' 'r["start"].endswith("Z")'
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 --report-json report.json sh -c \
    'if [ "$RANK" != 1 ]; then sleep 100; fi; seq -f "line %g" 100 >&2; echo "out of luck" >&2; exit 85'
  [ "$status" -eq 85 ]
  [[ $output == *$'line 100\nout of luck\n'*"stderr    : out of luck (last line; see above)"*"2 other ranks were ended by ddprun."* ]]
  report 'r["root_cause"]["kind"] == "rank" and r["root_cause"]["rank"] == 1' 'len(r["failures"]) == 1' \
    'r["failures"][0]["exit_code"] == 85 and r["failures"][0]["signal"] is None and r["failures"][0]["pid"] > 0' \
    'r["failures"][0]["stderr_tail"].endswith("line 99\nline 100\nout of luck\n")' 'r["ended_on_request"] == 2'
  run "$DDPRUN" --report-json report.json sh -c 'ulimit -c 0; kill -SEGV $$$$'
  [ "$status" -eq 139 ]
  report 'r["failures"][0]["signal"] == {"number": 11, "name": "SIGSEGV"}' 'r["failures"][0]["exit_code"] is None' \
    'r["exit_status"] == 139'
}

@test "--event-log: what happens is appended as it happens, and a folder that is missing is an error first" {
  run "$DDPRUN" --nproc-per-node 2 --max-restarts 1 --failure-grace 0 --event-log events.jsonl sh -c \
    '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 7; grep -c . events.jsonl >"$NOTES/seen"'
  [ "$status" -eq 0 ]
  [ "$(cat "$NOTES/seen")" -ge 3 ]  # while the job ran
  python3 - <<'PYTHON'
import json
events = [json.loads(line) for line in open("events.jsonl")]
ends = [e for e in events if e["event"] == "rank_ended"]
assert sorted((e["attempt"], e["rank"]) for e in ends) == [(0, 0), (0, 1), (1, 0), (1, 1)], ends
assert events.index(ends[0]) == 3 and ends[0]["exit_code"] == 7 and ends[0]["signal"] is None and ends[0]["host"], ends
events = [e for e in events if e["event"] != "rank_ended"]
names = [e["event"] for e in events]
assert names == ["job_started", "node_joined", "attempt_started", "restart", "attempt_started", "job_ended"], names
assert events[3]["failures"][0]["exit_code"] == 7 and events[4]["attempt"] == 1 and events[5]["success"]
PYTHON
  run "$DDPRUN" --event-log missing/events.jsonl touch "$NOTES/ran"
  [ "$status" -ne 0 ]
  [[ $output == *"opening --event-log=missing/events.jsonl"*"ENOENT"* ]]
  [ ! -e "$NOTES/ran" ]
}

@test "bytes that are no UTF-8: whatever ddprun writes as JSON is JSON" {
  printf 'import os\nos.write(1, b"out \\xe9\\n")\nos.write(2, b"Error: \\xff\\n")\nos._exit(1)\n' >$'latin\xe9.py'
  VALUE=$'v\xe9\xff' run -1 "$DDPRUN" --log-format json -t 3 --log-dir logs --dump-env=env.json --report-json report.json \
    --event-log events.jsonl $'latin\xe9.py' $'a\xe9'
  python3 - <<'PYTHON'
import json
for whole in ("report.json", "env.json"):
    json.loads(open(whole, "rb").read().decode())
assert len([json.loads(line.decode()) for line in open("events.jsonl", "rb")]) >= 4
PYTHON
}

@test "a rank that ends early with 0 is named when the others fail" {
  # Rank 0 fails once it sees that rank 1's process is gone, as when a connection breaks.
  run "$DDPRUN" --nproc-per-node 3 --report-json report.json sh -c \
    'case $RANK in
       0) until [ -s "$NOTES/gone" ]; do sleep 0.05; done
          while grep -q "^State:[[:space:]]*[A-Y]" "/proc/$(cat "$NOTES/gone")/status"; do sleep 0.05; done
          echo "Connection closed by peer" >&2; exit 9 ;;
       1) echo $$$$ >"$NOTES/gone" ;;
       2) sleep 100 ;;
     esac'
  echo "$output"
  [ "$status" -eq 9 ]
  [[ $output == *"Root Cause (first observed failure):"*"rank      : 0 "*"Ended early: rank 1 ($(hostname)) ended with exit code 0, "*" s before the first failure; the others may have waited for it."*"Other Failures:"* ]]
  report 'r["root_cause"]["rank"] == 0' '[e["rank"] for e in r["ended_early"]] == [1]' \
    'r["ended_early"][0]["seconds_before_failure"] >= 0 and r["ended_early"][0]["pid"] > 0' 'len(r["failures"]) == 1'
  # Not where all is well, however early it ends.
  run "$DDPRUN" --nproc-per-node 2 --report-json report.json sh -c 'sleep 0.$RANK'
  [ "$status" -eq 0 ]
  [ -z "$output" ]
  report 'r["ended_early"] == []'
}

@test "reports name the log files, give the last line of a traceback, and hint at @record for Python only" {
  printf '%s\n' 'raise ValueError("bad loss")' >fails.py
  run "$DDPRUN" -t 3 --log-dir logs --report-json report.json fails.py
  echo "$output"
  [ "$status" -eq 1 ]
  log=$(echo "$PWD"/logs/none_*/attempt_0/0)
  [[ $output == *"  stdout_log: $log/stdout.log"*"  stderr_log: $log/stderr.log"* ]]
  [[ $output == *"  traceback : ValueError: bad loss (see above)"* ]]
  [ "$(grep -c "raise ValueError" <<<"$output")" -eq 1 ]
  [[ $output != *"To enable traceback"* ]]
  report 'r["failures"][0]["logs"] == {"stdout": "'"$log"'/stdout.log", "stderr": "'"$log"'/stderr.log"}'
  # Slurm's job or step names the folder where the user does not.
  SLURM_JOB_ID=77 run "$DDPRUN" -r 3 --log-dir slurm true
  SLURM_JOB_ID=77 run "$DDPRUN" -r 3 --log-dir slurm --rdzv-id run7 true
  [ -d slurm/77_*/attempt_0/0 ]
  [ -d slurm/run7_*/attempt_0/0 ]
  # What the console does not have is shown.
  run "$DDPRUN" -r 3 --log-dir logs fails.py
  [[ $output == *"  traceback : in stderr"*"raise ValueError"* ]]
  printf '%s\n' 'import sys; sys.exit("no luck")' >exits.py
  run "$DDPRUN" --log-dir /dev/null exits.py
  [[ $output == *"To enable traceback see"* ]]
  run "$DDPRUN" sh -c 'echo no luck >&2; exit 3'
  [ "$status" -eq 3 ]
  [[ $output != *"To enable traceback see"* ]]
}

@test "the root cause is whom the errors of a process group name, not who ended first" {
  # Ranks 0, 1 and 3 call all_reduce, rank 2 a barrier, and ends last.
  run "$DDPRUN" --nproc-per-node 4 --failure-grace 30 --report-json report.json sh -c \
    '"$0" differ kind 2 60 >&2; [ "$RANK" != 2 ] || sleep 1; exit $((20 + RANK))' "$(dirname "$DDPRUN")/rank_program"
  echo "$output"
  [ "$status" -eq 22 ]
  [[ $output == *"Root Cause (whom the errors of ranks 0-3 name):"*"rank      : 2 "*"exitcode  : 22 "*"Other Failures:"* ]]
  report 'r["root_cause"]["rank"] == 2' 'r["verdict"] == {"ranks": [2], "reported_by": [0, 1, 2, 3]}' 'len(r["failures"]) == 4'
  # Rank 1 calls nothing, and has to be ended.
  run "$DDPRUN" --nproc-per-node 3 --failure-grace 0 --report-json report.json sh -c \
    '"$0" differ absent 1 2 >&2; exit 7' "$(dirname "$DDPRUN")/rank_program"
  echo "$output"
  [ "$status" -eq 7 ]
  [[ $output == *"Root Cause (whom the errors of "*"rank      : 1"$'\n'*"did not fail by itself"*"Other Failures:"* ]]
  report 'r["verdict"]["ranks"] == [1]'
}

@test "a module that is missing is reported with the interpreter and where it came from" {
  printf 'import no_such_module\n' >fails.py
  VIRTUAL_ENV= CONDA_PREFIX= run "$DDPRUN" --nproc-per-node 3 --failure-grace 30 --report-json report.json fails.py
  echo "$output"
  [ "$status" -eq 1 ]
  [[ $output == *"  python    : "*"/python3 (from PATH; VIRTUAL_ENV is not set)"* ]]
  # Those that failed alike are one block.
  [ "$(grep -c "exitcode  : 1" <<<"$output")" -eq 2 ]
  [ "$(grep -Ec "  ranks     : (0, 1|0, 2|1, 2)$" <<<"$output")" -eq 1 ]
  VIRTUAL_ENV=/opt/venv run "$DDPRUN" fails.py
  [[ $output == *"VIRTUAL_ENV=/opt/venv, which has another one)"* ]] || { echo "$output"; return 1; }
  PYTHON_EXEC=$(command -v python3) run "$DDPRUN" fails.py
  [[ $output == *"python3 (from PYTHON_EXEC;"* ]] || { echo "$output"; return 1; }
  run "$DDPRUN" sh -c 'exit 3'
  [[ $output != *"python    :"* && $output != *"traceback"* && $output != *"error_file"* ]] || { echo "$output"; return 1; }
}

@test "an error file that does not outlive the job is not named" {
  run "$DDPRUN" --report-json report.json sh -c 'echo "{\"message\": \"no luck\"}" >"$TORCHELASTIC_ERROR_FILE"; exit 4'
  echo "$output"
  [ "$status" -eq 4 ]
  [[ $output == *"error_file: <N/A>"*"traceback : no luck"* ]]
  report 'r["failures"][0]["error"]["file"] is None' 'r["failures"][0]["error"]["message"] == "no luck"'
}

@test "a rank that fails at once has a process id in the report" {
  for _ in $(seq 30); do
    run "$DDPRUN" --report-json report.json sh -c 'exit 3'
    [ "$status" -eq 3 ]
    [[ $output =~ "exitcode  : 3 (pid: "[1-9] ]]
  done
  report 'r["seconds_until_started"] > 0'
}

@test "--report-json of a job that never came together" {
  run -1 "$DDPRUN" --nnodes 2 --rdzv-backend c10d --rdzv-endpoint "localhost:$(free_port)" --rdzv-conf join_timeout=0.3 \
    --report-json report.json true
  report 'r["root_cause"] == {"kind": "node", "node_rank": None, "host": None}' 'r["exit_status"] == 1' \
    '"1 of 2 nodes has joined" in r["nodes"][0]["message"]'
}

@test "a report that cannot be written is an error before anything starts" {
  rejects 1 "--report-json=/nosuchfolder/r.json can be written" --report-json /nosuchfolder/r.json touch started
  rejects 1 "Is a directory" --report-json "$PWD" touch started
  rejects 2 "'' is not a file" --report-json= touch started
  [ ! -e started ]
  # Later, it is said; the job's status stays.
  run -5 "$DDPRUN" --report-json /dev/full sh -c 'exit 5'
  [[ $output == *"ddprun: writing --report-json=/dev/full: No space left on device"* ]]
}

@test "status, summary and colours are for terminals only" {
  type script >/dev/null || skip "needs script, of util-linux"
  PATH=${DDPRUN%/*}:$PATH # its folder may have a blank
  on_terminal() { TERM=xterm SHELL=/bin/sh script -qec "$*" /dev/null </dev/null; }
  run on_terminal ddprun --nproc-per-node 2 -t 1 --log-dir logs echo hello
  echo "$output"
  [ "$status" -eq 0 ]
  [[ $output == *$'\e[36m[default0]:\e[0mhello'* ]]
  [[ $output == *"ddprun: 2 ranks on 1 node succeeded after "* ]]
  run on_terminal "ddprun --nproc-per-node 2 -t 1 --log-dir logs echo hello 2>err | tee out"
  [ "$(sort out)" = $'[default0]:hello\n[default1]:hello' ]
  [ ! -s err ]
  run on_terminal "ddprun -t 3 --log-dir logs sh -c 'echo hello; echo there >&2' 2>err"
  [[ $output == *$'\e[36m[default0]:\e[0mhello'* ]]
  [ "$(cat err)" = "[default0]:there" ]
  run on_terminal "ddprun -t 3 --log-dir logs sh -c 'echo hello; echo there >&2' | tee out"
  [[ $output == *$'\e[36m[default0]:\e[0mthere'* ]]
  [ "$(cat out)" = "[default0]:hello" ]
  run on_terminal ddprun sh -c "'exit 85'"
  [ "$status" -eq 85 ]
  [[ $output == *$'\e[1;31mRoot Cause ('*"exitcode  : 85 "* && $output != *"succeeded after"* ]]
  NO_COLOR=1 run on_terminal ddprun sh -c "'exit 85'"
  [[ $output == *"Root Cause ("* && $output != *$'\e[1;31m'* ]]
}
