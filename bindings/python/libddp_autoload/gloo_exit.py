"""Keeps programs that use gloo from being killed by SIGABRT after their last line ("terminate called without an active
exception"), and from hanging where they destroy a group.

A thread of gloo releases the Python objects of its last operation after it has reported the result. If the interpreter has
ended by then, asking for the GIL ends the thread, and C++ calls std::terminate: with PyTorch 2.13 in up to half of short
programs, under torchrun, too. If the group is destroyed by then, its destructor waits with the GIL for the thread, which
waits for the GIL: on a busy machine after some tens of groups. So a program that has such threads waits for 10 ms at its
end and before destroy_process_group(), and until they sleep, for at most a second.

Needs no module of ours: the tests' environment runs this file by itself.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

MODULE = "torch.distributed.distributed_c10d"


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


def _guard(module: ModuleType) -> None:
    destroy = module.destroy_process_group

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        wait_for_gloo()
        destroy(*args, **kwargs)

    setattr(module, "destroy_process_group", destroy_process_group)


class _Finder:
    """Guards the module as soon as it is there."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == MODULE else None
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _guard(module)

            setattr(spec.loader, "exec_module", exec_module)
        return spec


atexit.register(wait_for_gloo)
if MODULE not in sys.modules:
    sys.meta_path.insert(0, _Finder)
else:
    for each in (sys.modules[MODULE], sys.modules["torch.distributed"]):
        _guard(each)
