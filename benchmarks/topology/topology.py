#!/usr/bin/env python3
"""Measures reading machines and placing ranks. Prints Markdown.

    topology.py BIN [--rounds N]      BIN: the folder of the benchmark programs

Runs where srun works, on a node of 64 CPUs. Machines: tests/topologies/*.xml, and DDP_RECORDED_TOPOLOGIES/*.xml (default:
../shared/topologies beside the source tree) where that folder exists.
"""

import os
import re
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, google_benchmarks, in_turn, output  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_LIMIT_S = 600
RANKS = 64


def machines():
    recorded = Path(os.environ.get("DDP_RECORDED_TOPOLOGIES", ROOT.parent / "shared" / "topologies"))
    return sorted((ROOT / "tests" / "topologies").glob("*.xml")) + sorted(recorded.glob("*.xml"))


def loads_and_placements(binaries, rounds):
    """Median and quartiles in ms, by machine; the live machine has no placement."""
    times = {}
    for result in google_benchmarks(binaries / "bench_topology", rounds, 0.01, RUN_LIMIT_S, *machines()):
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
    output(line, RUN_LIMIT_S)
    return (time.monotonic() - begin) * 1e3


def start_ups(binaries, rounds):
    contenders = {
        "ddp-info topo --json --no-job": [binaries / "ddp-info", "topo", "--json", "--no-job"],
        "lstopo-no-graphics --of xml": ["lstopo-no-graphics", "--of", "xml"],
        "hwloc-calc --number-of core all": ["hwloc-calc", "--number-of", "core", "all"],
    }
    if shutil.which("hwloc-calc") is None:
        sys.exit("hwloc-calc and lstopo-no-graphics are needed: apt-get install hwloc-nox")
    times = in_turn(lambda name: wall_ms(contenders[name]), contenders, 2 * rounds, "topology: programs", warm=False)
    ours = times["ddp-info topo --json --no-job"]
    print(f"\nRun time of programs that read this machine, in ms: median (quartiles) of {2 * rounds} runs.\n")
    print(table(["program", "ms", "ddp-info's ratio to it"],
                [[f"`{name}`", Spread(values).scaled(1, 1), str(Ratio(ours, values))] for name, values in times.items()]))


def slowest_rank_ms(binaries, mode):
    line = ["srun", "-N1", f"-n{RANKS}", "--mpi=pmix", binaries / "bench_exec_clock", binaries / "bench_placed_rank", mode]
    ranks = [float(value) for value in re.findall(r"^PLACED ([\d.]+)$", output(line, RUN_LIMIT_S), re.MULTILINE)]
    if len(ranks) != RANKS:
        sys.exit(f"{len(ranks)} of {RANKS} ranks answered")
    return max(ranks)


def many_ranks(binaries, rounds):
    modes = {"none": "wire-up alone", "shared": "and placed: the machine is read once (`DDP_BIND=numa`)",
             "each": "and placed: every rank reads the machine"}
    times = in_turn(lambda mode: slowest_rank_ms(binaries, mode), modes, rounds, "topology: ranks", warm=False)
    print(f"\n{RANKS} ranks on one node, from exec to the slowest rank's end, in ms: median (quartiles) of {rounds} jobs.\n")
    print(table(["", "ms", "ratio to wire-up alone"],
                [[text, Spread(times[mode]).scaled(1, 0), str(Ratio(times[mode], times["none"]))]
                 for mode, text in modes.items()]))


def main():
    options = arguments(__doc__, 9)
    for part in (loads_and_placements, start_ups, many_ranks):
        part(options.binaries, options.rounds)


if __name__ == "__main__":
    main()
