#!/usr/bin/env python3
"""Runs the reduce kernel benchmark and prints Markdown.

    reduce_kernels.py BIN [--rounds N]      BIN: the folder of the benchmark programs
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from spread import table  # noqa: E402

RUN_LIMIT_S = 900
SIZES = {64 << 10: "64 KiB", 16 << 20: "16 MiB"}


def measure(binaries, rounds):
    """GB of result per second, by kernel and size: median of the rounds."""
    line = [str(binaries / "bench_reduce_kernels"), "--benchmark_format=json", f"--benchmark_repetitions={rounds}",
            "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.02"]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=RUN_LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}")
    rates = {}
    for result in json.loads(done.stdout)["benchmarks"]:
        if result.get("aggregate_name") != "median":
            continue
        kernel, size = result["run_name"].rsplit("/", 1)
        # CPU time: the loop never waits, so time off the processor is not the kernel's
        rates.setdefault(kernel, {})[int(size)] = int(size) / (result["cpu_time"] * 1e-9) / 1e9
    return rates


def gloo_first(item):
    """Undoes the shuffling of interleaved runs: baseline first, then element types by name."""
    return (not item[0].startswith("gloo"), item[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    rates = measure(options.binaries.resolve(), options.rounds)
    print(f"GB of result per second of CPU time, one core, median of {options.rounds} rounds.\n")
    print(table(["kernel", *SIZES.values()],
                [[kernel, *(f"{by_size[size]:.2f}" for size in SIZES)]
                 for kernel, by_size in sorted(rates.items(), key=gloo_first)]))


if __name__ == "__main__":
    main()
