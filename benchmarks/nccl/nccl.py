#!/usr/bin/env python3
"""Measures what libddp adds to NCCL, over the doubles of CUDA and NCCL. Prints Markdown.

    nccl.py BIN [--rounds N]      BIN: the folder of bench_nccl and store_server_main; the doubles are in ../lib beside it

Every round runs all contenders once: the issuing of operations with and without the flight recorder, a long operation with and
without libddp's watch, and jobs of which a rank is killed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from measuring import arguments, reports  # noqa: E402
from spread import Spread, table  # noqa: E402

RANKS, VICTIM = 4, 2
BATCHES = 40  # of 50 operations, in each process
APART_US = 1000  # as between the buckets of a step
RUN_LIMIT_S = 120
MOST_SILENT = 3  # rounds: each takes DDP_PEER_TIMEOUT


def environment(binaries, **more):
    doubles = binaries.parent / "lib"
    inherited = {name: value for name, value in os.environ.items() if name != "NCCL_COMM_BLOCKING"}
    return {**inherited, "DDP_CUDA_LIBRARY": str(doubles / "fake_cuda" / "libcuda.so.1"),
            "DDP_NCCL_LIBRARY": str(doubles / "fake_nccl" / "libnccl.so.2"), "FAKE_CUDA_DEVICES": str(RANKS),
            "FAKE_CUDA_MEMORY_MIB": "64", "DDP_LAUNCH": "single", "DDP_LOG_LEVEL": "error", **more}


def run(binaries, *words, **more):
    return reports([binaries / "bench_nccl", *words], RUN_LIMIT_S, env=environment(binaries, **more))


def issue_us(binaries, apart_us=APART_US, **more):
    """Times of one process, by contender."""
    rows = run(binaries, "issue", str(BATCHES), str(apart_us), **more)
    return {name: Spread([row[name] * 1e6 for row in rows]).median for name in rows[0]}


def watched_processors(binaries, contender):
    rows = run(binaries, "watch", contender, FAKE_NCCL_FAULTS="AllReduce#3=kernel_delay:2500")
    return rows[0]["processors"]


def survivors_ms(binaries, peers):
    """From the kill of a rank to the error on each survivor."""
    server = subprocess.Popen([str(binaries / "store_server_main")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    port = server.stdout.readline().strip()
    ranks = []
    try:
        for rank in range(RANKS):
            job = {"DDP_LAUNCH": "torchrun", "RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
                   "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "bench",
                   "TORCHELASTIC_USE_AGENT_STORE": "True", "FAKE_NCCL_PEERS": peers, "DDP_COLLECTIVE_TIMEOUT": "60"}
            ranks.append(subprocess.Popen([str(binaries / "bench_nccl"), "lose"], stdout=subprocess.PIPE, text=True,
                                          env=environment(binaries, **job)))
        for rank in ranks:
            if not rank.stdout.readline():
                sys.exit("bench_nccl lose: a rank did not start")
        killed_at = time.clock_gettime(time.CLOCK_MONOTONIC)
        os.kill(ranks[VICTIM].pid, signal.SIGKILL)
        latencies = []
        for number, rank in enumerate(ranks):
            if number == VICTIM:
                continue
            failure = json.loads(rank.communicate(timeout=RUN_LIMIT_S)[0])
            if failure["ranks"] != [VICTIM]:
                sys.exit(f"bench_nccl lose: rank {number} names {failure['ranks']} instead of {VICTIM}")
            latencies.append((failure["failed_at"] - killed_at) * 1e3)
        return latencies
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        server.stdin.close()
        server.wait(30)


def main():
    options = arguments(__doc__, 10)
    binaries = options.binaries
    issued, blocking, in_a_row, unrecorded, watched, bare, losses = [], [], [], [], [], [], {"report": [], "silent": []}
    for _ in range(options.rounds):
        issued.append(issue_us(binaries))
        blocking.append(issue_us(binaries, NCCL_COMM_BLOCKING="1"))
        # without blocking, each call of a row would wait for the launch of the one before
        in_a_row.append(issue_us(binaries, 0, NCCL_COMM_BLOCKING="1"))
        unrecorded.append(issue_us(binaries, 0, NCCL_COMM_BLOCKING="1", DDP_FLIGHT_SIZE="0"))
        watched.append(watched_processors(binaries, "libddp"))
        bare.append(watched_processors(binaries, "bare"))
        losses["report"].append(survivors_ms(binaries, "report"))
    for _ in range(min(options.rounds, MOST_SILENT)):
        losses["silent"].append(survivors_ms(binaries, "silent"))

    def column(rounds, name):
        return [each[name] for each in rounds]

    def difference(first, second):
        return Spread([a - b for a, b in zip(first, second)]).scaled(1, 2)

    print(f"Processor time of the issuing thread for an all_reduce of one element, until NCCL has launched it, one rank, µs; medians of {BATCHES} batches "
          f"of 50 in a process, {options.rounds} rounds. As users run it: NCCL launches on a thread of its own. With NCCL_COMM_BLOCKING=1: within the call. "
          f"Calls are {APART_US / 1000:g} ms apart, or follow one another in a row.\n")

    def rows_of(rounds):
        ours = column(rounds, "libddp")
        return [Spread(column(rounds, "call")).scaled(1, 2), Spread(column(rounds, "events")).scaled(1, 2), Spread(ours).scaled(1, 2),
                difference(ours, column(rounds, "call")), difference(ours, column(rounds, "events"))]

    names = ["the double's `ncclAllReduce`", "the same between events, after the caller's stream", "libddp", "libddp above `ncclAllReduce`",
             "libddp above the same between events (target: at most 5)"]
    rows = [[name, *values] for name, *values in zip(names, rows_of(issued), rows_of(blocking), rows_of(in_a_row))]
    recorder = difference(column(in_a_row, "libddp"), column(unrecorded, "libddp"))
    print(table(["", "as users run it", "NCCL_COMM_BLOCKING=1", "the same, in a row"],
                [*rows, ["libddp with the flight recorder above libddp without", "", "", recorder]]))
    print("\nProcessors that a process takes while an operation runs for long and no thread waits.\n")
    print(table(["", "processors"], [["bare calls", Spread(bare).scaled(1, 4)], ["libddp", Spread(watched).scaled(1, 4)],
                                     ["libddp's watch", Spread([a - b for a, b in zip(watched, bare)]).scaled(1, 4)]]))
    print(f"\nFrom the kill of one of {RANKS} ranks to the error, which names it, ms: first and last survivor of each round (silent: at most "
          f"{MOST_SILENT} rounds).\n")
    print(table(["NCCL", "first", "last", "longest"],
                [[name, Spread([min(each) for each in latencies]).scaled(1, 0), Spread([max(each) for each in latencies]).scaled(1, 0),
                  f"{max(max(each) for each in latencies):.0f}"]
                 for name, latencies in (("reports it (as over sockets)", losses["report"]), ("is silent (as over NVLink)", losses["silent"]))]))


if __name__ == "__main__":
    main()
