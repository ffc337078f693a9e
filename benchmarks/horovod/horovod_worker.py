#!/usr/bin/env python3
"""A rank of the horovod benchmark.

    horovod_worker.py MEASUREMENT OPTIONS      under ddprun; OPTIONS: JSON, arguments of the function of that name

Measures all contenders in turn, in one process, round by round. Rank 0 prints REPORT and JSON: "times" has for each name the seconds
of each round, of the slowest rank.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import libddp
import torch

_began = time.perf_counter()
import libddp.horovod as hvd  # noqa: E402

_imported = time.perf_counter() - _began

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ddp"))
NAMES = 1000


def report(**found):
    if libddp.world().rank == 0:
        print("REPORT " + json.dumps(found), flush=True)


def seconds(call, repeats):
    """For a call, of the slowest rank."""
    group = libddp.world().process_group()
    group.barrier().wait()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    taken = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    group.all_reduce(taken, "max").wait()
    return taken.item() / repeats


def rounds_of(contenders, rounds):
    """contenders: {name: (call, repeats)}, warmed up before, and begun with another one in each round."""
    names, times = list(contenders), {name: [] for name in contenders}
    for call, _ in contenders.values():
        for _ in range(12):  # until an order has been learned
            call()
    for turn in range(rounds):
        for name in names[turn % len(names):] + names[:turn % len(names)]:
            call, repeats = contenders[name]
            for _ in range(3):
                call()
            times[name].append(seconds(call, repeats))
    return times


def start():
    """init() beyond libddp.init(), on the slowest rank, by the clock and of its processor time; and this process's import."""
    world = libddp.init()
    world.process_group().barrier().wait()
    before = time.process_time()
    taken = seconds(hvd.init, 1)
    own = torch.tensor([time.process_time() - before], dtype=torch.float64)
    world.process_group().all_reduce(own, "max").wait()
    report(init=taken, processor=own.item(), imported=_imported)


def calls(rounds):
    import numpy
    import torch.distributed as dist
    from libddp.mpi import MPI
    hvd.init()
    dist.init_process_group("ddp", init_method="pmix://")
    group, one, large = libddp.world().process_group(), torch.ones(1), torch.ones(NAMES * 256)
    tensors, names = [torch.ones(256) for _ in range(NAMES)], [f"t{each}" for each in range(NAMES)]
    order = list(range(NAMES))
    random.Random(hvd.rank()).shuffle(order)
    metrics = {"loss": 1.0, "accuracy": 0.5}

    def many():
        for handle in [hvd.allreduce_async_(tensors[each], name=names[each], op=hvd.Max) for each in order]:
            hvd.synchronize(handle)

    def copies():
        packed = torch.cat(tensors)
        group.all_reduce(packed, "max").wait()
        for tensor, part in zip(tensors, packed.split(256)):
            tensor.copy_(part)

    sets = {"4 B": {"group": (lambda: group.all_reduce(one, "max").wait(), 1000),
                    "hvd": (lambda: hvd.allreduce_(one, name="one", op=hvd.Max), 1000)},
            "many": {"hvd": (many, 10), "group": (lambda: group.all_reduce(large, "max").wait(), 20), "copies": (copies, 10)},
            "object": {"group": (lambda: group.all_gather_object(metrics), 300),
                       "hvd": (lambda: hvd.allgather_object(metrics, name="metrics"), 300)},
            "mpi": {"object": (lambda: MPI.COMM_WORLD.allgather(metrics), 300), "group": (lambda: group.all_gather_object(metrics), 300),
                    "array": (lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(1)), 1000)}}
    times = {}
    for which, contenders in sets.items():  # as a program repeats its steps: what it does is learned
        times |= {f"{which} {name}": found for name, found in rounds_of(contenders, rounds).items()}
    hvd.barrier()
    time.sleep(0.5)
    before = time.process_time(), switches(), hvd._job.job().named.counts()["wake_ups"]
    time.sleep(10)
    idle = time.process_time() - before[0], switches() - before[1], hvd._job.job().named.counts()["wake_ups"] - before[2]
    report(times=times, idle=[max(each) for each in zip(*group.all_gather_object(idle))])


def switches():
    """Voluntary context switches of all threads."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        text = (thread / "status").read_text()
        total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


class Wrapped:
    """A module and its optimizer, whose gradients `kind` averages: nothing, hvd, ddp, gloo, or hvd's operations by name."""

    def __init__(self, kind, module, named=None):
        import torch.distributed as dist
        from libddp.torch import DistributedDataParallel
        self.model = module
        self.optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)
        self._named = list((named or dict(module.named_parameters())).items()) if kind == "named" else []
        if kind == "hvd":
            self.optimizer = hvd.DistributedOptimizer(self.optimizer, module.named_parameters())
        elif kind == "ddp":
            self.model = DistributedDataParallel(module)
        elif kind == "gloo":
            self.model = torch.nn.parallel.DistributedDataParallel(module, process_group=dist.new_group(backend="gloo"))
        random.Random(hvd.rank()).shuffle(self._named)

    def step(self, loss_of):
        self.optimizer.zero_grad()
        loss_of(self.model).backward()
        for handle in [hvd.allreduce_async_(each.grad, name=name) for name, each in self._named]:
            hvd.synchronize(handle)
        self.optimizer.step()


def begin():
    import torch.distributed as dist
    torch.set_num_threads(1)
    hvd.init()
    dist.init_process_group("ddp", init_method="pmix://")


def steps(network, rounds):
    """Steps of a network that computes."""
    begin()
    from ddp_layers import small_network

    def made(kind):
        module, inputs, labels = small_network(network, hvd.rank())
        wrapped = Wrapped(kind, module)
        return lambda: wrapped.step(
            lambda model: torch.nn.functional.cross_entropy(model(inputs).reshape(len(labels), -1), labels))

    report(times=rounds_of({kind: (made(kind), 2) for kind in ("alone", "hvd", "ddp", "gloo")}, rounds))


def gradients(shapes, pause, rounds):
    """Steps of a network that takes `pause` seconds for its gradients. "named": each goes by its name, in an order of each rank's, after
    the backward pass; so its contender, "ddp at once", takes no time for them."""
    begin()
    import ddp_layers
    tensors, state = [torch.ones(shape) for shape in getattr(ddp_layers, shapes)()], torch.zeros(1, requires_grad=True)

    def made(kind, seconds):
        module = ddp_layers.Layers(tensors, gradient=hvd.rank() + 1.0)
        wrapped = Wrapped(kind, module)
        module.pause = seconds / len(tensors)
        return lambda: wrapped.step(lambda model: model(state).sum())

    contenders = {kind: (made(kind, pause), 2) for kind in ("hvd", "ddp", "gloo")}
    if shapes == "resnet50":  # of which there is memory for more
        contenders |= {f"{kind} at once": (made(kind, 0.0), 2) for kind in ("ddp", "named")}
    report(times=rounds_of(contenders, rounds))


def compiled(rounds):
    """When the first bucket is handed to its hook, in parts of the backward pass; with and without torch.compile's cuts."""
    begin()
    import torch._dynamo
    found = {}
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(4 << 20)
    for cut in (True, False):
        torch._dynamo.reset()
        torch._dynamo.config.optimize_ddp = cut
        model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))
        marks = []

        def hook(state, bucket):
            marks.append(time.perf_counter())
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-6), model.named_parameters(), comm_hook=hook)
        fast, batch, parts = torch.compile(model, backend="aot_eager"), torch.randn(256, 1024), []
        for round_ in range(rounds + 3):
            optimizer.zero_grad()
            loss = fast(batch).sum()
            marks.clear()
            began = time.perf_counter()
            loss.backward()
            if round_ >= 3:
                parts.append((marks[0] - began) / (time.perf_counter() - began))
            optimizer.step()
        found["cut" if cut else "whole"] = parts
    report(times=found)


if __name__ == "__main__":
    {each.__name__: each for each in (start, calls, steps, gradients, compiled)}[sys.argv[1]](**json.loads(sys.argv[2]))
