#!/usr/bin/env bats
# --warm-workers: ranks that start again run in interpreters that were started before, and see no difference.

load ddprun_report_fixture

# The first generation notes that it runs, waits until ddprun has said that RANKS interpreters are ready, and fails.
program='import os, sys, time
generation, rank = int(os.environ["DDP_GENERATION"]), os.environ["RANK"]
with open(os.environ["NOTES"] + "/pid.%d.%s" % (generation, rank), "w") as note:
    note.write("%d\n" % os.getpid())
def ready():
    with open("err") as file:
        return [line.rsplit(" ", 1)[1].strip() for line in file if " of the next generation is ready; pid " in line]
if generation == 0:
    while len(ready()) < int(os.environ["RANKS"]):
        time.sleep(0.02)
    exec(os.environ.get("FIRST", ""))
    sys.exit(3)
'

ready_pids() { sed -n 's/.* of the next generation is ready; pid //p' err; }
all_ready() { [ "$(ready_pids | wc -l)" -eq "$1" ]; }
debug_lines() { grep -c "does not get the interpreter that was started for it: $1" err; }
standby() { pgrep -P "$launcher" ddprun-standby; }

setup_file() {
  ddprun_jobs_setup_file
  command -v python3 >/dev/null || skip "there is no python3"
}

@test "a restart takes the interpreters that were announced; the next one new ones; all end with the job" {
  cat >job.py <<<"$program"'
print(("%d %s %s " % (generation, rank, "json" in sys.modules) + sys.stdin.read()).strip())
if generation == 1:
    while len(ready()) < 2 * int(os.environ["RANKS"]):
        time.sleep(0.02)
sys.exit(4 if generation == 1 else 0)'
  export RANKS=2
  echo typed >typed
  status=0
  "$DDPRUN" -v --nproc-per-node 2 --max-restarts 3 --warm-workers=json,no_such_module job.py <typed >out 2>err || status=$?
  cat out err
  [ "$status" -eq 0 ]
  [ "$(sort out)" = $'1 0 True typed\n1 1 True\n2 0 True\n2 1 True' ]
  [ "$(cat "$NOTES"/pid.[12].* | sort)" = "$(ready_pids | head -n 4 | sort)" ]
  # Generation 2 could have started again, so others were made ready, or about to be.
  [ "$(grep -c "warning: .*--warm-workers: no_such_module: ModuleNotFoundError" err)" -eq 1 ]
  for pid in $(ready_pids); do eventually 10 gone "$pid"; done
}

@test "a program sees, prints and ends as in a new interpreter" {
  cat >job.py <<<"$program"'
import atexit, inspect, io, resource, signal
atexit.register(lambda: print("the end", __name__, flush=True))
late = {"MASTER_PORT", "PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR", "TORCHELASTIC_ERROR_FILE", "DDP_NODE_CACHE", "RANKS"}
print(sys.argv, sys.orig_argv if hasattr(sys, "orig_argv") else "", sys.path, os.getcwd(), sys.flags)
print(sorted((name, value) for name, value in os.environ.items() if name not in late and not name.startswith(("PMIX_SERVER_", "PMIX_DSTORE_", "PMIX_SYSTEM_"))))
print([(number, signal.getsignal(number)) for number in range(1, 32)], os.sched_getaffinity(0), os.umask(0))
print(os.getpid() == os.getsid(0) == os.getpgid(0), resource.getrlimit(resource.RLIMIT_NOFILE))
for stream in sys.stdin, sys.stdout, sys.stderr:
    print(stream, type(stream.buffer), stream.seekable(), stream.line_buffering, stream.write_through, os.fstat(stream.fileno()).st_mode)
with open("/proc/self/cmdline") as file:
    print(file.read().split("\0"))
def function():
    raise ValueError("of the program")
function()'
  for way in warm cold; do
    if [ $way = warm ]; then
      RANKS=1 start -v --max-restarts 1 --warm-workers=json job.py --lr 1
    else
      RANKS=0 start -v --max-restarts 1 job.py --lr 1
    fi
    finish
    [ "$status" -eq 1 ]
    mv out out.$way
    grep -E '^(Traceback|  File|    |ValueError)' err >err.$way
  done
  grep -q "the end __main__" out.warm
  diff out.warm out.cold
  diff err.warm err.cold
  grep -q 'ValueError: of the program' err.warm
  ! grep -q ddprun err.warm
}

@test "an interpreter that was killed is replaced by a new one" {
  cat >job.py <<<"$program"
  export RANKS=2 FIRST='import signal
os.kill(int(ready()[1]), signal.SIGKILL)'
  DDP_LOG_LEVEL=debug start -v --nproc-per-node 2 --max-restarts 1 --warm-workers=json job.py
  finish
  echo "$output"
  [ "$status" -eq 0 ]
  [ "$(cat "$NOTES/pid.1.0")" = "$(ready_pids | head -n 1)" ]
  [ "$(cat "$NOTES/pid.1.1")" != "$(ready_pids | sed -n 2p)" ]
  debug_lines "it has ended"
}

@test "kill -9 of ddprun, and the end of a job in which nothing failed, leave no interpreter" {
  cat >job.py <<<"$program"
  export RANKS=3 # never ready
  start -v --nproc-per-node 2 --max-restarts 1 --warm-workers=json job.py
  eventually 60 all_ready 2
  standby
  interpreters=$(ready_pids)
  for pid in $interpreters; do kill -0 "$pid"; done
  kill -KILL "$launcher"
  for pid in $interpreters; do eventually 20 gone "$pid"; done
  eventually 20 all_gone

  rm -f "$NOTES"/pid.*
  export RANKS=2 FIRST='os._exit(0)'
  sed -i 's/sys.exit(3)/os._exit(0)/' job.py
  start -v --nproc-per-node 2 --max-restarts 1 --warm-workers=json job.py
  finish
  [ "$status" -eq 0 ]
  all_ready 2
  for pid in $(ready_pids); do gone "$pid"; done
}

@test "what gets no interpreters says why, once" {
  for job in "--max-restarts 1 true|true is not a Python program" "job.py|without --max-restarts, no rank starts again" \
    "--max-restarts 1 --dump-env=dumped job.py|with --dump-env, each rank starts anew"; do
    echo 'pass' >job.py
    # shellcheck disable=SC2086 # words
    run -0 "$DDPRUN" --nproc-per-node 2 --warm-workers ${job%|*}
    [ "$(grep -c 'has no effect' <<<"$output")" -eq 1 ]
    [[ $output == *"ddprun: --warm-workers has no effect: ${job#*|}"* ]] || { echo "$output"; return 1; }
  done
}

# A rank of an elastic job: notes its process id and the interface of its traffic, and waits for the file go.
elastic='import os, time
generation, rank = os.environ["DDP_GENERATION"], os.environ["RANK"]
open(os.environ["NOTES"] + "/interface." + generation, "w").write(os.environ.get("GLOO_SOCKET_IFNAME", ""))
new = os.environ["NOTES"] + "/new.%s.%s" % (generation, rank)
with open(new, "w") as note:
    note.write("%d\n" % os.getpid())
os.rename(new, os.environ["NOTES"] + "/pid.%s.%s" % (generation, rank))
while not os.path.exists("go"):
    time.sleep(0.02)'

# meets NAME...: agents of a job of one or two nodes, which start once all have come or within a second; the first leads.
meets() {
  local name
  for name in "$@"; do
    DDP_LOG_LEVEL=debug start_agent "$name" -v --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id warm \
      --rdzv-conf last_call_timeout=$([ $# -eq 1 ] && echo 1 || echo 10) --shutdown-timeout 5 --warm-workers="${modules:-json}" job.py
    eventually 20 grep -Eqi ":$(printf '%04X' "$port") 0+:0000 0A" /proc/net/tcp /proc/net/tcp6
  done
}
# announced NAME N: the process id of its Nth interpreter
announced() { sed -n 's/.* of the next generation is ready; pid //p' "agent.$1" | sed -n "$2p"; }
is_announced() { [ -n "$(announced "$@")" ]; }
runs() { [ -s "$NOTES/pid.$1" ]; } # GENERATION.RANK

@test "after the loss of a node, the other one and a spare have interpreters; kill -9 of an agent ends its own" {
  port=$(free_port)
  echo "$elastic" >job.py
  meets a b
  eventually 60 runs 0.0 && eventually 60 runs 0.1
  meets c
  eventually 60 grep -q "this one is a spare" agent.c
  for name in a b c; do eventually 60 is_announced $name 1; done
  kill -KILL "${agents[b]}"
  wait "${agents[b]}" || true
  unset "agents[b]"
  eventually 60 runs 1.0 && eventually 60 runs 1.1
  cat agent.a agent.c
  [ "$(cat "$NOTES"/pid.1.* | sort)" = "$(sort <(announced a 1) <(announced c 1))" ]
  eventually 20 gone "$(announced b 1)"
  touch go
  for name in a c; do
    finish_agent $name
    [ "$status" -eq 0 ]
  done
}

@test "a node that joins has interpreters before the others' ranks end; all get theirs, over another interface" {
  port=$(free_port)
  echo "$elastic" >job.py
  mkfifo hold
  echo 'import os
if os.path.exists("slow"):
    with open("hold") as file:
        open("imports", "w").close()
        file.read()' >held.py
  modules=held
  meets a
  eventually 60 runs 0.0 && eventually 60 is_announced a 1
  touch slow
  start_agent b -v --nnodes 1:2 --rdzv-backend c10d --rdzv-endpoint "localhost:$port" --rdzv-id warm --shutdown-timeout 5 \
    --warm-workers=held job.py
  eventually 60 grep -q "joins once its warm workers are ready" agent.b
  exec {writer}<>hold
  eventually 60 test -e imports
  sleep 3 # a cold node would have joined
  ! is_announced b 1
  [ ! -e "$NOTES/pid.1.0" ]
  kill -0 "$(cat "$NOTES/pid.0.0")"
  rm slow
  exec {writer}>&-
  eventually 60 runs 1.0 && eventually 60 runs 1.1
  cat agent.a agent.b
  [ "$(cat "$NOTES/pid.1.0")" = "$(announced a 1)" ]
  [ "$(cat "$NOTES/pid.1.1")" = "$(announced b 1)" ]
  if ip -o addr show up scope global | grep -q inet; then # else the host has no network
    [ "$(cat "$NOTES/interface.0")" != "$(cat "$NOTES/interface.1")" ]
  fi
  touch go
  for name in a b; do
    finish_agent $name
    [ "$status" -eq 0 ]
  done
}
