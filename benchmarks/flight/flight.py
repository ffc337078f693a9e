#!/usr/bin/env python3
"""Runs the flight recorder's benchmark and prints Markdown.

    flight.py BIN [--rounds N]      BIN: the folder of the benchmark programs
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, google_benchmarks  # noqa: E402
from spread import table  # noqa: E402

RUN_LIMIT_S = 300
TARGET_NS = 50
NAMES = {"record": "a record", "labelled": "a record with a label of 25 bytes",
         "whole_life": "a record, and that its operation has begun and finished"}


def main():
    options = arguments(__doc__, 20)
    times = {}
    for result in google_benchmarks(options.binaries / "bench_flight", options.rounds, 0.05, RUN_LIMIT_S):
        if "aggregate_name" not in result:
            times.setdefault(result["run_name"], []).append(result["cpu_time"])
    print(f"Nanoseconds of CPU time, one thread, {options.rounds} rounds in random order. Target: {TARGET_NS} for a record.\n")
    print(table(["what", "least", "median", "most"],
                [[text, *(f"{of(times[name]):.1f}" for of in (min, statistics.median, max))] for name, text in NAMES.items()]))


if __name__ == "__main__":
    main()
