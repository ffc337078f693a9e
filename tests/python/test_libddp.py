"""The package libddp: its checks (tests/support/libddp_checks) under ddprun, its wheel, its types."""

import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from jobs import BIN, PATIENCE, ROOT, SITE, SUPPORT, checked, checked_by, environment, run

WHEELS = list((ROOT / "build" / "python" / "wheel").glob("*.whl"))
JOB = SUPPORT / "libddp_job.py"


def python(*arguments, **variables):
    return run(sys.executable, *arguments, **variables)


def job(ranks, *checks):
    return run(BIN / "ddprun", "--nproc-per-node", ranks, sys.executable, JOB, *checks)


@pytest.mark.parametrize("ranks, checks", [
    (3, ["world", "store", "collectives", "dlpack", "bad_arguments", "lifetimes", "many_threads", "callbacks",
         "leaves_everything"]),
    (3, ["objects", "state", "samplers", "metrics", "checkpoints", "topology", "environment", "memory"]),
    (2, ["store", "event_loop", "forked_child", "signals", "aborts", "leaves_session", "again", "leaves_threads"]),
], ids=["tensors", "training", "waiting"])
def test_checks(ranks, checks):
    done = job(ranks, *checks)
    checked(done, checks, ranks)
    assert "Traceback" not in done.stderr and "leaked" not in done.stderr, done.stderr


def test_a_dead_rank_is_an_exception_in_the_others():
    done = job(3, "peer_dies")
    checked_by(done, "peer_dies", "01")


def test_an_absent_rank_is_a_timeout():
    done = job(2, "peer_stays_away")
    assert done.returncode == 0 and "CHECKED peer_stays_away 0" in done.stdout, done.stdout + done.stderr


INTERRUPTED_INIT = """
import os, signal, threading, time
import libddp
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
started = time.monotonic()
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    libddp.init(timeout=60)  # the other rank never comes
except KeyboardInterrupt:
    assert time.monotonic() - started < 30
    print("interrupted")
try:
    libddp.init(timeout=1)
except libddp.Error as error:
    print("failed again", error.code)
"""


@pytest.mark.parametrize("bind", ["", "none"])  # none: what ddprun sets
def test_ctrl_c_ends_a_rendezvous(bind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        done = python("-c", INTERRUPTED_INIT, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(silent.getsockname()[1]), DDP_LAUNCH="torchrun", DDP_BIND=bind)
    assert done.returncode == 0 and "interrupted\nfailed again" in done.stdout, done.stdout + done.stderr


def test_a_traceback_is_what_is_left_of_a_failure():
    program = "import libddp, numpy\nw = libddp.init()\ng = w.process_group()\nx = numpy.zeros(3)\n" \
              "work = g.recv(x, 1 - g.rank) if g.size > 1 else None\nraise ValueError('mine')"
    done = python("-c", program)
    assert done.returncode == 1, done.stdout
    assert re.fullmatch(r"Traceback.*\n  File .*\n(    .*\n)?ValueError: mine\n", done.stderr), done.stderr


NO_LEAK = """
import libddp, numpy
libddp._core.set_leak_warnings(True)
w = libddp.init()
g = w.process_group()
x = numpy.ones(3, "float32")
work = g.all_reduce(x)
work.add_done_callback(print)
work.wait()
g.broadcast_state({"x": x})
sampler, metrics, stop = libddp.ElasticSampler(3, g), libddp.MetricSet({"a": "sum"}), libddp.EarlyStop()
metrics.reduce(g), stop.agree(g), list(sampler), libddp.Topology.live().gpus, w.environment_report().findings
try:
    g.broadcast(x, 3)
except libddp.Error as error:
    error = None
del w, g, work, sampler, metrics, stop
%s
libddp.world().close()
libddp._world = None
"""


def test_nothing_is_left_at_the_end():
    """By nanobind's own count, which is seen to work."""
    done = python("-c", NO_LEAK % "pass")
    assert done.returncode == 0 and "leak" not in done.stderr, done.stdout + done.stderr
    kept = "import ctypes; ctypes.pythonapi.Py_IncRef(ctypes.py_object(libddp.world().process_group()))"
    done = python("-c", NO_LEAK % kept)
    assert "ProcessGroup" in done.stderr and "leaked" in done.stderr, done.stderr


def test_import_takes_little():
    program = "import sys, libddp; print(sorted({'asyncio', 'csv', 'numpy', 'torch', 'typing', 'logging'} & set(sys.modules)))"
    done = python("-S", "-c", program)
    assert done.stdout == "[]\n", done.stdout + done.stderr
    version = python("-c", "import libddp; print(libddp.__version__)").stdout.strip()
    assert [wheel.name.split("-")[:2] for wheel in WHEELS] == [["libddp", version]]


def test_what_cannot_be_imported_says_why(tmp_path):
    done = python("-c", "import sys; sys.abiflags = 't'; import libddp")
    assert "ImportError: libddp needs a Python with the GIL" in done.stderr, done.stderr
    package = shutil.copytree(SITE / "libddp", tmp_path / "libddp")
    (core,) = package.glob("_core*.so")
    for name, words in (("_core.cpython-39-x86_64-linux-gnu.so", "for another Python than this"), (core.name, "cannot be loaded")):
        core = core.rename(package / name)
        core.write_bytes(b"no library")
        done = python("-c", "import libddp", PYTHONPATH=str(tmp_path))
        assert words in done.stderr and done.returncode == 1, done.stderr
    core.unlink()
    done = python("-c", "import libddp", PYTHONPATH=str(tmp_path))
    assert "not built here" in done.stderr, done.stderr


def test_the_wheel_in_an_environment_of_its_own(tmp_path):
    assert len(WHEELS) == 1, WHEELS
    alone = {"PYTHONPATH": ""}
    assert python("-m", "venv", "--without-pip", tmp_path / "venv", **alone).returncode == 0
    inside = tmp_path / "venv" / "bin" / "python"
    done = python("-m", "pip", "--python", inside, "install", "--no-index", "--no-deps", WHEELS[0], **alone)
    assert done.returncode == 0, done.stdout + done.stderr
    program = "import libddp, array; g = libddp.init().process_group(); a = array.array('f', [2]); " \
              "g.all_reduce(a).wait(); print(libddp.__file__, a[0])"
    done = run(inside, "-c", program, **alone)
    assert done.stdout.startswith(str(tmp_path)) and done.stdout.endswith("2.0\n"), done.stdout + done.stderr
    done = run(inside, "-m", "libddp", "version", **alone)
    assert done.returncode == 0 and "0." in done.stdout, done.stdout + done.stderr
    assert run(inside, "-m", "libddp", "no-such-command", **alone).returncode not in (0, 126, 127)


TYPES = """
import asyncio
import libddp

async def end(work: libddp.Work) -> None:
    await work

world: libddp.World = libddp.init(timeout=3)
group: libddp.ProcessGroup = world.process_group()
group.all_reduce(memoryview(b""), "avg", timeout=1.0).wait(1)
part: libddp.ProcessGroup | None = group.new_group([0])
value: bytes = world.store.get(0, "a")
asyncio.run(end(group.barrier()))
try:
    group.barrier().add_done_callback(lambda work: print(work.exception()))
except libddp.PeerLost as error:
    lost: tuple[int, ...] = error.ranks
sampler = libddp.ElasticSampler(100, group, shuffle=False, remainder="uneven")
state: dict[str, int] = sampler.state_dict()
first: list[int] = list(sampler)[:sampler.epoch]
loss: float | None = libddp.MetricSet({"loss": "mean"}).reduce(group)["loss"]
restored: libddp.Restored | None = libddp.Checkpoints(group, "folder", keep=2, memory=True).restore({"a": memoryview(b"")})
for number in libddp.progress([1, 2], samples=lambda batch: batch + 1):
    text: str = libddp.Topology.live().place(number)[0].decisions[0].reason
report: libddp.EnvironmentReport | None = world.environment_report(3.0, all=True)
libddp.CsvWriter("file").write(1, {"loss": loss})
"""
WRONG = ["group.all_reduce(3)", "group.all_reduce(b'', 'mean')", "libddp.init('now')", "world.rank = 3",
         "group.gather(b'', None)", "group.barrier(1)", "wait: int = group.barrier()",
         "libddp.MetricSet({'a': 'median'})", "libddp.DistributedSampler(3, remainder='some')", "group.broadcast_state([1])",
         "libddp.progress(3)"]


def test_types(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed (scripts/python-env)")
    (tmp_path / "program.py").write_text(TYPES + "\n".join(WRONG) + "\n")
    mypy = "-m", "mypy", "--strict", "--cache-dir", os.environ.get("MYPY_CACHE_DIR", tmp_path / "cache")  # PyTorch takes 20 s
    done = python(*mypy, tmp_path / "program.py")
    found = {int(line) for line in re.findall(r"program\.py:(\d+): error", done.stdout)}
    first = TYPES.count("\n") + 1
    assert found == set(range(first, first + len(WRONG))), done.stdout + done.stderr
    done = python(*mypy, "-plibddp", "-plibddp_autoload", MYPYPATH=str(SITE))
    assert done.returncode == 0, done.stdout + done.stderr


def test_torch_distributed_by_the_launcher():
    pytest.importorskip("torch", reason="torch is not installed")
    done = run(BIN / "ddprun", "--nproc-per-node", 2, sys.executable, JOB.parent / "libddp_torch_job.py")
    checked(done, ["torch"], 2)


TWO_VERSIONS = """
import sys
import libddp
with libddp.init() as world:
    try:
        world.process_group()
        print("MADE")
    except libddp.Conflict as error:
        sys.stdout.write(f"REFUSED {world.rank} {libddp.__version__} {error.ranks} {error.cause}\\n")
"""


def test_ranks_with_other_versions_are_named_before_training(tmp_path):
    package = shutil.copytree(SITE / "libddp", tmp_path / "libddp")
    own = python("-c", "import libddp; print(libddp.__version__)").stdout.strip()
    other = own[:-1] + chr(ord(own[-1]) ^ 1)
    (library,) = (file for file in (package / "lib").glob("libddp.so.*") if not file.is_symlink())
    library.write_bytes(library.read_bytes().replace(f"\0{own}\0".encode(), f"\0{other}\0".encode()))
    choose = f'[ "$RANK" != 1 ] || PYTHONPATH={tmp_path}; exec "$0" -c "$1"'
    done = run(BIN / "ddprun", "--bind=none", "--nproc-per-node=3", "sh", "-c", choose, sys.executable, TWO_VERSIONS)
    told = sorted(re.findall(r"REFUSED (\d) (\S+) (\(.*?\)) (.*)", done.stdout))
    assert [line[:3] for line in told] == [(str(rank), other if rank == 1 else own, "(0, 1, 2)") for rank in range(3)], (
        done.stdout + done.stderr)
    for *_, cause in told:
        assert f"ranks 0, 2: libddp {own}" in cause and f"rank 1: libddp {other}" in cause, cause


CHILDREN = """
import multiprocessing, os, subprocess, sys, time
import libddp

CODE = "import libddp; print(f'CHILD {libddp.init(20).world_size}\\\\n', end='', flush=True)"

def start_again(*arguments):
    try:
        libddp.init(20)
    except libddp.InvalidArgument as error:
        assert f"was started by process {os.getppid()}, which is rank" in str(error), error
        os._exit(7)
    os._exit(0)

if __name__ == "__main__":
    world = libddp.init()
    group = world.process_group()
    if world.rank == 1:
        begun = time.monotonic()
        code = [sys.executable, "-c", CODE]
        for child in (code, ["sh", "-c", 'env PATH="$PATH" "$0" -c "$1"; exit $?', sys.executable, CODE]):
            for environment in (None, dict(os.environ)):
                done = subprocess.run(child, capture_output=True, text=True, env=environment)
                told = f"was started by process {os.getpid()}, which is rank 1 of 2 in it already"
                assert done.returncode != 0 and told in done.stderr and "DDP_LAUNCH=single" in done.stderr, done
        process = multiprocessing.get_context("spawn").Process(target=start_again)
        process.start()
        process.join()
        assert process.exitcode == 7, process.exitcode
        assert time.monotonic() - begun < 60, "it has waited for the others"
        alone = subprocess.run(code, capture_output=True, text=True, env={**os.environ, "DDP_LAUNCH": "single"})
        assert alone.stdout == "CHILD 1\\n", alone
        job = subprocess.run([sys.argv[1], "--bind=none", "--nproc-per-node=2", *code], capture_output=True, text=True)
        assert job.returncode == 0 and job.stdout.count("CHILD 2") == 2, job
    group.barrier().wait()
    world.close()
    # which the rank has left: its child may take its place
    done = subprocess.run([sys.executable, "-c", CODE.replace("20", "2")], capture_output=True, text=True)
    assert "was started by" not in done.stderr, done
    sys.stdout.write(f"ENDED {os.environ['RANK']}\\n")
"""


def test_children_of_a_rank_are_told_that_its_place_is_taken(tmp_path):
    (tmp_path / "children.py").write_text(CHILDREN)
    wrapper = ["sh", "-c", '"$@"; exit $?', "wrapper", sys.executable, tmp_path / "children.py", BIN / "ddprun"]  # which forks
    done = run(BIN / "ddprun", "--bind=none", "--nproc-per-node=2", *wrapper)
    assert done.returncode == 0 and done.stdout.count("ENDED") == 2, done.stdout + done.stderr


TORCHRUN_RANK = """
import array, os, sys
import libddp
world = libddp.init()
total = array.array("q", [1 << world.rank])
world.process_group().all_reduce(total).wait()
sys.stdout.write(f"RANK {world.rank} {os.environ['GROUP_RANK']} {world.source} {total[0]}\\n")  # one write
"""


def test_torchrun_meets_by_the_launcher(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "rank.py").write_text(TORCHRUN_RANK)
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=pmix"]
    done = run(BIN / "ddprun", "--nproc-per-node", 2, sys.executable, *torchrun, tmp_path / "rank.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall("RANK .*", done.stdout)) == [f"RANK {rank} {rank // 2} torchrun 15" for rank in range(4)]


def test_ranks_whose_store_no_agent_serves_may_differ_in_restarts(tmp_path):
    """torchrun's agents that join late count from 0; a store of rank 0's is new after each start."""
    distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
    (tmp_path / "rank.py").write_text(TORCHRUN_RANK)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2",
              "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "late",
              "TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_MAX_RESTARTS": "9", "DDP_INIT_TIMEOUT": "60"}
    ranks = [subprocess.Popen([sys.executable, tmp_path / "rank.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=environment(**common, RANK=str(rank), GROUP_RANK=str(rank),
                                              TORCHELASTIC_RESTART_COUNT=restarts))
             for rank, restarts in enumerate("20")]
    said = [each.communicate(timeout=PATIENCE)[0] for each in ranks]
    assert said == [f"RANK {rank} {rank} torchrun 3\n" for rank in range(2)], said


TORCHRUN_RESTARTED = """
import datetime, os, sys, time
import torch, torch.distributed as dist
count, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
total = torch.tensor([1 << rank])
dist.all_reduce(total)
first = os.path.join(sys.argv[1], "first")
again = os.path.exists(first)
dist.barrier()
if not again:
    if rank == 3:  # of one node alone: the other's agent learns of it by num_nodes_waiting()
        open(first, "w").close()
        sys.exit(5)
    time.sleep(60)
sys.stdout.write(f"RANK {rank} {count} {total.item()}\\n")
"""


def test_torchrun_meets_again_by_the_launcher(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "rank.py").write_text(TORCHRUN_RESTARTED)
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=pmix", "--max-restarts=1"]
    done = run(BIN / "ddprun", "--nproc-per-node", 2, sys.executable, *torchrun, tmp_path / "rank.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    # the node that failed has spent its restart
    assert sorted(re.findall("RANK .*", done.stdout)) == [f"RANK {rank} {rank // 2} 15" for rank in range(4)]
    without = run(BIN / "ddprun", "--nproc-per-node", 2, "--failure-grace", 10, sys.executable, *torchrun[:-1], "--max-restarts=0",
                  tmp_path / "rank.py", tmp_path)
    assert without.returncode == 0, "the file says that it is the second start"
    (tmp_path / "first").unlink()
    without = run(BIN / "ddprun", "--nproc-per-node", 2, "--failure-grace", 0, "--shutdown-timeout", 5, sys.executable, *torchrun[:-1],
                  "--max-restarts=0", tmp_path / "rank.py", tmp_path)
    assert without.returncode != 0
