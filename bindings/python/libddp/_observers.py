"""Programs that follow a training program from within, such as libddp.training.advise, learn here what averages its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

observers: list[Callable[[Any], None]] = []
"""Each gets every DistributedDataParallel and hvd.DistributedOptimizer once it is made, on all ranks in the same order."""


def announce(made: Any) -> None:
    for observer in observers:
        observer(made)
