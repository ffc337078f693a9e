"""libddp.elastic: ranks that stop for nodes that join and leave, by examples/elastic.py on ddpruns of this host."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs import BIN, ROOT, SITE, environment

pytest.importorskip("numpy", reason="numpy is not installed (scripts/python-env)")
sys.path.insert(0, str(SITE))
import libddp  # noqa: E402
import libddp.elastic  # noqa: E402

# Longest time for one change on a busy machine.
PATIENCE = 120


class Job:
    """ddpruns that train together, each with one rank; the first leads."""

    def __init__(self, folder, *options):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("localhost", 0))
            endpoint = f"localhost:{free.getsockname()[1]}"
        meet = ["--nnodes=1:4", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--shutdown-timeout=20",
                "--rdzv-conf=last_call_timeout=1,scale_up_delay=0.2"]
        self.environment = environment(DDP_RDZV_SECRET="for this test", XDG_STATE_HOME=str(folder),
                                       PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        self.command = [BIN / "ddprun", *meet, *options]
        self.nodes = []
        self.leader = self.folder / "0.log"

    def start(self, *program):
        name = f"{len(list(self.folder.glob('*.log')))}.log"
        with open(self.folder / name, "w") as log:
            self.nodes.append(subprocess.Popen([*map(str, self.command), *map(str, program)], stdin=subprocess.DEVNULL, cwd=self.folder,
                                               env=self.environment, stdout=log, stderr=subprocess.STDOUT))

    def said(self):
        return self.leader.read_text()

    def until(self, what, holds):
        end = time.monotonic() + PATIENCE
        while not holds():
            assert self.nodes[0].poll() is None and time.monotonic() < end, f"{what}\n{self.said()}"
            time.sleep(0.05)

    def end(self):
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)
        return [node.wait(PATIENCE) for node in self.nodes]

    def kill(self):
        for node in self.nodes:
            node.kill()


@pytest.fixture
def job_of(tmp_path):
    jobs = []

    def make(*options):
        jobs.append(Job(tmp_path, *options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.kill()


def newest_step(folder):
    return max((int(each.name[5:]) for each in folder.glob("step-*") if each.name[5:].isdigit()), default=0)


def test_training_through_ten_changes_uses_each_sample_once_in_an_epoch(job_of, tmp_path):
    job = job_of("--on-resize=finish", "--resize-grace=60", "--crash-loop=0")
    run = tmp_path / "run 7"
    program = (ROOT / "examples" / "elastic.py", f"--folder={run}", "--epochs=1000000", "--samples=800", "--save-every=5", "--pause=0.02")
    job.start(*program)
    lines = re.compile(r"^generation (\d+): (\d+) ranks from step (\d+), epoch (\d+), sample (\d+)$", re.MULTILINE)

    def trains_on(generation, ranks):
        """So many ranks have begun, and have trained for some steps."""
        found = lines.findall(job.said())
        return (found and (int(found[-1][0]), int(found[-1][1])) == (generation, ranks)
                and newest_step(run) >= int(found[-1][2]) + 5)

    ranks = 1
    job.until("the first generation", lambda: trains_on(0, 1))
    for generation, change in enumerate("join join leave join lose join leave lose join join".split(), start=1):
        if change == "join":
            job.start(*program)
            ranks += 1
        else:
            node = job.nodes.pop()
            node.send_signal(signal.SIGTERM if change == "leave" else signal.SIGKILL)
            assert node.wait(PATIENCE) == (0 if change == "leave" else -signal.SIGKILL)
            ranks -= 1
        job.until(f"generation {generation}, after '{change}'", lambda g=generation, r=ranks: trains_on(g, r))
    epochs = job.said().count("samples once")
    job.until("another epoch", lambda: job.said().count("samples once") > epochs)
    assert set(job.end()) == {128 + signal.SIGTERM}
    text = job.said()
    done = {int(each) for each in re.findall(r"^epoch (\d+): each of 800 samples once", text, re.MULTILINE)}
    assert done == set(range(len(done))) and done, text
    begun = lines.findall(text)
    assert [int(each[0]) for each in begun] == list(range(11)), text
    assert sum(int(each[4]) > 0 for each in begun) >= 8, f"changes within an epoch: {text}"
    assert text.count("no restart spent") == 10 and "more than once" not in text, text


CALLS_AT_ONCE = """
import os, sys
from libddp import elastic
generation = int(os.environ["DDP_GENERATION"])
print(f"{generation} {elastic.change_pending()} {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
try:
    if generation == 0:
        elastic.restart_here()
finally:
    print("left cleanly", flush=True)
"""


def test_restart_here_starts_the_same_nodes_again_and_spends_no_restart(job_of, tmp_path):
    (tmp_path / "again.py").write_text(CALLS_AT_ONCE)
    job = job_of("--nproc-per-node=2", "--max-restarts=1")
    job.start(tmp_path / "again.py")
    assert job.nodes[0].wait(PATIENCE) == 0
    text = job.said()
    for generation in (0, 1):
        # The first rank's call lets the others know.
        assert len(re.findall(rf"^{generation} (?:True|False) 0$", text, re.MULTILINE)) == 2, text
    assert text.count("left cleanly") == 4, text
    assert "the ranks asked to start again; 1 of 1 node continues (generation 1, no restart spent)" in text


def test_where_nodes_do_not_change(monkeypatch, tmp_path):
    monkeypatch.delenv("DDP_CHANGE_DIR", raising=False)
    monkeypatch.setenv("RANK", "3")
    assert libddp.elastic.change_pending() is False
    with pytest.raises(libddp.Unavailable, match="DDP_CHANGE_DIR is not set; start it by ddprun --nnodes MIN:MAX"):
        libddp.elastic.restart_here()
    monkeypatch.setenv("DDP_CHANGE_DIR", str(tmp_path))
    assert libddp.elastic.change_pending() is False
    (tmp_path / "pending").touch()
    assert libddp.elastic.change_pending() is True
    with pytest.raises(SystemExit) as end:
        libddp.elastic.restart_here()
    assert end.value.code == 0 and (tmp_path / "restart.3").exists()
    monkeypatch.delenv("RANK")
    with pytest.raises(libddp.Unavailable, match="RANK is not set"):
        libddp.elastic.restart_here()
    monkeypatch.setenv("RANK", "3")
    shutil.rmtree(tmp_path)
    assert libddp.elastic.change_pending() is False
    with pytest.raises(libddp.SystemFailure, match="No such file"):
        libddp.elastic.restart_here()
