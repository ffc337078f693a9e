#!/usr/bin/env python3
"""How long Python ranks wait for 100 MiB beside programs that compute: a message, and an all_reduce. Prints milliseconds.

    ddprun --nproc-per-node 2 python python_waits.py [ROUNDS]      needs numpy and the package libddp; start the busy programs yourself

To compare two builds, run them in turn, each with its own libddp.so in the package.
"""

import statistics
import sys
import time

import libddp
import numpy

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 6
world = libddp.init()
group = world.process_group()
values = numpy.ones(25 << 20, dtype=numpy.float32)
for name, begin in (("message", lambda: group.send(values, 1) if world.rank == 0 else group.recv(values, 0)),
                    ("all_reduce", lambda: group.all_reduce(values))):
    took = []
    for _ in range(rounds):
        group.barrier().wait()
        start = time.perf_counter()
        begin().wait()
        took.append((time.perf_counter() - start) * 1e3)
    if world.rank == 0:
        print(f"{name}: {statistics.median(took):.0f} ({min(took):.0f}..{max(took):.0f})", flush=True)
