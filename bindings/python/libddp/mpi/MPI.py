"""The names of mpi4py.MPI. Importing it initializes nothing: the first call that asks for ranks does, as libddp.init().
The first call that moves data, a send or receive as well, is collective over the ranks of COMM_WORLD: it connects them."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from typing import Any

import libddp
from libddp.mpi import _comm
from libddp.mpi._buffers import TYPES, Datatype
from libddp.mpi._comm import COMM_NULL, COMM_TYPE_SHARED, IN_PLACE, PROC_NULL, UNDEFINED, Comm, Group, Intracomm
from libddp.mpi._mailbox import ANY_SOURCE, ANY_TAG, boxes
from libddp.mpi._ops import OPS, Op
from libddp.mpi._requests import Request, Status

globals().update(TYPES)
globals().update(OPS)
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
SUCCESS = 0
MAX_PROCESSOR_NAME = 256
VERSION, SUBVERSION = 3, 1
Exception = libddp.Error  # noqa: A001  mpi4py's name
Info = dict
INFO_NULL: Any = None
_finalized = False
_EXIT_PATIENCE = 30.0


def _world() -> libddp.World:
    if _finalized:
        raise ValueError("MPI.Finalize() has been called")
    from libddp import _mpi_check
    world = libddp.world() if libddp.initialized() else libddp.init()
    _mpi_check.check(world, "using libddp.mpi")
    return world


def _make_world() -> tuple[Any, Any, list[int]]:
    world = _world()
    everyone = list(range(world.world_size))
    group = world.process_group()
    return group.new_group(everyone), group.new_group(everyone), everyone


class _Done:
    def wait(self, timeout: float | None = None) -> None:
        """It has ended."""


class _Alone:
    """The group of COMM_SELF, which needs no other rank."""

    rank, size = 0, 1

    def barrier(self, *_: Any) -> _Done:
        return _Done()

    broadcast = all_reduce = barrier

    def all_gather(self, given: Any, into: Any, counts: list[int] | None = None) -> _Done:
        into[...] = given
        return _Done()

    all_gather_v = all_to_all = all_gather

    def broadcast_object(self, obj: Any, root: int = 0) -> Any:
        return obj

    def gather_object(self, obj: Any, root: int = 0) -> list[Any]:
        return [obj]

    all_gather_object = gather_object

    def scatter_object(self, objects: Any, root: int = 0) -> Any:
        return objects[0]

    def new_group(self, members: list[int]) -> _Alone:
        return self


def _make_self() -> tuple[Any, Any, list[int]]:
    return _Alone(), _Alone(), [_world().rank]


class _World(Intracomm):
    """Its rank and size are the World's, and take no group."""

    def Get_rank(self) -> int:
        return _world().rank

    def Get_size(self) -> int:
        return _world().world_size


COMM_WORLD = _World(_make_world)
COMM_SELF = Intracomm(_make_self)


def Init() -> None:
    _world()


def Init_thread(required: int = THREAD_MULTIPLE) -> int:
    _world()
    return THREAD_MULTIPLE


def Query_thread() -> int:
    return THREAD_MULTIPLE


def Is_thread_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def Is_initialized() -> bool:
    return libddp.initialized() or _finalized


def Is_finalized() -> bool:
    return _finalized


def Finalize() -> None:
    """Waits until what this rank has sent is received, and for the other ranks. The World stays."""
    global _finalized
    if not _finalized:
        _leave()
        _finalized = True


def _leave() -> None:
    if COMM_WORLD._made is None or not libddp.initialized() or _process != os.getpid():
        return
    limit = time.monotonic() + _EXIT_PATIENCE
    for box in list(boxes):
        box.flush(limit)
    COMM_WORLD._made[0].barrier(timeout=_EXIT_PATIENCE).wait()


_process = os.getpid()


@atexit.register
def _at_exit() -> None:
    if not _finalized and getattr(sys, "last_exc", getattr(sys, "last_value", None)) is None:
        with contextlib.suppress(libddp.Error):  # the job ends, and its launcher says why
            _leave()


def Get_processor_name() -> str:
    return socket.gethostname()


def Wtime() -> float:
    return time.monotonic()


def Wtick() -> float:
    return time.get_clock_info("monotonic").resolution


def Get_version() -> tuple[int, int]:
    return VERSION, SUBVERSION


def Get_library_version() -> str:
    return f"libddp {libddp.__version__}"


def Get_vendor() -> tuple[str, tuple[int, ...]]:
    return "libddp", tuple(int(each) for each in libddp.__version__.split(".")[:3])


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'libddp.mpi.MPI' has no attribute '{name}'")
    raise NotImplementedError(f"libddp.mpi has no MPI.{name}; use mpi4py under mpirun or srun --mpi=pmix")
