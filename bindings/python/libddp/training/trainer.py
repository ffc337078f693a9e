"""Trainers that measure their steps: TrainerBase and DdpTrainer of PyTorch's parameter server benchmark, on CPUs and CUDA devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from libddp._errors import problem

from .group_server import Server
from .metrics import MetricsLogger, Recording, method_metric
from .rpc_server import RpcServer

_LOGGED_EPOCHS = 5


class TrainerBase(Recording, ABC):
    """Metrics of a trainer. Upstream's names; `cuda` in its methods means: measured in the device's current stream; default: if the
    trainer's device is a CUDA device."""

    BATCH_LEVEL_METRIC = "batch_level_metric"
    """Type of the times of iterations."""
    BATCH_ALL = "batch_all"
    """Name of that metric."""
    FORWARD_METRIC = "forward_metric"
    """Type of the times of forward passes."""
    FORWARD_PASS = "forward_pass"
    """Name of that metric."""
    BACKWARD_METRIC = "backward_metric"
    """Type of the times of backward passes, averages included."""
    BACKWARD = "backward"
    """Name of that metric."""

    def __init__(self, rank: int, device: Any = None) -> None:
        """rank: among the trainers. device: where it trains; default: the CPU."""
        self.metrics = MetricsLogger(rank, device)

    @abstractmethod
    def train(self, model: torch.nn.Module, data: list[Any]) -> None:
        """Trains the model."""

    def record_batch_start(self, key: Hashable, cuda: bool | None = None) -> None:
        """At the start of an iteration."""
        self.record_start(self.BATCH_LEVEL_METRIC, key, self.BATCH_ALL, cuda)

    def record_batch_end(self, key: Hashable) -> None:
        """At the end of an iteration."""
        self.record_end(self.BATCH_LEVEL_METRIC, key)

    def record_forward_start(self, key: Hashable, cuda: bool | None = None) -> None:
        """Before the forward pass."""
        self.record_start(self.FORWARD_METRIC, key, self.FORWARD_PASS, cuda)

    def record_forward_end(self, key: Hashable) -> None:
        """After the forward pass."""
        self.record_end(self.FORWARD_METRIC, key)

    def record_backward_start(self, key: Hashable, cuda: bool | None = None) -> None:
        """Before the backward pass."""
        self.record_start(self.BACKWARD_METRIC, key, self.BACKWARD, cuda)

    def record_backward_end(self, key: Hashable) -> None:
        """After the backward pass, averages included."""
        self.record_end(self.BACKWARD_METRIC, key)

    methodmetric = staticmethod(method_metric)
    """Decorates a method: each call is a metric, which ends also if the method raises."""


class DdpTrainer(TrainerBase):
    """Trains with DistributedDataParallel and a gradient hook. Make it and call train() on all ranks of `process_group`.

    process_group: of torch.distributed, of the trainers. use_cuda_rpc: whether CUDA gradients go to an RPC server as they are, by
    device maps of the program's. server_rref: the server: GroupServer, RpcServer, an RRef, or None for hooks without one. backend: its name in metrics.
    epochs: passes over the data. preprocess_data(device, data), create_criterion(device),
    create_ddp_model(trainer, device, model, process_group, hook_state_class, hook) -> (module, state),
    hook_state_class(trainer, process_group), hook(state, bucket),
    iteration_step(trainer, module, criterion, optimizer, state, epoch, index, batch): the parts, as upstream's, which got a rank in
    place of the device. device: where it trains; default: the CPU. optimizer(parameters): default: SGD with a rate of 1e-4.
    log(text): default: print, on rank 0.
    """

    def __init__(self, process_group: dist.ProcessGroup, use_cuda_rpc: bool, server_rref: Any, backend: str, epochs: int,
                 preprocess_data: Callable[..., Any], create_criterion: Callable[..., Any], create_ddp_model: Callable[..., Any],
                 hook_state_class: Callable[..., Any], hook: Callable[..., Any], iteration_step: Callable[..., None], *,
                 device: Any = None, optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer] | None = None,
                 log: Callable[[str], object] | None = None) -> None:
        self.rank, self.trainer_count = process_group.rank(), process_group.size()
        self.device = torch.device("cpu" if device is None else device)
        super().__init__(self.rank, self.device)
        self.process_group, self.use_cuda_rpc, self.backend, self.epochs = process_group, use_cuda_rpc, backend, epochs
        self.server_rref = server_rref
        self.server: Server | None = (RpcServer(server_rref, self.rank) if server_rref is not None
                                      and not hasattr(server_rref, "average_gradient") else server_rref)
        self.preprocess_data, self.create_criterion, self.create_ddp_model = preprocess_data, create_criterion, create_ddp_model
        self.hook_state_class, self.hook, self.iteration_step = hook_state_class, hook, iteration_step
        self._optimizer = optimizer or (lambda parameters: torch.optim.SGD(parameters, 1e-4))
        self._log = log or (print if self.rank == 0 else lambda text: None)

    def epoch_key(self, epoch: int, index: int) -> str:
        """The metrics' key of an iteration."""
        return f"{epoch},{index}"

    def train(self, model: torch.nn.Module, data: list[Any]) -> None:
        """Trains the model, which moves to the device, on this rank's batches. Ranks may have different numbers of batches: those without
        repeat their last one with a loss of zero, which is not measured, so that the others' averages are complete, and all take the
        same steps. Collective.

        Raises InvalidArgument on all ranks if a rank has none, and libddp.Error if a parameter server or rank fails.
        """
        counts: list[Any] = [None] * self.trainer_count
        dist.all_gather_object(counts, len(data), group=self.process_group)
        empty = [rank for rank, count in enumerate(counts) if not count]
        if empty:
            raise problem("invalid_argument", "training", f"trainers {', '.join(map(str, empty))} have no batches",
                          [dist.get_global_rank(self.process_group, rank) for rank in empty], "give each trainer a batch at least")
        model = model.to(self.device)
        data = self.preprocess_data(self.device, data)
        criterion = self.create_criterion(self.device)
        wrapped, state = self.create_ddp_model(self, self.device, model, self.process_group, self.hook_state_class, self.hook)
        optimizer = self._optimizer(wrapped.parameters())
        for epoch in range(self.epochs):
            if epoch % _LOGGED_EPOCHS == 0:
                self._log(f"train epoch={epoch}")
            for index, batch in enumerate(data):
                self.iteration_step(self, wrapped, criterion, optimizer, state, epoch, index, batch)
            own, self.metrics = self.metrics, MetricsLogger(self.rank, self.device)
            try:
                for index in range(len(data), max(counts)):
                    self.iteration_step(self, wrapped, _zero(criterion), optimizer, state, epoch, index, data[-1])
            finally:
                self.metrics = own
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _zero(criterion: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """With the gradients of no loss."""
    return lambda *given: torch.nan_to_num(criterion(*given)) * 0
