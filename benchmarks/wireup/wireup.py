#!/usr/bin/env python3
"""Measures wire-up under Slurm: libddp beside a bare PMIx client, and the fence by number of keys. Prints Markdown.

    wireup.py BIN [--rounds N]      BIN: the folder of the benchmark programs; must be the same path on all nodes

Runs where srun works. Every round starts each contender once, in rotating order, so a disturbance of the machine hits
all of them. A job's time is the maximum over its ranks of the time from execve until the rank has every other rank's value.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, in_turn, reports  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

NODES = 4
WORLDS = (8, 32, 64)
KEY_RANKS = 32
# Keys and bytes per key: 4 KiB split into more and more keys, then more and more keys of 64 bytes.
KEYS = ((1, 4096), (8, 512), (64, 64), (1, 64), (8, 64))
# Limit for one job. A healthy one takes less than 2 s.
JOB_LIMIT_S = 60

CONTENDERS = {
    "bare": ("bench_bare_pmix", "1"),
    "bare C++": ("bench_bare_pmix_cxx", "1"),
    "world": ("bench_wire_world", "records"),
    "bare twice": ("bench_bare_pmix", "2"),
    "world twice": ("bench_wire_world", "values"),
}


def run_job(binaries, ranks, command):
    """Runs one job and returns the marks of its ranks."""
    program, *words = command
    line = ["srun", f"-N{NODES}", f"-n{ranks}", "--mpi=pmix", binaries / "bench_exec_clock", binaries / program, *words]
    marks = reports(line, JOB_LIMIT_S)
    if sorted(mark["rank"] for mark in marks) != list(range(ranks)):
        sys.exit(f"{' '.join(map(str, line))}: {len(marks)} of {ranks} ranks")
    return marks


def last(marks, until, since=None):
    """Seconds of the slowest rank from one mark (default: exec) to another."""
    return max(mark[until] - (mark[since] if since else 0) for mark in marks) / 1e9


def cpu_ms(jobs):
    """CPU time in ms until a rank is wired: each job's mean over its ranks."""
    return [statistics.mean(mark["cpu"] for mark in marks) / 1e6 for marks in jobs]


def world_rows(ranks, jobs):
    times = {name: [last(marks, "wired") for marks in jobs[name]] for name in jobs}
    cpu = {name: cpu_ms(jobs[name]) for name in jobs}
    rows = []
    for label, ours, theirs in (
        ("one fence each", "world", "bare"),
        ("one fence each, bare client with C++ runtime", "world", "bare C++"),
        ("two fences each", "world twice", "bare twice"),
        ("libddp two fences, bare one", "world twice", "bare"),
    ):
        rows.append([
            f"{ranks}, {label}",
            Spread(times[theirs]).scaled(1e3, 0),
            Spread(times[ours]).scaled(1e3, 0),
            str(Ratio(times[ours], times[theirs])),
            f"{Spread(cpu[theirs]).median:.1f}",
            f"{Spread(cpu[ours]).median:.1f}",
        ])
    return rows


def stage_rows(ranks, jobs):
    """Time per stage of the slowest rank: until main(), until the job is joined, and so on."""
    rows = []
    for name in ("bare", "world"):
        stages = [("main", None), ("joined", "main"), ("fenced", "joined"), ("wired", "fenced")]
        row = [f"{ranks}, {'bare PMIx' if name == 'bare' else 'libddp'}"]
        for until, since in stages:
            row.append(Spread([last(marks, until, since) for marks in jobs[name]]).scaled(1e3, 1))
        rows.append(row)
        if name == "world":
            row[3] = "in World::init"
    return rows


def key_rows(binaries, rounds):
    jobs = in_turn(lambda keys: run_job(binaries, KEY_RANKS, ("bench_wire_world", "keys", *map(str, keys))), KEYS,
                   rounds, "wireup: keys", warm=False)
    rows = []
    for count, size in KEYS:
        puts = Spread([last(marks, "put", "joined") for marks in jobs[count, size]])
        # of the rank that arrived last: the others' times include its puts
        fences = Spread([min(mark["fenced"] - mark["put"] for mark in marks) / 1e9 for marks in jobs[count, size]])
        reads = Spread([last(marks, "wired", "fenced") for marks in jobs[count, size]])
        rows.append([f"{count} x {size} B", f"{count * size}",
                     *(spread.scaled(1e3, 1) for spread in (puts, fences, reads))])
    return rows


def main():
    options = arguments(__doc__, 15)
    binaries = options.binaries
    totals, stages = [], []
    for ranks in WORLDS:
        jobs = in_turn(lambda name: run_job(binaries, ranks, CONTENDERS[name]), CONTENDERS, options.rounds,
                       f"wireup: {ranks} ranks")
        totals += world_rows(ranks, jobs)
        stages += stage_rows(ranks, jobs)
    keys = key_rows(binaries, options.rounds)
    print("From exec until the last rank has every rank's value, in ms: median (quartiles) of "
          f"{options.rounds} jobs each.\n")
    print(table(["ranks", "bare PMIx", "libddp", "ratio", "CPU ms per rank, bare", "CPU ms per rank, libddp"], totals))
    print("\nStages of the row \"one fence each\" in ms, each of its slowest rank; they overlap, so they add up to "
          "more than the whole.\n")
    print(table(["ranks", "exec to main()", "init", "put and fence", "read all"], stages))
    print(f"\nKeys put before one fence, {KEY_RANKS} ranks, in ms: puts and reads of the slowest rank, fence of "
          "the last rank to arrive.\n")
    print(table(["keys", "bytes per rank", "all puts", "fence", "read one key of every rank"], keys))


if __name__ == "__main__":
    main()
