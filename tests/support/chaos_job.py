"""A job of ddprun on the four nodes of the test cluster, for tests/cluster/chaos: started, struck, watched, ended."""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from chaos_round import NODES

TREE = Path(__file__).resolve().parents[2]
CLUSTER = str(TREE / "tests/cluster/slurm_cluster")
RANKS_PER_NODE = 2
SHUTDOWN_S = 3
PEER_TIMEOUT_S = 8
JOIN_S = 15

# All but the one that trains end when there is a file, one after the other; the daemon only by SIGKILL.
WAITS = """#!/bin/bash
echo "UP $TORCHELASTIC_RESTART_COUNT"
until [ -e $0.end ]; do sleep 0.2; done
sleep 0.$RANK
"""
DAEMONS = """#!/bin/bash
echo "UP $TORCHELASTIC_RESTART_COUNT"
(trap '' TERM; exec setsid sleep 98765) & disown
sleep 98765 & disown
until [ -e $0.end ]; do sleep 0.2; done
sleep 0.$RANK
"""
TRAINS = """#!/bin/bash
echo "UP $TORCHELASTIC_RESTART_COUNT"
exec {train_digits} --epochs 1000000
"""
PROCESSES = "ddprun|ddprun-attempt|worker|train_digits"
DAEMON = "sleep 98765"
# The report, or a line of ddprun's own.
TOLD = re.compile(r"Root Cause|^ddprun: ", re.MULTILINE)


def in_cluster(*command, check=False):
    """The command's output, on the controller."""
    done = subprocess.run([CLUSTER, "run", *command], capture_output=True, text=True, timeout=60)
    if check and done.returncode:
        sys.exit(f"chaos: {shlex.join(command)}: {done.stderr}")
    return done.stdout


def on(node, *command):
    """The same, on a node."""
    return subprocess.run([CLUSTER, "on", node, *command], capture_output=True, text=True, timeout=60).stdout


def eventually(condition, limit):
    """Seconds until the condition holds, or None after the limit."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            return None
        time.sleep(0.05)
    return time.monotonic() - start


class Job:
    def __init__(self, plan, binaries, folder):
        self.plan, self.folder = plan, folder
        self.worker = folder / "worker"
        trains = TRAINS.format(train_digits=shlex.quote(str(binaries / "train_digits")))
        self.worker.write_text({"trains": trains, "daemons": DAEMONS, "waits": WAITS}[plan.program])
        self.worker.chmod(0o755)
        self.end_file = folder / "worker.end"
        self.report = folder / "report.json"
        for left in (self.end_file, self.report):
            left.unlink(missing_ok=True)
        ddprun = [str(binaries / "ddprun"), "--nproc-per-node", str(RANKS_PER_NODE), "--failure-grace", "0",
                  "--shutdown-timeout", str(SHUTDOWN_S), "--max-restarts", str(plan.restarts),
                  "--rdzv-conf", f"join_timeout={JOIN_S},read_timeout={JOIN_S}", "--report-json", str(self.report),
                  str(self.worker)]
        start = ["salloc", "-Q", "-N4"] if plan.form == "frontend" else [
            "srun", "--mpi=pmix", f"--kill-on-bad-exit={plan.bad_exit}", "-N4", "--ntasks-per-node=1"]
        environment = {**os.environ, "DDP_PEER_TIMEOUT": str(PEER_TIMEOUT_S)}
        environment.pop("TMPDIR", None)
        with open(folder / "out", "wb") as output:
            self.process = subprocess.Popen([CLUSTER, "run", *start, *ddprun], stdin=subprocess.DEVNULL, stdout=output,
                                            stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        self.mark()

    def text(self):
        return (self.folder / "out").read_text(errors="replace")

    def mark(self):
        """What is said counts from now on."""
        self.began, self.offset, self.told = time.monotonic(), len(self.text()), None

    def look(self):
        """Notes when the first word of the fault, or of the end, has come."""
        if self.told is None and TOLD.search(self.text()[self.offset:]):
            self.told = time.monotonic() - self.began

    def up(self, attempt):
        return self.text().count(f"UP {attempt}\n") >= len(NODES) * RANKS_PER_NODE

    def ended(self):
        self.look()
        return self.process.poll() is not None

    def wait(self, limit):
        return eventually(self.ended, limit)

    def pids(self, part, node):
        """Process ids on the controller (frontend, srun) or on the node."""
        if part in ("front", "srun"):
            # Of the controller's own namespace: its /proc shows the nodes' processes, too.
            return in_cluster("pgrep", "--ns", "1", "--nslist", "pid", "-x", {"front": "ddprun"}.get(part, part)).split()
        pattern = {"rank": "worker|train_digits", "attempt": "ddprun-attempt", "agent": "ddprun", "link": "ddprun",
                   "slurmd": "slurmd"}[part]
        return on(node, "pgrep", "-x", pattern).split()[:1]

    def signal(self, part, name, node=None):
        pids = self.pids(part, node or self.plan.node)
        if not pids:
            return False
        where = in_cluster if part in ("front", "srun") else lambda *line: on(node or self.plan.node, *line)
        where("kill", f"-{name}", *pids)
        return True

    def has_processes(self, node):
        return bool(on(node, "pgrep", "-x", PROCESSES))

    def over(self):
        """Whether the job has ended; or all of it that can: a stopped frontend ends when it goes on, and srun waits for a
        task that is stopped until it is to kill it, for one that is cut off until Slurm gives the node up. It kills none
        because of tasks that succeed, as all others do where the ranks had ended by themselves before."""
        if self.ended():
            return True
        if self.plan.key == ("front", "STOP"):
            return not any(map(self.has_processes, NODES))
        may_kill = self.plan.bad_exit and not (self.plan.moment == "end" and "Root Cause" not in self.text())
        if self.plan.form == "step" and self.plan.silent() and (self.plan.part == "link" or not may_kill):
            return not any(self.has_processes(node) for node in NODES if node != self.plan.node)
        return False

    def tell_ranks_to_end(self):
        self.end_file.touch()

    def terminate(self):
        """As a user would."""
        if self.plan.form == "frontend":
            self.signal("front", "TERM")
        else:
            in_cluster("scancel", "--user=root")

    def kill(self):
        in_cluster("pkill", "-KILL", "-x", "srun|salloc|ddprun|ddprun-attempt|train_digits|worker")
        in_cluster("pkill", "-KILL", "-xf", DAEMON)
        in_cluster("scancel", "--user=root")
        self.process.kill()
        self.process.wait()
