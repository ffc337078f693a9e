#!/usr/bin/env python3
"""Compares libddp.horovod and libddp.mpi with calls of libddp's groups and with DistributedDataParallel. Prints Markdown.

    horovod.py BIN [--rounds N] [--only PART...]      BIN: the folder of ddprun; the package: scripts/python-package

Parts, each at most three minutes: calls, networks (that compute), resnet50, gpt2 (their gradients alone), compiled (when exchanges
begin within a compiled backward pass), start, scaling (a model).
"""

import argparse
import json
import os
import sys
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import machine  # noqa: E402
import scaling  # noqa: E402
from measuring import output  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

HEADER = ["", "unit", "libddp.horovod, .mpi", "the other", "ratio", "target"]


class Job:
    """Jobs of horovod_worker.py."""

    def __init__(self, binaries):
        self._ddprun = binaries.resolve() / "ddprun"
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "python" / "site"), "OMP_NUM_THREADS": "1"}

    def run(self, ranks, measurement, **options):
        python = os.environ.get("DDP_TORCH_PYTHON", sys.executable)
        line = [self._ddprun, "-n", ranks, "--bind=none", "--no-python", python, HERE / "horovod_worker.py",
                measurement, json.dumps(options)]
        return json.loads(output(line, 600, env=self._environment).split("REPORT ", 1)[1].splitlines()[0])


def say(text):
    print("\n" + textwrap.fill(text, 100) + "\n", flush=True)


def rows_of(times, pairs):
    """pairs: (words, ours, theirs, factor, unit, target)."""
    return [[words, unit, Spread(times[ours]).scaled(factor, 1), Spread(times[theirs]).scaled(factor, 1),
             str(Ratio(times[ours], times[theirs])), target] for words, ours, theirs, factor, unit, target in pairs]


def calls(job, rounds):
    for ranks in (2, 4):
        report = job.run(ranks, "calls", rounds=rounds)
        goal = (lambda text: text) if ranks == 2 else lambda _: ""
        print(f"### {ranks} ranks\n\n" + table(HEADER, rows_of(report["times"], (
            ("named allreduce of 4 B, blocking; the group's", "4 B hvd", "4 B group", 1e6, "us", goal("40 us")),
            ("1,000 named tensors of 1 KiB in an order of each rank's; one of 1 MiB with copies", "many hvd", "many copies", 1e3, "ms",
             goal("5 ms, ratio 3")),
            ("hvd.allgather_object of a dict; the group's", "object hvd", "object group", 1e6, "us", goal("25 us")),
            ("MPI.COMM_WORLD.allgather of a dict; the group's", "mpi object", "mpi group", 1e6, "us", ""),
            ("MPI.COMM_WORLD.Allreduce of 8 B; the group's of 4 B", "mpi array", "4 B group", 1e6, "us", "")))))
        idle = report["idle"]
        say(f"Idle for 10 s: {idle[0]:.3f} s of processor time, {idle[1]} wake-ups of all threads, {idle[2]} of the one that reads "
            "messages (targets: 0.0 s, under 20).")


def compare_steps(title, times):
    print(f"### {title}\n\n" + table(HEADER, rows_of(times, (
        ("a step of DistributedOptimizer; of libddp.torch.DistributedDataParallel", "hvd", "ddp", 1e3, "ms", "ratio 1.02"),
        ("the same; of torch's DistributedDataParallel on gloo", "hvd", "gloo", 1e3, "ms", "ratio 0.95"),
        *([("gradients by name, another order on each rank; libddp.torch.DistributedDataParallel; no pause",
            "named at once", "ddp at once", 1e3, "ms", "ratio 1.1")] if "named at once" in times else []))) ) + "\n", flush=True)


def networks(job, rounds):
    for network in ("ResNet-18", "GPT"):
        for ranks in (2, 4):
            compare_steps(f"{network}, which computes, {ranks} ranks", job.run(ranks, "steps", network=network, rounds=rounds)["times"])


def resnet50(job, rounds):
    for ranks in (2, 4):
        compare_steps(f"ResNet-50's gradients in 150 ms, {ranks} ranks",
                      job.run(ranks, "gradients", shapes="resnet50", pause=0.15, rounds=rounds)["times"])


def gpt2(job, rounds):
    """2 ranks: 4 need 14 GiB."""
    compare_steps("GPT-2's gradients in 600 ms, 2 ranks", job.run(2, "gradients", shapes="gpt2", pause=0.6, rounds=min(rounds, 3))["times"])


def compiled(job, rounds):
    times = job.run(2, "compiled", rounds=rounds)["times"]
    print("### A compiled model of 8 layers of 4 MiB, 2 ranks")
    say(f"The first bucket is handed to its exchange after {Spread(times['cut']).scaled(100, 0)} % of the backward pass; where "
        f"torch.compile does not cut the graph, after {Spread(times['whole']).scaled(100, 0)} %.")


def start(job, rounds):
    reports = [job.run(2, "start") for _ in range(rounds)]
    wide = [job.run(32, "start") for _ in range(2)]
    print("### Start\n\n" + table(["", "ms", "target"], [
        ["import libddp.horovod beyond torch and libddp, 2 ranks", Spread([each["imported"] for each in reports]).scaled(1e3, 1), "50"],
        ["hvd.init() beyond libddp.init(), 2 ranks", Spread([each["init"] for each in reports]).scaled(1e3, 1), ""],
        ["the same, 32 ranks on these processors", Spread([each["init"] for each in wide]).scaled(1e3, 1), "5"],
        ["the same, processor time of the rank that takes most", Spread([each["processor"] for each in wide]).scaled(1e3, 1), ""]]) + "\n",
        flush=True)


def main():
    parts = {each.__name__: each for each in (calls, networks, resnet50, gpt2, compiled, start)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=[*parts, "scaling"], default=[*parts, "scaling"])
    options = parser.parse_args()
    for name in options.only:
        began, load = time.monotonic(), machine.load()
        parts[name](Job(options.binaries), options.rounds) if name in parts else print(scaling.page())
        print(f"horovod: {name}: {time.monotonic() - began:.0f} s, load average before {load}", file=sys.stderr)


if __name__ == "__main__":
    main()
