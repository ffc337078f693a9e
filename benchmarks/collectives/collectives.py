#!/usr/bin/env python3
"""Compares the collectives of libddp, Open MPI, MPICH and PyTorch's gloo on 2 and 4 ranks of this host; prints Markdown.

    collectives.py BIN [--rounds N] [--milliseconds N]      BIN: the folder of ddprun and the benchmark programs
    collectives.py BIN --busy N [--before BIN]              beside N programs that compute; also another build of libddp

Every round starts each library once, in rotating order. DDP_TORCH_PYTHON: an interpreter with torch.
"""

import contextlib
import statistics
import subprocess
from pathlib import Path

import contenders
from contenders import BEFORE, GLOO, KIB, MIB, MPICH, OPEN_MPI, OURS
from measuring import parser
from spread import Spread

WORLDS = (2, 4)
BUSY_SIZES = (KIB, MIB, 16 * MIB)


def commands(binaries, ranks):
    """Processes bind themselves, so launchers must not."""
    ddprun = [str(binaries / "ddprun"), "--standalone", f"--nproc-per-node={ranks}", "--bind=none", "--no-python"]
    launchers = {
        OURS: (ddprun, {}),
        OPEN_MPI: (["mpirun.openmpi", "--allow-run-as-root", "--bind-to", "none", "--oversubscribe", "-np", str(ranks)], {}),
        MPICH: (["mpirun.mpich", "-bind-to", "none", "-np", str(ranks)], {}),
        GLOO: (ddprun, {"OMP_NUM_THREADS": "1"}),
    }
    return {name: ([*launchers[name][0], *program], launchers[name][1])
            for name, program in contenders.programs(binaries).items()}


def targets(times, ranks):
    lines = contenders.targets_of_open_mpi(times, lambda size: 0.7 if size >= 256 * KIB else 1.0)
    kilobyte = ("all_reduce", KIB)
    by_name = times[kilobyte]
    if ranks == 2:
        lines.append(f"- all_reduce of 1 KiB: {Spread(by_name[OURS]).median:.2f} µs; target 1.5")
        lines.append(f"- barrier: {Spread(times['barrier', 0][OURS]).median:.2f} µs; target 1")
    if GLOO in by_name:
        times_faster = 1 / contenders.ratio(times, kilobyte, GLOO)
        lines.append(f"- all_reduce of 1 KiB: {times_faster:.0f} times as fast as PyTorch's gloo; target 100")
    return lines


def beside_busy_programs(options):
    """Ranks that lose their processors wait for each other's time slices: what a library does about it."""
    print(f"Beside {options.busy} programs that compute. Microseconds per call of the slowest rank: median (quartiles) of "
          f"{options.rounds} starts of each library in turn, of each the median of its samples. Ratios: libddp's time to the other's.")
    for ranks in WORLDS:
        compared = commands(options.binaries, ranks)
        if options.before:
            compared[BEFORE] = commands(options.before.resolve(), ranks)[OURS]
        with busy(options.busy):
            times = contenders.measure(compared, options.rounds, options.milliseconds, f"{ranks} ranks", BUSY_SIZES, statistics.median)
        print(f"\n### {ranks} ranks\n\n{contenders.time_table(times)}", flush=True)


@contextlib.contextmanager
def busy(programs):
    """Programs that compute meanwhile."""
    running = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(programs)]
    try:
        yield
    finally:
        for each in running:
            each.kill()
            each.wait()


def main():
    line = parser(__doc__, 9)
    line.add_argument("--milliseconds", type=float, default=5, help="of a sample")
    line.add_argument("--busy", type=int, metavar="N", help="beside N programs that compute")
    line.add_argument("--before", type=Path, metavar="BIN", help="with --busy: another build of libddp")
    options = line.parse_args()
    if options.busy is not None:
        beside_busy_programs(options)
        return
    print(f"libddp's backend: {contenders.BACKEND}. Microseconds per call of the slowest rank: median (quartiles) of "
          f"{options.rounds} starts of each library in turn, of each the least of several samples. Ratios: libddp's time to "
          "the other's.")
    for ranks in WORLDS:
        times = contenders.measure(commands(options.binaries, ranks), options.rounds,
                                   options.milliseconds, f"{ranks} ranks")
        print(f"\n### {ranks} ranks\n\nAt most Open MPI's time below 256 KiB, at most 0.7 of it from there on:\n")
        print("\n".join(targets(times, ranks)) + "\n")
        print(contenders.time_table(times), flush=True)


if __name__ == "__main__":
    main()
