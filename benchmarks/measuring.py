"""What the benchmarks share: their command line, turns of their contenders, and the commands that they run."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

TORCH_PYTHON = os.environ.get("DDP_TORCH_PYTHON", "python3")


def parser(description, rounds):
    """Takes BIN, the folder of the programs, and --rounds."""
    made = argparse.ArgumentParser(description=description.splitlines()[0])
    made.add_argument("binaries", type=lambda text: Path(text).resolve(), help="the folder of the programs")
    made.add_argument("--rounds", type=int, default=rounds)
    return made


def arguments(description, rounds):
    return parser(description, rounds).parse_args()


def rotated(items, turn):
    """The items, of which another one comes first in each turn."""
    items = list(items)
    turn %= len(items)
    return items[turn:] + items[:turn]


def in_turn(measure, names, rounds, what, warm=True):
    """What measure(name) gives, by name, in the order of the rounds. warm: a round before fills the page cache only."""
    results = {name: [] for name in names}
    for turn in range(-1 if warm else 0, rounds):
        for name in rotated(results, turn):
            result = measure(name)
            if turn >= 0:
                results[name].append(result)
        print(f"{what}, round {turn + 1} of {rounds}", file=sys.stderr)
    return results


def output(line, limit_s, **how):
    """What a command prints. Exits where it fails. how: as subprocess.run's."""
    line = [str(word) for word in line]
    try:
        done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s, **how)
    except subprocess.TimeoutExpired:
        sys.exit(f"{' '.join(line)}: not done after {limit_s} s")
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def reports(line, limit_s, **how):
    """The JSON objects that a command prints, one a line, among other lines."""
    return [json.loads(text) for text in output(line, limit_s, **how).splitlines() if text.startswith("{")]


def google_benchmarks(program, rounds, seconds, limit_s, *words):
    """Results of a program of Google Benchmark, its runs in random order. seconds: the least of a run."""
    line = [program, "--benchmark_format=json", f"--benchmark_repetitions={rounds}",
            "--benchmark_enable_random_interleaving=true", f"--benchmark_min_time={seconds}", *words]
    return json.loads(output(line, limit_s))["benchmarks"]
