"""Checks for libddp_torch_cuda.py: what PyTorch captures into CUDA graphs over the backend "ddp". On real devices only."""

import copy
import os

import torch
import torch.distributed as dist
from torch_cuda import NUMBER, gpu

from libddp.torch import DistributedDataParallel as Ours

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
COUNT, SAMPLES, STEPS = 1000, 5, 6
WARM_UPS = 11  # as PyTorch's documentation asks for, before a DistributedDataParallel is captured


def same(tensor, *values):
    for part, value in zip(tensor.cpu().chunk(len(values)), values):
        assert (part == value).all(), f"{part[:8]} instead of {value}"


def captured_operations():
    """They become a part of the graph, and each of its launches does them anew."""
    own = gpu.full((COUNT,), RANK + 1, torch.float32, NUMBER)
    everyone = gpu.full((SIZE * COUNT,), -1, torch.float32, NUMBER)
    dist.all_reduce(own.clone())
    dist.all_gather_into_tensor(everyone, own)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = own * 2
        dist.all_reduce(total)
        dist.all_gather_into_tensor(everyone, own)
        work = dist.all_reduce(twice := own + 1, async_op=True)
        behind = total + everyone[:COUNT]
        work.wait()
        behind += twice
    for launch in range(4):
        own.fill_(RANK + launch)
        graph.replay()
        sums = sum(rank + launch for rank in range(SIZE))
        same(everyone, *(rank + launch for rank in range(SIZE)))
        same(behind, 2 * sums + launch + sums + SIZE)
    dist.all_reduce(after := gpu.full((COUNT,), RANK + 1, torch.float32, NUMBER))
    same(after, SIZE * (SIZE + 1) // 2)


def make_net():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)).cuda()


def captured_steps(wrap, in_side=False):
    """Steps whose forward and backward passes are one graph, captured in a stream of its own or in that of the warm-up, beside one
    process that has all samples."""
    samples = [torch.randn(SIZE, SAMPLES, 4, generator=torch.Generator().manual_seed(step)).cuda() for step in range(STEPS)]
    alone = make_net()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        net = copy.deepcopy(alone)
        model = wrap(net, bucket_cap_mb=200 / 2**20, gradient_as_bucket_view=True)
        inputs = samples[0][RANK].clone()
        for _ in range(WARM_UPS):
            net.zero_grad()
            model(inputs).square().mean().backward()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    net.zero_grad()
    with torch.cuda.graph(graph, stream=side if in_side else None):
        model(inputs).square().mean().backward()
    for batch in samples:
        inputs.copy_(batch[RANK])
        graph.replay()
        alone.zero_grad()
        alone(batch.flatten(0, 1)).square().mean().backward()
        with torch.no_grad():
            for one, other in zip(net.parameters(), alone.parameters()):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-7)  # other orders of summation
                one -= 0.1 * one.grad
                other -= 0.1 * other.grad
    torch.cuda.synchronize()


def captured_training():
    captured_steps(Ours)


def captured_torchs_training():
    captured_steps(torch.nn.parallel.DistributedDataParallel, in_side=True)  # whose nodes that add up gradients belong to a stream
