#!/usr/bin/env python3
"""Runs the flight recorder's benchmark and prints Markdown.

    flight.py BIN [--rounds N]      BIN: the folder of the benchmark programs
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from spread import table  # noqa: E402

RUN_LIMIT_S = 300
TARGET_NS = 50
NAMES = {"record": "a record", "labelled": "a record with a label of 25 bytes",
         "whole_life": "a record, and that its operation has begun and finished"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", type=Path)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    line = [str(options.binaries.resolve() / "bench_flight"), "--benchmark_format=json", f"--benchmark_repetitions={options.rounds}",
            "--benchmark_enable_random_interleaving=true", "--benchmark_min_time=0.05"]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=RUN_LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}")
    times = {}
    for result in json.loads(done.stdout)["benchmarks"]:
        if "aggregate_name" not in result:
            times.setdefault(result["run_name"], []).append(result["cpu_time"])
    print(f"Nanoseconds of CPU time, one thread, {options.rounds} rounds in random order. Target: {TARGET_NS} for a record.\n")
    print(table(["what", "least", "median", "most"],
                [[text, *(f"{of(times[name]):.1f}" for of in (min, statistics.median, max))] for name, text in NAMES.items()]))


if __name__ == "__main__":
    main()
