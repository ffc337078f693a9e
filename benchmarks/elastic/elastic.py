#!/usr/bin/env python3
"""Compares ddprun with torchrun when nodes and ranks come and go. Prints Markdown.

    elastic.py BIN [--rounds N] [--only KIND,...]      BIN: the folder of ddprun and bench_elastic_worker

Four agents of one rank each join at 127.0.0.1 on this host, with --nnodes=1:4 and their launcher's other defaults. torchrun
comes from the interpreter in DDP_TORCH_PYTHON (default: python3), which runs the program with torch, too. Every round runs
each launcher once, in rotating order, through all events. With torch, ddprun also runs with --warm-workers: then each
event but a join waits until all nodes' interpreters are ready. Kinds:

    native, torch   the events, and what they make of an hour
    cut             a node's link is cut, in network namespaces, with both programs; needs root
    state           a tensor is restored after each event; needs the Python package of the same build
"""

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
from launch import children, torch_version  # noqa: E402
from measuring import TORCH_PYTHON, parser, rotated  # noqa: E402
from network import Network, why_none  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

PACKAGE = HERE.parent.parent / "build" / "python" / "site"
AGENTS = 4
# torchrun waits for silent nodes for 15 s, then for further ones for 30 s.
LIMIT_S = 120
OURS, WARM, TORCH = "ddprun", "ddprun --warm-workers", "torchrun"
EVENTS = {"rank": "SIGKILL to a rank", "node": "SIGKILL to an agent and its rank, 4 to 3 nodes",
          "join": "a fourth agent is started", "pause": "for it, the other three stand",
          "leave": "SIGTERM to an agent, 4 to 3 nodes", "cut": "the link of a node is cut, 4 to 3 nodes"}
KINDS = ("native", "torch", "cut", "state")
STATES = {"1 MiB": 1 << 20, "100 MiB": 100 << 20, "1.5 GB": 1_500_000_000}
HOUR_S, LOSSES = 3600, 12


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
    """@param network whose nodes the agents are on; None: all at 127.0.0.1"""

    def __init__(self, launcher, program, folder, network=None, variables=None):
        self.folder, self.agents, self.started, self.network = Path(folder), [], 0, network
        self.torchrun = launcher[0] == TORCH_PYTHON
        self.logs, self.warm = {}, any(word.startswith("--warm-workers") for word in launcher)
        self.marks = self.folder / "marks"
        self.marks.touch()
        self.port = 29400 if network else free_port()
        self.line = [*launcher, f"--nnodes=1:{AGENTS}", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d",
                     "--rdzv-id=elastic", f"--rdzv-endpoint={network.address(0) if network else '127.0.0.1'}:{self.port}"]
        self.program = program
        self.environment = {**os.environ, "ELASTIC_MARKS": str(self.marks), "ELASTIC_FOLDER": folder, "OMP_NUM_THREADS": "1",
                            "DDP_RDZV_SECRET": "of this benchmark", **(variables or {})}
        if not network:  # late agents of torchrun find the ranks' store only if it is not the agents' own
            self.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        if "ELASTIC_STATE" in self.environment and not self.torchrun:
            self.environment.update(ELASTIC_LIBDDP="1", PYTHONPATH=str(PACKAGE))

    def start(self):
        path = self.folder / f"agent{self.started}"
        line = [*self.line, *self.program]
        if self.network:
            own = []
            if self.torchrun:  # the host's name is not a node's
                own = [f"--local-addr={self.network.address(self.started)}", f"--rdzv-conf=is_host={int(self.started == 0)}"]
            line = [*self.network.prefix(self.started), *self.line, *own, *self.program]
        with open(path, "w") as log:
            self.agents.append(subprocess.Popen(line, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        self.logs[self.agents[-1].pid] = path
        self.started += 1

    def fail(self, why):
        for log in sorted(self.folder.glob("agent*")):
            print(f"--- {log.name}\n{log.read_text()[-3000:]}", file=sys.stderr)
        self.end()
        sys.exit(f"elastic: {' '.join(map(str, self.line))}: {why}")

    def wait(self, world, since, may_fail=False):
        """When all ranks of a new world of that size have completed their first step, and their process ids.

        @param may_fail: infinity where they do not within the limit
        """
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
        return (float("inf"), []) if may_fail else self.fail(f"{world} ranks did not train within {LIMIT_S} s")

    def last_step(self, pids):
        """The last completed one of these ranks, which have ended."""
        return max(int.from_bytes(Path(f"{self.marks}.{pid}").read_bytes(), sys.byteorder) for pid in pids) / 1e9

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


def run_events(job, events, dice):
    """Seconds from each event until the last rank's first completed step."""
    job.start()
    while not job.network and not listens(job.port):  # in a namespace, agents try again until it does
        if job.agents[0].poll() is not None:
            job.fail("the first agent has ended")
        time.sleep(0.01)
    for _ in range(1, AGENTS):
        job.start()
    begin = time.monotonic()
    _, pids = job.wait(AGENTS, 0)
    seconds = {"start": time.monotonic() - begin}
    for event in events:
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
        elif event == "cut":
            job.network.cut(AGENTS - 1)
        else:
            victim.send_signal(signal.SIGTERM)
        before = pids
        moment, pids = job.wait(world, begin, may_fail=event == "cut")
        seconds[event] = moment - begin
        if event == "join":
            seconds["pause"] = moment - job.last_step(before)
        if event == "cut":  # the node beyond it has not noticed
            kill_all(tree(victim.pid))
        if world < AGENTS:
            victim.wait()
            job.agents.remove(victim)
    return seconds


def measure(launchers, program, events, rounds, dice, in_network=False, variables=None):
    """Each launcher's seconds by event, in the order of the rounds."""
    times = {name: {} for name in launchers}
    for turn in range(rounds):
        for name in rotated(launchers, turn):
            network = Network(AGENTS) if in_network else None
            with tempfile.TemporaryDirectory() as folder:
                job = Job(launchers[name], program[name], folder, network, variables)
                try:
                    seconds = run_events(job, events, dice)
                finally:
                    job.end()
                    if network:
                        network.close()
            for event in seconds:
                times[name].setdefault(event, []).append(seconds[event])
            print(f"elastic: {name}, round {turn + 1} of {rounds}: {seconds}", file=sys.stderr)
    return times


def row(text, theirs, ours):
    if max(theirs) == float("inf"):
        return [text, f"> {LIMIT_S}", Spread(ours).scaled(1, 2), f"> {LIMIT_S / Spread(ours).median:.1f}"]
    return [text, Spread(theirs).scaled(1, 2), Spread(ours).scaled(1, 2), str(Ratio(theirs, ours))]


def rows_of(label, times):
    rows = []
    for event, text in EVENTS.items():
        for name, kind in ((OURS, label), (WARM, f"{label}, warm workers")):
            if event in times.get(name, {}):
                rows.append(row(f"{text}, {kind}", times[TORCH][event], times[name][event]))
    return rows


def hour_rows(label, times):
    """The share of an hour that is trained, when every five minutes a node is lost and another joins."""
    rows = []
    def lost(name):
        return LOSSES * (Spread(times[name]["node"]).median + Spread(times[name]["pause"]).median)
    for name, kind in ((OURS, label), (WARM, f"{label}, warm workers")):
        if name in times:
            rows.append([kind, *(f"{100 * (1 - lost(each) / HOUR_S):.2f} %" for each in (TORCH, name)),
                         f"{lost(TORCH) / lost(name):.1f}"])
    return rows


def main():
    line = parser(__doc__, 5)
    line.add_argument("--only", type=lambda text: text.split(","), default=list(KINDS), help=f"of {', '.join(KINDS)}")
    options = line.parse_args()
    if unknown := set(options.only) - set(KINDS):
        line.error(f"--only: {', '.join(sorted(unknown))}: not one of {', '.join(KINDS)}")
    ddprun = str(options.binaries / "ddprun")
    launchers = {OURS: [ddprun], TORCH: [TORCH_PYTHON, "-m", "torch.distributed.run"], WARM: [ddprun, "-v", "--warm-workers"]}
    native = ["--no-python", str(options.binaries / "bench_elastic_worker")]
    script = str(HERE / "elastic_worker.py")
    ours = ["--no-python", TORCH_PYTHON, script]
    programs = {"native": {OURS: native, TORCH: native}, "with torch": {OURS: ours, TORCH: [script], WARM: ours}}
    dice = random.Random(1)
    rows, hours = [], []

    def run(label, program, events, **how):
        times = measure({name: launchers[name] for name in program}, program, events, options.rounds, dice, **how)
        rows.extend(rows_of(label, times))
        return times

    for kind, label in (("native", "native"), ("torch", "with torch")):
        if kind in options.only:
            hours += hour_rows(label, run(label, programs[label], ("rank", "node", "join", "leave")))
    if "cut" in options.only and why_none():
        print(f"elastic: no link is cut: {why_none()}", file=sys.stderr)
    elif "cut" in options.only:
        for label, program in programs.items():
            run(label, program, ("cut",), in_network=True, variables={"GLOO_SOCKET_IFNAME": "eth0"})
    if "state" in options.only:
        launchers[WARM][-1] += "=torch,torch._dynamo,libddp"
        for text, size in STATES.items():
            run(f"state of {text}", programs["with torch"], ("rank", "node", "join"), variables={"ELASTIC_STATE": str(size)})
    print(f"torchrun of torch {torch_version()}. In s: median (quartiles) of {options.rounds} rounds. Ratio: torchrun to "
          "ddprun, so how many times faster ddprun is.\n")
    print(table(["event, program", "torchrun", "ddprun", "ratio"], rows))
    if hours:
        print("\nThe share of an hour in which the job trains, by the medians above, when every five minutes a node is lost and "
              "another\njoins before the next loss. Steps since the last save come on top with both. Ratio: of the time that is lost.\n")
        print(table(["program", "torchrun", "ddprun", "ratio"], hours))


if __name__ == "__main__":
    main()
