#!/usr/bin/env python3
"""A rank of the ddp benchmark.

    ddp_worker.py MEASUREMENT OPTIONS      under ddprun; OPTIONS: JSON, arguments of the function of that name

Each measures all contenders in turn, in one process, round by round. Rank 0 prints a line of JSON: what is described there, and
"rounds": for each one, seconds by name, of the slowest rank.
"""

import gc
import json
import re
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as TorchDataParallel

import ddp_layers
import libddp.torch
from jobs import BARE, CONTENDERS, OURS, TORCH_DDP, TORCH_GLOO
from libddp.torch import DistributedDataParallel


class Job:
    """The groups of the contenders; gloo, the default one, synchronizes the ranks and finds how long the slowest took."""

    def __init__(self):
        dist.init_process_group("gloo", init_method="pmix://")
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.groups = {OURS: dist.new_group(backend="ddp"), TORCH_DDP: dist.new_group(backend="ddp"),
                       TORCH_GLOO: dist.new_group(backend="gloo")}

    def wrap(self, name, module, **options):
        if name == BARE:
            return module
        kind = DistributedDataParallel if name == OURS else TorchDataParallel
        return kind(module, process_group=self.groups[name], **options)

    def seconds(self, step, count):
        """For a step, of the slowest rank."""
        dist.barrier()
        start = time.perf_counter()
        for _ in range(count):
            step()
        elapsed = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(elapsed, dist.ReduceOp.MAX)
        return elapsed.item() / count

    def rounds(self, steps, count, rounds):
        """{name: seconds} of each round; steps: {name: step}, in turn, from another one on in each round."""
        names = list(steps)
        return [{name: self.seconds(steps[name], count) for name in names[turn % len(names):] + names[:turn % len(names)]}
                for turn in range(rounds)]

    def report(self, **found):
        if self.rank == 0:
            print(json.dumps(found), flush=True)


def tensors_of(shapes):
    return [torch.ones(shape) for shape in getattr(ddp_layers, shapes)()]


def layers_step(model, layers, seconds):
    """One forward and backward pass, whose layers compute for so many seconds together."""
    start = torch.zeros(1, requires_grad=True)

    def step():
        layers.pause = seconds / len(layers.tensors)
        model.zero_grad()
        model(start).sum().backward()

    return step


def wrapped_layers(job, name, tensors, hook=None, **options):
    """(model, its layers), warmed up, and with the average of the ranks' gradients."""
    layers = ddp_layers.Layers(tensors, gradient=job.rank + 1.0)
    model = job.wrap(name, layers, **options)
    if hook:
        HOOKS[hook](model)
    step = layers_step(model, layers, 0)
    for _ in range(3):  # buckets are rebuilt after the first
        step()
    expected = 0 if name == BARE else (job.ranks + 1) / 2
    for tensor in layers.tensors if expected else ():
        if not torch.allclose(tensor.grad, torch.tensor(expected), rtol=1e-2):
            sys.exit(f"{name}: an average is {tensor.grad.flatten()[0].item()} instead of {expected}")
    return model, layers


def exposed(job, shapes, seconds, steps, rounds):
    """Steps with a backward pass of so many seconds, and, "NAME alone", of none: nothing to hide communication behind."""
    tensors = tensors_of(shapes)
    made = {name: wrapped_layers(job, name, tensors) for name in (BARE, *CONTENDERS)}
    jobs = {name: layers_step(*each, seconds) for name, each in made.items()}
    alone = {f"{name} alone": layers_step(*each, 0) for name, each in made.items()}
    job.report(tensors=len(tensors), elements=sum(each.numel() for each in tensors),
               rounds=[{**first, **second} for first, second in zip(job.rounds(jobs, steps, rounds),
                                                                    job.rounds(alone, steps, rounds))])


def networks(job, network, steps, rounds):
    """Whole steps of a small network, with its optimizer."""
    def made(name):
        module, inputs, labels = ddp_layers.small_network(network, job.rank)
        model = job.wrap(name, module)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs).reshape(len(labels), -1), labels).backward()
            optimizer.step()

        for _ in range(3):
            step()
        return step, sum(each.numel() for each in module.parameters()), len(list(module.parameters()))

    jobs = {name: made(name) for name in (BARE, *CONTENDERS)}
    _, elements, tensors = jobs[BARE]
    job.report(tensors=tensors, elements=elements,
               rounds=job.rounds({name: step for name, (step, *_) in jobs.items()}, steps, rounds))


def one_rank(job, count, steps, rounds):
    """Steps of many small parameters that compute nothing: the cost of the wrapper."""
    def made(name):
        module = ddp_layers.Many(count)
        model = job.wrap(name, module)

        def step():
            model.zero_grad()
            model().sum().backward()

        for _ in range(20):
            step()
        return step

    job.report(rounds=job.rounds({name: made(name) for name in (BARE, *CONTENDERS)}, steps, rounds))


def bucket_caps(job, shapes, seconds, caps, steps, rounds):
    tensors = tensors_of(shapes)
    jobs = {BARE: layers_step(*wrapped_layers(job, BARE, tensors), seconds)}
    for name in CONTENDERS:
        for cap in caps:
            jobs[f"{name} {cap}"] = layers_step(*wrapped_layers(job, name, tensors, bucket_cap_mb=cap), seconds)
    job.report(rounds=job.rounds(jobs, steps, rounds))


HOOKS = {
    "none": lambda model: None,
    "float16, built in": lambda model: model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS),
    "float16": lambda model: model.register_comm_hook(model.process_group, default_hooks.fp16_compress_hook),
    "bfloat16": lambda model: model.register_comm_hook(model.process_group, default_hooks.bf16_compress_hook),
}


def hooks(job, shapes, seconds, names, steps, rounds):
    tensors = tensors_of(shapes)
    jobs = {BARE: layers_step(*wrapped_layers(job, BARE, tensors), seconds)}
    for hook in names:
        for name in (OURS,) if hook == "bfloat16" else CONTENDERS:  # torch's class refuses it on processors
            jobs[f"{name} {hook}"] = layers_step(*wrapped_layers(job, name, tensors, hook), seconds)
    job.report(rounds=job.rounds(jobs, steps, rounds))


def memory(job, shapes, contender, view):
    """Most resident memory of steps of this rank, in KiB. All groups have worked before."""
    import torch._dynamo  # noqa: F401: which every wrapper does
    for group in job.groups.values():
        dist.all_reduce(torch.zeros(1 << 22), group=group)
    options = {} if contender == BARE else {"gradient_as_bucket_view": view}
    model, layers = wrapped_layers(job, contender, tensors_of(shapes), **options)
    step = layers_step(model, layers, 0)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
    for _ in range(5):
        step()
    job.report(peak=int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]))


def small_all_reduce(job, size, steps, rounds):
    values = torch.zeros(size // 4)
    own = libddp.world().process_group()

    def reduce_by_torch(group):
        return lambda: dist.all_reduce(values, group=group)

    job.report(rounds=job.rounds({"libddp's own interface": lambda: own.all_reduce(values).wait(),
                                  TORCH_DDP: reduce_by_torch(job.groups[TORCH_DDP]),
                                  TORCH_GLOO: reduce_by_torch(job.groups[TORCH_GLOO])}, steps, rounds))


def joining(methods):
    """Seconds from the last rank's call of init_process_group to its end on the last rank, by each method in turn."""
    world = libddp.init()
    group, taken = world.process_group(), {}
    for method in methods:
        group.barrier()
        start = time.monotonic()
        dist.init_process_group("gloo", init_method=method)
        span = torch.tensor([start, time.monotonic()], dtype=torch.float64)
        group.all_reduce(span, "max").wait()
        taken[method] = (span[1] - span[0]).item()
        dist.destroy_process_group()
    if world.rank == 0:
        print(json.dumps({"rounds": [taken]}), flush=True)


def main():
    measurement, options = sys.argv[1], json.loads(sys.argv[2])
    torch.set_num_threads(1)
    if measurement == "joining":
        joining(**options)
        return
    measurements = (exposed, networks, one_rank, bucket_caps, hooks, memory, small_all_reduce)
    job = Job()
    {each.__name__: each for each in measurements}[measurement](job, **options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
