"""Modules of the ddp benchmark: parameters of real networks without their computation, and the examples' small networks."""

import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "pytorch"))


def resnet50():
    """Shapes of ResNet-50's 161 parameters, in its order (He et al. 2015, table 1)."""
    def convolution(inputs, outputs, size):
        return [(outputs, inputs, size, size), (outputs,), (outputs,)]  # and its batch norm

    shapes, inputs = convolution(3, 64, 7), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(inputs, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            shapes += convolution(inputs, 4 * width, 1) if block == 0 else []
            inputs = 4 * width
    return [*shapes, (1000, inputs), (1000,)]


def gpt2():
    """Shapes of GPT-2's 148 parameters, 124 million elements, in its order (Radford et al. 2019; the smallest one)."""
    width = 768

    def linear(inputs, outputs):
        return [(inputs, outputs), (outputs,)]

    norm = [(width,), (width,)]
    block = [*norm, *linear(width, 3 * width), *linear(width, width), *norm, *linear(width, 4 * width), *linear(4 * width, width)]
    return [(50257, width), (1024, width), *(12 * block), *norm]


class _Layer(torch.autograd.Function):
    """A layer whose backward pass takes a fixed time on a device of its own: the processor sleeps meanwhile."""

    @staticmethod
    def forward(ctx, state, parameter, owner):
        ctx.shape, ctx.owner = parameter.shape, owner
        return state.clone()

    @staticmethod
    def backward(ctx, state):
        if ctx.owner.pause:
            time.sleep(ctx.owner.pause)
        return state, torch.full(ctx.shape, ctx.owner.gradient), None


class Layers(torch.nn.Module):
    """One _Layer for each of the tensors, whose memory it shares. pause: seconds of each; gradient: its elements' value."""

    def __init__(self, tensors, gradient):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(each) for each in tensors])
        self.pause, self.gradient = 0.0, gradient

    def forward(self, state):
        for parameter in self.tensors:
            state = _Layer.apply(state, parameter, self)
        return state


class Many(torch.nn.Module):
    """Many equal small parameters, whose gradients cost next to nothing."""

    def __init__(self, count):
        super().__init__()
        self.tensors = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(16)) for _ in range(count)])

    def forward(self):
        return torch.stack(list(self.tensors))


def small_network(name, rank):
    """(module, inputs, labels) of an example: equal modules on all ranks, inputs of their own."""
    torch.manual_seed(1)
    own = torch.Generator().manual_seed(rank)
    if name == "ResNet-18":
        from resnet18 import resnet18
        return (resnet18(64), torch.randn(16, 1, 8, 8, generator=own), torch.randint(0, 10, (16,), generator=own))
    from gpt import Gpt
    text = torch.randint(0, 64, (8, 65), generator=own)
    return Gpt(64, context=64, width=128, layers=4, heads=4), text[:, :-1], text[:, 1:].flatten()
