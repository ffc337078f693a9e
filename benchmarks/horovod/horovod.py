#!/usr/bin/env python3
"""Compares libddp.horovod and libddp.mpi with calls of libddp's groups and with DistributedDataParallel. Prints Markdown.

    horovod.py BIN [--rounds N]      BIN: the folder of ddprun; the package: scripts/python-package
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
NAMES = 1000


def measured(call, times):
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times


def small_model():
    import torch
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
    return torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.nn.Linear(128, 128))


def steps_of(kind):
    """A training step by a name; equal work but for who averages."""
    import torch
    import torch.distributed as dist
    import libddp.horovod as hvd
    import libddp.torch
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    call = model
    if kind == "hvd":
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    elif kind == "ddp":
        call = libddp.torch.DistributedDataParallel(model)
    elif kind == "gloo":
        call = torch.nn.parallel.DistributedDataParallel(model, process_group=dist.new_group(backend="gloo"))
    batch = torch.randn(4, 32, 128)

    def step():
        optimizer.zero_grad()
        call(batch).pow(2).mean().backward()
        optimizer.step()
    return step


def rank_program(rounds):
    """In each rank; rank 0 prints all rounds as JSON."""
    began = time.perf_counter()
    import torch
    torch_imported = time.perf_counter() - began
    import libddp
    import numpy
    began = time.perf_counter()
    import libddp.horovod as hvd
    imported = time.perf_counter() - began
    import random

    import torch.distributed as dist
    from libddp.mpi import MPI
    libddp.init().process_group()
    began = time.perf_counter()
    hvd.init()
    initialized = time.perf_counter() - began
    dist.init_process_group("ddp", init_method="pmix://")
    group, one, large = libddp.world().process_group(), torch.ones(1), torch.ones(NAMES * 256)
    tensors = [torch.ones(256) for _ in range(NAMES)]
    order = list(range(NAMES))
    random.Random(hvd.rank()).shuffle(order)
    metrics = {"loss": 1.0, "accuracy": 0.5}

    def many():
        for handle in [hvd.allreduce_async_(tensors[each], name=f"t{each}", op=hvd.Max) for each in order]:
            hvd.synchronize(handle)

    def copies():
        packed = torch.cat(tensors)
        group.all_reduce(packed, "max").wait()
        for tensor, part in zip(tensors, packed.split(256)):
            tensor.copy_(part)

    contenders = {"group 4 B": (lambda: group.all_reduce(one, "max").wait(), 300),
                  "named 4 B": (lambda: hvd.allreduce_(one, name="one", op=hvd.Max), 300),
                  "many": (many, 5), "1 MiB": (lambda: group.all_reduce(large, "max").wait(), 20), "1 MiB and copies": (copies, 5),
                  "group object": (lambda: group.all_gather_object(metrics), 100),
                  "hvd object": (lambda: hvd.allgather_object(metrics, name="metrics"), 100),
                  "mpi object": (lambda: MPI.COMM_WORLD.allgather(metrics), 100),
                  "mpi array": (lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numpy.ones(1)), 100)}
    contenders |= {f"step {kind}": (steps_of(kind), 3) for kind in ("alone", "hvd", "ddp", "gloo")}
    times = {name: [] for name in contenders}
    for round_ in range(rounds + 1):  # the first one warms up
        for name, (call, repeats) in contenders.items():
            group.barrier().wait()
            for _ in range(3 if round_ else 12):
                call()
            taken = measured(call, repeats)
            slowest = max(group.all_gather_object(taken))
            if round_:
                times[name].append(slowest)
    counts = hvd._job.job().named.counts()
    hvd.barrier()
    time.sleep(0.5)
    before = time.process_time(), switches(), hvd._job.job().named.counts()["wake_ups"]
    time.sleep(10)
    idle = time.process_time() - before[0], switches() - before[1], hvd._job.job().named.counts()["wake_ups"] - before[2]
    idle = [max(each) for each in zip(*group.all_gather_object(idle))]
    if hvd.rank() == 0:
        print("REPORT " + json.dumps({"times": times, "counts": counts, "idle": idle, "import": imported, "torch": torch_imported,
                                      "init": initialized}), flush=True)


def switches():
    """Voluntary context switches of all threads."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        text = (thread / "status").read_text()
        total += int(text.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return total


def report_of(binaries, ranks, rounds):
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "build" / "python" / "site"), "OMP_NUM_THREADS": "1"}
    python = os.environ.get("DDP_TORCH_PYTHON", sys.executable)
    done = subprocess.run([binaries / "ddprun", "-n", str(ranks), "--no-python", python, __file__, "--rank", "--rounds", str(rounds)],
                          capture_output=True, text=True, timeout=3600, env=environment)
    line = next((line for line in done.stdout.splitlines() if "REPORT " in line), None)
    if line is None:
        sys.exit(done.stdout + done.stderr)
    return json.loads(line.split("REPORT ", 1)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return rank_program(options.rounds)
    from spread import Ratio, Spread, table
    pairs = (("named 4 B", "group 4 B", 1e6, "named allreduce of 4 B, blocking; the group's", "us"),
             ("many", "1 MiB and copies", 1e3, f"{NAMES} named tensors of 1 KiB in an order of each rank's; one of 1 MiB with copies", "ms"),
             ("hvd object", "group object", 1e6, "hvd.allgather_object of a dict; the group's", "us"),
             ("mpi object", "group object", 1e6, "MPI.COMM_WORLD.allgather of a dict; the group's", "us"),
             ("mpi array", "group 4 B", 1e6, "MPI.COMM_WORLD.Allreduce of 8 B; the group's", "us"),
             ("step hvd", "step ddp", 1e3, "a step of DistributedOptimizer; of libddp.torch.DistributedDataParallel", "ms"),
             ("step hvd", "step gloo", 1e3, "the same; of torch's DistributedDataParallel on gloo", "ms"))
    for ranks in (2, 4):
        report = report_of(options.binaries.resolve(), ranks, options.rounds)
        times = report["times"]
        rows = [[words, unit, Spread(times[ours]).scaled(factor, 1), Spread(times[theirs]).scaled(factor, 1),
                 str(Ratio(times[ours], times[theirs]))] for ours, theirs, factor, words, unit in pairs]
        print(f"### {ranks} ranks\n\n" + table(["", "unit", "libddp.horovod, .mpi", "the other", "ratio"], rows) + "\n")
        idle = report["idle"]
        print(f"Idle for 10 s: {idle[0]:.3f} s of processor time, {idle[1]} wake-ups of all threads, {idle[2]} of the one that "
              f"reads messages. Import beyond torch's: {report['import'] * 1e3:.0f} ms. hvd.init() beyond libddp's group: "
              f"{report['init'] * 1e3:.1f} ms. Operations negotiated {report['counts']['negotiated']}, in the learned order "
              f"{report['counts']['learned']}.\n")


if __name__ == "__main__":
    main()
