"""BatchNorm over the samples of all ranks, on any device, for batches of unequal sizes, too."""

from __future__ import annotations

import itertools
from typing import Any, cast

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from libddp.horovod import _job, _operations, mpi_ops

_numbers = itertools.count()  # equal on all ranks, which make the same layers


def _over_channels(values: torch.Tensor) -> torch.Tensor:
    """Sums over all but the second dimension, in float64."""
    return values.double().sum([each for each in range(values.dim()) if each != 1])


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, weight: Any, bias: Any, layer: SyncBatchNorm) -> torch.Tensor:
        count = values.new_full((1,), values.numel() // max(values.size(1), 1), dtype=torch.float64)
        own = torch.cat([count, _over_channels(values), _over_channels(values.double().square())])
        everyone = mpi_ops.allreduce(own, op=mpi_ops.Sum, name=f"SyncBatchNorm.{layer._number}.forward")
        total, channels = everyone[0], values.size(1)
        mean = everyone[1:channels + 1] / total
        variance = (everyone[channels + 1:] / total - mean.square()).clamp_(min=0.0)
        layer._update(mean, variance, total)
        shape = [1, channels] + [1] * (values.dim() - 2)
        inverse = (variance + layer.eps).rsqrt()
        normalized = ((values.double() - mean.view(shape)) * inverse.view(shape)).to(values.dtype)
        ctx.save_for_backward(normalized, weight, inverse, total)
        ctx.layer, ctx.shape = layer, shape
        if weight is None:
            return normalized
        return cast(torch.Tensor, normalized * weight.view(shape) + bias.view(shape))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        normalized, weight, inverse, total = ctx.saved_tensors
        gradient, shape = gradients[0], ctx.shape
        of_bias, of_weight = _over_channels(gradient), _over_channels(gradient * normalized)
        sums = mpi_ops.allreduce(torch.cat([of_bias, of_weight]), op=mpi_ops.Sum, name=f"SyncBatchNorm.{ctx.layer._number}.backward")
        half = sums.numel() // 2
        centred = gradient.double() - (sums[:half] / total).view(shape) - normalized.double() * (sums[half:] / total).view(shape)
        scale = inverse if weight is None else inverse * weight.double()
        made = (centred * scale.view(shape)).to(gradient.dtype)
        if weight is None:
            return made, None, None, None
        return made, of_weight.to(weight.dtype), of_bias.to(weight.dtype), None


class SyncBatchNorm(_BatchNorm):
    """As torch.nn.BatchNorm over all ranks' samples together, gradients included. Input (N, C, ...), of two dimensions or more."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._number = next(_numbers)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")

    @torch.no_grad()
    def _update(self, mean: torch.Tensor, variance: torch.Tensor, total: torch.Tensor) -> None:
        if not self.track_running_stats or self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (total / (total - 1).clamp(min=1.0))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(input)
        if not (self.training or self.running_mean is None) or _job.size() == 1:
            return super().forward(input)
        return cast(torch.Tensor, _operations.apply(_Normalize, input, self.weight, self.bias, self))
