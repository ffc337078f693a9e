#!/usr/bin/env python3
"""Measures reading machines and placing ranks. Prints Markdown.

    topology.py BIN [--rounds N]      BIN: the folder of the benchmark programs

Runs where srun works, on a node of 64 CPUs. Machines: tests/topologies/*.xml, and DDP_RECORDED_TOPOLOGIES/*.xml (default:
../shared/topologies beside the source tree) where that folder exists.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from spread import Ratio, Spread, table  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_LIMIT_S = 600
RANKS = 64


def machines():
    recorded = Path(os.environ.get("DDP_RECORDED_TOPOLOGIES", ROOT.parent / "shared" / "topologies"))
    return sorted((ROOT / "tests" / "topologies").glob("*.xml")) + sorted(recorded.glob("*.xml"))


def run(line):
    done = subprocess.run([str(word) for word in line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=RUN_LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{line}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def loads_and_placements(binaries, rounds):
    """Median and quartiles in ms, by machine; the live machine has no placement."""
    output = run([binaries / "bench_topology", "--benchmark_format=json", f"--benchmark_repetitions={rounds}",
                  "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.01", *machines()])
    times = {}
    for result in json.loads(output)["benchmarks"]:
        if result["run_type"] == "iteration":
            times.setdefault(result["run_name"], []).append(result["real_time"] / 1e6)
    rows = {}
    for name, values in times.items():
        kind, machine, *ranks = name.split("/")
        rows.setdefault(machine, {})[f"place {ranks[0]}" if ranks else kind] = Spread(values)
    print(f"Reading a machine and placing ranks on it, in ms: median (quartiles) of {rounds} rounds. Files are parsed from memory.\n")
    lines = []
    for machine, cells in sorted(rows.items(), key=lambda row: -row[1]["load"].median):
        placements = sorted((int(key.split()[1]), cells[key]) for key in cells if key.startswith("place"))
        one_each = f"{placements[0][0]}: {placements[0][1].scaled(1, 3)}" if placements else ""
        lines.append([machine, cells["load"].scaled(1, 2), one_each, placements[-1][1].scaled(1, 3) if placements else ""])
    print(table(["machine", "load", "ranks: placement, one rank per GPU", "placement of 64 ranks"], lines))


def wall_ms(line):
    begin = time.monotonic()
    run(line)
    return (time.monotonic() - begin) * 1e3


def start_ups(binaries, rounds):
    contenders = {
        "ddp-info topo --json --no-job": [binaries / "ddp-info", "topo", "--json", "--no-job"],
        "lstopo-no-graphics --of xml": ["lstopo-no-graphics", "--of", "xml"],
        "hwloc-calc --number-of core all": ["hwloc-calc", "--number-of", "core", "all"],
    }
    if shutil.which("hwloc-calc") is None:
        sys.exit("hwloc-calc and lstopo-no-graphics are needed: apt-get install hwloc-nox")
    times = {name: [] for name in contenders}
    for _ in range(2 * rounds):
        for name, line in contenders.items():
            times[name].append(wall_ms(line))
    ours = times["ddp-info topo --json --no-job"]
    print(f"\nRun time of programs that read this machine, in ms: median (quartiles) of {2 * rounds} runs.\n")
    print(table(["program", "ms", "ddp-info's ratio to it"],
                [[f"`{name}`", Spread(values).scaled(1, 1), str(Ratio(ours, values))] for name, values in times.items()]))


def slowest_rank_ms(binaries, mode):
    line = ["srun", "-N1", f"-n{RANKS}", "--mpi=pmix", binaries / "bench_exec_clock", binaries / "bench_placed_rank", mode]
    ranks = [float(value) for value in re.findall(r"^PLACED ([\d.]+)$", run(line), re.MULTILINE)]
    if len(ranks) != RANKS:
        sys.exit(f"{len(ranks)} of {RANKS} ranks answered")
    return max(ranks)


def many_ranks(binaries, rounds):
    modes = {"none": "wire-up alone", "shared": "and placed: the machine is read once (`DDP_BIND=numa`)",
             "each": "and placed: every rank reads the machine"}
    times = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode in modes:
            times[mode].append(slowest_rank_ms(binaries, mode))
    print(f"\n{RANKS} ranks on one node, from exec to the slowest rank's end, in ms: median (quartiles) of {rounds} jobs.\n")
    print(table(["", "ms", "ratio to wire-up alone"],
                [[text, Spread(times[mode]).scaled(1, 0), str(Ratio(times[mode], times["none"]))]
                 for mode, text in modes.items()]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    binaries = options.binaries.resolve()
    loads_and_placements(binaries, options.rounds)
    start_ups(binaries, options.rounds)
    many_ranks(binaries, options.rounds)


if __name__ == "__main__":
    main()
