"""Checks of libddp.torch as ranks: libddp_torch_parallel.py CHECK...; prints CHECKED and the check's name and rank."""

import contextlib
import copy
import os
import pickle
import re
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Theirs

import libddp.torch
from libddp.torch import DistributedDataParallel as Ours
from libddp_torch_exchanges import delayed_parameters, sparse_gradients, sparse_tensors  # noqa: F401, checks
from libddp_torch_features import (buffer_hooks, compiled_by_inductor, loaders, mixed_precision, mixed_types, power_sgd,  # noqa: F401
                                   steady_memory, straggler_and_trace, synchronized_batches)
from libddp_torch_optimizers import (fused_optimizers, optimizers_in_backward, scaled_gradients,  # noqa: F401
                                     sharded_optimizer, torchs_join)
from libddp_torch_programs import (adversaries, changed_modules, checkpointed_wrappers, copies_on_one_rank, failed_backwards,  # noqa: F401
                                   kept_losses, layouts, modules_without_memory, uneven_splits)
from libddp_torch_training import Branches, Convolutions, Tied, assert_same, loss_of, trained

CASES = [(Convolutions, {}), (Tied, {}), (Tied, {"static_graph": True}), (Convolutions, {"gradient_as_bucket_view": True}),
         (Branches, {"find_unused_parameters": True})]


def same_as_gloo():
    gloo = dist.new_group(backend="gloo")
    for net, options in CASES[:2] + CASES[-1:]:
        expected = trained(net, lambda it: Theirs(it, process_group=gloo, **options))
        assert_same(trained(net, lambda it: Theirs(it, **options)), expected)


def same_as_torchs():
    for net, options in CASES:
        view = options.get("gradient_as_bucket_view", False)
        expected = trained(net, lambda it: Theirs(it, **options), view=view)
        assert_same(trained(net, lambda it: Ours(it, **options), view=view), expected)
    assert_same(trained(Tied, Ours, accumulate=3), trained(Tied, Theirs, accumulate=3))
    gloo = dist.new_group(backend="gloo")  # libddp makes a group of its own beside it
    assert_same(trained(Tied, lambda it: Ours(it, process_group=gloo)), trained(Tied, Theirs))


class TwoLarge(torch.nn.Module):
    """Two buckets, whose order the first step reverses."""

    def __init__(self):
        super().__init__()
        self.last, self.first = (torch.nn.Parameter(torch.zeros(10 << 20)) for _ in range(2))

    def forward(self):
        return self.first[:1] * self.last[:1]


def rebuilt_buckets_leave_no_memory():
    def resident_mib():
        return int(re.search(r"RssAnon:\s*(\d+)", Path("/proc/self/status").read_text())[1]) >> 10

    model = Ours(TwoLarge(), gradient_as_bucket_view=True)
    before = resident_mib()  # with 80 MiB of buckets
    for _ in range(3):
        model().sum().backward()
        model.zero_grad()
    assert resident_mib() - before < 50, (before, resident_mib())


def hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    def with_hook(wrap, hook, state):
        def wrapped(net):
            model = wrap(net)
            model.register_comm_hook(state() if state else None, hook)
            return model
        return wrapped

    for hook, state in ((default_hooks.allreduce_hook, None), (default_hooks.fp16_compress_hook, None),
                        (powerSGD_hook.powerSGD_hook, lambda: powerSGD_hook.PowerSGDState(
                            process_group=None, matrix_approximation_rank=1, start_powerSGD_iter=2))):
        ours = trained(Tied, with_hook(Ours, hook, state), steps=6)
        theirs = trained(Tied, with_hook(Theirs, hook, state), steps=6)
        if hook is default_hooks.allreduce_hook:
            assert_same(ours, theirs)
        for name, value in ours.items():  # lossy: bucket by bucket
            torch.testing.assert_close(value, theirs[name], rtol=0.05, atol=0.02)
        gathered = [torch.empty_like(value) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, value.contiguous())
        assert all(torch.equal(each, gathered[0]) for each in gathered)

    model = Ours(Tied())
    loss_of(model(torch.zeros(1, 2, dtype=torch.int64))).backward()
    for late in (model._set_static_graph, lambda: model.register_comm_hook(None, default_hooks.allreduce_hook)):
        try:
            late()
            raise AssertionError("taken after training has begun")
        except RuntimeError as error:
            assert "before training loop starts" in str(error), error

    model = Ours(Tied())
    try:  # on a late rank, another's hook may have failed before this one is registered here
        model.register_comm_hook(None, lambda state, bucket: 1 / 0)
        model._set_static_graph()  # which keeps the hook
        loss_of(model(torch.zeros(1, 2, dtype=torch.int64))).backward()
        raise AssertionError("a hook's exception was lost")
    except (RuntimeError, ZeroDivisionError) as error:
        assert "division by zero" in str(error), error


def module_features():
    torch.manual_seed(7)
    model = Ours(Tied())
    assert isinstance(model, Theirs) and model.module is next(model.children())
    assert list(model.state_dict()) == ["module." + name for name in model.module.state_dict()]
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        loss_of(clone(torch.zeros(2, 3, dtype=torch.int64) + dist.get_rank())).backward()
        sums = clone.module.layer.linear1.weight.grad.clone()
        dist.all_reduce(sums, dist.ReduceOp.AVG)
        torch.testing.assert_close(sums, clone.module.layer.linear1.weight.grad)
    with torch.no_grad():
        assert not model(torch.zeros(1, 2, dtype=torch.int64))["logits"].requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model(torch.zeros(1, 2, dtype=torch.int64)))
    loss.backward()
    assert model._get_ddp_logging_data()["iteration"] == 1
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen, torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.int64))
    assert "DistributedDataParallel.forward" in {each.key for each in seen.key_averages()}
    assert model.to_kwargs((1,), {"two": 2}, 0) == (((1,),), ({"two": 2},))
    try:
        model._set_sparse_metadata({})
        raise AssertionError("accepted")
    except NotImplementedError as error:
        assert "_set_sparse_metadata" in str(error), error
    for wrong, words in (({"device_ids": [0]}, "device_ids"),):
        try:
            Ours(torch.nn.Linear(1, 1), **wrong)
            raise AssertionError(f"accepted: {wrong}")
        except (NotImplementedError, ValueError) as error:
            assert words in str(error), error


def logging_data():
    logs = []
    for wrap in (lambda net: Theirs(net, process_group=dist.new_group(backend="gloo")), Ours):
        model = wrap(torch.nn.Linear(3, 2))
        pauses = iter((0, 3, 0))
        model.module.weight.register_hook(lambda gradient, pauses=pauses: time.sleep(next(pauses)))
        for _ in range(3):
            model(torch.ones(1, 3)).sum().backward()
        logs.append(model._get_ddp_logging_data())
    theirs, ours = logs
    assert not theirs.keys() - ours.keys(), theirs.keys() - ours.keys()
    same = ("world_size", "rank", "module_name", "num_parameter_tensors", "total_parameter_size_bytes", "bucket_sizes",
            "bucket_cap_bytes", "broadcast_buffers", "find_unused_parameters", "gradient_as_bucket_view", "has_rebuilt_buckets",
            "rebuilt_bucket_sizes", "rebuilt_per_bucket_param_indices", "prev_iteration_grad_ready_order_indices",
            "num_buckets_reduced", "unused_parameter_size")
    assert [ours[name] for name in same] == [theirs[name] for name in same], (ours, theirs)
    assert ours["backend_name"] == "ddp" and ours["iteration"] == 3 and ours["ready_order"] == [1, 0]
    # of the last step, and of all three
    assert ours["backward_compute_time"] < 1500e6 < 3 * ours["avg_backward_compute_time"], ours

    model = Ours(torch.nn.Linear(3, 2))
    model._set_ddp_runtime_logging_sample_rate(4)
    for _ in range(15):
        model(torch.ones(1, 3)).sum().backward()
    assert model._get_ddp_logging_data()["iteration"] == 12


def checkpointing():
    from torch.utils.checkpoint import checkpoint

    class Segments(torch.nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.parts = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
            self.reentrant = reentrant

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=self.reentrant)
            return x

        def inputs(self, generator):
            return torch.randn(2, 4, generator=generator).requires_grad_()

    for reentrant, options in ((False, {}), (True, {}), (True, {"static_graph": True})):
        assert_same(trained(lambda: Segments(reentrant), lambda it: Ours(it, **options), steps=4),
                    trained(lambda: Segments(False), Theirs, steps=4))


def uneven_inputs():
    torch.manual_seed(5)
    model = Ours(torch.nn.Linear(3, 2))
    with model.join():
        for step in range(2 + dist.get_rank()):
            model(torch.full((2, 3), float(step))).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
    gathered = [torch.empty(2, 3) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, model.module.weight.detach())
    assert all(torch.equal(each, gathered[0]) for each in gathered), gathered


def compiled():
    import compiled_overlap
    torch.manual_seed(5)
    model = Ours(torch.nn.Linear(3, 2))
    fast = torch.compile(model, backend="aot_eager")
    torch.manual_seed(5)
    plain = Theirs(torch.nn.Linear(3, 2))
    for step in range(3):
        inputs = torch.full((2, 3), float(dist.get_rank() + step))
        for each in (fast, plain):
            each(inputs).square().sum().backward()
    torch.testing.assert_close(model.module.weight.grad, plain.module.weight.grad)
    wide = Ours(compiled_overlap.Model(), bucket_cap_mb=1)
    wide.register_comm_hook(None, compiled_overlap.hook)
    compiled_overlap.check(torch.compile(wide, backend="aot_eager"))


def distributed_features():
    rank, size = dist.get_rank(), dist.get_world_size()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": each} for each in range(size)]
    told = [f"of {rank}"]
    dist.broadcast_object_list(told, src=1)
    assert told == ["of 1"]
    pair = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        dist.all_reduce(total := torch.tensor([rank]), group=pair)
        assert total.item() == size - 1
        assert "ddp" in dist.get_backend(pair)
    received = torch.empty(4)
    operations = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % size),
                  dist.P2POp(dist.irecv, received, (rank - 1) % size)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert (received == (rank - 1) % size).all()
    work = dist.all_reduce(done := torch.ones(3), async_op=True)
    twice = work.get_future().then(lambda future: future.value()[0] * 2)
    assert torch.equal(twice.wait(), torch.full((3,), 2.0 * size)) and torch.equal(done, torch.full((3,), float(size)))
    dist.barrier()
    try:
        dist.all_reduce(torch.zeros(2, dtype=torch.float32 if rank else torch.int64))
        raise AssertionError("different types were summed")
    except libddp.Mismatch as error:
        assert error.ranks, error


def sharding():
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
    size = dist.get_world_size()
    mesh = DeviceMesh("cpu", list(range(size)))
    whole = torch.arange(6.0 * size).view(2 * size, 3)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal((sharded + 1).redistribute(mesh, [Replicate()]).to_local(), whole + 1)
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2 * size))
    plain = copy.deepcopy(net)
    fully_shard(net, mesh=mesh)
    inputs = torch.randn(2, 4)
    torch.testing.assert_close(net(inputs), plain(inputs))
    net(inputs).sum().backward()
    plain(inputs).sum().backward()
    torch.testing.assert_close(net[0].weight.grad.full_tensor(), plain[0].weight.grad)
    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    state = get_model_state_dict(net)
    checkpoint.save(state, checkpoint_id=folder[0])
    before = net[1].weight.full_tensor()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    checkpoint.load(state := get_model_state_dict(net), checkpoint_id=folder[0])
    assert torch.equal(state["1.weight"].full_tensor(), before)


def leaves_everything():
    """Ends with operations, futures and tensors in use, and nothing destroyed."""
    global _kept
    model = Ours(Tied())
    loss_of(model(torch.zeros(1, 2, dtype=torch.int64))).backward()
    rank = dist.get_rank()
    never = [dist.irecv(torch.empty(1000), (rank + 1) % dist.get_world_size(), tag=9) for _ in range(3)]
    late = dist.all_reduce(torch.ones(5), async_op=True).get_future().then(lambda future: future.value())
    _kept = (model, never, late)


def aborts_from_another_thread():
    """As restarters within a process do: running operations end at once, on all ranks, although another handle to the
    group exists."""
    aborted = dist.new_group(backend="ddp", timeout=timedelta(seconds=200))
    dist.all_reduce(torch.ones(3), group=aborted)
    began = time.monotonic()
    try:
        if dist.get_rank() == 0:
            running = dist.all_reduce(torch.ones(3), group=aborted, async_op=True)
            threading.Timer(0.3, aborted.abort).start()
            running.wait()
        else:
            dist.recv(torch.ones(3), src=0, group=aborted)
        raise AssertionError("it has ended well")
    except RuntimeError as error:
        assert "rank 0 aborted it: c10d's abort() was called" in str(error), error
    assert time.monotonic() - began < 60
    if dist.get_rank() == 0:
        try:
            dist.barrier(group=aborted)
            raise AssertionError("an aborted group is used")
        except RuntimeError as error:
            assert "shut down, or aborted" in str(error), error
    dist.barrier()


def distributed_autograd():
    """The gradients of a context are not averaged: refused, also where a parameter has one already. loss.backward() is right."""
    from torch.distributed import autograd, rpc
    rank, size = dist.get_rank(), dist.get_world_size()
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    try:
        assert rpc.rpc_sync(f"worker{(rank + 1) % size}", dist.get_rank) == (rank + 1) % size
        for to_none in (True, False):
            model = Ours(torch.nn.Linear(3, 2))
            for inside in (False, True):
                with autograd.context() if inside else contextlib.nullcontext():
                    model(torch.ones(1, 3) * rank).sum().backward()
                assert torch.equal(model.module.weight.grad, torch.full((2, 3), (size - 1) / 2))
                model.zero_grad(set_to_none=to_none)
            loss = model(torch.ones(1, 3)).sum()
            with autograd.context() as context:
                try:
                    autograd.backward(context, [loss])
                except RuntimeError as error:
                    assert "take torch.nn.parallel.DistributedDataParallel" in str(error), error
                else:
                    raise AssertionError("no error")
        assert not model.module.weight.grad.any()
        model(torch.ones(1, 3) * rank).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.full((2, 3), (size - 1) / 2))
    finally:
        rpc.shutdown()


def inference_mode():
    with torch.inference_mode():
        parts = [torch.empty(4) for _ in range(dist.get_world_size())]
        work = dist.all_gather(parts, torch.full((4,), float(dist.get_rank())), async_op=True)
        time.sleep(0.5)  # another thread ends it
        work.wait()
        assert [int(part[3]) for part in parts] == list(range(dist.get_world_size())), parts


def one_fails():
    model = Ours(torch.nn.Linear(3, 2))
    with model.join():
        for step in range(60):
            if dist.get_rank() == 1 and step == 2:
                raise ValueError("mine")
            model(torch.ones(1, 3)).sum().backward()
            time.sleep(0.05)
    print("JOINED", flush=True)


def main():
    torch.set_num_threads(1)
    method = os.environ.get("TEST_INIT_METHOD")
    for check in sys.argv[1:]:
        if not dist.is_initialized():
            dist.init_process_group("ddp", init_method=method)
        globals()[check]()
        sys.stdout.write(f"CHECKED {check} {dist.get_rank()}\n")
        sys.stdout.flush()
        if check == "distributed_features":  # whose last error has ended the group
            dist.destroy_process_group()
    if "leaves_everything" not in sys.argv and dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":  # not in workers that multiprocessing spawns
    main()
