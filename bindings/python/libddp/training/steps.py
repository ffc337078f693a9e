"""The parts of a DdpTrainer by upstream's names: data to the device, a criterion, a model with its hook, an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from .trainer import DdpTrainer


class BasicHookState:
    """What a hook knows between its calls.

    cref: the trainer. process_group: of the trainers.
    """

    def __init__(self, cref: Any, process_group: dist.ProcessGroup) -> None:
        self.cref, self.process_group = cref, process_group
        self.process_group_size: int = process_group.size()
        """Trainers."""
        self.batch_number = 0
        """Counts iterations, from 1."""
        self.failure: BaseException | None = None
        """The first error of a hook's futures: backward() raises a RuntimeError with its text only."""

    def get_key(self, bucket_index: int) -> str:
        """The metrics' key of a bucket: "batch,bucket"."""
        return f"{self.batch_number},{bucket_index}"

    def next_batch(self) -> None:
        """Before each iteration."""
        self.batch_number += 1


def preprocess_dummy_data(device: Any, data: list[Any]) -> list[Any]:
    """Batches of (inputs, targets), or more tensors, on a device."""
    return [[each.to(device) for each in batch] for batch in data]


def cel(device: Any) -> torch.nn.Module:
    """Cross entropy, of logits."""
    return torch.nn.CrossEntropyLoss().to(device)


def basic_ddp_model(trainer: Any, device: Any, model: torch.nn.Module, process_group: dist.ProcessGroup, hook_state_class: Any,
                    hook: Any) -> tuple[DistributedDataParallel, Any]:
    """torch's DistributedDataParallel with a hook, which gets sparse gradients, too, and the hook's state."""
    ids = [device] if torch.device(device).type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=ids, process_group=process_group)
    state = hook_state_class(trainer, process_group)
    wrapped.register_comm_hook(state, hook)
    return wrapped, state


def basic_iteration_step(trainer: DdpTrainer, wrapped: Any, criterion: Any, optimizer: torch.optim.Optimizer, state: Any, epoch: int,
                         index: int, batch: Any) -> None:
    """Forward, backward, and a step of the optimizer, each measured. If it raises, its metrics end."""
    key = trainer.epoch_key(epoch, index)
    measure = trainer.metrics.measure
    state.next_batch()
    with measure(trainer.BATCH_ALL, trainer.BATCH_LEVEL_METRIC, key):
        optimizer.zero_grad()
        with measure(trainer.FORWARD_PASS, trainer.FORWARD_METRIC, key):
            loss = criterion(wrapped(*batch[:-1]), batch[-1])
        with measure(trainer.BACKWARD, trainer.BACKWARD_METRIC, key):
            try:
                loss.backward()
            except RuntimeError:
                failure = getattr(state, "failure", None)
                if failure is None:
                    raise
                raise failure from None
        optimizer.step()
