"""libddp.horovod where ranks are interrupted, lost or absent: programs of tests/support in processes that are forked as the ranks
of torchrun, or under ddprun where a launcher has a part in it."""

import re
import subprocess
import sys
import time

import forked
import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, SUPPORT, adapter, environment, run  # noqa: E402, F401
from torch.distributed import TCPStore  # noqa: E402

JOB = SUPPORT / "horovod_job.py"


def ranks(count, *checks, **variables):
    """What each has ended with."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    own = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
           "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "test", **variables}
    started = [forked.Process([JOB, *checks], environment(RANK=str(rank), LOCAL_RANK=str(rank), **own)) for rank in range(count)]
    return [each.wait(90) for each in started]


@pytest.mark.parametrize("check", ["interrupts", "compiled"])
def test_two_ranks(adapter, check):
    for rank, done in enumerate(ranks(2, check)):
        assert done.returncode == 0 and f"CHECKED {check} {rank}" in done.stdout, done.stdout + done.stderr


def test_rank_0_is_stopped_while_the_other_waits_for_its_decision():
    stopped, done = ranks(2, "silence", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1")
    assert stopped.returncode == -9 and done.returncode == 0 and "CHECKED silence 1" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("victim, how, after", [(2, "SIGKILL", 0.1), (0, "SIGKILL", 0.15), (1, "SIGSTOP", 0.2), (0, "SIGSTOP", 0.25)])
def test_a_rank_is_struck_among_random_operations(victim, how, after):
    ended = ranks(3, "struck", STRUCK=f"{victim} {how} {after}", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="6", DDP_COLLECTIVE_TIMEOUT="6")
    for rank, done in enumerate(ended):
        if rank == victim:
            assert done.returncode == -9, done.stdout + done.stderr
        else:
            assert done.returncode == 0 and f"CHECKED struck {rank}" in done.stdout, done.stdout + done.stderr


def program(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    return tmp_path / "train.py"


@pytest.mark.parametrize("before", ["", "import libddp; libddp.init()"], ids=["no world", "a world"])
def test_one_rank_alone_calls_init(tmp_path, before):
    file = program(tmp_path, f"""
import os, time
{before}
if os.environ["RANK"] == "1":
    time.sleep(600)
import libddp.horovod as hvd
hvd.init()
""")
    done = run(BIN / "ddprun", "-n", 2, sys.executable, file, DDP_INIT_TIMEOUT="8")
    assert done.returncode == 1 and re.search("Timeout: .*rank 1", done.stderr), done.stdout + done.stderr


def test_a_rank_that_returns_while_others_wait_is_named(tmp_path):
    file = program(tmp_path, """
import libddp.horovod as hvd, torch, sys
hvd.init()
if hvd.rank() < 2:
    try:
        hvd.allreduce(torch.ones(1), name="loss")
    except hvd.HorovodInternalError as error:
        sys.stdout.write(f"{error.ranks} {error}\\n")
""")
    done = run(BIN / "ddprun", "-n", 3, sys.executable, file)
    assert done.returncode == 0 and done.stdout.count("(2,)") == 2 and "rank 2 has shut them down" in done.stdout, done.stdout + done.stderr


def test_a_joined_rank_is_seen_by_ddp_info_status(tmp_path):
    file = program(tmp_path, """
import libddp.horovod as hvd, os, sys, time, torch
hvd.init()
for each in range(3):
    hvd.allreduce(torch.ones(1), name="loss")
while hvd.rank() == 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
assert hvd.join() == 1
hvd.barrier()
""")
    go = tmp_path / "go"
    launcher = subprocess.Popen([str(word) for word in (BIN / "ddprun", "-n", 2, sys.executable, file, go)], env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    limit = time.monotonic() + 60
    said = ""
    try:
        while not re.search(r"^  barrier #1 of group 'join of [^']+': rank 0 waits for rank 1", said, re.M) and time.monotonic() < limit:
            said = run(BIN / "ddp-info", "status", "--pid", launcher.pid, "--after", "0.5").stdout
        assert time.monotonic() < limit, said
        go.touch()
        assert launcher.wait(60) == 0, launcher.stdout.read()
    finally:
        launcher.kill()
        launcher.communicate()
