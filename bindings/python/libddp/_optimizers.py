"""Optimizers that step within backward(), in the hook of each bucket of a libddp.torch.DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import _hook_then_optimizer, _OptimizerHookState
from torch.distributed.optim import apply_optimizer_in_backward, as_functional_optim


def take_over(parameters: Iterable[torch.Tensor]) -> None:
    """What torch.distributed.optim._apply_optimizer_in_backward has given them steps no more by itself: it would take a rank's
    own gradient."""
    handles = apply_optimizer_in_backward.param_to_optim_hook_handle_map
    for parameter in parameters:
        for handle in handles.get(parameter, []):  # type: ignore[no-untyped-call]
            handle.remove()


def step_hook(group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages, then lets those optimizers step, which are the parameters' attributes."""
    def step(averaged: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            optimizers = getattr(parameter, "_in_backward_optimizers", ())
            if optimizers:  # bucket.gradients() takes all memory for row-major
                parameter.grad = gradient.as_strided(parameter.size(), parameter.stride(), gradient.storage_offset())
            for optimizer in optimizers:
                optimizer.step()
        return averaged.value()

    return allreduce_hook(group, bucket).then(step)


def fused_hook(optimizer: type, parameters: list[torch.Tensor] | None, *args: Any, **kwargs: Any) -> Any:
    """torch's: steps of a functional optimizer, of all parameters or of some."""
    state = _OptimizerHookState(as_functional_optim(optimizer, *args, **kwargs), parameters)  # type: ignore[no-untyped-call]
    return _hook_then_optimizer(allreduce_hook, state)
