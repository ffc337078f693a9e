#!/usr/bin/env python3
"""Measures the cost of the srun plugin for steps with --ddp and for steps without. Prints Markdown.

    srun_plugin.py BIN [--rounds N]      BIN: the folder of the programs; the plugin is in ../lib/slurm

Runs on the controller of tests/cluster/slurm_cluster, whose plugstack.conf.d it changes between runs (Slurm reads it at
every launch). Every round runs each contender once, in rotating order.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, rotated  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

STEP = ["-Q", "-N4", "-n64", "true"]
LIMIT_S = 60
# (name, installed, arguments of srun)
CONTENDERS = (("--mpi=pmix", True, ["--mpi=pmix"]),
              ("--ddp", True, ["--ddp"]),
              ("unused", True, []),
              ("absent", False, []))
ROWS = (("srun -N4 -n64 true: --ddp, and --mpi=pmix", "--ddp", "--mpi=pmix"),
        ("srun -N4 -n64 true: plugin installed, and not", "unused", "absent"))
# On each node, under --ddp-verbose: a node waits for the last one to start.
AGREEMENT = re.compile(r"agreeing with the other 3 nodes on a network took (\d+) ms")


class PluginConfiguration:
    def __init__(self, binaries):
        self.file = Path(os.environ["DDP_CLUSTER_DIR"]) / "etc" / "plugstack.conf.d" / "ddp.conf"
        plugin = binaries.parent / "lib" / "slurm" / "spank_ddp.so"
        if not plugin.exists():
            sys.exit(f"srun_plugin: {plugin} does not exist; build with Slurm's headers")
        self.line = f"required {plugin} helper={binaries / 'ddp-step'}\n"

    def install(self, wanted):
        if wanted:
            self.file.write_text(self.line)
        else:
            self.file.unlink(missing_ok=True)


def time_step(arguments):
    start = time.monotonic()
    done = subprocess.run(["srun", *arguments, *STEP], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S)
    elapsed = time.monotonic() - start
    if done.returncode != 0 or done.stderr:
        sys.exit(f"srun {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    return elapsed


def time_agreement():
    """Time of the node that waits longest, in seconds."""
    done = subprocess.run(["srun", "--ddp", "--ddp-verbose", *STEP], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=LIMIT_S)
    times = [int(found) for found in AGREEMENT.findall(done.stderr)]
    if done.returncode != 0 or len(times) != 4:
        sys.exit(f"srun --ddp --ddp-verbose: exit code {done.returncode}, times of {len(times)} nodes\n{done.stderr}")
    return max(times) / 1e3


def main():
    options = arguments(__doc__, 15)
    configuration = PluginConfiguration(options.binaries)
    times = {name: [] for name, _, _ in CONTENDERS}
    agreements = []
    for turn in range(-1, options.rounds):  # turn -1 warms the page cache
        for name, installed, words in rotated(CONTENDERS, turn):
            configuration.install(installed)
            elapsed = time_step(words)
            if turn >= 0:
                times[name].append(elapsed)
        configuration.install(True)
        agreement = time_agreement()
        if turn >= 0:
            agreements.append(agreement)
        print(f"srun_plugin: round {turn + 1} of {options.rounds}", file=sys.stderr)
    configuration.install(False)
    rows = [[label, Spread(times[ours]).scaled(1e3, 0), Spread(times[theirs]).scaled(1e3, 0),
             str(Ratio(times[ours], times[theirs]))] for label, ours, theirs in ROWS]
    print(f"Run time of srun in ms: median (quartiles) of {options.rounds} steps.\n")
    print(table(["step", "first", "second", "ratio"], rows))
    print(f"\nOf a step's nodes, the one that waits longest for the agreement on a network: "
          f"{Spread(agreements).scaled(1e3, 0)} ms.")


if __name__ == "__main__":
    main()
