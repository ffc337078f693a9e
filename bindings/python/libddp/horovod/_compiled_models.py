"""Compiled models beside DistributedOptimizer: torch.compile cuts their graphs at buckets' ends, so that the exchange of the first
gradients overlaps with the rest of the backward pass. Uncut, a compiled pass hands over all gradients at its end.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_CAP = 25 << 20  # DistributedDataParallel's


class _Buckets:
    """What torch.compile takes for the module of DistributedDataParallel whose forward pass runs. Around a model of an optimizer
    there is none; so it stands for all of the process's models that are compiled with gradients, while there is an optimizer."""

    def __init__(self) -> None:
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, optimizer: Any) -> None:
        self._optimizers.add(optimizer)

    def __bool__(self) -> bool:
        return torch.is_grad_enabled() and any(each._engines for each in self._optimizers)

    @property
    def bucket_bytes_cap(self) -> int:
        caps = [each._cap for each in self._optimizers if each._cap is not None]
        return int(max(min(caps, default=_CAP), getattr(dist, "_DEFAULT_FIRST_BUCKET_BYTES")))


_buckets = _Buckets()


def cut_by(optimizer: Any) -> None:
    """From now on, while the optimizer exchanges gradients."""
    _buckets.add(optimizer)
    if DistributedDataParallel._active_ddp_module is None:
        DistributedDataParallel._active_ddp_module = _buckets  # type: ignore[assignment]
