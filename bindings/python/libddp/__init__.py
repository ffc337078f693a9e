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
import threading

from . import _core, _errors
from ._core import KeyValueStore, ProcessGroup, Work, World
from ._errors import (Aborted, Conflict, Error, InvalidArgument, Mismatch, NotFound, PeerLost, Protocol, SystemFailure,
                      Timeout, Unavailable)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import datetime

__version__: str = _core.version()
__all__ = ["Aborted", "Conflict", "Error", "InvalidArgument", "KeyValueStore", "Mismatch", "NotFound", "PeerLost",
           "ProcessGroup", "Protocol", "SystemFailure", "Timeout", "Unavailable", "Work", "World", "init", "initialized",
           "poll", "world"]

_world: World | None = None
_process = os.getpid()  # that of _world
_making = threading.Lock()


def _unusable(attempted: str, cause: str, hint: str) -> Error:
    return _errors.make("unavailable", f"{attempted}: {cause}; {hint}", attempted, cause, "", (), hint)


def init(timeout: float | datetime.timedelta | None = None, *, launch: str | None = None,
         keep_session: bool = True) -> World:
    """Finds out how this process was launched and joins the other ranks. Collective: all ranks of the job call it, once.

    timeout: seconds for the rendezvous of all ranks; default: DDP_INIT_TIMEOUT (120).
    launch: take ranks from this source only: pmix, pmi2, torchrun, openmpi, slurm or single.
    keep_session: False leaves the launcher's key-value service once the first process group is connected.

    Raises InvalidArgument, Conflict (two sources disagree), Unavailable, Timeout (names the absent ranks).
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
        _world = _core.init(timeout, launch, keep_session)
        _process = os.getpid()
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
