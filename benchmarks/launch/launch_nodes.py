#!/usr/bin/env python3
"""Compares ddprun with srun in an allocation of four nodes. Prints Markdown.

    launch_nodes.py BIN [--rounds N]      BIN: the folder of the programs; must be the same path on all nodes

Runs where salloc works; restarts itself inside an allocation. Every round runs each launcher once, in alternating order.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launched import time_launch  # noqa: E402
from measuring import arguments, in_turn  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

NODES = 4
RANKS_PER_NODE = (1, 16, 128)
OURS, SRUN = "ddprun", "srun"


def command(name, binaries, per_node):
    worker = str(binaries / "bench_launch_worker")
    if name == OURS:
        return [str(binaries / "ddprun"), f"--nproc-per-node={per_node}", "--no-python", worker]
    return ["srun", "--mpi=none", f"-N{NODES}", f"-n{NODES * per_node}", worker]


def measure(binaries, per_node, rounds):
    """Each launcher's (until all run, until the end), in the order of the rounds."""
    shared = Path(os.environ.get("DDP_CLUSTER_DIR", "/run/ddp-cluster")) / "shared"
    return in_turn(lambda name: time_launch(command(name, binaries, per_node), NODES * per_node, shared), (OURS, SRUN),
                   rounds, f"launch_nodes: {NODES} x {per_node} ranks")


def main():
    options = arguments(__doc__, 9)
    if "SLURM_JOB_ID" not in os.environ:
        allocation = ["salloc", "-Q", f"-N{NODES}", f"--ntasks-per-node={max(RANKS_PER_NODE)}"]
        os.execvp("salloc", [*allocation, sys.executable, *sys.argv])
    rows = []
    for per_node in RANKS_PER_NODE:
        times = measure(options.binaries, per_node, options.rounds)
        for index, label in enumerate(("all run", "the end")):
            ours, theirs = ([pair[index] for pair in times[name]] for name in (OURS, SRUN))
            rows.append([f"{NODES} x {per_node}, until {label}", Spread(theirs).scaled(1e3, 0),
                         Spread(ours).scaled(1e3, 0), str(Ratio(ours, theirs))])
    print(f"In ms: median (quartiles) of {options.rounds} launches. Ratio: ddprun to srun.\n")
    print(table(["ranks, from the start of the command", "srun --mpi=none", "ddprun", "ratio"], rows))


if __name__ == "__main__":
    main()
