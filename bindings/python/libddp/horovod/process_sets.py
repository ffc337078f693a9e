"""Sets of ranks among which operations run, besides that of all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import libddp
from libddp.horovod import _job
from libddp.horovod.exceptions import translated


class ProcessSet:
    """Ranks, or an mpi4py communicator. Unusable until it is registered, by hvd.init() or add_process_set()."""

    process_set_id: int | None = None
    ranks: list[int] | None = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if hasattr(ranks_or_comm, "Get_group"):
            from libddp import _mpi_check
            ranks_or_comm = _mpi_check.world_ranks(ranks_or_comm)
        self.ranks = sorted(int(each) for each in ranks_or_comm)

    def size(self) -> int | None:
        """None before the set is registered."""
        return None if self.process_set_id is None else len(self.ranks or ())

    def rank(self) -> int | None:
        """This process's number in the set. ValueError if it is not in it; None before the set is registered."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError("This process is not part of the requested process set.")
        return (self.ranks or []).index(_job.rank())

    def included(self) -> bool | None:
        return None if self.process_set_id is None else _job.rank() in (self.ranks or ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProcessSet) and self.process_set_id == other.process_set_id and self.ranks == other.ranks

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.ranks = None
_registered: list[ProcessSet] = []


def register_all(process_sets: Any) -> None:
    """At init()."""
    global_process_set.process_set_id = 0
    global_process_set.ranks = list(range(_job.size()))
    wanted: Iterable[Any] = () if process_sets is None or isinstance(process_sets, str) else process_sets
    if isinstance(process_sets, str) and process_sets.lower() != "dynamic":
        raise ValueError(f"hvd.init(process_sets={process_sets!r}): give a list of ProcessSet, or 'dynamic'")
    for each in wanted:
        add_process_set(each)


def forget_all() -> None:
    for each in _registered:
        each.process_set_id = None
    _registered.clear()
    global_process_set.ranks = None


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Registers a set, on all ranks, members or not, in the same order. Collective. ValueError for ranks that have one."""
    made = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    job = _job.job()
    assert made.ranks is not None
    known = [each.ranks for each in (global_process_set, *_registered)]
    if made.process_set_id is not None or made.ranks in known:
        raise ValueError(f"A process set with ranks {made.ranks} already exists.")
    made.process_set_id = translated(
        job.named.add_set, [job.ranks[each] if 0 <= each < job.size else each for each in made.ranks])
    _registered.append(made)
    return made


def remove_process_set(process_set: ProcessSet) -> bool:
    """Collective over all ranks. False for a set that is not registered, and for the global one."""
    if process_set.process_set_id is None or process_set is global_process_set or process_set not in _registered:
        return False
    try:
        translated(_job.job().named.remove_set, process_set.process_set_id)
    except libddp.InvalidArgument:
        return False
    _registered.remove(process_set)
    process_set.process_set_id = None
    return True


def process_set_by_id(number: int) -> ProcessSet:
    for each in (global_process_set, *_registered):
        if each.process_set_id == number:
            return each
    raise ValueError(f"There is no process set {number}.")


def get_process_set_ids_and_ranks() -> dict[int, list[int]]:
    return {each.process_set_id or 0: list(each.ranks or ()) for each in (global_process_set, *_registered)}
