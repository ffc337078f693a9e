#!/usr/bin/env python3
"""Measures what diagnostics take: ddp-info env and doctor of a job, and metrics that Prometheus asks for. Prints Markdown.

    diagnostics.py BIN [--rounds N]      BIN: the folder of the programs; must be the same path on all nodes

Runs where salloc works; restarts itself inside an allocation of four nodes.
"""

import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, in_turn  # noqa: E402
from spread import Spread, table  # noqa: E402

NODES, RANKS = 4, 512
LIMIT_S = 120
SCRAPES, INTERVAL_S = 10, 15  # the interval is Prometheus' usual one; answers are asked for faster here


def timed(line):
    start = time.monotonic()
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S)
    elapsed = time.monotonic() - start
    if done.returncode not in (0, 1, 2):  # the last two: findings
        sys.exit(f"{' '.join(map(str, line))}: exit code {done.returncode}\n{done.stderr.decode()}")
    return elapsed, done.stdout


def measure_commands(binaries, rounds):
    info = str(binaries / "ddp-info")
    step = ["srun", "-Q", "--mpi=pmi2", "--overcommit", f"-N{NODES}", f"-n{RANKS}"]
    contenders = {"a step of 512 ranks that does nothing": [*step, "true"],
                  "ddp-info env of 512 ranks": [*step, info, "env"],
                  "ddp-info env --json of 512 ranks": [*step, info, "env", "--json"],
                  "ddp-info doctor of 4 nodes": [info, "doctor"]}
    results = in_turn(lambda name: timed(contenders[name]), contenders, rounds, "diagnostics: commands", warm=False)
    rows = [[name, Spread([seconds for seconds, _ in all_of]).scaled(1, 2), str(len(all_of[-1][1])),
             str(all_of[-1][1].count(b"\n"))] for name, all_of in results.items()]
    return table(["command", "s", "bytes of output", "lines"], rows)


def run_time(pid):
    """Processor time of a thread that leads a ddprun, in seconds."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def measure_endpoint(binaries, ranks):
    """Seconds of the agent's processor time for an answer, and for each second without one; bytes of an answer."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI"))}
    job = subprocess.Popen([binaries / "ddprun", f"--nproc-per-node={ranks}", "--metrics-port=auto", "--bind=none",
                            binaries / "rank_program", "hang", "sleep", "1"],
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        url = None
        while url is None:
            url = re.search(r"http://\S+", job.stderr.readline())
        urllib.request.urlopen(url[0], timeout=LIMIT_S).read()
        time.sleep(5)  # until the ranks hang
        before = run_time(job.pid)
        time.sleep(SCRAPES * 1.1)
        idle = (run_time(job.pid) - before) / (SCRAPES * 1.1)
        answers = []
        for _ in range(SCRAPES):
            before = run_time(job.pid)
            size = len(urllib.request.urlopen(url[0], timeout=LIMIT_S).read())
            time.sleep(1.1)  # an answer is good for a second
            answers.append(run_time(job.pid) - before - 1.1 * idle)
        return answers, idle, size
    finally:
        job.terminate()
        job.wait(LIMIT_S)


def main():
    options = arguments(__doc__, 5)
    if "SLURM_JOB_ID" not in os.environ:
        os.execvp("salloc", ["salloc", "-Q", f"-N{NODES}", f"--ntasks-per-node={RANKS // NODES}", sys.executable, *sys.argv])
    print(f"Seconds: median (quartiles) of {options.rounds} runs.\n")
    print(measure_commands(options.binaries, options.rounds))
    rows = []
    for ranks in (2, 8, 32):
        answers, idle, size = measure_endpoint(options.binaries, ranks)
        answer = Spread(answers)
        rows.append([f"{ranks} ranks of libddp", answer.scaled(1e3, 2), str(size),
                     f"{100 * answer.median / INTERVAL_S:.3f}", f"{100 * idle:.3f}"])
    print(f"\nProcessor time of a ddprun's leading thread; of a core at a scrape each {INTERVAL_S} s.\n")
    print(table(["endpoint of one node", "ms an answer", "bytes", "% of a core for answers", "% without any (heartbeats)"], rows))


if __name__ == "__main__":
    main()
