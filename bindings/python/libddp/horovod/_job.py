"""Who this process is for Horovod's names: init(), shutdown(), ranks, and the engine that matches operations by name."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import libddp
from libddp import _core

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."


class Job:
    """What init() made. ranks: of the world, that take part; rank and size count among them."""

    def __init__(self, world: libddp.World, group: libddp.ProcessGroup, named: Any, timeout: float) -> None:
        self.world, self.group, self.named, self.timeout = world, group, named, timeout
        self.ranks = list(group.global_ranks)
        self.rank, self.size = group.rank, group.size
        # counts the operations without a name of each kind and process set: ranks submit them in one order
        self.numbers: dict[tuple[str, int], Iterator[int]] = {}
        self.joins = 0  # behind one, ranks count anew: they may have come to unlike numbers
        nodes = [world.node_of(each) for each in self.ranks]
        own = nodes[self.rank]
        mates = [place for place, node in enumerate(nodes) if node == own]
        self.local_rank, self.local_size = mates.index(self.rank), len(mates)
        order = sorted(set(nodes), key=nodes.index)
        per_node = [nodes.count(node) for node in order]
        crossing = [node for node, count in zip(order, per_node) if count > self.local_rank]
        self.cross_rank, self.cross_size = crossing.index(own), len(crossing)
        self.is_homogeneous = len(set(per_node)) == 1


_job: Job | None = None
_parents: Job | None = None  # of the process that this one was forked from
_lock = threading.RLock()


def _forget_parents() -> None:
    global _job, _lock, _parents
    _parents, _job = _job or _parents, None
    _lock = threading.RLock()  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_parents)


def job() -> Job:
    if _job is not None:
        return _job
    from torch.utils.data import get_worker_info
    worker = get_worker_info()
    if worker is not None:
        raise ValueError(f"worker {worker.id} of a DataLoader takes part in nothing of Horovod's: call hvd in the rank's own "
                         "process, and give the data set what it needs of rank and size")
    if _parents is not None:
        raise ValueError("Horovod was initialized in the process that this one was forked from; call hvd operations "
                         "there, or start helpers by multiprocessing's spawn")
    raise ValueError(NOT_INITIALIZED)


def current() -> Job | None:
    return _job


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "").strip()
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise ValueError(f"{name}={text} is not a number of seconds, 0 or more")
    return value


def _bytes(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if text and not text.isdigit():
        raise ValueError(f"{name}={text} is not a number of bytes")
    return int(text) if text else default


def _flag(name: str) -> bool:
    return os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


def _members(comm: Any, world: libddp.World) -> list[int] | None:
    """The world's ranks that `comm` names: None for all of them."""
    if comm is None:
        return None
    if hasattr(comm, "Get_size") and hasattr(comm, "Get_group"):
        from libddp import _mpi_check
        _mpi_check.check(world, "calling hvd.init(comm=...)", required=type(comm).__module__.split(".")[0] == "mpi4py")
        return sorted(_mpi_check.world_ranks(comm))
    ranks = [int(each) for each in comm]
    if not ranks:
        return None  # upstream's default
    if len(set(ranks)) != len(ranks) or min(ranks) < 0 or max(ranks) >= world.world_size:
        raise ValueError(f"hvd.init(comm={ranks}): give ranks of 0 to {world.world_size - 1}, each once")
    return sorted(ranks)


_NO_EFFECT = ("CYCLE_TIME", "CACHE_CAPACITY", "HIERARCHICAL_ALLREDUCE", "HIERARCHICAL_ALLGATHER", "TORUS_ALLREDUCE",
              "NUM_NCCL_STREAMS", "THREAD_AFFINITY", "BATCH_D2D_MEMCOPIES", "ENABLE_ASYNC_COMPLETION",
              "DISABLE_GROUP_FUSION", "MPI_THREADS_DISABLE", "CONTROLLER", "CPU_OPERATIONS", "LOG_TIMESTAMP",
              "LOG_HIDE_TIME")
_LEVELS = {"trace": "debug", "debug": "debug", "info": "info", "warning": "warning", "error": "error", "fatal": "error"}


def _say_what_has_no_effect(rank: int, late: list[str]) -> None:
    """late: variables that came behind libddp.init()."""
    found = [f"HOROVOD_{name}" for name in _NO_EFFECT if os.environ.get(f"HOROVOD_{name}")]
    found += sorted(name for name, value in os.environ.items()
                    if name.startswith("HOROVOD_AUTOTUNE") and value)
    found += [f"{name} (libddp.init() was called before hvd.init())" for name in late]
    if rank == 0 and found:
        print(f"libddp.horovod: no effect: {', '.join(found)}", file=sys.stderr)


def _take_over_variables() -> list[str]:
    """What libddp.init() reads by other names; its own, where they are set, hold. The variables that it is too late for."""
    taken = []
    for name, own in (("HOROVOD_LOG_LEVEL", "DDP_LOG_LEVEL"), ("HOROVOD_GLOO_IFACE", "DDP_SOCKET_IFNAME")):
        value = os.environ.get(name, "").strip()
        if not value or os.environ.get(own):
            continue
        if name == "HOROVOD_LOG_LEVEL":
            if value.lower() not in _LEVELS:
                raise ValueError(f"{name}={value} is none of {', '.join(_LEVELS)}")
            value = _LEVELS[value.lower()]
        os.environ[own] = value
        taken.append(name)
    return taken if libddp.initialized() else []


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the other ranks of the job, found as by libddp.init(). Collective; again: no effect.

    comm: ranks of a smaller world, this one among them; or an mpi4py communicator. All ranks of the job give one.
    process_sets: ProcessSets to register, in the same order on all ranks; or "dynamic", which they always are.
    """
    from libddp import _mpi_check
    with _lock:
        if current() is not None:
            return
        late = _take_over_variables()
        world = libddp.world() if libddp.initialized() else libddp.init()
        _mpi_check.check(world, "calling hvd.init()")
        _begin(world, _group_of(_members(comm, world), world), process_sets, late)


def _group_of(members: list[int] | None, world: libddp.World) -> libddp.ProcessGroup:
    """Collective over the world. Ranks may give different lists, as those of a communicator that was split."""
    group = world.process_group()
    if members is None:
        return group
    own = None
    for each in sorted({tuple(given) for given in group.all_gather_object(members)}):
        made = group.new_group(list(each))
        own = made if list(each) == members else own
    if own is None:
        raise ValueError(f"hvd.init(comm={members}): rank {world.rank} is not among them")
    return own


def restart() -> None:
    """shutdown() and init() among the same ranks. Collective over them."""
    with _lock:
        ended = current()
        if ended is None:
            return init()
        shutdown()
        _begin(ended.world, ended.group, None, [])


def _begin(world: libddp.World, group: libddp.ProcessGroup, process_sets: Any, late: list[str]) -> None:
    """Collective over the group."""
    global _job
    from libddp.horovod import process_sets as sets
    with _lock:
        check = 0.0 if _flag("HOROVOD_STALL_CHECK_DISABLE") else _seconds("HOROVOD_STALL_CHECK_TIME_SECONDS", 60.0)
        shutdown_limit = _seconds("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0.0) or _seconds("HOROVOD_GLOO_TIMEOUT_SECONDS", 0.0)
        named = _core.NamedOperations(group, fusion_bytes=_bytes("HOROVOD_FUSION_THRESHOLD", 128 << 20), stall_check=check,
                                      stall_shutdown=shutdown_limit)
        made = Job(world, group, named, shutdown_limit or group.timeout)
        _say_what_has_no_effect(made.rank, late)
        _job = made
        try:
            if os.environ.get("HOROVOD_TIMELINE", "DYNAMIC") not in ("", "DYNAMIC"):  # upstream's word for start_timeline()
                named.start_timeline(os.environ["HOROVOD_TIMELINE"], _flag("HOROVOD_TIMELINE_MARK_CYCLES"), True)
            sets.register_all(process_sets)
        except BaseException:
            shutdown()
            raise


def shutdown() -> None:
    """Ends what is under way, on the other ranks, too, with HorovodInternalError. The World stays. Idempotent."""
    global _job
    from libddp.horovod import mpi_ops, process_sets
    with _lock:
        ended, _job = _job, None
        if ended is None:
            return
        ended.named.shutdown()
        process_sets.forget_all()
        mpi_ops.forget_all()


atexit.register(shutdown)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """On rank 0: from now on the file gets what all ranks do with their operations, as a Chrome trace; others may call it.

    mark_cycles: an event CYCLE_START for each exchange. Raises HorovodInternalError where the file cannot be written.
    """
    from libddp.horovod.exceptions import HorovodInternalError
    try:
        job().named.start_timeline(os.fspath(file_path), mark_cycles)
    except libddp.Error as error:
        raise HorovodInternalError.of(error) from None


def stop_timeline() -> None:
    """On rank 0: completes the file with what has ended on all ranks."""
    job().named.stop_timeline()


def is_initialized() -> bool:
    return current() is not None


def rank() -> int:
    return job().rank


def size() -> int:
    return job().size


def local_rank() -> int:
    return job().local_rank


def local_size() -> int:
    return job().local_size


def cross_rank() -> int:
    """The position of this rank's node among those that have a rank of this local rank."""
    return job().cross_rank


def cross_size() -> int:
    """How many nodes have a rank of this local rank."""
    return job().cross_size


def is_homogeneous() -> bool:
    return job().is_homogeneous


def mpi_threads_supported() -> bool:
    """True, since libddp may be called beside MPI from any thread."""
    job()
    return True


def mpi_enabled() -> bool:
    job()
    return False


def gloo_enabled() -> bool:
    job()
    return True  # what scripts ask where they need CPU operations without MPI


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    """NCCL's version as torch knows it, 2.7.0 as 2700 and 2.27.3 as 22703; 0 without."""
    import torch
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = (*torch.cuda.nccl.version(), 0, 0)[:3]  # type: ignore[no-untyped-call]
    return int(major) * (1000 if (major, minor) <= (2, 8) else 10000) + int(minor) * 100 + int(patch)


def mpi_built() -> bool:
    return False


ddl_built = ccl_built = mpi_built


def cuda_built() -> bool:
    import torch
    return torch.version.cuda is not None


def rocm_built() -> bool:
    import torch
    return torch.version.hip is not None
