"""Checks for libddp_torch_cuda.py: libddp.torch.DistributedDataParallel of a module on a CUDA device trains as it does on the
CPU."""

import contextlib
import ctypes
import itertools
import os
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import _apply_optimizer_in_backward
from torch.distributed.tensor import DeviceMesh
from torch.nn.parallel import DistributedDataParallel as Theirs
from torch.nn.parallel.distributed import _MixedPrecision
from torch_cuda import NUMBER, gpu, streams_for_sharding

import libddp.torch
from libddp.torch import DistributedDataParallel as Ours

RANK = int(os.environ["RANK"])
STEPS, SAMPLES = 6, 5
SMALL_BUCKETS = {"bucket_cap_mb": 200 / 2**20}  # bytes
MODES = [{}, SMALL_BUCKETS, {**SMALL_BUCKETS, "gradient_as_bucket_view": True}, {"device_ids": [NUMBER]},
         {**SMALL_BUCKETS, "find_unused_parameters": True},
         {**SMALL_BUCKETS, "find_unused_parameters": True, "gradient_as_bucket_view": True},
         {**SMALL_BUCKETS, "static_graph": True}]


streams = itertools.count()


class Net(torch.nn.Module):
    def __init__(self, branches):
        super().__init__()
        self.first, self.left, self.right = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)
        self.branches = branches
        self.step = 0
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.step += 1
        with torch.no_grad():
            self.seen += x.mean(0)
        hidden = torch.tanh(self.first(x + self.seen))
        if not self.branches:
            return self.left(hidden) + self.right(hidden)
        return (self.left if (self.step + RANK) % 3 else self.right)(hidden)


def moved(tensor):
    there = gpu.full(tensor.shape, 0, tensor.dtype, NUMBER)
    with torch.no_grad():
        return there.copy_(tensor)


def move(module):
    for part in module.modules():
        for name, each in part.named_parameters(recurse=False):
            setattr(part, name, torch.nn.Parameter(moved(each)))
        for name, each in part.named_buffers(recurse=False):
            setattr(part, name, moved(each))
    return module


class Words(torch.nn.Module):
    """Embeddings with sparse gradients, of rows that ranks and steps do not share, beside a dense layer."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(9, 4, sparse=True)
        self.head = torch.nn.Linear(4, 2)
        self.step = 0

    def forward(self, x):
        self.step += 1
        few = [(3 * self.step + 2 * RANK + i * i) % 9 for i in range((self.step + RANK) % 4)]
        words = torch.tensor(few, dtype=torch.int64)
        return self.head(self.words(words if x.device.type == "cpu" else moved(words)).sum(0) + x)


def trained(on_device, accumulate=1, hook=None, net=None, wrap=Ours, within=None, **options):
    """Parameters, buffers and the last gradients, of the CPU. hook(model) and within(module) register what there is to."""
    torch.manual_seed(5 + RANK)  # rank 0's parameters are taken
    net, number = net() if net else Net("find_unused_parameters" in options), next(streams)
    kept = []
    if on_device:
        gpu.use_stream(NUMBER, 3)
        move(net)
        if number % 4 == 0:  # autograd accumulates gradients in the stream that sees a parameter first
            kept = [each.expand_as(each) for each in net.parameters()]
        next(net.parameters()).cpu()
        gpu.use_stream(NUMBER, 4 * (number // 2 % 3 % 2))
    if within is not None:
        within(net)
    model = wrap(net, **options)
    if hook is not None:
        hook(model)
    if on_device:  # the steps in another stream than that of all before
        next(model.parameters()).cpu()
        gpu.use_stream(NUMBER, 1 + number // 2 % 2)
    generator = torch.Generator().manual_seed(100 + RANK)
    # ahead, since the host waits for copies of its memory
    inputs = [torch.randn(SAMPLES, 4, generator=generator) for _ in range(STEPS * accumulate)]
    batches = iter([moved(each) for each in inputs] if on_device else inputs)
    for _ in range(STEPS):
        for each in model.parameters():
            if each.grad is not None and options.get("gradient_as_bucket_view") and not each.grad.is_sparse:
                each.grad.zero_()
            else:
                each.grad = None
        for part in range(accumulate):
            with contextlib.nullcontext() if part == accumulate - 1 else model.no_sync():
                output = model(next(batches))
                (output * output).mean().backward()
        with torch.no_grad():
            for each in model.parameters():
                if each.grad is not None:
                    each -= 0.1 * (each.grad.to_dense() if each.grad.is_sparse else each.grad)
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    gradients = {f"gradient of {name}": (each.grad.to_dense() if each.grad.is_sparse else each.grad).cpu()
                 for name, each in model.named_parameters() if each.grad is not None}
    del kept
    return {**state, **gradients}


def same(one, other, what, tolerance=1e-6):
    assert one.keys() == other.keys(), f"{what}: {one.keys() ^ other.keys()}"
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=10 * tolerance, atol=tolerance, msg=lambda text, name=name: f"{what}, {name}: {text}")


def training():
    for options in MODES:
        on_host = {name: value for name, value in options.items() if name != "device_ids"}
        same(trained(True, **options), trained(False, **on_host), f"with {options}")
    same(trained(True, 3, **SMALL_BUCKETS), trained(False, 3, **SMALL_BUCKETS), "accumulated")
    half = {"mixed_precision": _MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)}
    same(trained(True, **half), trained(False, **half), f"with {half}", 1e-2)
    half = {"hook": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)}
    same(trained(True, **half), trained(False, **half), "in half precision", 1e-3)
    beside = dist.new_group(backend="gloo")  # gets a group of libddp beside it
    same(trained(True, process_group=beside), trained(False), "beside gloo")


def sparse_training():
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}):
        same(trained(True, net=Words, **options), trained(False, net=Words, **options), f"sparse gradients with {options}")
    same(trained(True, 3, net=Words), trained(False, 3, net=Words), "accumulated sparse gradients")


def averaged(_, bucket):
    """Its future is no operation's."""
    dist.all_reduce(bucket.buffer().div_(dist.get_world_size()))
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def with_momentum(kept, bucket):
    """Keeps tensors from step to step, and starts an operation when another ends. Its result has memory of its own."""
    key = bucket.index(), bucket.buffer().numel()  # buckets are made anew behind the first step
    kept[key] = bucket.buffer() + kept.get(key, 0) / 2

    def again(done):
        total = done.value()[0] / dist.get_world_size() ** 2
        dist.all_reduce(total, async_op=True).get_future().wait()
        return total

    return dist.all_reduce(kept[key].clone(), async_op=True).get_future().then(again)


def hooks():
    def registered(hook, state=lambda: None):
        return lambda model: model.register_comm_hook(state(), hook)

    def power_sgd():
        return powerSGD_hook.PowerSGDState(process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2,
                                           min_compression_rate=1)

    view = {"gradient_as_bucket_view": True}
    for hook, tolerance, options in (
            (registered(default_hooks.allreduce_hook), 1e-6, view), (registered(averaged), 1e-6, {}),
            (registered(with_momentum, dict), 1e-6, {}), (registered(with_momentum, dict), 1e-6, view),
            (registered(default_hooks.fp16_compress_hook), 1e-3, {}), (registered(powerSGD_hook.powerSGD_hook, power_sgd), 1e-3, {})):
        options = {**SMALL_BUCKETS, **options}
        on_device = trained(True, hook=hook, **options)
        with mock.patch.object(torch.cuda, "is_available", lambda: False):  # else torch's PowerSGD takes tensors of the CPU for CUDA's
            on_host = trained(False, hook=hook, **options)
        same(on_device, on_host, "with a hook", tolerance)

    def stepping(module):
        _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05, "momentum": 0.5})

    def fused(model):
        model._register_fused_optim(torch.optim.Adam, lr=0.02)

    for within in ({"within": stepping}, {"hook": fused}):
        same(trained(True, **SMALL_BUCKETS, **within), trained(False, **SMALL_BUCKETS, **within), f"optimizers in backward: {within}")


def torchs_training():
    """torch's own class, over the backend "ddp"."""
    for options in MODES[2:4] + MODES[5:]:
        on_host = {name: value for name, value in options.items() if name != "device_ids"}
        same(trained(True, wrap=Theirs, **options), trained(False, wrap=Theirs, **on_host), f"torch's class with {options}")


def sharded(on_device):
    """Parameters and the last gradients of torch's FSDP2, whole."""
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5))
    if on_device:
        gpu.use_stream(NUMBER, 1)
        move(net)
    mesh = DeviceMesh("cuda" if on_device else "cpu", list(range(dist.get_world_size())))
    for part in (net[0], net[2], net):
        fully_shard(part, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
    generator = torch.Generator().manual_seed(100 + RANK)
    inputs = [torch.randn(SAMPLES, 4, generator=generator) for _ in range(STEPS)]
    for each in [moved(each) for each in inputs] if on_device else inputs:
        optimizer.zero_grad()
        output = net(each)
        (output * output).mean().backward()
        optimizer.step()
    state = {name: each.full_tensor().cpu() for name, each in net.state_dict().items()}
    return {**state, **{f"gradient of {name}": each.grad.full_tensor().cpu() for name, each in net.named_parameters()}}


def sharded_training():
    with streams_for_sharding():
        on_device = sharded(True)
    same(on_device, sharded(False), "sharded")


class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.full((16,), float(i % 7)) for i in range(1000))

    def forward(self):
        return torch.stack(list(self.parts)).pow(2)


def work_of_step(zeroes, wrap):
    """What a step after the first ones puts into streams: PyTorch's work, libddp's launches, copies, fillings; and its buckets."""
    calls = ctypes.CDLL(os.environ["DDP_CUDA_LIBRARY"]).fake_cuda_call_count
    calls.restype = ctypes.c_long

    def counts():
        return gpu.enqueued(), *(calls(name) for name in (b"cuLaunchKernel", b"cuMemcpyAsync", b"cuMemsetD8Async"))

    net = move(Many())
    model = wrap(net)
    for _ in range(4):
        net.zero_grad(set_to_none=not zeroes)
        before = counts()
        model().sum().backward()
        counted = [now - then for now, then in zip(counts(), before)]
    expected = [torch.full((16,), 2.0 * (i % 7)) for i in range(1000)]
    assert all(torch.equal(each.grad.cpu(), wanted) for each, wanted in zip(net.parameters(), expected))
    return counted, len(model._get_ddp_logging_data()["buckets"]) if model is not net else 0


def launches():
    """A bucket's gradients move by one launch, there and, where they do not live in it, back."""
    gpu.use_stream(NUMBER, 1)
    plain = {}
    for zeroes in False, True:
        (plain[zeroes], *none), _ = work_of_step(zeroes, lambda net: net)
        assert none == [0, 0, 0], none
    view = {"gradient_as_bucket_view": True}
    for options, zeroes, a_bucket in (({}, False, 2), (view, False, 1), (view, True, 0), ({**view, "static_graph": True}, False, 1)):
        (work, launched, copied, filled), buckets = work_of_step(zeroes, lambda net: Ours(net, bucket_cap_mb=160 * 64 / 2**20, **options))
        assert buckets == 7, buckets
        assert (work, launched, copied, filled) == (plain[zeroes], a_bucket * buckets, 0, 0), (options, zeroes, work, plain, launched, copied, filled)
    # 1,000 gradients in one bucket, 168 a launch
    for options, zeroes, expected in (({}, False, 12), (view, False, 6), (view, True, 0)):
        (work, launched, copied, filled), buckets = work_of_step(zeroes, lambda net: Ours(net, **options))
        assert buckets == 1, buckets
        assert (work, launched, copied, filled) == (plain[zeroes], expected, 0, 0), (options, zeroes, work, plain, launched, copied, filled)


def refused_training():
    for what, kind, words in (
            (lambda: trained(True, device_ids=[1 - NUMBER]), ValueError, f"the module is on cuda:{NUMBER}"),
            (lambda: Ours(torch.nn.ParameterList([torch.zeros(2), moved(torch.zeros(2))])),
             ValueError, f"is on ['cpu', 'cuda:{NUMBER}']")):
        try:
            what()
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"no error that says {words}")
