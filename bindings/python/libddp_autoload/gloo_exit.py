"""Keeps a program from being killed by SIGABRT after its last line ("terminate called without an active exception").

A thread of gloo releases the Python objects of its last operation after it has reported the result. If the interpreter has
ended by then, asking for the GIL ends the thread, and C++ calls std::terminate: with PyTorch 2.13 in up to half of short
programs, under torchrun, too. So a program that has such threads waits for 10 ms at its end, and until they sleep, for at
most a second.

Needs no module of ours: the tests' environment runs this file by itself.
"""

import atexit
import os
import sys
import time


def _states() -> list[str]:
    """What gloo's threads do, as in /proc: R (running, or waiting for a processor), S (sleeping)."""
    states = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/stat") as file:
                name, _, rest = file.read().rpartition(")")
        except OSError:  # it has ended
            continue
        if name.endswith("(pt_gloo_runloop"):
            states.append(rest.split()[0])
    return states


def wait_for_gloo() -> None:
    end = time.monotonic() + 1
    while "torch.distributed" in sys.modules and _states() and time.monotonic() < end:
        time.sleep(0.01)  # without the GIL: threads that wait for it get it
        if set(_states()) <= {"S"}:
            return


atexit.register(wait_for_gloo)
