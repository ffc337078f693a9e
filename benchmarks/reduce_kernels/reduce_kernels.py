#!/usr/bin/env python3
"""Runs the reduce kernel benchmark and prints Markdown.

    reduce_kernels.py BIN [--rounds N]      BIN: the folder of the benchmark programs
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, google_benchmarks  # noqa: E402
from spread import table  # noqa: E402

RUN_LIMIT_S = 900
# All buffers of a combination together.
SIZES = {192 << 10: "in cache", 96 << 20: "in memory"}
SETS = ("portable", "avx2", "avx512")


def measure(binaries, rounds):
    """GB of sources per second of CPU time, by (kernel, set) and size: median of the rounds."""
    rates = {}
    for result in google_benchmarks(binaries / "bench_reduce_kernels", rounds, 0.02, RUN_LIMIT_S):
        if result.get("aggregate_name") != "median":
            continue
        name, size = result["run_name"].rsplit("/", 1)
        kernel, sources, simd = name.rsplit(":", 2)
        # bytes per second of CPU time: the loop never waits, so time off the processor is not the kernel's
        rates.setdefault((kernel, int(sources)), {})[simd, int(size)] = result["bytes_per_second"] / 1e9
    return rates


def memcpy_last(item):
    """Undoes the shuffling of interleaved runs: element types by name, then memcpy."""
    (kernel, sources), _ = item
    return "memcpy" in kernel, kernel, sources


def main():
    options = arguments(__doc__, 9)
    rates = measure(options.binaries, options.rounds)
    print(f"GB of sources per second of CPU time, one core, median of {options.rounds} rounds. In cache: 192 KiB of sources and "
          "result together, in memory: 96 MiB.\n")
    columns = [(simd, size) for size in SIZES for simd in SETS]
    rows = []
    for (kernel, sources), by_column in sorted(rates.items(), key=memcpy_last):
        if ("-", next(iter(SIZES))) in by_column:  # of no set
            by_column = {(SETS[-1], size): rate for (_, size), rate in by_column.items()}
        rows.append([f"{kernel} of {sources}",
                     *(f"{by_column[column]:.1f}" if column in by_column else "" for column in columns)])
    print(table(["kernel, sources", *(f"{simd}, {SIZES[size]}" for simd, size in columns)], rows))


if __name__ == "__main__":
    main()
