"""Checks for libddp_torch_parallel.py: hooks that start operations from callbacks, mixed precision, logs, loaders, memory."""

import gc
import json
import os
import re
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Theirs
from torch.nn.parallel.distributed import _BufferCommHookLocation, _MixedPrecision

from libddp.torch import DistributedDataParallel as Ours
from libddp_torch_training import Convolutions, assert_same, error_of, trained


class Square(torch.nn.Module):
    """Whose weights are worth PowerSGD's compression; ranks compute their gradients at times of their own."""

    def __init__(self, late=None):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(48, 48) for _ in range(4)))
        for number, layer in enumerate(self.layers if late is not None else ()):
            layer.weight.register_hook(lambda _, number=number: time.sleep(0.01 * ((number + late) % 2)))

    def forward(self, x):
        return self.layers(x)

    def inputs(self, generator):
        return torch.randn(4, 48, generator=generator)


def power_sgd():
    """torch's hook starts operations when others end. In torch's class it waits for each bucket here, else it would mismatch."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def one_by_one(state, bucket):
        future = powerSGD_hook.powerSGD_hook(state, bucket)
        future.wait()
        return future

    def wrapped(wrap, hook):
        def made(net):
            model = wrap(net, bucket_cap_mb=0.01)
            model.register_comm_hook(powerSGD_hook.PowerSGDState(
                process_group=None, matrix_approximation_rank=2, start_powerSGD_iter=3), hook)
            return model
        return made

    theirs = trained(Square, wrapped(Theirs, one_by_one), steps=7)
    ours = trained(lambda: Square(dist.get_rank()), wrapped(Ours, powerSGD_hook.powerSGD_hook), steps=7)
    assert_same(ours, theirs)


class Casting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 3)
        self.register_buffer("count", torch.ones(2))
        self.seen = set()

    def forward(self, x):
        self.seen |= {x.dtype, self.layer.weight.dtype}
        return self.layer(x)


def mixed_precision():
    torch.manual_seed(3)
    types = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.float64)
    model = Ours(Casting(), mixed_precision=types)
    reference = torch.nn.Linear(5, 3)
    reference.load_state_dict(model.module.layer.state_dict())
    reference.bfloat16()
    for step in range(3):
        inputs = torch.full((2, 5), 0.3 + dist.get_rank() + step)
        model.zero_grad()
        reference.zero_grad()
        output = model(inputs)
        assert output.dtype == torch.bfloat16 and model.module.layer.weight.dtype == torch.float32
        output.float().square().sum().backward()
        reference(inputs.bfloat16()).float().square().sum().backward()
        expected = reference.weight.grad.float()
        dist.all_reduce(expected, dist.ReduceOp.AVG)
        assert model.module.layer.weight.grad.dtype == torch.float32
        torch.testing.assert_close(model.module.layer.weight.grad, expected, rtol=1e-6, atol=0)
    assert model.module.seen == {torch.bfloat16} and model.module.count.dtype == torch.float64
    error_of(ValueError, "param_dtype", lambda: Ours(Casting(), mixed_precision=_MixedPrecision(param_dtype=torch.int32)))


def mixed_types():
    """torch.autocast in bfloat16, of a module in channels-last order, as torch's class."""
    def trained_mixed(wrap):
        torch.manual_seed(5)
        model = wrap(Convolutions())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                output = model(model.module.inputs(generator))
                assert output.dtype == torch.bfloat16, output.dtype
            output.float().square().mean().backward()
            weight = model.module.net[0].weight
            assert weight.grad.dtype == torch.float32 and weight.grad.is_contiguous(memory_format=torch.channels_last)
            optimizer.step()
        return model.state_dict()

    assert_same(trained_mixed(Ours), trained_mixed(Theirs))


def compiled_by_inductor():
    """The whole model, to native code, by the C++ compiler."""
    def trained_by(compile_it, wrap):
        torch.manual_seed(5)
        model = wrap(Square())
        fast = torch.compile(model) if compile_it else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(3):
            optimizer.zero_grad()
            fast(model.module.inputs(generator)).square().mean().backward()
            optimizer.step()
        return model.state_dict()

    torch._dynamo.reset()
    assert_same(trained_by(True, Ours), trained_by(False, Theirs))
    kernels = list(Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).rglob("*.so"))
    assert kernels, "nothing was compiled"


def synchronized_batches():
    """torch has SyncBatchNorm on devices only, and says so; without training it is a plain one."""
    net = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
    model = Ours(net)
    error_of(ValueError, "SyncBatchNorm expected input tensor to be on", lambda: model(torch.ones(2, 3)))
    model.eval()
    model(torch.full((2, 3), float(dist.get_rank()))).sum().backward()
    gathered = [torch.empty(4) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, net[1].bias.grad)
    assert torch.equal(gathered[0], torch.full((4,), 2.0)) and all(torch.equal(each, gathered[0]) for each in gathered)


def buffer_hooks():
    def add(state, buffers):
        state.append(list(buffers))
        return [dist.all_reduce(buffers["count"], async_op=True).get_future()]

    for location in (_BufferCommHookLocation.PRE_FORWARD, _BufferCommHookLocation.POST_FORWARD):
        model, calls = Ours(Casting()), []
        model._register_buffer_comm_hook(calls, add, location)
        model(torch.ones(1, 5)).sum().backward()
        assert calls == [["count"]] and (model.module.count == dist.get_world_size()).all(), (calls, model.module.count)


def straggler_and_trace():
    model = Ours(torch.nn.Linear(3, 2), find_straggler=True)
    model.module.weight.register_hook(lambda _: time.sleep(0.2 if dist.get_rank() == 1 else 0))
    model.trace(2)
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
    log = model._get_ddp_logging_data()
    assert log["straggler_rank"] == 1 and log["straggler_delay"] > 50e6, log  # ns
    events = [event for event in json.loads(model.trace_json())["traceEvents"] if event["ph"] == "X"]
    assert {(event["pid"], event["args"]["step"]) for event in events} == {(dist.get_rank(), 1), (dist.get_rank(), 2)}, events


def loaders():
    """DataLoader's workers live and die beside a group of libddp."""
    from torch.utils.data import DataLoader, TensorDataset
    model = Ours(torch.nn.Linear(3, 2))
    data = TensorDataset(torch.ones(6, 3))
    methods = ["fork"] + ["spawn"] * (dist.get_rank() == 0)  # one is enough: it imports torch anew
    for method in methods:
        for batch, in DataLoader(data, batch_size=2, num_workers=1, multiprocessing_context=method):
            with model.no_sync():
                model(batch).sum().backward()
    model(torch.ones(1, 3)).sum().backward()
    dist.barrier()


def steady_memory():
    """DDP_TEST_STEPS: 10000 by hand."""
    def resident_kib():
        gc.collect()
        return int(re.search(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())[1])

    model = Ours(torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(6))), bucket_cap_mb=0.002)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = int(os.environ.get("DDP_TEST_STEPS", 400))
    before = 0
    for step in range(200 + steps):
        if step == 200:
            before = resident_kib()
        optimizer.zero_grad()
        model(torch.ones(2, 16)).sum().backward()
        optimizer.step()
    grown = resident_kib() - before
    print(f"MEMORY {dist.get_rank()} grew by {grown} KiB in {steps} steps", flush=True)
    assert grown < 1000, grown
