"""State that all ranks begin with: parameters, optimizers, objects."""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch.utils.dlpack import from_dlpack

from libddp.horovod import _job, _operations, mpi_ops
from libddp.horovod.process_sets import ProcessSet, global_process_set


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """root_rank's values, in place. params: a state_dict, or named_parameters(), or pairs of a name and a tensor, or tensors."""
    if isinstance(params, Mapping):
        pairs = sorted(params.items())
    elif isinstance(params, (str, bytes, torch.Tensor)) or not isinstance(params, Iterable):
        raise ValueError(f"invalid params of type: {type(params)}")
    else:
        pairs = [each if isinstance(each, tuple) else (f"tensor{place}", each) for place, each in enumerate(params)]
    handles = []
    for name, tensor in pairs:
        if tensor is None:
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"invalid params: {name} is a {type(tensor).__name__}, no tensor")
        handles.append(mpi_ops._broadcast(tensor, root_rank, f"broadcast_parameters.{name}"))
    for handle in handles:
        mpi_ops.synchronize(handle)


@functools.cache
def _pickler() -> Callable[[Any], bytes]:
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)
    return cast("Callable[[Any], bytes]", cloudpickle.dumps)


def _sent(obj: Any) -> torch.Tensor:
    return torch.frombuffer(bytearray(_pickler()(obj)), dtype=torch.uint8)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """root_rank's object, by cloudpickle where it is installed, else by pickle."""
    name = name or type(obj).__name__
    if _job.rank() == root_rank:
        sent = _sent(obj)
        mpi_ops.broadcast_(torch.tensor([sent.numel()]), root_rank, name + ".sz", process_set)
        mpi_ops.broadcast_(sent, root_rank, name + ".t", process_set)
        return obj
    size = mpi_ops.broadcast_(torch.tensor([0]), root_rank, name + ".sz", process_set)
    received = mpi_ops.broadcast_(torch.empty(int(size), dtype=torch.uint8), root_rank, name + ".t", process_set)
    return pickle.loads(received.numpy().tobytes())


def broadcast_object_fn(root_rank: int = 0, name: str | None = None, process_set: ProcessSet = global_process_set) -> Any:
    return lambda obj: broadcast_object(obj, root_rank, name, process_set)


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """All ranks' objects, in rank order, but for ranks that have joined: those contribute none."""
    handle = _operations.start("all_gather", (name or type(obj).__name__) + ".objects", global_process_set, (_sent(obj),),
                               lambda native: native.results()[0])
    gathered, rows = _operations.synchronize(handle)
    whole = from_dlpack(gathered).numpy().data
    return [pickle.loads(whole[end - count:end]) for count, end in zip(rows, itertools.accumulate(rows)) if count]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int, model: Any = None) -> None:
    """root_rank's state and options, in place, on ranks with and without a state of their own.

    Takes no step. Parameters must be equal in number and shape, or ValueError names those that differ. What has no gradient
    where root has no state gets one of zeros, as by upstream.
    """
    own = [[tuple(each.shape) for each in group["params"]] for group in optimizer.param_groups]
    is_root = _job.rank() == root_rank
    state = optimizer.state_dict()
    tensors: list[torch.Tensor] = []

    def take(value: Any) -> Any:
        """Tensors follow one by one."""
        if not isinstance(value, torch.Tensor):
            return value
        tensors.append(value)
        return _Place(len(tensors) - 1)

    plan = (own, _mapped(take, state), [(tuple(each.shape), each.dtype) for each in tensors]) if is_root else None
    shapes, skeleton, layouts = broadcast_object(plan, root_rank, "broadcast_optimizer_state")
    differing = [f"group {number}: {here} here, {there} on rank {root_rank}"
                 for number, (here, there) in enumerate(zip(own, shapes)) if here != there]
    if len(own) != len(shapes):
        differing.append(f"{len(own)} parameter groups here, {len(shapes)} on rank {root_rank}")
    problems = [each for each in allgather_object("; ".join(differing), "broadcast_optimizer_state.check") if each]
    if problems:
        raise ValueError(f"broadcast_optimizer_state: the optimizers differ: {problems[0]}")
    if not state["state"]:
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each.requires_grad and each.grad is None:
                    each.grad = torch.zeros_like(each)
    received = ([each.detach().cpu() for each in tensors] if is_root
                else [torch.empty(shape, dtype=dtype) for shape, dtype in layouts])
    handles = [mpi_ops._broadcast(each.contiguous(), root_rank, f"broadcast_optimizer_state.{number}")
               for number, each in enumerate(received)]
    made = [mpi_ops.synchronize(handle) for handle in handles]
    if is_root:
        return
    restored = _mapped(lambda value: made[value.number] if isinstance(value, _Place) else value, skeleton)
    for mine, theirs in zip(state["param_groups"], restored["param_groups"]):
        theirs["params"] = mine["params"]
    torch.optim.Optimizer.load_state_dict(optimizer, restored)


class _Place(NamedTuple):
    """Stands for a tensor in what is sent as an object."""

    number: int


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same nested values with change(leaf) for each leaf."""
    if isinstance(value, dict):
        return {key: _mapped(change, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(change, each) for each in value)
    return change(value)
