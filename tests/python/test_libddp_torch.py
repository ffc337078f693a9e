"""libddp.torch: the backend "ddp" and DistributedDataParallel, by tests/support/libddp_torch_parallel.py."""

import os
import re
import shutil
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, ROOT, SUPPORT, adapter, checked, ddprun, python, run  # noqa: E402, F401

JOB = SUPPORT / "libddp_torch_parallel.py"


def job(ranks, *checks, **variables):
    return ddprun(ranks, JOB, *checks, **variables)


@pytest.mark.parametrize("ranks, checks", [
    (2, ["same_as_gloo", "same_as_torchs", "sparse_gradients", "delayed_parameters", "rebuilt_buckets_leave_no_memory",
         "power_sgd", "mixed_precision", "mixed_types", "sparse_tensors", "synchronized_batches", "buffer_hooks", "straggler_and_trace", "loaders",
         "steady_memory", "optimizers_in_backward", "fused_optimizers", "sharded_optimizer", "scaled_gradients", "adversaries", "kept_losses",
         "checkpointed_wrappers", "copies_on_one_rank", "changed_modules", "failed_backwards", "modules_without_memory", "layouts",
         "uneven_splits"]),
    (3, ["torchs_join", "module_features", "logging_data", "checkpointing", "uneven_inputs", "compiled", "hooks", "sharding", "inference_mode", "distributed_autograd",
         "aborts_from_another_thread",
         "distributed_features", "leaves_everything"]),
], ids=["equality", "features"])
def test_checks(adapter, ranks, checks):
    done = job(ranks, *checks, TEST_INIT_METHOD="pmix://" if ranks == 3 else "env://")
    checked(done, checks, ranks)
    assert "Fatal Python error" not in done.stderr and "terminate called" not in done.stderr, done.stderr


@pytest.mark.skipif(not os.environ.get("DDP_TEST_INDUCTOR"), reason="takes a minute: DDP_TEST_INDUCTOR=1")
def test_a_whole_model_by_inductor(adapter, tmp_path):
    done = job(2, "compiled_by_inductor", TEST_INIT_METHOD="pmix://", TORCHINDUCTOR_CACHE_DIR=str(tmp_path), CXX="g++")
    assert done.returncode == 0 and done.stdout.count("CHECKED compiled_by_inductor") == 2, done.stdout + done.stderr


def test_an_exception_in_one_rank_ends_the_job_with_its_traceback(adapter):
    done = job(2, "one_fails", TEST_INIT_METHOD="env://")
    assert done.returncode != 0
    assert "JOINED" not in done.stdout, "it has taken part in the other's steps nevertheless"
    assert "ValueError: mine" in done.stderr and "Fatal Python error" not in done.stderr, done.stderr
    first = done.stderr[done.stderr.index("Traceback (most recent call last)"):]
    assert re.search(r"^(?:\[rank\d\]: )?((?:\w+\.)*\w*(?:Error|Lost|Aborted|Timeout|Mismatch)\b.*)", first, re.M)[1] == "ValueError: mine", done.stderr


INTERRUPTED = """
import os, signal, sys, threading, time
import torch, torch.distributed as dist
import libddp
from libddp.torch import DistributedDataParallel
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
dist.init_process_group("ddp", timeout=__import__("datetime").timedelta(seconds=60))
store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()

def interrupted(name, wait, limit=1):
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.5, send).start()
    try:
        wait()
        sys.exit(f"{name} has ended")
    except KeyboardInterrupt:
        sys.stdout.write(f"INTERRUPTED {name} {time.monotonic() - sent[0] < limit}\\n")

got = torch.zeros(3)
if rank == 0:
    work = dist.irecv(got, 1)
    interrupted("wait", work.wait)
    interrupted("barrier", dist.barrier)
    interrupted("monitored_barrier", dist.monitored_barrier)
    interrupted("init", lambda: __import__("libddp")._backend._make(dist.HashStore(), 0, 2, "alone", [0, 1],
                                                                     dist.default_pg_timeout))
    store.set("waited", "")
    work.wait()  # it has gone on
    assert got.sum() == 3, got
else:
    store.wait(["waited"])
    dist.send(torch.ones(3), 0)
    dist.barrier()
    dist.barrier()
dist.all_reduce(torch.ones(1))

def hook(state, bucket):
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda ended: ended.value()[0])

models = [DistributedDataParallel(torch.nn.Linear(3, 2)) for _ in range(2)]
models[1].register_comm_hook(None, hook)
store.set(f"process{rank}", str(os.getpid()))
for number, model in enumerate(models):
    model(torch.ones(1, 3)).sum().backward()
    if rank == 1:
        store.set(f"stops{number}", "")
        os.kill(os.getpid(), signal.SIGSTOP)
        if number == 0:  # the other's exchange has gone on; that of a hook has been given up
            model(torch.ones(1, 3)).sum().backward()
        continue
    store.wait([f"stops{number}"])
    other = int(store.get("process1"))
    while open(f"/proc/{other}/stat").read().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.01)
    interrupted(f"backward{number}", model(torch.ones(1, 3)).sum().backward, 3)
    try:
        model(torch.ones(1, 3)).sum().backward()
        sys.exit("the step after an interrupted one was not refused")
    except libddp.InvalidArgument as error:
        assert "failed" in str(error), error
    os.kill(other, signal.SIGCONT)
if rank == 1:
    store.wait(["done"])
    os._exit(0)
store.set("done", "")
raise KeyboardInterrupt  # as a program that does not catch it
"""


def test_ctrl_c_ends_waits_in_c_plus_plus(adapter, tmp_path):
    (tmp_path / "waits.py").write_text(INTERRUPTED)
    done = ddprun(2, tmp_path / "waits.py", timeout=90)
    assert sorted(re.findall(r"INTERRUPTED (\w+) True", done.stdout)) == [
        "backward0", "backward1", "barrier", "init", "monitored_barrier", "wait"], done.stdout + done.stderr
    assert "KeyboardInterrupt" in done.stderr and not re.search("Fatal|terminate called|SIGABRT|SIGSEGV", done.stderr), done.stderr


SAYS_NOTHING = """
import torch, torch.distributed as dist
dist.init_process_group()
dist.all_reduce(total := torch.ones(1))
print(f"BACKEND {dist.get_backend()} {int(total.item())}\\n", end="")  # in one piece
if dist.get_backend() != "ddp":
    dist.destroy_process_group()  # without it PyTorch's own gloo may abort at exit
"""


@pytest.mark.parametrize("options, backend, ranks", [(["--backend=ddp"], "ddp", 2), ([], "undefined", 1)])
def test_a_script_that_says_nothing(adapter, tmp_path, options, backend, ranks):
    (tmp_path / "train.py").write_text(SAYS_NOTHING)
    done = ddprun(ranks, tmp_path / "train.py", options=options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"BACKEND {backend} {ranks}") == ranks, done.stdout


MANY_COMPILE = """
import fcntl, os, signal, sys, time
from libddp import _adapter
log, ranks = sys.argv[1], 64
_adapter._PATIENCE = 60

def library(start):
    os.read(start, 1)  # all begin at once
    try:
        os._exit(0 if _adapter.library().exists() else 1)
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(2)

def begin(count):
    start, begun = os.pipe()
    children = []
    for _ in range(count):
        children.append(os.fork() or library(start))
    os.write(begun, b"x" * count)
    return children

(killed,) = begin(1)  # whose compiler goes on for a while
while not os.path.exists(log):
    time.sleep(0.01)
os.kill(killed, signal.SIGKILL)
os.waitpid(killed, 0)
print("ENDED", sorted(os.waitpid(child, 0)[1] for child in begin(ranks)))

made = _adapter.library()
print(f"MODE {made.stat().st_mode & 0o777:o}")  # for others, too, where root has made it
made.parent.chmod(0o775)
try:
    _adapter.library()
except _adapter.libddp.Unavailable as error:
    print("WRITABLE", error)
made.parent.chmod(0o755)
made.unlink()
lock = open(made.with_suffix(".lock"), "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # as a compiler that never ends
_adapter._PATIENCE, started = 0.5, time.monotonic()
try:
    _adapter.library()
except _adapter.libddp.Unavailable as error:
    print("REFUSED", 0.5 < time.monotonic() - started < 20, error)
"""


def slow_compiler(folder, seconds):
    compiler = folder / "compiler"
    compiler.write_text(f"#!/bin/sh\necho compiled >>{folder}/log\nsleep {seconds}\n"
                        'while [ "$1" != -o ]; do shift; done\ncp /bin/true "$2"\n')
    compiler.chmod(0o700)
    return {"CXX": str(compiler), "DDP_TORCH_CACHE": str(folder / "cache")}


def test_64_ranks_compile_once_though_the_first_is_killed_and_wait_with_a_limit(tmp_path):
    variables = slow_compiler(tmp_path, 0.5)
    done = python("-c", MANY_COMPILE, tmp_path / "log", **variables)
    assert re.match(rf"ENDED {re.escape(str(64 * [0]))}\nMODE 755\nWRITABLE .*remove what is in it, then .*chmod go-w.*\nREFUSED True ", done.stdout), (
        done.stdout + done.stderr)
    assert "another process has been compiling it" in done.stdout and "see which process holds" in done.stdout, done.stdout
    assert (tmp_path / "log").read_text().splitlines() == 3 * ["compiled"]  # the killed one, the next, and its link
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]  # nothing of the killed one; the .so is unlinked


@pytest.mark.parametrize("variables, words", [
    ({"CXX": "no-such-compiler"}, "no-such-compiler"),
    ({"CXX": "false"}, "false failed"),
    ({"CXX": "true"}, "true succeeded, but produced nothing"),
    ({"DDP_TORCH_CACHE": "/proc/nowhere"}, "DDP_TORCH_CACHE"),
])
def test_what_is_missing_is_said_in_a_line(tmp_path, variables, words):
    done = python("-m", "libddp.torch", **{"DDP_TORCH_CACHE": str(tmp_path), **variables})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("libddp.Unavailable: ") and words in last, done.stderr


def test_check_says_before_a_job_what_its_ranks_would_find(adapter, tmp_path):
    done = python("-m", "libddp.torch", "--check")
    assert done.returncode == 0 and str(adapter) in done.stdout, done.stdout + done.stderr
    done = python("-m", "libddp.torch", "--download-nothing", "--check", DDP_TORCH_CACHE=str(tmp_path))
    assert done.returncode == 0 and "will compile the adapter" in done.stdout, done.stdout + done.stderr
    assert not list(tmp_path.glob("*.so"))
    done = python("-m", "libddp.torch", "--check", DDP_TORCH_CACHE=str(tmp_path), CXX="no-such-compiler")
    assert done.returncode == 1 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "there is no compiler no-such-compiler" in line and "without it work" in line
    done = python("-m", "libddp.torch", "--chekc", DDP_TORCH_CACHE=str(tmp_path))
    assert done.returncode == 2 and "unrecognized arguments: --chekc" in done.stderr and not list(tmp_path.glob("*.so")), done.stderr


def test_one_rank_of_a_job_says_what_to_do_without_a_compiler(tmp_path):
    program = tmp_path / "program.py"
    for made in ("dist.init_process_group('ddp')",
                 "dist.init_process_group('gloo'); import libddp.torch; libddp.torch.DistributedDataParallel(torch.nn.Linear(1, 1))"):
        program.write_text(f"import torch, torch.distributed as dist\n{made}\n")
        done = run(BIN / "ddprun", "--nproc-per-node", 3, "--failure-grace", 30, sys.executable, program, CXX="no-such-compiler",
                   DDP_TORCH_CACHE=str(tmp_path / "cache"))
        said = [line for line in done.stderr.splitlines() if re.match(r"(\[\w+\]: ?)*libddp\.Unavailable:", line)]
        assert done.returncode == 1 and len(said) == 3, done.stderr
        assert sum("without it work" in line for line in said) == 1 and sum("another rank's message" in line for line in said) == 2, said


LOADS = "from libddp import _adapter; _adapter.load().stop_tasks(); print('LOADED')"


def test_a_library_that_is_torn_or_does_not_load_is_compiled_once_more(adapter, tmp_path):
    made, compiler = tmp_path / "made", tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho compiled >>{tmp_path}/log\nwhile [ "$1" != -o ]; do shift; done\ncp {made} "$2"\n')
    compiler.chmod(0o700)
    variables = {"CXX": str(compiler), "DDP_TORCH_CACHE": str(tmp_path / "cache")}

    def compiled(*arguments, status=0):
        (tmp_path / "log").write_text("")
        done = python(*arguments, **variables)
        assert done.returncode == status, done.stdout + done.stderr
        return (tmp_path / "log").read_text().count("compiled") / 2, done  # to compile and to link

    made.write_bytes(b"no library")
    assert compiled("-m", "libddp.torch")[0] == 1
    times, done = compiled("-c", LOADS, status=1)
    assert times == 1 and "compiled just now, cannot be loaded" in done.stderr, done.stderr
    shutil.copy(adapter, made)
    assert compiled("-c", LOADS)[0] == 1, "that was whole, but no library"
    assert compiled("-c", LOADS)[0] == 0
    (kept,) = (tmp_path / "cache").glob("*.so")
    whole = kept.read_bytes()
    for torn in (whole[:400_000], bytes(80 * 1024), b""):
        kept.write_bytes(torn)
        assert compiled("-c", LOADS)[0] == 1, len(torn)
    assert kept.read_bytes() == whole


def test_who_waits_for_the_compiler_is_told_on_one_rank_of_a_node(tmp_path):
    program = """
import os
from libddp import _adapter, _adapter_turn
assert _adapter_turn._SILENCE == 5
_adapter_turn._SILENCE = 0.2
children = []
for _ in range(3):
    if child := os.fork():
        children.append(child)
    else:
        _adapter.library()
        os._exit(0)
_adapter.library()
assert [os.waitpid(child, 0)[1] for child in children] == 3 * [0]
os._exit(0)
"""
    done = python("-c", program, **slow_compiler(tmp_path, 0.3))
    assert done.returncode == 0, done.stderr
    line = "libddp: compiling the adapter for torch .* into .*/cache, once, about a minute \\(python -m libddp.torch does it ahead\\)"
    assert len(re.findall(line, done.stderr)) == 1, done.stderr


def test_the_timing_of_training_for_gpus_runs_on_the_cpu(adapter):
    done = python(ROOT / "tests" / "gpu" / "time_training.py", "--device", "cpu", "--rounds", "2", "--network", "1000")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\| ([^|]+) \| [0-9.]+ \([0-9.]+\.\.[0-9.]+\) \|", done.stdout, re.MULTILINE)
    assert rows == ["no DDP", "PyTorch's, over gloo", 'PyTorch\'s, over "ddp"', "libddp's"], done.stdout


def test_a_pytorch_that_is_too_old_is_named(tmp_path):
    program = "import torch; torch.__version__ = '2.8.1+cu128'; import libddp.torch; libddp._adapter.load()"
    done = python("-c", program, DDP_TORCH_CACHE=str(tmp_path))
    assert "PyTorch 2.8.1+cu128 is too old; take 2.9 or newer" in done.stderr, done.stderr
    assert not any(tmp_path.iterdir())


def test_upstreams_tests(adapter):
    """A few of each kind; tests/python/upstream/run has all."""
    pytest.importorskip("expecttest", reason="expecttest is not installed (scripts/python-env)")
    names = ["test_all_reduce_sum", "test_gather_object", "test_isend", "test_DistributedDataParallelCPU"]
    done = python(ROOT / "tests" / "python" / "upstream" / "run", *names)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
