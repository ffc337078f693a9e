#!/usr/bin/env python3
"""Compares ddprun with torchrun on one host: start, restart, memory. Prints Markdown.

    launch.py BIN [--rounds N]      BIN: the folder of ddprun and bench_launch_worker

torchrun comes from the interpreter in DDP_TORCH_PYTHON (default: python3). Every round runs each launcher once, in
alternating order, with the same options and workers that do nothing.
"""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from launched import Launched, time_launch  # noqa: E402
from measuring import TORCH_PYTHON, arguments, in_turn  # noqa: E402
from spread import Ratio, Spread, table  # noqa: E402

WORKERS = (1, 8, 64)
RESTARTED_WORKERS = 8
# ddprun only: how the figure grows.
MANY_RESTARTED_WORKERS = 64
RESTARTS = 3

OURS, TORCH = "ddprun", "torchrun"


def launchers(binaries):
    return {OURS: [str(binaries / "ddprun"), "--standalone"],
            TORCH: [TORCH_PYTHON, "-m", "torch.distributed.run", "--standalone"]}


def torch_version():
    line = [TORCH_PYTHON, "-c", "import torch; print(torch.__version__)"]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(line)}:\n{done.stderr}set DDP_TORCH_PYTHON to an interpreter that has torch")
    return done.stdout.strip()


# ---- start


def measure_starts(commands, worker, workers, rounds):
    """Each launcher's (until all run, until the end), in the order of the rounds."""
    options = f"--nproc-per-node={workers}", "--no-python", worker
    return in_turn(lambda name: time_launch([*commands[name], *options], workers, None), commands, rounds,
                   f"launch: {workers} workers")


def start_rows(workers, times):
    for index, label in enumerate(("all run", "the end")):
        ours, theirs = ([pair[index] for pair in times[name]] for name in (OURS, TORCH))
        yield [f"{workers}, until {label}", Spread(theirs).scaled(1e3, 0), Spread(ours).scaled(1e3, 1),
               str(Ratio(theirs, ours))]


# ---- restart and memory


def children(pid):
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(text) for text in path.read_text().split()]
    return found


def own_processes(launched):
    """The launcher's processes without its workers."""
    workers = {pid for _, pid in launched.records(0).values()}
    found, new = [], [launched.process.pid]
    while new:
        found += new
        new = [child for pid in new for child in children(pid) if child not in workers]
    return found


def memory(pids):
    """Proportional and resident set, in bytes, of all these processes together."""
    sums = {"Pss": 0, "Rss": 0}
    for pid in pids:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        for name in sums:
            sums[name] += 1024 * int(re.search(rf"^{name}: +(\d+) kB$", text, re.MULTILINE)[1])
    return sums


def run_restarts(command, worker, workers, dice):
    """Seconds of each restart, and the launcher's memory before the first."""
    line = [*command, f"--nproc-per-node={workers}", f"--max-restarts={RESTARTS}", "--no-python", worker, "pause"]
    launched = Launched(line, workers, None)
    seconds = []
    for attempt in range(RESTARTS):
        launched.wait_for(attempt)
        # torchrun polls its workers every 100 ms: the failure must hit a random moment
        time.sleep(dice.uniform(0.5, 0.6))
        if attempt == 0:
            used = memory(own_processes(launched))
        _, pid = launched.records(attempt)[dice.randrange(workers)]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        launched.wait_for(attempt + 1)
        seconds.append(launched.last_started(attempt + 1) - killed)
    launched.process.terminate()
    launched.finish(expected=(1, 128 + signal.SIGTERM))
    launched.close()
    return seconds, used


def measure_restarts(commands, worker, workers, rounds):
    dice = random.Random(1)
    results = in_turn(lambda name: run_restarts(commands[name], worker, workers, dice), commands, rounds,
                      f"launch: restarts of {workers} workers", warm=False)
    return ({name: [each for seconds, _ in results[name] for each in seconds] for name in results},
            {name: [used for _, used in results[name]] for name in results})


def main():
    options = arguments(__doc__, 9)
    binaries, rounds = options.binaries, options.rounds
    commands, worker = launchers(binaries), str(binaries / "bench_launch_worker")
    print(f"torchrun of torch {torch_version()}. In ms: median (quartiles) of {rounds} launches. Ratio: torchrun to "
          "ddprun, so how many times faster ddprun is.\n")
    rows = []
    for workers in WORKERS:
        rows += start_rows(workers, measure_starts(commands, worker, workers, rounds))
    print(table(["workers, from the start of the command", "torchrun", "ddprun", "ratio"], rows))

    times, used = measure_restarts(commands, worker, RESTARTED_WORKERS, rounds)
    alone = {OURS: commands[OURS]}
    many = measure_restarts(alone, worker, MANY_RESTARTED_WORKERS, rounds)[0][OURS]
    print("\nFrom SIGKILL of one worker until all workers of the next attempt run, in ms: median (quartiles) of "
          f"{rounds * RESTARTS} restarts.\n")
    print(table(["workers", "torchrun", "ddprun", "ddprun at most", "ratio"], [
        [str(RESTARTED_WORKERS), Spread(times[TORCH]).scaled(1e3, 0), Spread(times[OURS]).scaled(1e3, 1),
         f"{Spread(times[OURS]).greatest * 1e3:.1f}", str(Ratio(times[TORCH], times[OURS]))],
        [str(MANY_RESTARTED_WORKERS), "", Spread(many).scaled(1e3, 1), f"{Spread(many).greatest * 1e3:.1f}", ""],
    ]))

    print(f"\nMemory of the launcher's own processes while {RESTARTED_WORKERS} workers run, in MiB: median (quartiles) "
          f"of {rounds} launches. The proportional set counts shared pages once.\n")
    rows = []
    for label, kind in (("proportional set (PSS)", "Pss"), ("sum of resident sets (RSS)", "Rss")):
        ours, theirs = ([one[kind] for one in used[name]] for name in (OURS, TORCH))
        rows.append([label, Spread(theirs).scaled(2**-20, 1), Spread(ours).scaled(2**-20, 1), str(Ratio(theirs, ours))])
    print(table(["", "torchrun", "ddprun", "ratio"], rows))


if __name__ == "__main__":
    main()
