#!/usr/bin/env python3
"""Compares ddprun with torchrun when nodes and ranks come and go. Prints Markdown.

    elastic.py BIN [--rounds N]      BIN: the folder of ddprun and bench_elastic_worker

Four agents of one rank each join at 127.0.0.1 on this host, with --nnodes=1:4 and their launcher's other defaults. torchrun
comes from the interpreter in DDP_TORCH_PYTHON (default: python3), which runs the program with torch, too. Every round runs
each launcher once, in alternating order, through all events. With torch, ddprun also runs with --warm-workers: then each
event waits until all nodes' interpreters are ready.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE.parent / "launch"))
from launch import TORCH_PYTHON, children, in_turn, torch_version  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

AGENTS = 4
# torchrun waits for silent nodes for 15 s, then for further ones for 30 s.
LIMIT_S = 120
OURS, WARM, TORCH = "ddprun", "ddprun --warm-workers", "torchrun"
EVENTS = {"rank": "SIGKILL to a rank", "node": "SIGKILL to an agent and its rank, 4 to 3 nodes",
          "join": "a fourth agent is started", "leave": "SIGTERM to an agent, 4 to 3 nodes"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def listens(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def tree(pid):
    """A process and all below it."""
    found = [pid]
    for each in found:
        try:
            found += children(each)
        except FileNotFoundError:
            pass
    return found


def kill_all(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


class Job:
    def __init__(self, launcher, program, folder):
        self.folder, self.agents, self.started = Path(folder), [], 0
        self.logs, self.warm = {}, any(word.startswith("--warm-workers") for word in launcher)
        self.marks = self.folder / "marks"
        self.marks.touch()
        self.port = free_port()
        self.line = [*launcher, f"--nnodes=1:{AGENTS}", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d",
                     "--rdzv-id=elastic", f"--rdzv-endpoint=127.0.0.1:{self.port}", *program]
        # Late agents of torchrun find the ranks' store only if it is not the agents' own.
        self.environment = {**os.environ, "ELASTIC_MARKS": str(self.marks), "OMP_NUM_THREADS": "1",
                            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "DDP_RDZV_SECRET": "of this benchmark"}

    def start(self):
        path = self.folder / f"agent{self.started}"
        with open(path, "w") as log:
            self.agents.append(subprocess.Popen(self.line, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self.logs[self.agents[-1].pid] = path
        self.started += 1

    def fail(self, why):
        for log in sorted(self.folder.glob("agent*")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        self.end()
        sys.exit(f"elastic: {' '.join(map(str, self.line))}: {why}")

    def wait(self, world, since):
        """When all ranks of a new world of that size have completed their first step; and their process ids."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            worlds = {}
            for line in self.marks.read_text().splitlines():
                moment, token, rank, size, pid = map(int, line.split())
                if size == world and moment / 1e9 > since:
                    worlds.setdefault(token, {})[rank] = moment / 1e9, pid
            for ranks in worlds.values():
                if len(ranks) == world:
                    return max(moment for moment, _ in ranks.values()), [pid for _, pid in ranks.values()]
            time.sleep(0.002)
        return self.fail(f"{world} ranks did not train within {LIMIT_S} s")

    def interpreters_ready(self):
        """Waits until each agent has one for the rank that follows its last."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            texts = [self.logs[agent.pid].read_text() for agent in self.agents]
            if all(text.count(" of the next generation is ready; ") >= text.count(": started rank ") for text in texts):
                return
            time.sleep(0.05)
        self.fail(f"the interpreters were not ready within {LIMIT_S} s")

    def end(self):
        kill_all([pid for agent in self.agents for pid in tree(agent.pid)])
        for agent in self.agents:
            agent.wait()


def run_events(job, dice):
    """Seconds from each event until the last rank's first completed step."""
    job.start()
    while not listens(job.port):
        if job.agents[0].poll() is not None:
            job.fail("the first agent has ended")
        time.sleep(0.01)
    for _ in range(1, AGENTS):
        job.start()
    begin = time.monotonic()
    _, pids = job.wait(AGENTS, 0)
    seconds = {"start": time.monotonic() - begin}
    for event in EVENTS:
        if job.warm:
            job.interpreters_ready()
        time.sleep(dice.uniform(0.5, 0.7))  # torchrun polls its ranks every 100 ms
        victim = job.agents[-1]
        killed = tree(victim.pid)
        world = AGENTS if event in ("rank", "join") else AGENTS - 1
        begin = time.monotonic()
        if event == "rank":
            os.kill(pids[dice.randrange(len(pids))], signal.SIGKILL)
        elif event == "node":
            kill_all(killed)
        elif event == "join":
            job.start()
        else:
            victim.send_signal(signal.SIGTERM)
        moment, pids = job.wait(world, begin)
        seconds[event] = moment - begin
        if world < AGENTS:
            victim.wait()
            job.agents.remove(victim)
    return seconds


def measure(launchers, program, rounds, dice):
    """Each launcher's seconds by event, in the order of the rounds."""
    times = {name: {event: [] for event in EVENTS} for name in launchers}
    for turn in range(rounds):
        for name in in_turn(launchers, turn):
            with tempfile.TemporaryDirectory() as folder:
                job = Job(launchers[name], program[name], folder)
                try:
                    seconds = run_events(job, dice)
                finally:
                    job.end()
            for event in EVENTS:
                times[name][event].append(seconds[event])
            print(f"elastic: {name}, round {turn + 1} of {rounds}: {seconds}", file=sys.stderr)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    binaries = options.binaries.resolve()
    ddprun = str(binaries / "ddprun")
    launchers = {OURS: [ddprun], TORCH: [TORCH_PYTHON, "-m", "torch.distributed.run"], WARM: [ddprun, "-v", "--warm-workers"]}
    native = ["--no-python", str(binaries / "bench_elastic_worker")]
    script = str(HERE / "elastic_worker.py")
    ours = ["--no-python", TORCH_PYTHON, script]
    programs = {"native": {OURS: native, TORCH: native}, "with torch": {OURS: ours, TORCH: [script], WARM: ours}}
    dice = random.Random(1)
    rows = []
    for label, program in programs.items():
        times = measure({name: launchers[name] for name in program}, program, options.rounds, dice)
        for event, text in EVENTS.items():
            theirs = times[TORCH][event]
            for name, kind in ((OURS, label), (WARM, f"{label}, warm workers")):
                if name in times:
                    rows.append([f"{text}, {kind}", Spread(theirs).scaled(1, 2), Spread(times[name][event]).scaled(1, 2),
                                 str(Ratio(theirs, times[name][event]))])
    print(f"torchrun of torch {torch_version()}. In s: median (quartiles) of {options.rounds} rounds. Ratio: torchrun to "
          "ddprun, so how many times faster ddprun is.\n")
    print(table(["event, program", "torchrun", "ddprun", "ratio"], rows))


if __name__ == "__main__":
    main()
