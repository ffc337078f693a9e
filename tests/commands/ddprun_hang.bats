#!/usr/bin/env bats
# --hang-report-after: ddprun says by itself who hangs, once, while the job goes on; the report of a job that hung has it.
# --end-hung: it also kills who hangs.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  rank_program=$(dirname "$DDPRUN")/rank_program
}

# tells WORDS: what the lines about the standstill begin with.
tells() { grep -q "^ddprun: no progress for 1 s: $1" err; }
told() { eventually 90 tells "$1" || { cat err out; return 1; }; }
end() {
  kill -KILL "$launcher"
  wait "$launcher" || true
  launcher=
}

@test "a rank of libddp that sleeps, stops, or waits in another collective" {
  start --nproc-per-node 3 --hang-report-after 1 "$rank_program" hang sleep 1
  told "rank 1 is asleep in .*nanosleep, last all_reduce #.*; ranks 0, 2 wait for it in all_reduce #.* of group 'ddp.0.world', for "
  grep -q "^  ranks 0, 2 (.*): in all_reduce #" err
  sleep 3
  [ "$(grep -c "no progress" err)" -eq 1 ]
  kill -0 "$launcher"
  end
  start --nproc-per-node 3 --hang-report-after 1 "$rank_program" hang stop 1
  told "rank 1 is stopped, last all_reduce #"
  end
  start --nproc-per-node 3 --hang-report-after 1 "$rank_program" hang elsewhere 1
  told "rank 1 is in barrier #1 of group "
  end
}

@test "a Python program of others; one that goes on is left alone" {
  cat >plain.py <<'END'
import os, socket, time
if os.environ["RANK"] == "1":
    time.sleep(1000)
here, there = socket.socketpair()
here.recv(1)
END
  start --nproc-per-node 3 --hang-report-after 1 plain.py
  told "likely rank 1 is asleep in .*nanosleep; ranks 0, 2 wait for something else"
  end
  start --nproc-per-node 2 --hang-report-after 2 "$rank_program" loop 60 1000
  eventually 60 grep -q READY out
  sleep 5
  [ ! -s err ] || { cat err; return 1; }
  end
}

@test "the report of a hung job has it: after a second SIGQUIT, and where operations reach their deadline" {
  start --nproc-per-node 2 --shutdown-timeout 100 --report-json report.json sh -c \
    'trap "" QUIT; exec "$0" hang sleep 1' "$rank_program"
  eventually 60 grep -q READY out
  sleep 2
  kill -QUIT "$launcher"
  eventually 60 grep -q "SIGQUIT: waiting up to" err
  kill -QUIT "$launcher"
  finish
  [[ $output == *"ddprun: before the ranks were ended: rank 1 is asleep in "*"; rank 0 waits for it in all_reduce #"*"ddprun: where the ranks stood"* ]] ||
    { echo "$output"; return 1; }
  python3 -c 'import json; h = json.load(open("report.json"))["hang"]; assert h["culprits"] == [1] and h["hangs"] == "yes" and len(h["ranks"]) == 2, h'
  start --nproc-per-node 3 --hang-report-after 1 --failure-grace 0 --report-json report.json "$rank_program" differ absent 1 12
  finish
  [ "$status" -ne 0 ]
  tells "rank 1 is asleep" || { echo "$output"; return 1; }
  python3 -c 'import json; h = json.load(open("report.json"))["hang"]; assert h["culprits"] == [1] and h["when"] == "no progress for 1 s", h'
}

@test "several nodes judge together; --end-hung kills the rank that hangs, which spends a restart" {
  local port
  port=$(free_port)
  cat >hangs_once <<END
#!/bin/sh
[ \$TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0
exec "$rank_program" hang sleep 3
END
  chmod +x hangs_once
  for node in 0 1; do
    start_agent "$node" --nnodes 2 --nproc-per-node 2 --node-rank "$node" --master-addr 127.0.0.1 --master-port "$port" \
      --hang-report-after 1 --end-hung 3 --max-restarts 1 ./hangs_once
  done
  for node in 0 1; do finish_agent $node && [ "$status" -eq 0 ]; done
  local told killed
  told=$(grep -n "no progress for 1 s: rank 3 is asleep in .*; ranks 0-2 wait for it in all_reduce" agent.0 | cut -d: -f1)
  killed=$(grep -n "^ddprun: killing rank 3 (--end-hung)" agent.0 | cut -d: -f1)
  [ "$told" -lt "$killed" ]
  agent_said 0 "rank 3 on $(hostname) hung for 3 s and was killed; restarting (restart 1 of at most 1)"
}

@test "--end-hung: a stopped rank, too; the report names it" {
  start --nproc-per-node 3 --end-hung 1 --report-json report.json "$rank_program" hang stop 1
  finish
  [ "$status" -eq 137 ]
  [[ $output == *"Root Cause (first observed failure):"*"  rank      : 1 ("*"  hung      : no progress for 1 s, so ddprun killed it (--end-hung)"* ]] ||
    { echo "$output"; return 1; }
  [[ $output == *"ddprun: no progress for 1 s: rank 1 is stopped"*"ddprun: no progress for 1 s: rank 1 is stopped"* ]]
  python3 -c 'import json; r = json.load(open("report.json")); f = r["failures"][0]
assert (f["rank"], f["seconds_hung"]) == (1, 1) and r["hang"]["culprits"] == [1], r'
}
