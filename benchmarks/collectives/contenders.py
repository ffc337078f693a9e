"""The libraries that the collectives benchmark compares, how each is started, and the tables of their times."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from measuring import TORCH_PYTHON, in_turn, output  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

OURS, BEFORE, OPEN_MPI, MPICH, GLOO = "libddp", "libddp before", "Open MPI", "MPICH", "PyTorch's gloo"
KIB, MIB = 1 << 10, 1 << 20
SIZES = (8, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB)
PROGRAM_LIMIT_S = 600
BACKEND = os.environ.get("DDP_BACKEND", "auto")  # libddp's


def programs(binaries):
    """Contender: its command. Those whose library is not installed are left out."""
    found = {OURS: [str(binaries / "bench_collectives_libddp")]}
    for name, program in ((OPEN_MPI, "openmpi"), (MPICH, "mpich")):
        path = binaries / f"bench_collectives_{program}"
        if path.exists():
            found[name] = [str(path)]
    if subprocess.run([TORCH_PYTHON, "-c", "import torch"], capture_output=True).returncode == 0:
        found[GLOO] = [TORCH_PYTHON, str(HERE / "torch_gloo.py")]
    for name in (OPEN_MPI, MPICH, GLOO):
        if name not in found:
            print(f"collectives: {name} is not installed and left out", file=sys.stderr)
    return found


def run(line, sizes, milliseconds, environment=None, chosen=min):
    """{(operation, bytes): microseconds} of one start, as `chosen` takes them from its samples: the least, since whatever else runs
    only adds."""
    printed = output([*line, milliseconds, *sizes], PROGRAM_LIMIT_S, env={**os.environ, **(environment or {})})
    results = (json.loads(text[text.index("{"):]) for text in printed.splitlines() if "{" in text)
    return {(one["operation"], one["bytes"]): chosen(one["microseconds"]) for one in results}


def measure(commands, rounds, milliseconds, what, sizes=SIZES, chosen=min):
    """{(operation, bytes): {contender: [microseconds in the order of the rounds]}}. commands: {contender: (command,
    environment)}; each is started once a round, in turn."""
    times = {}
    results = in_turn(lambda name: run(commands[name][0], sizes, milliseconds, commands[name][1], chosen), commands,
                      rounds, f"collectives: {what}", warm=False)
    for name, found in results.items():
        for key, value in (item for one in found for item in one.items()):
            times.setdefault(key, {}).setdefault(name, []).append(value)
    return times


def size_name(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B" if size else ""


def number(value):
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def spread(values):
    one = Spread(values)
    return f"{number(one.median)} ({number(one.lower)}..{number(one.upper)})"


def ratio_spread(ours, theirs):
    one = Ratio(ours, theirs)
    return f"{number(one.of_medians)} ({number(one.paired.lower)}..{number(one.paired.upper)})"


def time_table(times):
    """A row for each operation and size, a column for each contender, and libddp's ratio to each."""
    names = [name for name in (OURS, BEFORE, OPEN_MPI, MPICH, GLOO) if any(name in by_name for by_name in times.values())]
    others = names[1:]
    rows = []
    for (operation, size), by_name in times.items():
        rows.append([f"{operation} {size_name(size)}".strip(),
                     *(spread(by_name[name]) if name in by_name else "" for name in names),
                     *(ratio_spread(by_name[OURS], by_name[name]) if name in by_name else "" for name in others)])
    return table(["operation", *names, *(f"to {name}" for name in others)], rows)


def ratio(times, key, other):
    by_name = times.get(key, {})
    return Ratio(by_name[OURS], by_name[other]).of_medians if OURS in by_name and other in by_name else None


def targets_of_open_mpi(times, limit_of):
    """Lines: for each operation, at how many sizes libddp takes at most limit_of(size) of Open MPI's time, and the rest."""
    lines = []
    for operation in dict.fromkeys(operation for operation, _ in times):
        ratios = {size: ratio(times, (operation, size), OPEN_MPI) for name, size in times if name == operation}
        ratios = {size: value for size, value in ratios.items() if value is not None}
        missed = {size: value for size, value in ratios.items() if value > limit_of(size)}
        if not ratios:
            continue
        text = f"- {operation}: met at {len(ratios) - len(missed)} of {len(ratios)} sizes"
        if missed:
            text += "; missed at " + ", ".join(f"{size_name(size)} {number(value)}".strip() for size, value in missed.items())
        lines.append(text)
    return lines
