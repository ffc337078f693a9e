"""A program of libddp.horovod, for launchers.

    horovod_job.py CHECK...      runs these checks, in this order, in all ranks

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception.
"""

import os
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

import libddp.horovod as hvd
import torch
from libddp.horovod import _job

import horovod_faults  # noqa: F401, checks
import horovod_interface  # noqa: F401, checks
import horovod_optimizers  # noqa: F401, checks
import horovod_steps  # noqa: F401, checks
from horovod_checks import equal_on_all, momentum, sample, small_model
from job_checks import check, refused, run_checks


@check
def operations(rank, size):
    total = size * (size + 1) // 2
    for dtype in (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64):
        given = torch.full((3, 2), rank + 1, dtype=dtype)
        assert torch.equal(hvd.allreduce(given, op=hvd.Sum), torch.full((3, 2), total, dtype=dtype)), dtype
        assert torch.equal(given, torch.full((3, 2), rank + 1, dtype=dtype)), "the input has changed"
    given = torch.full((5,), float(rank))
    assert hvd.allreduce_(given, op=hvd.Max) is given and given[0] == size - 1
    assert torch.equal(hvd.allreduce(torch.tensor([7, rank * 2])), torch.tensor([7, size - 1]))
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0) == 1.5 * size
    assert hvd.allreduce(torch.tensor([3]), op=hvd.Sum, prescale_factor=0.5) == size
    several = hvd.grouped_allreduce([torch.ones(2), torch.ones(300_000), torch.ones(3, dtype=torch.int64)], op=hvd.Sum)
    assert [each[-1].item() for each in several] == [size] * 3
    for dtype in (torch.bool, torch.int16, torch.uint8, torch.float32, torch.bfloat16):
        rows = hvd.allgather(torch.full((rank, 3), rank).to(dtype))
        assert rows.dtype is dtype and torch.equal(rows, torch.cat([torch.full((each, 3), each).to(dtype) for each in range(size)]))
    for given in (torch.full((2, 2), float(rank)), torch.full((), rank, dtype=torch.int16), torch.empty(0)):
        same = hvd.broadcast(given, size - 1)
        assert same.shape == given.shape and (same == size - 1).all()
    rows, received = hvd.alltoall(torch.arange(size).repeat_interleave(2), splits=torch.full((size,), 2, dtype=torch.int32))
    assert rows.tolist() == [rank] * 2 * size and received.tolist() == [2] * size
    assert hvd.alltoall(torch.arange(size)).tolist() == [rank] * size
    short = torch.arange(2 * size, dtype=torch.int16)
    assert hvd.alltoall(short).tolist() == [2 * rank, 2 * rank + 1] * size
    assert hvd.allgather(torch.full((rank,), 300 + rank, dtype=torch.int16)).tolist() == [300 + each for each in range(size) for _ in range(each)]
    assert hvd.allreduce(torch.empty(0), op=hvd.Adasum).numel() == 0
    part = hvd.reducescatter(torch.ones(size + 1, 2), op=hvd.Sum)
    assert part.shape == (2 if rank == 0 else 1, 2) and (part == size).all()
    assert torch.allclose(hvd.allreduce(torch.tensor([1.0, -2.0]), op=hvd.Adasum), torch.tensor([1.0, -2.0]))
    handle = hvd.allreduce_async(torch.ones(3), name="asynchronous")
    assert torch.equal(hvd.synchronize(handle), torch.ones(3)) and hvd.synchronize(handle) is None
    refused(ValueError, lambda: hvd.poll(handle), "not known")
    sparse = torch.sparse_coo_tensor([[rank, size]], [1.0, 2.0], (size + 1,))
    assert hvd.sparse_allreduce_async(sparse, name="rows", op=hvd.Sum)().to_dense().tolist() == [1.0] * size + [2.0 * size]
    hvd.barrier()


@check
def unnamed(rank, size):
    """A step with operations without names is learned, and an error says which one it was."""
    def step():
        assert hvd.allreduce(torch.ones(3), op=hvd.Sum).tolist() == [size] * 3
        assert hvd.allreduce(torch.ones(1), op=hvd.Adasum) == 1
        hvd.barrier()

    def negotiated():
        before = counts()["negotiated"]
        step()
        return counts()["negotiated"] - before

    counts = _job.job().named.counts
    assert any(negotiated() == 0 for _ in range(200)), counts()
    learned = counts()["learned"]
    for _ in range(20):
        assert negotiated() == 0, counts()
    assert counts()["learned"] == learned + 60, counts()
    refused(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1 + rank)), "all_reduce 'allreduce.noname.")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="allreduce.noname.1") == size
    step()


@check
def idle(rank, size):
    """Who waits for nothing hardly wakes up: at most 20 times in 10 s, of all threads."""
    def wake_ups():
        return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", (thread / "status").read_text(), re.MULTILINE)[1])
                   for thread in Path("/proc/self/task").iterdir())

    hvd.allreduce(torch.ones(1), name="before idleness")
    hvd.barrier()
    time.sleep(0.5)
    before = wake_ups()
    time.sleep(6)
    assert wake_ups() - before <= 12


@check
def memory(rank, size):
    """What was submitted stays, whatever becomes of the caller's tensor. PyTorch's tensors need no call of Python."""
    export = torch.Tensor.__dlpack__
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        del torch.Tensor.__dlpack__
    try:
        handles = [hvd.allreduce_async(torch.full((100_000,), float(each)), op=hvd.Sum, name=f"gone.{each}") for each in range(8)]
        changed = torch.ones(100_000)
        in_place = hvd.allreduce_async_(changed, op=hvd.Sum, name="changed")
        changed.data = torch.zeros(1)
        for each, handle in enumerate(handles):
            assert (hvd.synchronize(handle) == each * size).all()
        assert hvd.synchronize(in_place) is changed and changed.tolist() == [0.0]
        weight = torch.nn.Parameter(torch.ones(3))
        assert hvd.allreduce(weight.detach(), op=hvd.Sum).tolist() == [size] * 3
    finally:
        torch.Tensor.__dlpack__ = export
    assert hvd.allreduce_(weight, op=hvd.Sum) is weight and weight.tolist() == [size] * 3
    plain, calls = torch.ones(3), []
    hvd.synchronize(hvd.allreduce_async_(plain, name="few"))
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    handle = hvd.allreduce_async_(plain, name="few")
    sys.setprofile(None)
    assert hvd.synchronize(handle) is plain and len(calls) <= 4, calls  # what makes 1,000 of these take milliseconds
    half = torch.ones(3, dtype=torch.float64, requires_grad=True)
    made = hvd.allreduce(half, op=hvd.Sum, prescale_factor=0.5)
    assert made.tolist() == [size / 2] * 3 and made.requires_grad and not hvd.allreduce(half.detach()).requires_grad


@check
def gradients(rank, size):
    def gradient(call, shape=(2,)):
        given = torch.ones(shape, requires_grad=True)
        call(given).sum().backward()
        return given.grad

    assert torch.equal(gradient(lambda x: hvd.allreduce(x, op=hvd.Sum)), torch.full((2,), float(size)))
    assert torch.equal(gradient(lambda x: hvd.grouped_allreduce([x, 2 * x], op=hvd.Average)[1]), torch.full((2,), 2.0))
    assert torch.equal(gradient(lambda x: hvd.allgather(x) * (rank + 1)), torch.full((2,), (size + 1) / 2))
    assert torch.equal(gradient(lambda x: hvd.broadcast(x, 0)), torch.full((2,), 1.0 if rank == 0 else 0.0))
    assert torch.equal(gradient(lambda x: hvd.alltoall(x) * (rank + 1), (size,)), torch.arange(1.0, size + 1))
    assert torch.equal(gradient(lambda x: hvd.reducescatter(x, op=hvd.Sum), (size,)), torch.full((size,), float(size)))


@check
def errors(rank, size):
    tall = torch.ones(2 + rank)
    error = refused(hvd.HorovodInternalError, lambda: hvd.allreduce(tall, name="layer.weight"), "all_reduce 'layer.weight'")
    assert "rank 0 has float32[2]" in str(error) and error.code == "mismatch" and error.ranks
    refused(hvd.HorovodInternalError, lambda: hvd.broadcast(torch.ones(1), rank), "root rank")
    refused(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1, dtype=(torch.int32, torch.int64)[rank % 2]), name="t"), "int64")
    refused(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1), op=hvd.Sum, prescale_factor=1.0 + rank, name="f"), "factor")
    refused(hvd.HorovodInternalError, lambda: hvd.allgather(torch.ones(1, 1 + rank)), "float32[1, 2]")
    refused(hvd.HorovodInternalError, lambda: hvd.reducescatter(torch.ones(size), op=hvd.Max), "averages or adds")
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size  # the job continues
    waiting = hvd.allreduce_async(torch.ones(1), name="twice") if rank == 0 else None
    if rank == 0:
        refused(ValueError, lambda: hvd.allreduce_async(torch.ones(1), name="twice"), "under way")
    hvd.synchronize(waiting if rank == 0 else hvd.allreduce_async(torch.ones(1), name="twice"))
    rows = torch.ones(2, 2).t()
    for call, words in ((lambda: hvd.allreduce_(torch.ones(1), average=True, op=hvd.Sum, name="a"), "supersedes average"),
                        (lambda: hvd.allreduce_async_(torch.ones(1, dtype=torch.bool), name="a"), "not supported"),
                        (lambda: hvd.allreduce_async_(rows, name="a"), "contiguous"),
                        (lambda: hvd.allreduce_async_(rows.contiguous(), name="a", op=7), "is none of"),
                        (lambda: hvd.allreduce_async_(rows.contiguous(), name="z" * 4097), "4097 bytes"),
                        (lambda: hvd.allreduce(torch.ones(1), average=True, op=hvd.Sum), "supersedes average"),
                        (lambda: hvd.allreduce(torch.ones(2, 2).t()[:1].t()), "contiguous"),
                        (lambda: hvd.allreduce(torch.ones(1, dtype=torch.bool)), "not supported"),
                        (lambda: hvd.allgather(torch.ones(())), "no dimension"),
                        (lambda: hvd.alltoall(torch.ones(size + 1)), "not divisible"),
                        (lambda: hvd.alltoall(torch.ones(size), splits=[size + 1] * size), "more than"),
                        (lambda: hvd.broadcast(torch.ones(1), size), "not in the process set"),
                        (lambda: hvd.broadcast_parameters(7, 0), "invalid params")):
        refused(ValueError, call, words)
    for name in ("", "x", "y" * 4096, "a\0b", "größe", "\udc80"):
        hvd.allreduce(torch.ones(1), name=name)
        assert hvd.allreduce_(torch.ones(1), name=name, op=hvd.Sum) == size
    refused(ValueError, lambda: hvd.allreduce(torch.ones(1), name="y" * 4097), "4097 bytes")
    hvd.barrier()


@check
def orders(rank, size):
    """Operations of all kinds in a different order on each rank, from two threads, over three sets, some wrong."""
    sets = [hvd.global_process_set, hvd.add_process_set([0, 1]), hvd.add_process_set([0, size - 1])]
    for seed in range(3):
        plan = random.Random(seed)
        planned = []
        for number in range(120):
            members = sets[number % 3].ranks
            wrong = plan.choice(members) if plan.random() < 0.1 else None
            planned.append((f"n{number // 3}", number % 3, plan.choice(["allreduce", "allgather", "broadcast"]), wrong))
        mine = [each for each in planned if rank in sets[each[1]].ranks]
        random.Random(100 * seed + rank).shuffle(mine)
        handles = {}

        def submit(some):
            for name, number, kind, wrong in some:
                given = torch.full((2, 3 if wrong == rank else 2), float(rank))
                arguments = {"name": f"{kind}.{name}", "process_set": sets[number]}
                if kind == "allreduce":
                    handles[name, number] = hvd.allreduce_async(given, op=hvd.Sum, **arguments)
                elif kind == "allgather":
                    handles[name, number] = hvd.allgather_async(given, **arguments)
                else:
                    handles[name, number] = hvd.broadcast_async(given, sets[number].ranks[0], **arguments)

        threads = [threading.Thread(target=submit, args=(mine[at::2],)) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for name, number, kind, wrong in planned:
            if rank not in sets[number].ranks:
                continue
            members = sets[number].ranks
            if wrong is not None:
                error = refused(hvd.HorovodInternalError, lambda: hvd.synchronize(handles[name, number]), f"'{kind}.{name}'")
                assert f"rank {wrong}" in str(error), error
                continue
            made = hvd.synchronize(handles[name, number])
            expected = {"allreduce": [sum(members)], "allgather": members, "broadcast": [members[0]]}[kind]
            assert sorted(set(made.flatten().tolist())) == sorted(set(map(float, expected))), (name, kind, made)
    for each in sets[1:]:
        assert hvd.remove_process_set(each)


@check
def process_sets(rank, size):
    assert hvd.global_process_set.ranks == list(range(size)) and hvd.global_process_set.included()
    made = hvd.add_process_set(hvd.ProcessSet([size - 1, 0]))
    assert made.ranks == [0, size - 1] and made.size() == 2
    refused(ValueError, lambda: hvd.add_process_set([0, size - 1]), "already exists")
    if made.included():
        assert made.rank() == (0 if rank == 0 else 1)
        assert hvd.broadcast(torch.tensor([rank]), size - 1, process_set=made) == size - 1
        refused(ValueError, lambda: hvd.broadcast(torch.ones(1), 1 if size > 2 else size, process_set=made), "not in the process set")
    else:
        refused(ValueError, made.rank, "not part")
        refused(ValueError, lambda: hvd.allreduce(torch.ones(1), process_set=made), "not in")
    other = [0, 1] if rank else [0]
    refused(hvd.HorovodInternalError, lambda: hvd.add_process_set(other), "ranks [0]")
    assert hvd.remove_process_set(made) and not hvd.remove_process_set(made)
    assert made.process_set_id is None and not hvd.remove_process_set(hvd.global_process_set)


@check
def joins(rank, size):
    for step in range(3 + 2 * rank):
        reduced = hvd.allreduce(torch.ones(2), op=hvd.Sum, name="gradient")
        assert reduced[0] == sum(3 + 2 * each > step for each in range(size)), (step, reduced)
    hvd.join()
    for step in range(2 * rank):
        assert hvd.allreduce(torch.ones(2), op=hvd.Adasum, name="adaptive").tolist() == [1.0, 1.0], "of equal vectors, however many"
    hvd.join()
    for step in range(2 * rank + 1):
        objects = hvd.allgather_object({"rank": rank, "step": step}, name="metrics")
        assert objects == [{"rank": each, "step": step} for each in range(size) if 2 * each + 1 > step], (step, objects)
    last = hvd.join()
    equal_on_all(last)
    for _ in range(rank):  # of what has no name
        hvd.allreduce(torch.ones(1))
    hvd.join()
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size
    hvd.barrier()
    assert 0 <= last < size


@check
def state(rank, size):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    with torch.no_grad():
        for each in model.parameters():
            each += rank
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
    equal_on_all([each.tolist() for each in model.parameters()])
    assert hvd.broadcast_object({"epoch": rank, "f": len}, root_rank=size - 1)["epoch"] == size - 1
    for make in (lambda p: torch.optim.SGD(p, 0.1 * (rank + 1), momentum=0.9), lambda p: torch.optim.Adam(p, 0.1 * (rank + 1)),
                 lambda p: torch.optim.Adagrad(p), lambda p: torch.optim.AdamW(p, torch.tensor(0.1 * (rank + 1)), amsgrad=True),
                 lambda p: torch.optim.RMSprop(p), lambda p: torch.optim.Adafactor(p), lambda p: torch.optim.LBFGS(p, lr=0.1)):
        optimizer = make(model.parameters())
        before = [each.detach().clone() for each in model.parameters()]
        if rank == 0:  # only rank 0 has state
            def closure():
                optimizer.zero_grad()
                loss = model(torch.randn(4, 3)).sum()
                loss.backward()
                return loss
            optimizer.step(closure)
            with torch.no_grad():
                for each, old in zip(model.parameters(), before):
                    each.copy_(old)
        hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        assert all(torch.equal(each, old) for each, old in zip(model.parameters(), before)), "weights have moved"

        def plain(value):
            if isinstance(value, torch.Tensor):
                return value.tolist()
            if isinstance(value, dict):
                return {key: plain(each) for key, each in value.items()}
            return [plain(each) for each in value] if isinstance(value, (list, tuple)) else value
        equal_on_all(plain(optimizer.state_dict()))
    if size > 1:
        refused(ValueError, lambda: hvd.broadcast_optimizer_state(
            torch.optim.SGD([torch.nn.Parameter(torch.ones(2 + rank))], 0.1), 0), "(3,)")


@check
def batch_norm(rank, size):
    """Equals BatchNorm over all samples, of which ranks have different numbers."""
    batches = [torch.randn(2 + each, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(each)) for each in range(size)]
    whole, layer = torch.nn.BatchNorm1d(3).double(), hvd.SyncBatchNorm(3).double()
    with torch.no_grad():
        for each in (whole, layer):
            each.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
    everything = torch.cat(batches).requires_grad_()
    expected = whole(everything)
    (expected * torch.cat([torch.full_like(each, place + 1.0) for place, each in enumerate(batches)]) ** 2).sum().backward()
    own = batches[rank].clone().requires_grad_()
    made = layer(own)
    (made * torch.full_like(own, rank + 1.0) ** 2).sum().backward()
    first = sum(each.size(0) for each in batches[:rank])
    torch.testing.assert_close(made, expected[first:first + own.size(0)])
    torch.testing.assert_close(own.grad, everything.grad[first:first + own.size(0)])
    torch.testing.assert_close(hvd.allreduce(layer.weight.grad, op=hvd.Sum), whole.weight.grad)
    torch.testing.assert_close(layer.running_var, whole.running_var)
    layer.eval(), whole.eval()
    torch.testing.assert_close(layer(own), whole(own))
    refused(ValueError, lambda: layer(torch.ones(3)), "at least 2D")


@check
def elastic(rank, size):
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    sampler = hvd.elastic.ElasticSampler(range(7))
    assert len(sampler) == -(-7 // size) and sampler.total_size >= 7
    seen = hvd.allgather_object(list(sampler))
    assert {number for each in seen for number in each} == set(range(7))
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, batch=0, failures=0)
    calls = []
    state.register_reset_callbacks([lambda: calls.append(state.batch)])

    @hvd.elastic.run
    def train(state):
        equal_on_all([state.batch, *(each.tolist() for each in state.model.parameters())])
        while state.batch < 6:
            if state.batch == 4 and not calls:
                state.batch = 5  # not committed
                hvd.allreduce(torch.ones(1 + rank), name="differs")
            optimizer.zero_grad()
            model(torch.ones(1, 2) * rank).sum().backward()
            optimizer.step()
            state.batch += 1
            if state.batch % 2 == 0:
                state.commit()
        return state.batch

    assert train(state) == 6 and calls == [4], calls
    equal_on_all([each.tolist() for each in model.parameters()])
    sampler.record_batch(0, 2)
    assert sampler.processed_num == min(2, len(sampler)) * size
    sampler.reset()
    assert len(sampler.remaining_indices) == max(7 - sampler.processed_num, 0)
    sampler.set_epoch(1)
    assert len(sampler.remaining_indices) == 7 and list(hvd.elastic.ElasticSampler(range(1)))


@check
def restarts(rank, size):
    def descriptors():
        return len(os.listdir("/proc/self/fd"))
    hvd.init()  # no effect
    known = 0
    for round_ in range(20):
        hvd.shutdown()
        refused(ValueError, hvd.rank, "hvd.init()")
        hvd.init()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size
        if round_ == 5:
            known = descriptors()
    assert descriptors() <= known + 2, (known, descriptors())
    assert threading.active_count() < 10
    child = os.fork()
    if child == 0:
        try:
            refused(ValueError, lambda: hvd.allreduce(torch.ones(1)), "forked")
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    hvd.barrier()


@check
def leaves(rank, size):
    """One rank leaves while the others wait for it."""
    if rank == size - 1:
        hvd.shutdown()
        time.sleep(0.2)
        return
    error = refused(hvd.HorovodInternalError, lambda: hvd.synchronize(hvd.allreduce_async(torch.ones(1), name="never")))
    assert error.ranks == (size - 1,) and "shut" in str(error), error


@check
def killed_in_a_step(rank, size):
    """The last rank dies; the others' backward() reports it as Horovod does."""
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    def step():
        wrapped.zero_grad()
        model(sample(rank)).pow(2).mean().backward()
        wrapped.step()
    step()
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    error = refused(hvd.HorovodInternalError, lambda: [step() for _ in range(3)])
    assert error.code == "peer_lost", (error.code, error)


@check
def killed(rank, size):
    """The last rank dies; the others report it."""
    for _ in range(5):
        hvd.allreduce(torch.ones(1), name="step")
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    error = refused(hvd.HorovodInternalError, lambda: [hvd.allreduce(torch.ones(1), name="step") for _ in range(3)])
    assert size - 1 in error.ranks and error.code == "peer_lost", (error.code, error)
    assert time.monotonic() - began < 30


if __name__ == "__main__":
    refused(ValueError, hvd.rank, "Horovod has not been initialized; use hvd.init().")
    hvd.init()
    numbers = hvd.rank(), hvd.size()
    assert hvd.local_rank() + hvd.cross_rank() * hvd.local_size() == numbers[0] and hvd.cross_size() * hvd.local_size() == numbers[1]
    assert hvd.is_homogeneous() and hvd.mpi_threads_supported()
    run_checks(*numbers)
