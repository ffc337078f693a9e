#!/usr/bin/env python3
"""PyTorch's gloo in the collectives benchmark: what collectives.cpp does, in Python.

    torch_gloo.py MILLISECONDS SIZE...      under a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
"""

import json
import os
import sys
import time

SAMPLES = 5
MOST_CALLS = 20_000

allowed = sorted(os.sched_getaffinity(0))
os.sched_setaffinity(0, {allowed[int(os.environ["RANK"]) % len(allowed)]})
import torch  # noqa: E402: after the binding, by which it chooses its number of threads
import torch.distributed as dist  # noqa: E402


def operations(rank, ranks):
    """For each operation: (name, its buffers by number of elements, call, elements of a part)."""
    def whole(count):
        return (torch.zeros(count),)

    def gathering(count):
        part = max(count // ranks, 1)
        output = torch.zeros(part * ranks)
        return torch.zeros(part), list(output.chunk(ranks))

    def scattering(count):
        part = max(count // ranks, 1)
        return torch.zeros(part), list(torch.zeros(part * ranks).chunk(ranks))

    def exchanging(count):
        part = max(count // ranks, 1)
        return torch.zeros(part * ranks), torch.zeros(part * ranks)

    def ping_pong(values):
        if rank == 0:
            dist.send(values, 1)
            dist.recv(values, 1)
        elif rank == 1:
            dist.recv(values, 0)
            dist.send(values, 0)

    yield "barrier", None, lambda: dist.barrier()
    yield "all_reduce", whole, lambda values: dist.all_reduce(values)
    yield "broadcast", whole, lambda values: dist.broadcast(values, 0)
    yield "all_gather", gathering, lambda part, parts: dist.all_gather(parts, part)
    yield "reduce_scatter", scattering, lambda part, parts: dist.reduce_scatter(part, parts)
    yield "all_to_all", exchanging, lambda given, taken: dist.all_to_all_single(taken, given)
    if ranks == 2:
        yield "ping_pong", whole, ping_pong


def sample(call, buffers, calls):
    """Seconds per call of the slowest rank."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        call(*buffers)
    elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return elapsed.item() / calls


def measure(name, size, call, buffers, seconds, rank, ranks):
    call(*buffers)
    once = sample(call, buffers, 2)
    for _ in range(SAMPLES if once < seconds else 0):  # the least of a few, as in collectives.cpp
        once = min(once, sample(call, buffers, 10))
    calls = int(min(max(seconds / once, 2), MOST_CALLS))
    halves = 2 if name == "ping_pong" else 1
    samples = [sample(call, buffers, calls) / halves * 1e6 for _ in range(SAMPLES)]
    if rank == 0:
        print(json.dumps({"operation": name, "bytes": size, "ranks": ranks, "microseconds": samples}), flush=True)


def main():
    seconds = float(sys.argv[1]) / 1e3
    sizes = [int(size) for size in sys.argv[2:]]
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for name, make, call in operations(rank, ranks):
        if make is None:
            measure(name, 0, call, (), seconds, rank, ranks)
            continue
        for size in sizes:
            measure(name, size, call, make(max(size // 4, 1)), seconds, rank, ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
