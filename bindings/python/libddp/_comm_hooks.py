"""Communication hooks: libddp's, which are in C++, and what makes an engine's hook of one of these or of torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from libddp import _adapter, _errors

Hook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]


def _not_wrapped(attempted: str, why: str) -> _errors.Error:
    cause = "the module is not wrapped by libddp.torch.DistributedDataParallel"
    return _errors.problem("invalid_argument", attempted, cause, hint=f"wrap it by that; {why}")


def _in_cpp(name: str, make: Callable[[Any], Any], why: str = "PyTorch's class calls hooks in Python") -> Hook:
    """make(adapter) gives the hook of an engine."""
    def hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        raise _not_wrapped(f"calling {name}", why)

    hook.__name__ = hook.__qualname__ = name
    setattr(hook, "in_cpp", make)
    return hook


def exact_average_hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """For register_comm_hook() of libddp.torch.DistributedDataParallel: the average over all micro-batches of all ranks, those in
    no_sync() included, whose bits depend on the micro-batches alone, not on the number of ranks. Gradients of 2^23 and more, or not
    finite, make their parameter's NaN. Sends 16 bytes for each element."""
    raise _not_wrapped("averaging gradients exactly", "PyTorch's class does not show a hook the gradients of no_sync()")


setattr(exact_average_hook, "in_cpp", lambda adapter: adapter.exact_average_hook())


def power_sgd_hook(rank: int = 1, start_iteration: int = 1000, min_compression_rate: float = 2.0, error_feedback: bool = True,
                   warm_start: bool = True, epsilon: float = 0.0, seed: int = 0) -> Hook:
    """PowerSGD in C++, for register_comm_hook(None, ...) or hvd.DistributedOptimizer(comm_hook=...): the arguments of torch's
    PowerSGDState, equal on all ranks. DistributedDataParallel refuses error_feedback with find_unused_parameters."""
    return _in_cpp("power_sgd_hook", lambda adapter: adapter.power_sgd_hook(
        rank, start_iteration, min_compression_rate, error_feedback, warm_start, epsilon, seed))


def quantize_hook(per_channel: bool = False) -> Hook:
    """Sends 8 bits for each element, as power_sgd_hook() in C++: 255 steps of a bucket's range, or of every 512 elements."""
    return _in_cpp("quantize_hook", lambda adapter: adapter.quantize_hook(per_channel))


def maker(state: Any, hook: Hook) -> Callable[[list[torch.Tensor]], Any]:
    """Makes an engine's hook of the engine's parameters."""
    if (make := getattr(hook, "in_cpp", None)) is not None:
        return lambda _: make(_adapter.load())
    name = f"{hook.__module__}.{getattr(hook, '__qualname__', type(hook).__qualname__)}"
    return lambda tensors: _adapter.load().python_hook(name, state, hook, tensors)
