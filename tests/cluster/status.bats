#!/usr/bin/env bats
# ddp-info status asks all nodes of a job: who hangs is named with its node, by the job's user alone.

load ../support/cluster_jobs

# finds WORDS [ARGUMENT]...: the first line, as soon as all have come to rest.
finds() {
  local words=$1
  shift
  eventually 90 says_first "$words" "$@" || { cat "$shared/report"; return 1; }
}
says_first() {
  local words=$1 status=0
  shift
  on_ctl "$bin/ddp-info" status "$@" --after 0.5 >"$shared/report" || status=$?
  [ "$status" -eq 1 ] && [[ $(head -n 1 "$shared/report") == $words ]]
}

ready() { [ "$(grep -c READY "$shared/out")" -eq "$1" ]; }

@test "status names the rank of another node that is missing, and refuses other users" {
  start srun --mpi=pmix -N4 -n8 --job-name=hangs "$bin/rank_program" hang sleep 5
  eventually 60 ready 8
  local id
  id=$(on_ctl squeue -h -n hangs -o %A)
  finds "rank 5 is asleep in *nanosleep, last all_reduce #*; ranks 0-4, 6, 7 wait for it in all_reduce #*" --job "$id"
  grep -qE '^  rank 5 \(n[0-9]\): asleep' "$shared/report"
  grep -qE '^  ranks 0-4, 6, 7 \(n[0-9](, n[0-9])+\): in all_reduce' "$shared/report"
  # A step's number, and JSON.
  run on_ctl "$bin/ddp-info" status --job "$id.0" --json --after 0.5
  [ "$status" -eq 1 ]
  python3 -c 'import json, sys; r = json.load(sys.stdin); assert r["culprits"] == [5] and len(r["ranks"]) == 8 and not r["notes"], r' <<<"$output"
  if others_can_run "$bin/ddp-info"; then
    run on_ctl setpriv --reuid 65534 --clear-groups "$bin/ddp-info" status --job "$id"
    [ "$status" -eq 2 ]
    [[ $output == "ddp-info: "*"belongs to root"* ]] || { echo "$output"; return 1; }
  fi
  on_ctl scancel --signal=KILL "$id"
  wait "$job" || true
  job=
}

@test "under srun ddprun; a job that is not there is one line" {
  start srun --mpi=pmix -N2 --ntasks-per-node=1 --job-name=stops "$bin/ddprun" --nproc-per-node 2 "$bin/rank_program" hang stop 2
  eventually 60 ready 4 || { cat "$shared/out"; return 1; }
  finds "rank 2 is stopped, last all_reduce #*; ranks 0, 1, 3 wait for it in all_reduce #*" --job "$(on_ctl squeue -h -n stops -o %A)"
  on_ctl scancel --signal=KILL "$(on_ctl squeue -h -n stops -o %A)"
  wait "$job" || true
  job=
  run on_ctl "$bin/ddp-info" status --job 999999
  [ "$status" -eq 2 ]
  [ "${#lines[@]}" -eq 1 ]
}

@test "ddprun names who hangs on another node, in its report, too, and answers Prometheus on another host" {
  start salloc -Q -N2 -w 'n[0-1]' "$bin/ddprun" --nproc-per-node 2 --hang-report-after 1 --report-json "$shared/report.json" \
    --metrics-port 9464 --metrics-address 0.0.0.0 --no-python sh -c \
    'echo "PID $RANK $$$$"; exec "$0" hang sleep 3' "$bin/rank_program"
  says 1 "ddprun: no progress for 1 s: rank 3 is asleep in .*; ranks 0-2 wait for it in all_reduce #"
  local node
  for node in 0 1; do
    "$cluster" on n3 python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())' \
      "http://10.78.0.$((node + 1)):9464/metrics" >"$shared/page"
    grep -q "^ddp_nodes{job=\".*\",node=\"n$node\"} 2$" "$shared/page"
    grep -q "^ddp_ranks{.*state=\"running\"} 2$" "$shared/page"
  done
  grep -q '^ddp_rank_running{.*rank="3"} 1$' "$shared/page"
  grep -q '^ddp_operations_pending{.*rank="2"} [1-9]' "$shared/page"
  grep -q '^ddp_operations_pending{.*rank="3"} 0$' "$shared/page"
  "$cluster" on n1 kill -KILL "$(sed -n 's/^.*PID 3 //p' "$shared/out")"
  finish
  [ "$status" -ne 0 ]
  python3 -c 'import json, sys; h = json.load(open(sys.argv[1]))["hang"]; assert h["culprits"] == [3] and len(h["ranks"]) == 4, h' \
    "$shared/report.json" || { echo "$output"; return 1; }
}
