"""libddp.torch: the backend "ddp" and DistributedDataParallel, by tests/support/libddp_torch_parallel.py under ddprun.

scripts/python-package makes the package in build/python; DDP_BIN_DIR: where ddprun is. The adapter to PyTorch is compiled once,
into build/python/cache.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SITE = ROOT / "build" / "python" / "site"
CACHE = ROOT / "build" / "python" / "cache"
JOB = ROOT / "tests" / "support" / "libddp_torch_parallel.py"
if not (SITE / "libddp").is_dir() or not (BIN / "ddprun").exists():
    pytest.skip("the package or ddprun is not built: scripts/python-package, scripts/build", allow_module_level=True)
PATIENCE = 300
COMPILE_PATIENCE = 1200
COMPILER = {"CXX": "ccache g++", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
OUTSIDE = re.compile("(PET|DDP|PMIX?|SLURM|TORCHELASTIC|TORCH|OMPI|MASTER|PYTHON)_|PYTHONPATH|(.*_)?RANK$|.*WORLD_SIZE$")


def run(*command, timeout=PATIENCE, **variables):
    kept = {name: value for name, value in os.environ.items() if not OUTSIDE.match(name)}
    return subprocess.run([str(word) for word in command], timeout=timeout, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, cwd="/",
                          env={**kept, "PYTHONPATH": str(SITE), "DDP_TORCH_CACHE": str(CACHE), "OMP_NUM_THREADS": "1",
                               **COMPILER, **variables})


@pytest.fixture(scope="module")
def adapter():
    done = run(sys.executable, "-m", "libddp.torch", timeout=COMPILE_PATIENCE)
    assert done.returncode == 0 and Path(done.stdout.strip()).exists(), done.stdout + done.stderr
    return Path(done.stdout.strip())


def job(ranks, *checks, **variables):
    return run(BIN / "ddprun", "--bind=none", "--nproc-per-node", ranks, sys.executable, JOB, *checks, **variables)


@pytest.mark.parametrize("ranks, checks", [
    (2, ["same_as_gloo", "same_as_torchs", "sparse_gradients", "delayed_parameters", "rebuilt_buckets_leave_no_memory",
         "power_sgd", "mixed_precision", "buffer_hooks", "straggler_and_trace", "loaders", "steady_memory"]),
    (3, ["hooks", "module_features", "logging_data", "checkpointing", "uneven_inputs", "compiled", "sharding", "inference_mode",
         "distributed_features", "leaves_everything"]),
], ids=["equality", "features"])
def test_checks(adapter, ranks, checks):
    done = job(ranks, *checks, TEST_INIT_METHOD="pmix://" if ranks == 3 else "env://")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"CHECKED (\w+ \d)", done.stdout)) == sorted(
        f"{name} {rank}" for name in checks for rank in range(ranks))
    assert "Fatal Python error" not in done.stderr and "terminate called" not in done.stderr, done.stderr


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
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
dist.init_process_group("ddp")
store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()

def interrupted(name, wait):
    sent = []
    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)
    threading.Timer(0.5, send).start()
    try:
        wait()
        sys.exit(f"{name} has ended")
    except KeyboardInterrupt:
        sys.stdout.write(f"INTERRUPTED {name} {time.monotonic() - sent[0] < 1}\\n")

got = torch.zeros(3)
if rank == 0:
    work = dist.irecv(got, 1)
    interrupted("wait", work.wait)
    interrupted("barrier", dist.barrier)
    interrupted("monitored_barrier", dist.monitored_barrier)
    interrupted("init", lambda: __import__("libddp")._backend._make(dist.HashStore(), 0, 2, "alone", [0, 1],
                                                                     dist.default_pg_timeout))
    store.set("done", "")
    work.wait()  # it has gone on
    assert got.sum() == 3, got
else:
    store.wait(["done"])
    dist.send(torch.ones(3), 0)
    dist.barrier()
    dist.barrier()
dist.all_reduce(torch.ones(1))
"""


def test_ctrl_c_ends_a_wait_in_c_plus_plus(adapter, tmp_path):
    (tmp_path / "waits.py").write_text(INTERRUPTED)
    done = run(BIN / "ddprun", "--bind=none", "--nproc-per-node=2", sys.executable, tmp_path / "waits.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"INTERRUPTED (\w+) True", done.stdout)) == ["barrier", "init", "monitored_barrier", "wait"]


SAYS_NOTHING = """
import torch, torch.distributed as dist
dist.init_process_group()
dist.all_reduce(total := torch.ones(1))
print(f"BACKEND {dist.get_backend()} {int(total.item())}\\n", end="")  # in one piece
if dist.get_backend() != "ddp":
    dist.destroy_process_group()  # without it PyTorch's own gloo may abort at exit
"""


@pytest.mark.parametrize("options, backend", [(["--backend=ddp"], "ddp"), ([], "undefined")])
def test_a_script_that_says_nothing(adapter, tmp_path, options, backend):
    (tmp_path / "train.py").write_text(SAYS_NOTHING)
    done = run(BIN / "ddprun", "--bind=none", *options, "--nproc-per-node=2", sys.executable, tmp_path / "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"BACKEND {backend} 2") == 2, done.stdout


def test_many_ranks_compile_once(adapter, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\necho compiled >>{tmp_path}/log\nsleep 1\n"
                        'while [ "$1" != -o ]; do shift; done\ncp /bin/true "$2"\n')
    compiler.chmod(0o700)
    program = "from libddp import _adapter; print(_adapter.library())"
    done = run(BIN / "ddprun", "--bind=none", "--nproc-per-node=4", sys.executable, "-c", program, CXX=str(compiler),
               DDP_TORCH_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "log").read_text() == 2 * "compiled\n"  # and linked
    (made,) = (tmp_path / "cache").glob("*.so")
    assert made.stat().st_mode & 0o777 == 0o755  # others' too, where root has made it
    (tmp_path / "cache").chmod(0o775)
    done = run(sys.executable, "-c", program, CXX=str(compiler), DDP_TORCH_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 1 and "chmod go-w" in done.stderr, done.stderr


@pytest.mark.parametrize("variables, words", [
    ({"CXX": "no-such-compiler"}, "no-such-compiler"),
    ({"CXX": "false"}, "false failed"),
    ({"DDP_TORCH_CACHE": "/proc/nowhere"}, "DDP_TORCH_CACHE"),
])
def test_what_is_missing_is_said_in_a_line(tmp_path, variables, words):
    done = run(sys.executable, "-m", "libddp.torch", **{"DDP_TORCH_CACHE": str(tmp_path), **variables})
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("libddp.Unavailable: ") and words in last, done.stderr


def test_upstreams_tests(adapter):
    """A few of each kind; tests/python/upstream/run has all."""
    pytest.importorskip("expecttest", reason="expecttest is not installed (scripts/python-env)")
    names = ["test_all_reduce_sum", "test_gather_object", "test_isend", "test_DistributedDataParallelCPU"]
    done = run(sys.executable, ROOT / "tests" / "python" / "upstream" / "run", *names)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr
