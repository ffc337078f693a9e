"""Horovod's operations on tensors of torch. They match by process set, kind and name, in any order and from any thread.

Each has a form that waits, `_async` ones that return a handle for poll() and synchronize(), and where the name ends in `_`
one in place. A name that is under way in this process is a ValueError; what differs among ranks a HorovodInternalError on
all ranks of the set, which then continue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.utils.dlpack import from_dlpack

import libddp
from libddp.horovod import _job, _operations
from libddp.horovod._job import (ccl_built, cross_rank, cross_size, cuda_built, ddl_built, gloo_built, gloo_enabled, init,
                                 is_homogeneous, is_initialized, local_rank, local_size, mpi_built, mpi_enabled,
                                 mpi_threads_supported, nccl_built, rank, rocm_built, shutdown, size, start_timeline,
                                 stop_timeline)
from libddp.horovod._operations import forget_all, poll, synchronize
from libddp.horovod.compression import Compression
from libddp.horovod.exceptions import HorovodInternalError, translated
from libddp.horovod.process_sets import ProcessSet, global_process_set

__all__ = ["Adasum", "Average", "ExactAverage", "Max", "Min", "Product", "Sum", "allgather", "allgather_async", "allreduce", "allreduce_",
           "allreduce_async", "allreduce_async_", "alltoall", "alltoall_async", "barrier", "broadcast", "broadcast_",
           "broadcast_async", "broadcast_async_", "ccl_built", "cross_rank", "cross_size", "cuda_built", "ddl_built",
           "forget_all", "gloo_built", "gloo_enabled", "grouped_allgather", "grouped_allgather_async", "grouped_allreduce",
           "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "grouped_reducescatter",
           "grouped_reducescatter_async", "init", "is_homogeneous", "is_initialized", "join", "local_rank", "local_size",
           "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "poll", "rank", "reducescatter",
           "reducescatter_async", "rocm_built", "shutdown", "size", "sparse_allreduce_async", "start_timeline", "stop_timeline",
           "synchronize"]

Average, Sum, Adasum, Min, Max, Product = range(6)
ExactAverage = 6  # libddp's, of DistributedOptimizer alone
_OPS = {Average: "avg", Sum: "sum", Adasum: "sum", Min: "min", Max: "max", Product: "product"}
_REDUCED = frozenset((torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
                      torch.float64))
_MOVED = _REDUCED | {torch.int16, torch.bool}
_Tensors = Sequence[torch.Tensor]


def _op_of(op: int | None, average: bool | None) -> int:
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is None:
        return Sum if average is False else Average
    if op not in _OPS:
        raise ValueError(f"op={op} is none of Average, Sum, Adasum, Min, Max and Product")
    return op


def _check(tensors: _Tensors, types: frozenset[torch.dtype], contiguous: bool = False) -> None:
    for tensor in tensors:
        if tensor.dtype not in types or tensor.is_sparse:
            raise ValueError(f"Tensor type {tensor.type()} is not supported.")
        if contiguous and not tensor.is_contiguous():
            raise ValueError("Tensor is required to be contiguous.")
    if len({tensor.device for tensor in tensors}) > 1:
        raise ValueError("the tensors of a group are on different devices")


# allreduce

def _reduce(tensors: _Tensors, targets: _Tensors | None, single: bool, name: str | None, op: int, prescale_factor: float,
            postscale_factor: float, process_set: ProcessSet) -> int:
    """targets: where results go; None: new tensors."""
    number = _operations.member(process_set)
    _check(tensors, _REDUCED, contiguous=True)
    if op == Adasum:
        return _adasum_reduce(tensors, targets, single, name, prescale_factor, postscale_factor, process_set)
    held = [_operations.scaled(_operations.on_cpu(each), prescale_factor) for each in tensors]
    if targets is None:  # in place of a copy, where this is none yet
        held = [one.clone() if one.data_ptr() == each.data_ptr() else one for one, each in zip(held, tensors)]

    def finish(_: Any) -> Any:
        made = [_operations.scaled(each, postscale_factor) for each in held]
        if targets is None:
            made = [each.to(like.device) for each, like in zip(made, tensors)]
        else:
            with torch.no_grad():
                for target, each in zip(targets, made):
                    if target.data_ptr() != each.data_ptr():
                        target.detach().copy_(each)
            made = list(targets)
        return made[0] if single else made

    label = _operations.label("allreduce" if single else "grouped_allreduce", name, number)
    return _operations.start("all_reduce", label, process_set, held, finish, op=_OPS[op], prescale=prescale_factor,
                             postscale=postscale_factor, on_gpu=tensors[0].is_cuda if tensors else False)


def _reduce_one(tensor: torch.Tensor, in_place: bool, name: str | None, op: int, prescale_factor: float, postscale_factor: float,
                process_set: ProcessSet) -> int:
    """_reduce() of one tensor, with little around the engine where nothing is to be copied back or multiplied."""
    if (not tensor.is_cpu or tensor.dtype not in _REDUCED or tensor.layout is not torch.strided or not tensor.is_contiguous()
            or op == Adasum or prescale_factor != 1.0 or postscale_factor != 1.0):
        return _reduce([tensor], [tensor] if in_place else None, True, name, op, prescale_factor, postscale_factor, process_set)
    target = tensor if in_place else tensor.detach().clone()
    if not in_place and process_set is global_process_set:
        started = _operations.start_plain(target, name, op, True)
        if started is not None:
            return started
    label = name if name is not None else _operations.label("allreduce", None, _operations.member(process_set))
    return _operations.start("all_reduce", label, process_set, (target,), None, _OPS[op], result=target)


# Adasum (Maleki et al., arXiv 2006.02924): sums of gradients that shrink where they point the same way. For any number
# of ranks: the tree's last one may have no partner.

def _adasum_of_two(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Adds two vectors of float64."""
    dot = torch.dot(one, other)
    squares = torch.dot(one, one), torch.dot(other, other)
    factors = [1.0 - dot / (2.0 * square) if square > 0 else torch.ones((), dtype=one.dtype) for square in squares]
    return factors[0] * one + factors[1] * other


def _adasum_tree(gathered: torch.Tensor) -> torch.Tensor:
    """Combines one row for each rank, in rank order: the same bits on all ranks."""
    rows: list[torch.Tensor] = [each.double() for each in gathered]
    while len(rows) > 1:
        paired = [_adasum_of_two(rows[at], rows[at + 1]) for at in range(0, len(rows) - 1, 2)]
        rows = paired + rows[len(rows) - len(rows) % 2:]
    return rows[0].to(gathered.dtype)


def _adasum_reduce(tensors: _Tensors, targets: _Tensors | None, single: bool, name: str | None, prescale_factor: float,
                   postscale_factor: float, process_set: ProcessSet) -> int:
    rows = [_operations.scaled(_operations.on_cpu(each), prescale_factor).reshape(1, -1) for each in tensors]
    number = _operations.member(process_set)

    def finish(handle: Any) -> Any:
        made = []
        for result, row, like in zip(handle.results(), rows, tensors):
            combined = _adasum_tree(from_dlpack(result[0]).view(row.dtype).view(sum(result[1]), row.numel()))
            made.append(_operations.scaled(combined, postscale_factor).view(like.shape).to(like.device))
        if targets is not None:
            for target, each in zip(targets, made):
                target.detach().copy_(each)
            made = list(targets)
        return made[0] if single else made

    label = _operations.label("adasum.adasum", None if name is None else "adasum." + name, number)
    return _operations.start("all_gather", label, process_set, rows, finish, prescale=prescale_factor,
                             postscale=postscale_factor)


def allreduce_async(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> int:
    return _reduce_one(tensor, False, name, _op_of(op, average), prescale_factor, postscale_factor, process_set)


def allreduce_async_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> int:
    if average is None and prescale_factor == 1.0 == postscale_factor and process_set is global_process_set:
        started = _operations.start_plain(tensor, name, op, False)
        if started is not None:
            return started
    _operations.hold([tensor])
    return _reduce_one(tensor, True, name, _op_of(op, average), prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async(tensors: _Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> int:
    return _reduce(list(tensors), None, False, name, _op_of(op, average), prescale_factor, postscale_factor, process_set)


def grouped_allreduce_async_(tensors: _Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> int:
    held = _operations.hold(tensors)
    return _reduce(held, held, False, name, _op_of(op, average), prescale_factor, postscale_factor,
                   process_set)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Callable[..., int], arguments: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.call, ctx.arguments = call, {**arguments, "name": None}
        made = synchronize(call(list(tensors) if call is grouped_allreduce_async else tensors[0], **arguments))
        return tuple(made) if call is grouped_allreduce_async else made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        made = _operations.apply(_Allreduce, ctx.call, ctx.arguments, *(each.contiguous() for each in gradients))
        return (None, None, *(made if isinstance(made, tuple) else (made,)))


def allreduce(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, compression: Any = Compression.none,
              op: int | None = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """A new tensor: the average, or what `op` says, of all ranks' tensors. Its gradient is reduced likewise."""
    sent, context = compression.compress(tensor)
    op = _op_of(op, average)
    if sent.requires_grad:
        arguments = {"name": name, "op": op, "prescale_factor": prescale_factor, "postscale_factor": postscale_factor,
                     "process_set": process_set}
        reduced = _operations.apply(_Allreduce, allreduce_async, arguments, sent)
    else:
        reduced = synchronize(allreduce_async(sent, None, name, op, prescale_factor, postscale_factor, process_set))
    return cast(torch.Tensor, compression.decompress(reduced, context))


def allreduce_(tensor: torch.Tensor, average: bool | None = None, name: str | None = None, op: int | None = None,
               prescale_factor: float = 1.0, postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """In place, without a gradient."""
    started = None
    if average is None and prescale_factor == 1.0 == postscale_factor and process_set is global_process_set:
        started = _operations.start_plain(tensor, name, op, True)
    if started is None:
        started = _reduce_one(tensor, True, name, _op_of(op, average), prescale_factor, postscale_factor, process_set)
    return cast(torch.Tensor, synchronize(started))


def grouped_allreduce(tensors: _Tensors, average: bool | None = None, name: str | None = None,
                      compression: Any = Compression.none, op: int | None = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    """All of the tensors together, or none."""
    sent = [compression.compress(each) for each in tensors]
    arguments = {"name": name, "op": _op_of(op, average), "prescale_factor": prescale_factor,
                 "postscale_factor": postscale_factor, "process_set": process_set}
    made = _operations.apply(_Allreduce, grouped_allreduce_async, arguments, *(tensor for tensor, _ in sent))
    return [compression.decompress(each, context) for each, (_, context) in zip(made, sent)]


def grouped_allreduce_(tensors: _Tensors, average: bool | None = None, name: str | None = None, op: int | None = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    started = grouped_allreduce_async_(tensors, average, name, op, prescale_factor, postscale_factor, process_set)
    return cast("list[torch.Tensor]", synchronize(started))


def sparse_allreduce_async(tensor: torch.Tensor, name: str, op: int, process_set: ProcessSet = global_process_set) -> Callable[[], torch.Tensor]:
    """Reduces a sparse tensor by its rows. The callable that it returns waits, and returns the sum or average."""
    if op not in (Average, Sum):
        raise ValueError("sparse tensors are averaged or added only")
    own = tensor.coalesce() if not tensor.is_coalesced() else tensor
    indices = allgather_async(own._indices().transpose(0, 1).contiguous(), name=f"{name}.indices", process_set=process_set)
    values = allgather_async(own._values(), name=f"{name}.values", process_set=process_set)

    def finish() -> torch.Tensor:
        rows, summands = synchronize(indices), synchronize(values)
        if op == Average:
            summands = summands / _operations.size_of(process_set)
        return torch.sparse_coo_tensor(rows.transpose(0, 1), summands, tensor.size())

    return finish


# allgather

def _gather(tensors: _Tensors, single: bool, name: str | None, process_set: ProcessSet,
            rows: list[list[int]] | None = None) -> int:
    number = _operations.member(process_set)
    _check(tensors, _MOVED)

    def finish(handle: Any) -> Any:
        results = handle.results()
        if rows is not None:
            rows.extend(result[1] for result in results)
        made = [_operations.rows_of(result, like) for result, like in zip(results, tensors)]
        return made[0] if single else made

    held = [_operations.movable(_operations.on_cpu(each)) for each in tensors]
    label = _operations.label("allgather" if single else "grouped_allgather", name, number)
    return _operations.start("all_gather", label, process_set, held, finish, on_gpu=tensors[0].is_cuda if tensors else False)


def allgather_async(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return _gather(_operations.hold([tensor]), True, name, process_set)


def grouped_allgather_async(tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set) -> int:
    return _gather(_operations.hold(tensors), False, name, process_set)


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows, ctx.process_set = [], process_set
        return tuple(synchronize(_gather(list(tensors), False, name, process_set, ctx.rows)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """The average over ranks of this one's slice, as upstream."""
        own = ctx.process_set.rank()
        made = [torch.split(allreduce(each.contiguous(), op=Average, process_set=ctx.process_set), rows)[own]
                for each, rows in zip(gradients, ctx.rows)]
        return (None, None, *made)


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """All ranks' rows, in rank order. First dimensions may differ."""
    return grouped_allgather([tensor], _named("allgather", name, process_set), process_set)[0]


def _named(kind: str, name: str | None, process_set: ProcessSet) -> str:
    return _operations.label(kind, name, _operations.member(process_set))


def grouped_allgather(tensors: _Tensors, name: str | None = None, process_set: ProcessSet = global_process_set) -> list[torch.Tensor]:
    return list(_operations.apply(_Allgather, _named("grouped_allgather", name, process_set), process_set, *tensors))


# broadcast

def _broadcast(tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet = global_process_set) -> int:
    number = _operations.member(process_set)
    root = _operations.root_of(root_rank, process_set)
    _check([tensor], _MOVED)
    held = _operations.on_cpu(tensor)

    def finish(_: Any) -> torch.Tensor:
        if held.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(held)
        return tensor

    return _operations.start("broadcast", _operations.label("broadcast", name, number), process_set,
                             [_operations.movable(held)], finish, root=root, on_gpu=tensor.is_cuda)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> int:
    _operations.hold([tensor])
    return _broadcast(tensor, root_rank, name, process_set)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: str | None = None,
                    process_set: ProcessSet = global_process_set) -> int:
    return _broadcast(tensor.detach().clone(), root_rank, name, process_set)


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet) -> Any:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        return synchronize(broadcast_async(tensor, root_rank, name, process_set))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        reduced = allreduce(gradients[0].contiguous(), op=Average, process_set=ctx.process_set)
        return reduced if rank() == ctx.root_rank else reduced * 0, None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """A new tensor: that of root_rank, which counts among all ranks, in a process set, too."""
    return cast(torch.Tensor, _operations.apply(_Broadcast, tensor, root_rank, name, process_set))


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    return cast(torch.Tensor, synchronize(_broadcast(tensor, root_rank, name, process_set)))


# alltoall

def _splits_of(tensor: torch.Tensor, splits: Any, ranks: int) -> list[int]:
    if splits is None:
        if tensor.dim() == 0 or tensor.size(0) % ranks:
            raise ValueError(f"alltoall without splits: the first dimension of {list(tensor.shape)} is not divisible by "
                             f"the number of ranks, {ranks}")
        return [tensor.size(0) // ranks] * ranks
    given = torch.as_tensor(splits)
    if given.dim() != 1 or given.dtype.is_floating_point:
        raise ValueError("alltoall expects splits of one dimension, of integers")
    return [int(each) for each in given]


def alltoall_async(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
                   process_set: ProcessSet = global_process_set) -> int:
    _operations.hold([tensor])
    number = _operations.member(process_set)
    _check([tensor], _MOVED)
    rows = _splits_of(tensor, splits, _operations.size_of(process_set))

    def finish(handle: Any) -> Any:
        result = handle.results()[0]
        device = splits.device if isinstance(splits, torch.Tensor) else torch.device("cpu")
        return _operations.rows_of(result, tensor), torch.tensor(result[1], dtype=torch.int32, device=device)

    return _operations.start("all_to_all", _operations.label("alltoall", name, number), process_set,
                             [_operations.movable(_operations.on_cpu(tensor))], finish, splits=rows, on_gpu=tensor.is_cuda)


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        made, _ = _operations.apply(_Alltoall, gradients[0].contiguous(), ctx.received, None, ctx.process_set)
        return made, None, None, None


def alltoall(tensor: torch.Tensor, splits: Any = None, name: str | None = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """splits[i] rows go to rank i; without splits equally many to each. The rows received; with splits also how many from
    each rank."""
    output, received = _operations.apply(_Alltoall, tensor, splits, name, process_set)
    return output if splits is None else (output, received)


# reducescatter

def _scatter(tensors: _Tensors, single: bool, name: str | None, op: int, process_set: ProcessSet, prescale_factor: float,
             postscale_factor: float) -> int:
    number = _operations.member(process_set)
    _check(tensors, _REDUCED)
    if op not in (Average, Sum):
        cause = "reducescatter averages or adds only"
        raise HorovodInternalError.of(libddp._errors.make("invalid_argument", cause, "reducescatter", cause, "", (), ""))

    def finish(handle: Any) -> Any:
        made = [_operations.scaled(_operations.rows_of(result, like), postscale_factor)
                for result, like in zip(handle.results(), tensors)]
        return made[0] if single else made

    held = [_operations.scaled(_operations.on_cpu(each), prescale_factor) for each in tensors]
    label = _operations.label("reducescatter" if single else "grouped_reducescatter", name, number)
    return _operations.start("reduce_scatter", label, process_set, held, finish, op=_OPS[op], prescale=prescale_factor,
                             postscale=postscale_factor, on_gpu=tensors[0].is_cuda if tensors else False)


def reducescatter_async(tensor: torch.Tensor, name: str | None = None, op: int = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> int:
    return _scatter(_operations.hold([tensor]), True, name, op, process_set, prescale_factor, postscale_factor)


def grouped_reducescatter_async(tensors: _Tensors, name: str | None = None, op: int = Average,
                                process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> int:
    return _scatter(_operations.hold(tensors), False, name, op, process_set, prescale_factor, postscale_factor)


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, arguments: dict[str, Any], *tensors: torch.Tensor) -> Any:
        ctx.arguments = arguments
        return tuple(synchronize(grouped_reducescatter_async(list(tensors), **arguments)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        process_set = ctx.arguments["process_set"]
        factor = ctx.arguments["prescale_factor"] * ctx.arguments["postscale_factor"]
        if ctx.arguments["op"] == Sum:
            factor *= _operations.size_of(process_set)
        return (None, *(allgather(each.contiguous(), process_set=process_set) * factor for each in gradients))


def reducescatter(tensor: torch.Tensor, name: str | None = None, compression: Any = Compression.none, op: int = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """This rank's rows of the average, or sum, of all ranks' tensors; the first ranks get a row more if they do not divide."""
    return grouped_reducescatter([tensor], _named("reducescatter", name, process_set), compression, op, process_set,
                                 prescale_factor, postscale_factor)[0]


def grouped_reducescatter(tensors: _Tensors, name: str | None = None, compression: Any = Compression.none, op: int = Average,
                          process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> list[torch.Tensor]:
    sent = [compression.compress(each) for each in tensors]
    arguments = {"name": name, "op": op, "process_set": process_set, "prescale_factor": prescale_factor,
                 "postscale_factor": postscale_factor}
    made = _operations.apply(_Reducescatter, arguments, *(tensor for tensor, _ in sent))
    return [compression.decompress(each, context) for each, (_, context) in zip(made, sent)]


# without tensors

def join(device: int = -1) -> int:
    """Waits until all ranks have joined; meanwhile others' allreduces, and the steps of a DistributedOptimizer, get zeros
    from this one, whose gradients go. The rank that joined last. NotImplementedError beside several optimizers."""
    from libddp.horovod import optimizer
    job = _job.job()
    stepping = optimizer.check_join() if job.size > 1 else None
    handle = _operations.keep(translated(job.named.join), lambda native: job.ranks.index(native.last_joined()))
    if stepping is not None:
        optimizer.take_part_in_steps(stepping)
    last = synchronize(handle)
    job.joins += 1
    return int(last)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set are here."""
    name = _operations.label("barrier", None, _operations.member(process_set))
    synchronize(_operations.start("barrier", name, process_set, (), None))
