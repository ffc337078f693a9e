"""What trials change: the settings of a DistributedDataParallel or an hvd.DistributedOptimizer, tried on the running program."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

MiB = 1 << 20
_CAPS = (5, 10, 50, 100)  # MiB; the default is 25, with a first bucket of 1
_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
_SAMPLED = 100  # one of so many steps is logged, without trials
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
SAME, ROUNDED, APPROXIMATE, LARGER = "same", "rounded gradients", "approximate gradients", "larger batch"


@dataclasses.dataclass(frozen=True)
class Setting:
    """One trial. The defaults are the program's own settings."""

    name: str
    lines: tuple[str, ...] = ()
    """What to write in the program."""
    result: str = SAME
    """What becomes of the training's result."""
    cap: int | None = None
    """Limit of a bucket, in bytes."""
    view: bool | None = None
    hook: str | None = None
    """fp16, bf16 or PowerSGD."""
    passes: int = 1
    """Batches for each step of the optimizer."""
    exchanges: bool = True
    """False: gradients stay the rank's own."""


CURRENT = Setting("current settings")
ALONE = Setting("without exchange: the limit", exchanges=False)


def _caps(bytes_of_gradients: int) -> list[int]:
    """Limits that give different buckets: of those that hold all gradients, the smallest."""
    whole = [cap for cap in _CAPS if cap * MiB >= bytes_of_gradients][:1]
    return [cap for cap in _CAPS if cap * MiB < bytes_of_gradients] + whole


class Target:
    """What averages the program's gradients. All calls but log() are collective over its ranks."""

    parameters: list[torch.Tensor]
    refusal = ""
    """Why its settings cannot be changed while it trains."""

    def settings(self) -> list[Setting]:
        """Those that can be tried, in the same order on all ranks."""
        raise NotImplementedError

    def apply(self, setting: Setting) -> None:
        """Makes new engines, between two steps."""
        raise NotImplementedError

    def exchange_batch(self, last: bool) -> None:
        """Whether the next batch is the last one before a step of the optimizer, while a setting has several passes."""

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks that still train."""
        raise NotImplementedError

    def engines(self) -> list[Any]:
        raise NotImplementedError

    @property
    def size(self) -> int:
        raise NotImplementedError

    @property
    def rank(self) -> int:
        raise NotImplementedError

    def release(self) -> None:
        """Back to the program's own settings, for the rest of the training."""
        raise NotImplementedError

    def exposed(self, seen: dict[int, int]) -> float:
        """Seconds of the exchanges that were not hidden in the backward pass, of the steps that are not in `seen`, which holds
        the last step by engine."""
        seconds = 0.0
        for number, engine in enumerate(self.engines()):
            log = json.loads(engine.log())
            if log["iteration"] != seen.get(number):
                seen[number] = log["iteration"]
                seconds += max(log["backward_comm_time"] - log["backward_compute_comm_overlap_time"], 0) / 1e9
        return seconds

    @property
    def device(self) -> torch.device:
        return self.parameters[0].device

    @property
    def gradient_bytes(self) -> int:
        return sum(each.numel() * each.element_size() for each in self.parameters if each.requires_grad)

    def _compressible(self) -> bool:
        return all(each.dtype in (torch.float32, torch.float64) for each in self.parameters if each.requires_grad)


class ParallelModel(Target):
    """A libddp.torch.DistributedDataParallel."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.parameters = list(model.parameters())
        self._own: dict[str, Any] = {}
        model._sample_rate = 1  # each step is logged
        model._remake(model._make_hook)

    def settings(self) -> list[Setting]:
        model, found = self.model, []
        if self.size == 1:
            self.refusal = "there is one rank, which exchanges nothing"
        elif model._dropped:
            self.refusal = "its optimizers step within backward()"
        if self.refusal:
            return []
        if not model._comm_hooks and model.mixed_precision is None:
            found += [Setting(f"buckets of {cap} MiB", (f"DistributedDataParallel(..., bucket_cap_mb={cap})",), cap=cap * MiB)
                      for cap in _caps(self.gradient_bytes)]
            if not model.gradient_as_bucket_view:
                found.append(Setting("gradient_as_bucket_view", ("DistributedDataParallel(..., gradient_as_bucket_view=True)",), view=True))
            if self._compressible():
                found += [Setting(f"{kind} gradients in the exchange", (
                    f"from {_HOOKS}.default_hooks import {kind}_compress_hook",
                    f"model.register_comm_hook(None, {kind}_compress_hook)"), ROUNDED, hook=kind) for kind in ("fp16", "bf16")]
                found.append(Setting("PowerSGD, rank 1", (
                    f"from {_HOOKS}.powerSGD_hook import PowerSGDState, powerSGD_hook",
                    "model.register_comm_hook(PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2), powerSGD_hook)"),
                    APPROXIMATE, hook="PowerSGD"))
        found += [Setting(f"accumulation of {passes} batches", (
            f"with model.no_sync():  # around forward and backward of all but every {passes}th batch" if passes > 2 else
            "with model.no_sync():  # around forward and backward of every other batch",
            f"step() and zero_grad() after {passes} batches"), LARGER, passes=passes) for passes in (2, 4)]
        return found

    def apply(self, setting: Setting) -> None:
        model = self.model
        if not self._own:
            self._own = {"_cap": model._cap, "_caps": model._caps, "gradient_as_bucket_view": model.gradient_as_bucket_view,
                         "_make_hook": model._make_hook, "require_backward_grad_sync": model.require_backward_grad_sync}
        for name, value in self._own.items():
            setattr(model, name, value)
        if setting.cap is not None:
            model._cap, model._caps = setting.cap, []
        if setting.view is not None:
            model.gradient_as_bucket_view = setting.view
        model._remake(self._made_hook(setting.hook) if setting.hook else self._own["_make_hook"])
        model.require_backward_grad_sync = setting.exchanges

    def _made_hook(self, kind: str) -> Callable[[list[torch.Tensor]], Any]:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        from libddp import _adapter
        group = self.model.process_group
        state, hook = {
            "fp16": lambda: (group, default_hooks.fp16_compress_hook), "bf16": lambda: (group, default_hooks.bf16_compress_hook),
            "PowerSGD": lambda: (powerSGD_hook.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2),
                                 powerSGD_hook.powerSGD_hook)}[kind]()  # type: ignore[no-untyped-call]
        return lambda tensors: _adapter.load().python_hook(f"{hook.__module__}.{hook.__qualname__}", state, hook, tensors)

    def exchange_batch(self, last: bool) -> None:
        self.model.require_backward_grad_sync = last

    def gather(self, value: Any) -> list[Any]:
        found: list[Any] = [None] * dist.get_world_size(self.model.process_group)
        dist.all_gather_object(found, value, group=self.model.process_group)
        return found

    def engines(self) -> list[Any]:
        return [self.model._averager]

    @property
    def size(self) -> int:
        return dist.get_world_size(self.model.process_group)

    @property
    def rank(self) -> int:
        return dist.get_rank(self.model.process_group)

    def release(self) -> None:
        self.model._sample_rate = _SAMPLED
        self.apply(CURRENT)


class WrappedOptimizer(Target):
    """An hvd.DistributedOptimizer over all ranks."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.parameters = [each for group in optimizer.param_groups for each in group["params"]]
        self._own: dict[str, Any] = {}
        self._threshold = os.environ.get(_THRESHOLD)
        optimizer._sample_rate = 1
        optimizer._make_engines()

    def settings(self) -> list[Setting]:
        from libddp.horovod.compression import Compression
        from libddp.horovod.mpi_ops import Average
        optimizer, found = self.optimizer, []
        if not optimizer._engines:
            self.refusal = "there is one rank, which exchanges nothing"
            return []
        found += [Setting(f"buckets of {cap} MiB", (f"{_THRESHOLD}={cap * MiB} in the environment",), cap=cap * MiB)
                  for cap in _caps(self.gradient_bytes)]
        if (optimizer.op == Average and optimizer._compression is Compression.none and self._compressible()
                and not optimizer._sparse(self.parameters)):
            found += [Setting(f"{kind} gradients in the exchange", (f"hvd.DistributedOptimizer(..., compression=hvd.Compression.{kind})",),
                              ROUNDED, hook=kind) for kind in ("fp16", "bf16")]
        own = optimizer.backward_passes_per_step
        found += [Setting(f"accumulation of {passes} batches", (
            f"hvd.DistributedOptimizer(..., backward_passes_per_step={passes * own})", f"step() and zero_grad() after {passes * own} batches"),
            LARGER, passes=passes) for passes in (2, 4)]
        return found

    def apply(self, setting: Setting) -> None:
        from libddp.horovod.compression import Compression
        optimizer = self.optimizer
        if not self._own:
            self._own = {"_compression": optimizer._compression, "backward_passes_per_step": optimizer.backward_passes_per_step,
                         "_should_skip": optimizer._should_skip}
        vars(optimizer).update(self._own)
        if setting.hook is not None:
            optimizer._compression = getattr(Compression, setting.hook)
        if setting.cap is not None:
            os.environ[_THRESHOLD] = str(setting.cap)
        elif self._threshold is None:
            os.environ.pop(_THRESHOLD, None)
        else:
            os.environ[_THRESHOLD] = self._threshold
        optimizer.backward_passes_per_step *= setting.passes
        optimizer._make_engines()
        if not setting.exchanges:
            optimizer._should_skip = True
            for engine in optimizer._engines:
                engine.begin_by_gradients(1 << 62, True)

    def gather(self, value: Any) -> list[Any]:
        from libddp.horovod.functions import allgather_object
        try:
            return list(allgather_object(value, name="libddp.training.advise"))
        except EOFError:  # of a rank that has joined
            return [value]

    def engines(self) -> list[Any]:
        return list(self.optimizer._engines)

    @property
    def size(self) -> int:
        return int(self.optimizer.process_set.size() or 1)

    @property
    def rank(self) -> int:
        return int(self.optimizer.process_set.rank() or 0)

    def release(self) -> None:
        self.optimizer._sample_rate = _SAMPLED
        self.apply(CURRENT)


def target_of(made: Any) -> Target | None:
    """None: it is one over some of the ranks only, or another thing."""
    from libddp._data_parallel import DistributedDataParallel
    if isinstance(made, DistributedDataParallel):
        return ParallelModel(made)
    from libddp.horovod.process_sets import global_process_set
    return WrappedOptimizer(made) if made.process_set is global_process_set else None
