"""The parts of a DdpTrainer by upstream's names: data to the device, a criterion, a model with its hook, an iteration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import exact_sums

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


class ExactHookState(BasicHookState):
    """The state of exact_rpc_hook. micro_batches: backward passes of each iteration of this trainer, none of them in no_sync(); call
    next_batch() before the first one."""

    def __init__(self, cref: Any, process_group: dist.ProcessGroup, micro_batches: int = 1) -> None:
        super().__init__(cref, process_group)
        self.micro_batches = micro_batches
        """Backward passes of an iteration."""
        # by parameter, since buckets may be rebuilt between two micro-batches: words and terms
        self._sums: dict[int, tuple[torch.Tensor, int]] = {}

    def add(self, bucket: Any) -> int:
        """Adds its gradients to the sums. Their terms."""
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
            words, terms = self._sums.get(id(parameter)) or (exact_sums.zeros(gradient.numel(), gradient.device), 0)
            exact_sums.add_term(words, gradient)
            self._sums[id(parameter)] = words, terms + 1
        return terms + 1

    def take(self, bucket: Any, terms: int) -> torch.Tensor:
        """The sums of its parameters, then the number of their terms, as a message."""
        words = [self._sums.pop(id(parameter))[0] for parameter in bucket.parameters()]
        return torch.cat([*words, words[0].new_tensor([terms])])

    @staticmethod
    def means(bucket: Any, message: torch.Tensor) -> torch.Tensor:
        """A bucket's averages, of the messages of all trainers, added."""
        terms, buffer = int(message[-1]), bucket.buffer()
        if terms > exact_sums.MOST_TERMS:
            raise ValueError(f"{terms} micro-batches in one average; exact sums have room for {exact_sums.MOST_TERMS}")
        sizes = [2 * each.numel() + 1 for each in bucket.gradients()]
        return torch.cat([exact_sums.mean_of(words, terms, buffer.dtype) for words in torch.split(message[:-1], sizes)])


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
