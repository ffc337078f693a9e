#!/usr/bin/env bats
# ddp-info status names the rank that hangs, from outside: in programs with and without libddp.

load ../support/ddprun_jobs

setup() {
  ddprun_jobs_setup
  cd "$BATS_TEST_TMPDIR"
  info=$(dirname "$DDPRUN")/ddp-info
  rank_program=$(dirname "$DDPRUN")/rank_program
}

# Hangs on purpose, DDP_HANG_ROUNDS times each (1): a longer run counts how often the right rank is named.
rounds=${DDP_HANG_ROUNDS:-1}

# What rank 1 does forever, one after the other, each until SIGUSR1: functions with these lines of Python.
works() {
  cat <<'END'
import ctypes, fcntl, mmap, os, signal, socket, time

class GoOn(Exception):
    pass

def go_on(*_):
    raise GoOn

signal.signal(signal.SIGUSR1, go_on)

def swap():
    path = f"pages.{os.getpid()}"
    with open(path, "wb") as file:
        file.write(bytes(16 << 20))
        os.fsync(file.fileno())
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        pages.madvise(mmap.MADV_RANDOM)
        while True:
            pages.madvise(mmap.MADV_DONTNEED)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for page in range(0, 16 << 20, 1 << 16):
                pages[page]
            time.sleep(0.01)

def swap_out():
    # Uses more than its memory cgroup allows, which moves to the swap file in turns.
    with open(os.environ["LITTLE_MEMORY"] + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    pages = bytearray(64 << 20)
    while True:
        for page in range(0, len(pages), 4096):
            pages[page] = 1

def open_fifo():
    path = f"fifo.{os.getpid()}"
    os.mkfifo(path)
    open(path) # until somebody writes

def lock():
    held = open("lock.held", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    fcntl.flock(open("lock.held", "w"), fcntl.LOCK_EX)

def uninterruptible():
    # The parent of vfork() is in state D until the child, which has its memory, is gone.
    if ctypes.CDLL(None).vfork() == 0:
        ctypes.CDLL(None).sleep(1000)

def work_off(works):
    with open("pid", "w") as file:
        file.write(str(os.getpid()))
    for work in works:
        try:
            exec(work)
        except GoOn:
            pass
END
  echo "WORKS = ["
  printf '    "%s",\n' "$@"
  echo "]"
}

# A program without libddp whose other ranks wait for rank 1.
plain_program() {
  works "$@" >plain.py
  cat >>plain.py <<'END'
os.write(1, b"READY\n") # print() writes the end of the line by itself, behind that of another rank
if os.environ["RANK"] == "1":
    work_off(WORKS)
here, there = socket.socketpair()
here.recv(1)
END
}

# The same with PyTorch's groups.
torch_program() {
  works "$@" >train.py
  cat >>train.py <<'END'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
values = torch.ones(1000)
dist.all_reduce(values)
os.write(1, b"READY\n") # print() writes the end of the line by itself, behind that of another rank
if dist.get_rank() == 1:
    work_off(WORKS)
dist.all_reduce(values)
END
}

# PATH begins with the Python that has PyTorch.
torch_python() {
  local python=${DDP_TORCH_PYTHON:-$BATS_TEST_DIRNAME/../../build/venv/bin/python}
  "$python" -c 'import importlib.util as i; exit(not i.find_spec("torch"))' 2>/dev/null || skip "needs PyTorch: DDP_TORCH_PYTHON"
  PATH=$(dirname "$python"):$PATH
}

ready() { [ "$(grep -c READY out)" -eq "$1" ]; }

# says STATUS WORDS [ARGUMENT]...: expects this first line, once all ranks have come to rest.
says() {
  local expected=$1 words=$2
  shift 2
  status=0
  "$info" status --pid "$launcher" --after 0.5 "$@" >report 2>&1 || status=$?
  [ "$status" -eq "$expected" ] && [[ $(head -n 1 report) == $words ]]
}

# The same within a minute. In a longer run every verdict counts: none may name another rank first.
finds() {
  local named='rank ([0-9]+)' right= turns=0
  [[ $2 =~ $named ]] && right=${BASH_REMATCH[1]}
  while ! says "$@"; do
    if [ "$rounds" -gt 1 ] && [ "$status" -eq 1 ] && [[ $(head -n 1 report) =~ $named ]] && [ "${BASH_REMATCH[1]}" != "$right" ]; then
      echo "another rank is named:" && cat report
      return 1
    fi
    [ $((++turns)) -lt 120 ] || { cat report; return 1; }
    sleep 0.5
  done
}

# end: the job is no longer needed.
end() {
  kill -KILL "$launcher"
  wait "$launcher" || true
  launcher=
}

@test "of programs of libddp: a rank that sleeps, stops, spins, waits for a file or elsewhere" {
  local round what words
  for ((round = 0; round < rounds; ++round)); do
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
open rank 2 is blocked in openat, last all_reduce #*
END
    start --nproc-per-node 4 "$rank_program" hang elsewhere 2
    eventually 60 ready 4
    finds 1 "rank 2 is in barrier #1 of group '*'; *"
    end
  done
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

# hangs_of KIND PROGRAM: rank 1 is named, whatever it does. Standard input: words, and in the next line Python.
hangs_of() {
  local round words work all_words=() all_works=()
  while read -r words && read -r work; do
    all_words+=("$words")
    all_works+=("$work")
  done
  "$1_program" "${all_works[@]}"
  for ((round = 0; round < rounds; ++round)); do
    start --nproc-per-node 3 "$2"
    eventually 120 ready 3
    eventually 60 test -s pid
    for words in "${all_words[@]}"; do
      finds 1 "$words"
      kill -USR1 "$(cat pid)"
      [[ $words != *stopped ]] || kill -CONT "$(cat pid)" # others may have got to the point where they stop
    done
    end
    rm pid
  done
}

@test "of other programs: what /proc tells of a rank that sleeps, stops, computes, waits for a file, or cannot be interrupted" {
  hangs_of plain plain.py <<'END'
likely rank 1 is asleep in *nanosleep*; ranks 0, 2 wait for something else
time.sleep(1000)
rank 1 is stopped
os.kill(os.getpid(), signal.SIGSTOP)
likely rank 1 is computing (* % of a core)*
while True: pass
likely rank 1 is blocked in openat; ranks 0, 2 wait for something else
open_fifo()
likely rank 1 is blocked in flock; ranks 0, 2 wait for something else
lock()
likely rank 1 is blocked* (D state); ranks 0, 2 wait for something else
uninterruptible()
END
}

@test "of other programs: a rank that reads pages from disk all the time" {
  [ "$(stat -f -c %T .)" != tmpfs ] || skip "the files of tmpfs have no disk"
  hangs_of plain plain.py <<'END'
likely rank 1 is *constantly reads pages from disk*
swap()
END
}

# little_memory: a memory cgroup of 32 MiB, and a swap file.
little_memory() {
  [ "$(id -u)" -eq 0 ] || skip "needs root, for a memory cgroup"
  if [ -d /sys/fs/cgroup/memory ]; then
    LITTLE_MEMORY=/sys/fs/cgroup/memory/ddp_swaps.$$
    mkdir "$LITTLE_MEMORY" || skip "needs a memory cgroup"
    echo $((32 << 20)) >"$LITTLE_MEMORY/memory.limit_in_bytes"
  else
    LITTLE_MEMORY=/sys/fs/cgroup/ddp_swaps.$$
    mkdir "$LITTLE_MEMORY" && [ -e "$LITTLE_MEMORY/memory.max" ] || skip "needs a memory cgroup"
    echo $((32 << 20)) >"$LITTLE_MEMORY/memory.max"
  fi
  export LITTLE_MEMORY
  dd if=/dev/zero of=swapped bs=1M count=128 status=none
  chmod 600 swapped
  mkswap swapped >/dev/null && swapon swapped || skip "needs a swap file"
}

teardown() {
  ddprun_jobs_teardown
  if [ -n "${LITTLE_MEMORY:-}" ]; then
    eventually 20 rmdir "$LITTLE_MEMORY" # not while the rank dies
    eventually 20 not_swapped
  fi
}
not_swapped() { ! swapon --show | grep -q "$BATS_TEST_TMPDIR" || swapoff swapped; }

@test "of other programs: a rank that swaps" {
  little_memory
  hangs_of plain plain.py <<'END'
likely rank 1 is *constantly reads pages from disk*
swap_out()
END
}

@test "of PyTorch's programs: a rank that sleeps, stops, computes, waits for a file, or cannot be interrupted" {
  torch_python
  hangs_of torch train.py <<'END'
likely rank 1 is asleep in *nanosleep*; ranks 0, 2 wait for something else
time.sleep(1000)
rank 1 is stopped
os.kill(os.getpid(), signal.SIGSTOP)
likely rank 1 is computing (* % of a core)*
while True: pass
likely rank 1 is blocked in openat; ranks 0, 2 wait for something else
open_fifo()
likely rank 1 is blocked* (D state); ranks 0, 2 wait for something else
uninterruptible()
END
}

@test "of PyTorch's programs: a rank in another collective, by PyTorch's flight recorder" {
  torch_python
  cat >train.py <<'END'
import os
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer

server = _WorkerServer("server." + os.environ["RANK"])
dist.init_process_group("gloo")
values = torch.ones(1000)
dist.all_reduce(values)
pair = dist.new_group([1, 2])
os.write(1, b"READY\n")
dist.broadcast(values, 1, group=pair) if dist.get_rank() == 2 else None
dist.all_reduce(values)
END
  local round
  for ((round = 0; round < rounds; ++round)); do
    start --nproc-per-node 3 train.py
    eventually 120 ready 3
    finds 1 "rank 2 is *; ranks 0, 1 wait for it in all_reduce #2 of group 'gloo:0 default_pg', for *"
    end
    rm -f server.*
  done
}

@test "PyTorch's flight recorder is read from running ranks: by worker servers, and by dumps" {
  torch_python
  # Rank 1, for which the others wait, has a pipe, as NCCL's ranks do.
  cat >train.py <<'END'
import os, threading, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer, _dump_fr_trace

def dump_when_asked(pipe, path):
    while True:
        with open(pipe) as file:
            file.read()
        with open(path, "wb") as file:
            file.write(_dump_fr_trace())

rank = os.environ["RANK"]
if rank == "1":
    pipe = os.environ["TORCH_FR_DEBUG_INFO_PIPE_FILE"] + rank + ".pipe"
    os.mkfifo(pipe)
    paths = pipe, os.environ["TORCH_FR_DUMP_TEMP_FILE"] + rank
    threading.Thread(target=dump_when_asked, args=paths, daemon=True).start()
else:
    server = _WorkerServer(f"server.{rank}")
dist.init_process_group("gloo")
values = torch.ones(1000)
for _ in range(2):
    dist.all_reduce(values)
if rank == "1":
    time.sleep(1000)
dist.all_reduce(values)
END
  TORCH_FR_DEBUG_INFO_PIPE_FILE=$PWD/ask. TORCH_FR_DUMP_TEMP_FILE=$PWD/dump. start --nproc-per-node 3 --hang-report-after 1 train.py
  local words="rank 1 is asleep in .*, last all_reduce #2 of group 'gloo:0 default_pg'; ranks 0, 2 wait for it in all_reduce #3 of group"
  eventually 120 grep -q "^ddprun: no progress for 1 s: $words" err || { cat err out; return 1; }
  finds 1 '{' --json
  python3 -c "import json
report = json.load(open('report'))
assert [r['flight_source'] for r in report['ranks']] == ['pytorch'] * 3 and not report['likely'] and report['culprits'] == [1], report"
  end
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
  [ "$(id -u)" -eq 0 ] && others_can_run "$info" || return 0
  sleep 1000 3>&- &
  echo $! >"$NOTES/pid.sleep"
  run -2 setpriv --reuid 65534 --clear-groups "$info" status --pid $!
  [[ $output == *"belongs to root; users see their own processes only"* ]] || { echo "$output"; return 1; }
}

@test "users see their own jobs only" {
  [ "$(id -u)" -eq 0 ] || skip "needs root, to be two users"
  others_can_run "$info" || skip "the programs are in a folder of root's"
  start --nproc-per-node 2 "$rank_program" hang sleep 1
  eventually 60 ready 2
  as_another=(env -u SLURM_JOB_ID setpriv --reuid 65534 --regid 65534 --clear-groups env)
  run -2 "${as_another[@]}" "$info" status --after 0.5
  [[ $output != *rank\ 1* && $output != *all_reduce* ]] || { echo "$output"; return 1; }
  run -2 "${as_another[@]}" "$info" status "$launcher"
  [[ $output != *rank\ 1* && $output != *all_reduce* ]] || { echo "$output"; return 1; }
  # Next to root's job it finds its own.
  mkdir -m 777 other
  "${as_another[@]}" RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 HOME="$PWD/other" sleep 1000 3>&- &
  echo $! >"$NOTES/pid.sleep"
  eventually 60 grep -qx sleep "/proc/$!/comm"
  "${as_another[@]}" "$info" status --after 0.5 >report || [ $? -le 2 ]
  grep -q 'rank 0 (.*)' report || { cat report; return 1; }
  ! grep -qE 'all_reduce|rank 1|ranks 0' report || { cat report; return 1; }
  # Root's own question gets an answer.
  finds 1 "rank 1 is asleep*"
}
