"""Samplers, metrics, objects, checkpoints, topology and the environment."""

import itertools
import json
import os
import pickle
import resource
import sys
import tempfile
import threading

import libddp
import numpy

from libddp_checks import check, expect, raises


def shared_folder(group):
    """A folder that all ranks see, and rank 0 removes at the end of its process."""
    if group.rank == 0:
        shared_folder.kept = tempfile.TemporaryDirectory()
    return group.broadcast_object(group.rank == 0 and shared_folder.kept.name)


@check
def objects(world, group):
    rank, size = group.rank, group.size
    mine = {"rank": rank, "text": "é" * rank, "more": [rank] * (1000 * rank)}
    expect(group.all_gather_object(mine) == [{"rank": r, "text": "é" * r, "more": [r] * (1000 * r)} for r in range(size)],
           "all_gather_object")
    expect(group.broadcast_object(mine, size - 1, timeout=60)["rank"] == size - 1, "broadcast_object")
    gathered = group.gather_object(None if rank else "first", 0)
    expect(gathered == (["first"] + [None] * (size - 1) if rank == 0 else None), f"gathered {gathered}")
    given = group.scatter_object([(r, "part") for r in range(size)] if rank == 1 else None, root=1)
    expect(given == (rank, "part"), f"scattered {given}")
    raises(libddp.InvalidArgument, group.scatter_object, ["too few"], words="one")  # on all ranks
    if rank == 0:  # before anything is sent
        raises((pickle.PicklingError, AttributeError, TypeError), group.all_gather_object, threading.Lock())
        raises(libddp.InvalidArgument, group.broadcast_object, 1, size)
    group.barrier().wait()


@check
def state(world, group):
    tensors = {"weight": numpy.full((2, 3), float(group.rank), "float32"), "step": numpy.array(group.rank)}
    group.broadcast_state(tensors, root=1)
    expect((tensors["weight"] == 1).all() and tensors["step"] == 1, f"got {tensors}")
    tensors["weight" if group.rank else "bias"] = tensors.pop("weight")
    raises(libddp.Mismatch, group.broadcast_state, tensors, words="weight")
    raises(libddp.InvalidArgument, group.broadcast_state, [1], words="mapping")
    raises(libddp.InvalidArgument, group.broadcast_state, {"name": {"nested": 1}}, words="tensors['name']")


@check
def samplers(world, group):
    rank, size = group.rank, group.size
    for count, shuffle, remainder in itertools.product((0, 1, 10, 23), (False, True), ("pad", "drop", "uneven")):
        sampler = libddp.DistributedSampler(range(count), group, shuffle=shuffle, seed=3, remainder=remainder)
        sampler.set_epoch(4)
        mine = list(sampler)
        expect(len(sampler) == len(mine) and mine == sampler.indices() and sampler.epoch == 4, f"len of {sampler}")
        everything = sorted(sum(group.all_gather_object(mine), []))
        if remainder == "uneven":
            expect(everything == list(range(count)), f"{count} samples became {everything}")
        if remainder == "pad" and count:
            expect(set(everything) == set(range(count)) and len(everything) == -(-count // size) * size, f"{everything}")
        if not shuffle and remainder == "drop":
            expect(mine == list(range(rank, count - count % size, size)), f"in order: {mine}")
    # an epoch with two restarts, the second with one rank less
    seen, kept = [], None
    for members in (size, size, size - 1):
        if rank < members:
            sampler = libddp.ElasticSampler(50, ranks=members, rank=rank, seed=7)
            if kept:
                sampler.load_state_dict(json.loads(json.dumps(kept)))
            mine = sampler.indices()[:len(sampler) if members < size else 5]
            sampler.record(len(mine))
            kept = sampler.state_dict()
        else:
            mine = []
        seen += sum(group.all_gather_object(mine), [])
    expect(sorted(seen) == list(range(50)), f"seen: {sorted(seen)}")
    fresh = libddp.ElasticSampler(50, group, seed=7)
    raises(libddp.InvalidArgument, fresh.record, 51)
    raises(libddp.Mismatch, libddp.ElasticSampler(49, group, seed=7).load_state_dict, fresh.state_dict())
    for wrong, words in (({}, "missing"), ({**fresh.state_dict(), "epoch": "1"}, "another type"),
                         ({**fresh.state_dict(), "consumed": 51}, "51")):
        raises(libddp.InvalidArgument, fresh.load_state_dict, wrong, words=words)
    raises(libddp.InvalidArgument, libddp.DistributedSampler, 3, remainder="both", words="uneven")
    raises(libddp.InvalidArgument, libddp.DistributedSampler, 3, ranks=2, rank=2)
    raises(TypeError, libddp.DistributedSampler, None)
    expect(len({libddp.rank_seed(1, each) for each in range(100)}) == 100, "equal seeds")


@check
def metrics(world, group):
    rank, size = group.rank, group.size
    collected = libddp.MetricSet({"loss": "mean", "samples": "sum", "best": "max", "never": "min"})
    for _ in range(3):
        collected.add("loss", float(rank), weight=rank + 1)
        collected.add("samples", 2)
    collected.add("best", -rank)
    weights = sum(range(1, size + 1))
    expected = {"loss": sum(r * (r + 1) for r in range(size)) / weights, "samples": 6.0 * size, "best": 0.0, "never": None}
    reduced = collected.reduce(group)
    expect(reduced == expected and list(reduced) == list(expected), f"reduced to {reduced}")
    expect(set(collected.reduce(group).values()) == {None}, "nothing was added")
    raises(libddp.InvalidArgument, collected.add, "lost", 1.0)
    raises(libddp.InvalidArgument, libddp.MetricSet, {"loss": "median"}, words="mean")
    other = libddp.MetricSet({"loss" if rank else "gain": "sum"})
    raises(libddp.Mismatch, other.reduce, group)

    stop = libddp.EarlyStop(patience=2)
    expect([stop.update(group, value) for value in (3, 2, 2, 4)] == [False, False, False, True], "early stop")
    expect(stop.best == 2, f"best: {stop.best}")
    asked = libddp.EarlyStop()
    expect(not asked.agree(group), "nobody has asked")
    if rank == size - 1:
        asked.request()
    expect(asked.agree(group), "one has asked")


@check
def checkpoints(world, group):
    rank, folder = group.rank, shared_folder(group)
    kept = libddp.Checkpoints(group, folder, keep=2, timeout=60)
    weights = {"w": numpy.arange(6, dtype="float32").reshape(2, 3) + rank, "step": numpy.array(7), "empty": numpy.zeros(0)}
    expect(kept.restore(weights) is None, "there is none")
    kept.save(1, weights, b"sampler\0")
    kept.save_sharded(2, weights)
    for values in weights.values():
        values[...] = 0
    restored = kept.restore(weights)
    expect(restored.step == 2 and restored.extra == b"" and (weights["w"][0] == numpy.arange(3) + rank).all(), "the newest")
    restored = kept.restore(weights, step=1)
    expect(restored.step == 1 and restored.extra == b"sampler\0" and weights["w"][0][0] == 0 and weights["step"] == 7, "rank 0's")
    raises(libddp.NotFound, kept.restore, weights, 5)
    raises(libddp.Mismatch, kept.restore, {"w": weights["w"]})
    raises(libddp.InvalidArgument, kept.save, -1, weights)
    fixed = numpy.zeros(3)
    fixed.flags.writeable = False
    raises(libddp.InvalidArgument, kept.restore, {"w": fixed}, words="read-only")
    group.barrier().wait()
    if rank == 0:
        file = max((entry for entry in os.scandir(os.path.join(folder, "step-2")) if entry.name != "manifest"),
                   key=lambda entry: entry.name)
        with open(file.path, "r+b") as damaged:
            damaged.seek(-1, os.SEEK_END)
            last = damaged.read(1)
            damaged.seek(-1, os.SEEK_END)
            damaged.write(bytes([last[0] ^ 1]))
    group.barrier().wait()
    before = weights["w"].copy()
    raises(libddp.Protocol, kept.restore, weights, words="step-2")
    expect((weights["w"] == before).all(), "a damaged checkpoint was taken")


@check
def topology(world, group):
    machine = libddp.Topology.live()
    expect(machine.num_cores > 0 and set(machine.allowed_cpus) >= os.sched_getaffinity(0), f"{machine}")
    drawn = libddp.Topology.synthetic("pack:2 numa:1 core:4 pu:2")
    placed = drawn.place(4)
    expect([p.numa_nodes for p in placed] == [[0], [0], [1], [1]] and [p.num_cores for p in placed] == [2] * 4, f"{placed}")
    expect(sorted(cpu for p in placed for cpu in p.cpus) == list(range(16)) and placed[0].gpu is None, f"{placed}")
    expect(all(d.reason for p in placed for d in p.decisions), "decisions have reasons")
    raises(libddp.InvalidArgument, drawn.place, 0)
    raises(libddp.InvalidArgument, drawn.place, 1, bind="moon")
    raises(libddp.InvalidArgument, drawn.gpu_distance, 0, 1, words="there is no GPU")
    raises(libddp.InvalidArgument, libddp.Topology.synthetic, "core")
    raises(libddp.NotFound, libddp.Topology.from_xml_file, "/no/such.xml")
    with tempfile.NamedTemporaryFile("w", suffix=".xml") as file:
        file.write(machine.to_xml())
        file.flush()
        expect(libddp.Topology.from_xml_file(file.name).shape == machine.shape, "another machine")
    expect((world.device is None) == (world.device_index is None), f"{world.device}")
    before = dict(os.environ)
    world.export_settings()
    expect(all(os.environ[name] == before.get(name, value) for name, value in world.settings.items()), "not in os.environ")


@check
def environment(world, group):
    os.environ["NCCL_DEBG"] = "INFO"  # which the finding is about
    report = world.environment_report()
    expect((report is None) == (world.rank != 0), f"{report}")
    if report is not None:
        found = [finding for finding in report.findings if finding.variable == "NCCL_DEBG"]
        expect(len(found) == 1 and found[0].ranks == list(range(group.size)) and "NCCL_DEBUG" in found[0].text, f"{found}")
        expect(len(report.hosts) == group.size and json.loads(report.to_json()), "json")
        expect("NCCL_DEBG" in report.to_text(), report.to_text())
    expect(any(f.variable == "NCCL_DEBG" for f in libddp.EnvironmentReport.of_process().findings), "of this process")
    del os.environ["NCCL_DEBG"]
    group.barrier().wait()
    with tempfile.TemporaryDirectory() as folder:
        libddp.dump_flight_recorder(os.path.join(folder, "dump.json"))
        with open(os.path.join(folder, "dump.json")) as file:
            expect("barrier" in file.read(), "the barrier is not recorded")
        raises(libddp.SystemFailure, libddp.dump_flight_recorder, os.path.join(folder, "none", "dump.json"))
    json.loads(libddp.flight_recorder_json())


@check
def memory(world, group):
    """10,000 operations leave nothing: neither this module's objects nor memory of the process."""
    tensor = numpy.ones(256, "float32")

    def many(times):
        for _ in range(times):
            group.all_reduce(tensor, "max").wait()
            group.all_gather_object(1) if _ % 100 == 0 else None
        libddp.poll()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    before, references = many(3000), sys.getrefcount(tensor)
    grown = many(10_000) - before
    expect(grown < 2 << 20, f"{grown} bytes more")
    expect(sys.getrefcount(tensor) == references, "references to the tensor")
