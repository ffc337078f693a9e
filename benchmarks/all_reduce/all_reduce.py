#!/usr/bin/env python3
"""Runs the all_reduce benchmark on 2 and 4 ranks of this host and prints Markdown.

    all_reduce.py BIN [--rounds N]      BIN: the folder of ddprun and the benchmark programs
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from spread import Ratio, Spread, table  # noqa: E402

WORLDS = (2, 4)
RUN_LIMIT_S = 900

OURS, DIRECT, OWN_SUM = "libddp", "gloo, libddp's kernel", "gloo, gloo::sum<float>"


def run(binaries, ranks, rounds):
    """Seconds per call, by size and contender, in the order of the rounds."""
    line = [str(binaries / "ddprun"), "--nproc-per-node", str(ranks), str(binaries / "bench_all_reduce"), str(rounds)]
    done = subprocess.run(line, stdout=subprocess.PIPE, text=True, timeout=RUN_LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}")
    by_size = {}
    for text in done.stdout.splitlines():
        if "{" in text:
            result = json.loads(text[text.index("{"):])
            by_size.setdefault(result["bytes"], {})[result["contender"]] = result["seconds"]
    return by_size


def size_name(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def rows(by_size):
    for size, seconds in sorted(by_size.items()):
        yield [
            size_name(size),
            *(Spread(seconds[name]).scaled(1e6, 0) for name in (OURS, DIRECT, OWN_SUM)),
            f"{size / Spread(seconds[OURS]).median / 1e9:.2f}",
            f"{size / Spread(seconds[DIRECT]).median / 1e9:.2f}",
            str(Ratio(seconds[OURS], seconds[DIRECT])),
            str(Ratio(seconds[OURS], seconds[OWN_SUM])),
        ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=25)
    options = parser.parse_args()
    print(f"Microseconds per call: median (quartiles) of {options.rounds} rounds, of the slowest rank. GB/s: size of the "
          "buffer over the median time (algorithm bandwidth).")
    for ranks in WORLDS:
        print(f"\n{ranks} ranks:\n")
        print(table(["size", "libddp", "Gloo, same kernel", "Gloo, own sum", "libddp GB/s", "Gloo GB/s", "ratio",
                     "ratio to own sum"], rows(run(options.binaries.resolve(), ranks, options.rounds))), flush=True)


if __name__ == "__main__":
    main()
