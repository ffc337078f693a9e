#!/usr/bin/env bats
# ddp-info status names who hangs, from outside: in programs of libddp and in others.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  info=$(dirname "$DDPRUN")/ddp-info
  rank_program=$(dirname "$DDPRUN")/rank_program
}

# A rank that waits for others, as many programs do; the culprit does what is given in Python.
plain_program() {
  cat >plain.py <<END
import os, signal, socket, time
print("READY", flush=True)
if os.environ["RANK"] == "1":
    $1
here, there = socket.socketpair()
here.recv(1)
END
}

ready() { [ "$(grep -c READY out)" -eq "$1" ]; }

# says STATUS WORDS [ARGUMENT]...: what the first line is, as soon as all have come to rest.
says() {
  local expected=$1 words=$2
  shift 2
  status=0
  "$info" status --pid "$launcher" --after 0.5 "$@" >report 2>&1 || status=$?
  [ "$status" -eq "$expected" ] && [[ $(head -n 1 report) == $words ]]
}

finds() { eventually 60 says "$@" || { cat report; return 1; }; }

# end: the job is of no more use.
end() {
  kill -KILL "$launcher"
  wait "$launcher" || true
  launcher=
}

@test "of programs of libddp: a rank that sleeps, stops, spins or waits elsewhere" {
  while read -r -u 9 what words; do
    start --nproc-per-node 4 "$rank_program" hang "$what" 2
    eventually 60 ready 4
    finds 1 "$words; ranks 0, 1, 3 wait for it in all_reduce #* of group 'ddp.0.world', for *"
    grep -q "^  ranks 0, 1, 3 (.*): in all_reduce #" report
    end
  done 9<<'END'
sleep rank 2 is asleep in *nanosleep, last all_reduce #* of group 'ddp.0.world'
stop rank 2 is stopped, last all_reduce #*
spin rank 2 is computing (* % of a core), last all_reduce #*
END
  start --nproc-per-node 4 "$rank_program" hang elsewhere 2
  eventually 60 ready 4
  finds 1 "rank 2 is in barrier #1 of group '*'; *"
  end
}

@test "a job that goes on hangs not, one that has not called World::init waits for whom" {
  start --nproc-per-node 2 "$rank_program" loop 60 1000
  eventually 60 ready 2
  run -0 "$info" status --pid "$launcher"
  [[ ${lines[0]} == "nothing hangs: "* ]]
  end
  # A shell that never starts its program.
  start --nproc-per-node 3 --no-python sh -c "echo READY; [ \$RANK = 1 ] && exec sleep 1000; exec '$rank_program' world"
  eventually 60 ready 3
  finds 1 "rank 1 is asleep in *nanosleep; ranks 0, 2 wait for it in World::init, for *"
}

@test "of other programs: what /proc tells of a rank that sleeps, stops or computes" {
  while read -r -u 9 words && read -r -u 9 work; do
    plain_program "$work"
    start --nproc-per-node 3 plain.py
    eventually 60 ready 3
    finds 1 "$words"
    end
  done 9<<'END'
likely rank 1 is asleep in *nanosleep*; ranks 0, 2 wait for something else
time.sleep(1000)
rank 1 is stopped
os.kill(os.getpid(), signal.SIGSTOP)
likely rank 1 is computing (* % of a core)*
while True: pass
END
}

@test "JSON and stacks; a rank, and what it has started, name the job" {
  start --nproc-per-node 2 "$rank_program" hang sleep 1
  eventually 60 ready 2
  finds 1 "rank 1 is asleep*"
  says 1 '{' --json --stacks
  python3 - <<'END'
import json
report = json.load(open("report"))
assert report["schema"] == "ddp-info-status/1" and report["hangs"] == "yes" and report["culprits"] == [1], report
assert [r["where"] for r in report["ranks"]] == ["in_operation", "asleep"], report["ranks"]
assert report["waits"][0]["waiting"] == [0] and report["waits"][0]["missing"] == [1], report["waits"]
assert sorted(sum((g["ranks"] for g in report["stacks"]), [])) == [0, 1], report["stacks"]
open("pid", "w").write(str(report["ranks"][0]["pid"]))
END
  run -1 "$info" status "$(cat pid)" --after 0.5
  [[ ${lines[0]} == "rank 1 is "*"; rank 0 waits for it in all_reduce"* ]]
}

@test "what cannot be looked at is one line and status 2" {
  for arguments in "none" "1 2" "--pid 0" "--pid 4000000000" "--job x" "--after -1" "--timeout 0" "--pid 3999999" "--tmieout 3"; do
    run -2 "$info" status $arguments
    [ "${#lines[@]}" -eq 1 ]
    [[ $output == "ddp-info: "* ]]
  done
  [ "$(id -u)" -eq 0 ] || return 0
  sleep 1000 3>&- &
  echo $! >"$NOTES/pid.sleep"
  run -2 setpriv --reuid 65534 --clear-groups "$info" status --pid $!
  [[ $output == *"belongs to root; users see their own processes only"* ]] || { echo "$output"; return 1; }
}
