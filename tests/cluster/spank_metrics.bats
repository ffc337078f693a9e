#!/usr/bin/env bats
# What `srun --ddp-metrics` and `--ddp-event-log` tell of a step while it runs, and what keeps it from starting.
# DDP_TORCH_PYTHON is a Python with prometheus-client (default: build/venv's); all nodes must see it.

load ../support/spank_jobs

setup() {
  spank_jobs_setup
  python=${DDP_TORCH_PYTHON:-$root/build/venv/bin/python}
}
teardown() {
  [ -n "${cluster:-}" ] || return 0
  [ -z "${taker:-}" ] || "$cluster" on n2 kill "$taker" || true
  cluster_jobs_teardown
}

# page NODE PORT: what another node reads there.
page() {
  "$cluster" on n3 "$python" -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())' \
    "http://10.78.0.$((${1#n} + 1)):$2/metrics"
}
page_has() { page "$1" "$2" >"$shared/page" && grep -qE "$3" "$shared/page"; }
# events CODE: Python about E, the list of events.
events() { python3 -c 'import json, sys; E = [json.loads(line) for line in open(sys.argv[1])]; K = [e["event"] for e in E]; exec(sys.argv[2])' "$shared/events" "$1"; }

@test "steps of ranks on four nodes, by Prometheus' parser and in the event log; both end with the step" {
  "$python" -c 'import prometheus_client' 2>/dev/null || skip "needs prometheus-client in build/venv (scripts/python-env)"
  start srun --ddp --ddp-metrics=0.0.0.0:9464 --ddp-event-log="$shared/events" --ddp-event-log-interval=1 -N4 -n4 \
    "$rank_program" steps 600
  run "$cluster" on n3 "$python" "$root/tests/support/scrape_steps.py" 4 http://10.78.0.{1,2,3,4}:9464/metrics
  succeeded
  local node
  for node in 0 1 2 3; do [[ $output =~ "SCRAPED $node n$node "[0-9]+".0 1" ]] || { echo "$output"; cat "$shared/out"; return 1; }; done
  eventually 60 events 'assert K.count("progress") >= 2' 2>/dev/null || { cat "$shared/events"; return 1; }
  # or a survivor that reports the loss might end before srun hears of the end of the lost one
  for node in 0 1 3; do "$cluster" on n$node pkill -STOP -x rank_program; done
  "$cluster" on n2 pkill -KILL -x rank_program
  finish
  [ "$status" -ne 0 ]
  events 'assert K[0] == "job_started" and K[-1] == "job_ended" and {"node_joined", "attempt_started", "progress", "rank_ended"} <= set(K[1:-1]), K
a, p, end = E[K.index("attempt_started")], [e for e in E if e["event"] == "progress"][-1], E[-1]
assert E[0]["schema"] == "ddprun-events/1" and E[0]["program"].endswith("/rank_program") and E[0]["run_id"] == E[0]["slurm_job_id"] + ".0", E[0]
assert E[K.index("attempt_started") - 1]["joined"] == 4 and (a["world_size"], a["num_nodes"]) == (4, 4), a
assert p["ranks"] == 4 and p["steps"]["least"] > 0 and p["step_seconds"]["mean"] >= 0.02 and 0 <= p["straggler"]["rank"] < 4, p
assert end["success"] is False and end["exit_status"] == 137 and not end["silent_nodes"], end
assert end["root_cause"] == {"kind": "rank", "rank": 2, "host": "n2"} and end["failures"][0]["signal"]["name"] == "SIGKILL", end' ||
    { cat "$shared/events"; return 1; }
  clean
  ! "$cluster" on n0 ss -Hltn | grep -q ':9464 '
}

@test "ends and stops of any program, at a port of the kernel's choice; DDP_METRICS_PORT does without the option" {
  start env DDP_METRICS_PORT=auto srun --ddp --ddp-event-log="$shared/events" -w n1 -N1 -n4 --kill-on-bad-exit=0 sh -c \
    'env | grep DDP_METRICS; case $RANK in 0) exit 0;; 1) until [ -e '"$shared/first"' ]; do sleep 0.2; done; exit 7;; 2) kill -STOP $$;; esac; until [ -e '"$shared/gate"' ]; do sleep 0.2; done'
  says 1 "ddp: n1: metrics at http://127.0.0.1:"
  local port=$(sed -nE 's|^ddp: n1: metrics at http://127.0.0.1:([0-9]+)/metrics$|\1|p' "$shared/out")
  run page n1 "$port" # loopback only
  [ "$status" -ne 0 ] && [[ $output == *refused* ]] || { echo "$output"; return 1; }
  eventually 60 shows 'state="stopped"} 1' || { cat "$shared/page"; return 1; }
  eventually 60 shows 'code="0",signal=""} 1' || { cat "$shared/page"; return 1; }
  touch "$shared/first" # only now rank 1 fails: rank 0 has ended before
  local line
  for line in 'state="running"} 1' 'state="ended"} 1' 'state="failed"} 1' 'state="starting"} 0' 'code="0",signal=""} 1' \
    'code="7",signal=""} 1' 'rank="3"} 1' 'program="sh",user="root"} 1'; do
    eventually 20 shows "$line" || { echo "no $line"; cat "$shared/page"; return 1; }
  done
  ! grep -q DDP_METRICS "$shared/out"
  touch "$shared/gate"
  "$cluster" on n1 pkill -CONT -x sh
  finish
  events 'assert E[-1]["root_cause"]["rank"] == 1 and E[-1]["exit_status"] == 7 and E[-1]["ended_early"][0]["rank"] == 0, E[-1]'
  clean
}
shows() {
  "$cluster" on n1 "$python" -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())' \
    "http://127.0.0.1:$port/metrics" >"$shared/page" && grep -qF -- "$1" "$shared/page"
}

@test "what cannot be served or written is an error before any program starts" {
  "$cluster" on n2 "$python" -c 'import os, socket, time; s = socket.create_server(("0.0.0.0", 9464)); print(os.getpid(), flush=True); time.sleep(300)' \
    >"$shared/taken" 3>&- &
  eventually 30 [ -s "$shared/taken" ]
  taker=$(cat "$shared/taken")
  run srun --ddp --ddp-metrics=9464 -N4 -n4 touch "$shared/started"
  [ "$status" -ne 0 ]
  expect_all 1 "ddp: error: rank 2 on n2: serving metrics at 127.0.0.1 port 9464: "
  [[ $output == *EADDRINUSE* && $output == *auto* ]] || { echo "$output"; return 1; }
  [ ! -e "$shared/started" ]
  clean
  "$cluster" on n2 kill "$taker"
  taker=
  local wrong
  for wrong in --ddp-metrics=nowhere:9464 --ddp-metrics=70000 --ddp-event-log=/nonexistent/log --ddp-event-log-interval=0; do
    run srun --ddp $wrong -N1 -n1 touch "$shared/started"
    [ "$status" -ne 0 ] && [[ $output == *"${wrong%%=*}"* ]] || { echo "$wrong: $output"; return 1; }
  done
  [[ $(srun --ddp --ddp-event-log=/nonexistent/log -N1 -n1 true) == *ENOENT* ]]
  [ ! -e "$shared/started" ]
}
