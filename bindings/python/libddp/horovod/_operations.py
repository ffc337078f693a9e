"""Operations that have been submitted, by their numbers: what goes to libddp's engine, and what comes back of it.

The engine takes tensors in the CPU's memory; those of a GPU are copied there and back.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.dlpack import from_dlpack

import libddp
from libddp import _core
from libddp.horovod import _job, process_sets
from libddp.horovod.exceptions import HorovodInternalError, translated
from libddp.horovod.process_sets import ProcessSet

Finish = Callable[[Any], Any]  # what an operation returns, of the engine's handle

# For each handle that has been given: the engine's, and the result or what makes it. One call of a dict or a counter is
# atomic. Few objects for each, as Python's garbage collection looks at them.
_submitted: dict[int, tuple[Any, Finish | None, Any]] = {}
_numbers = itertools.count()


def forget_all() -> None:
    global _numbers
    _submitted.clear()
    _numbers = itertools.count()


def member(process_set: ProcessSet) -> int:
    """The set's number. ValueError where this rank is not in it, or it is not registered."""
    job = _job.job()
    number = process_set.process_set_id
    if number is None:
        raise ValueError(f"{process_set} is not registered; hvd.add_process_set() does it, on all ranks")
    if number != 0 and job.rank not in (process_set.ranks or ()):
        raise ValueError(f"rank {job.rank} is not in {process_set}; call operations on its members only")
    return number


def size_of(process_set: ProcessSet) -> int:
    return process_set.size() or 1


class Unnamed(str):
    """What an operation without a name is called, but for its count, by which ranks' operations match."""

    number: int


def label(kind: str, name: str | None, number: int) -> str:
    if name is not None:
        return name
    job = _job.job()
    made = Unnamed(f"{kind}.noname.{job.joins}." if job.joins else f"{kind}.noname.")
    made.number = next(job.numbers.setdefault((made, number), itertools.count(1)))  # both atomic
    return made


def start(kind: str, name: str, process_set: ProcessSet, tensors: Sequence[torch.Tensor], finish: Finish | None, op: str = "sum",
          root: int = 0, splits: Sequence[int] = (), on_gpu: bool = False, prescale: float = 1.0, postscale: float = 1.0,
          result: Any = None) -> int:
    """Submits it. tensors: on the CPU, contiguous, of types that the engine knows. finish: None: `result` is what it returns."""
    number = member(process_set)
    # detached: a tensor that keeps the memory whatever becomes of the caller's
    return keep(translated(_job.job().named.submit, kind, name.encode("utf-8", "surrogateescape"), number,
                           list(map(torch.Tensor.detach, tensors)), op, root, splits, on_gpu, prescale, postscale,
                           name.number if isinstance(name, Unnamed) else 0), finish, result)


def start_plain(tensor: torch.Tensor, name: str | None, op: int | None, waits: bool) -> int | None:
    """An allreduce in place among all ranks that needs nothing around the engine; else None, as where it is wrong. waits: this
    thread waits for it."""
    job = _job.current()
    if job is None:
        return None
    try:  # no call of translated(), which 1,000 of these would notice
        handle = job.named.all_reduce(tensor, name, op, not waits)
    except libddp.InvalidArgument:
        raise
    except libddp.Error as error:
        raise HorovodInternalError.of(error) from None
    return None if handle is None else keep(handle, None, tensor)


def keep(handle: Any, finish: Finish | None, result: Any = None) -> int:
    own = next(_numbers)
    _submitted[own] = (handle, finish, result)
    return own


def poll(handle: int) -> bool:
    """Whether synchronize() would return at once. ValueError for a handle that is not known, or was synchronized."""
    found = _submitted.get(handle)
    if found is None:
        raise ValueError(f"handle {handle} is not known: it was synchronized, or Horovod has been shut down")
    return bool(found[0].done())


def synchronize(handle: int) -> Any:
    """Waits for an asynchronous operation and returns its result; None for a handle that is not known any more. Raises
    HorovodInternalError."""
    found = _submitted.get(handle)
    if found is None:
        return None
    native, finish, result = found
    try:
        native.wait()
    except BaseException as error:
        if native.done():  # else a signal has interrupted it
            _submitted.pop(handle, None)
        if isinstance(error, libddp.Error):
            raise HorovodInternalError.of(error) from None
        raise
    _submitted.pop(handle, None)
    return result if finish is None else finish(native)


def hold(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same ones, whose memory the engine uses, and resize_() would free. PyTorch refuses it: while the operation is under way
    if the adapter to PyTorch is loaded, as by DistributedOptimizer; else from now on, as where numpy has that memory."""
    held = list(tensors)
    for tensor in held if not _core.has_storage_functions() else ():
        if tensor.is_cpu and tensor.layout is torch.strided and (memory := tensor.untyped_storage()).resizable():
            with contextlib.suppress(RuntimeError):  # numpy is not installed
                torch.empty(0, dtype=torch.uint8).set_(memory).numpy()
    return held


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """In the CPU's memory, contiguous; the tensor itself where it is so."""
    return tensor.detach().to("cpu").contiguous()


def movable(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a type that the engine can move."""
    if tensor.dtype is not torch.int16:
        return tensor
    return (tensor if tensor.dim() > 1 else tensor.reshape(-1, 1)).view(torch.int8)  # rows stay rows


def rows_of(result: tuple[Any, list[int]], like: torch.Tensor) -> torch.Tensor:
    """A result's bytes as rows like those of an input, on its device."""
    memory = from_dlpack(result[0])
    return memory.view(like.dtype).view(-1 if like[0:1].numel() else sum(result[1]), *like.shape[1:]).to(like.device)


def scaled(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """Integers in float64, narrow types in float32, as upstream's kernels do."""
    if factor == 1.0:
        return tensor
    if not tensor.dtype.is_floating_point:
        return (tensor.double() * factor).to(tensor.dtype)
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return (tensor.float() * factor).to(tensor.dtype)
    return tensor * factor


def apply(function: type[torch.autograd.Function], *given: Any) -> Any:
    return function.apply(*given)  # type: ignore[no-untyped-call, unused-ignore]


def root_of(root_rank: int, process_set: ProcessSet) -> int:
    """The engine's number of a rank of Horovod's."""
    job = _job.job()
    ranks = process_set.ranks if process_set is not process_sets.global_process_set else range(job.size)
    if root_rank not in (ranks or ()):
        raise ValueError(f"root_rank {root_rank} is not in the process set {list(ranks or ())}")
    return job.ranks[root_rank]
