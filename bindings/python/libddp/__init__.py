"""Data-parallel communication: ranks from the launcher, a key-value store, collectives on arrays without a copy.

    import libddp, numpy
    world = libddp.init()
    group = world.process_group()
    gradients = numpy.ones(1000, numpy.float32)
    group.all_reduce(gradients, "avg").wait()
"""

from __future__ import annotations

import atexit
import os
import sys
import threading

if "t" in sys.abiflags:
    raise ImportError("libddp needs a Python with the GIL, this one is free-threaded; use python3.13 in place of python3.13t")
try:
    from . import _core
except ImportError as _problem:
    from ._diagnosis import explain
    raise ImportError(explain(_problem)) from None
from . import _errors
from ._core import (Checkpoints, DistributedSampler, EarlyStop, ElasticSampler, EnvironmentReport, KeyValueStore, MetricSet,
                    Placement, ProcessGroup, Restored, Topology, Work, World, dump_flight_recorder, flight_recorder_json,
                    rank_seed)
from ._errors import (Aborted, Conflict, Error, InvalidArgument, Mismatch, NotFound, PeerLost, Protocol, SystemFailure,
                      Timeout, Unavailable)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime

    from ._launch import LaunchFailed, launch
    from ._progress import Progress, progress
    from ._writers import CsvWriter, PrometheusWriter, TensorBoardWriter

__version__: str = _core.version()
__all__ = ["Aborted", "Checkpoints", "Conflict", "CsvWriter", "DistributedSampler", "EarlyStop", "ElasticSampler",
           "EnvironmentReport", "Error", "InvalidArgument", "KeyValueStore", "LaunchFailed", "MetricSet", "Mismatch",
           "NotFound", "PeerLost", "Placement", "ProcessGroup", "Progress", "PrometheusWriter", "Protocol", "Restored",
           "SystemFailure", "TensorBoardWriter", "Timeout", "Topology", "Unavailable", "Work", "World",
           "dump_flight_recorder", "flight_recorder_json", "init", "initialized", "launch", "poll", "progress",
           "rank_seed", "world"]

_LAZY = {"launch": "_launch", "LaunchFailed": "_launch", "CsvWriter": "_writers", "PrometheusWriter": "_writers", "TensorBoardWriter": "_writers", "Progress": "_progress", "progress": "_progress"}


def __getattr__(name: str) -> object:
    """What not every program needs, and would make `import libddp` slow."""
    if name not in _LAZY:
        raise AttributeError(f"module 'libddp' has no attribute '{name}'")
    import importlib
    value: object = getattr(importlib.import_module("." + _LAZY[name], __name__), name)
    globals()[name] = value
    return value


_world: World | None = None
_process = os.getpid()  # that of _world
_making = threading.Lock()


def _unusable(attempted: str, cause: str, hint: str) -> Error:
    return _errors.problem("unavailable", attempted, cause, hint=hint)


def init(timeout: float | datetime.timedelta | None = None, *, launch: str | None = None,
         keep_session: bool = True) -> World:
    """Finds out how this process was launched and joins the other ranks. Collective: all ranks of the job call it, once.

    timeout: seconds for the rendezvous of all ranks; default: DDP_INIT_TIMEOUT (120).
    launch: take ranks from this source only: pmix, pmi2, torchrun, openmpi, slurm or single.
    keep_session: False leaves the launcher's key-value service once the first process group is connected.

    Raises InvalidArgument, Conflict (two sources disagree, or mpi4py has another number of ranks), Unavailable, Timeout (names the absent ranks).
    """
    global _world, _process
    attempted = "calling libddp.init()"
    if _world is not None and _process != os.getpid():
        raise _unusable(attempted, "this process was forked from one that has called it",
                        "start helpers by multiprocessing's spawn, or fork before libddp.init()")
    if not _making.acquire(blocking=False):
        raise _unusable(attempted, "another thread is calling it", "call it once")
    try:
        if _world is not None and not _world.closed:
            raise _unusable(attempted, "it has been called in this process",
                            "libddp.world() gives what it made; close() that before another")
        made = _core.init(timeout, launch, keep_session)
        if "mpi4py.MPI" in sys.modules:
            from . import _mpi_check
            try:
                _mpi_check.check(made, attempted)
            except BaseException:
                made.close()
                raise
        _world, _process = made, os.getpid()
        return _world
    finally:
        _making.release()


def initialized() -> bool:
    """Whether this process has a World, so that world() gives one."""
    return _world is not None and not _world.closed and _process == os.getpid()


def world() -> World:
    """What init() made."""
    if _world is None or _world.closed:
        raise _unusable("asking for the World", "there is none", "call libddp.init() first, on all ranks")
    return _world


def poll() -> None:
    """Calls the callbacks of operations that have ended, in this thread, and releases tensors that ended operations held."""
    _core.release_dropped_objects()
    from . import _events
    _events.poll()


@atexit.register
def _leave() -> None:
    """Before the interpreter goes. What programs still hold of groups stays until the process ends, and does no harm."""
    if _world is not None and _process == os.getpid():
        _world.close()
    _core.release_dropped_objects()
