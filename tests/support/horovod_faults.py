"""Checks of horovod_job.py on what goes wrong around operations: signals, forks, lost ranks, memory that is resized."""

import itertools
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta

import libddp
import libddp.horovod as hvd
import torch
from libddp.horovod import _job

from horovod_checks import equal_on_all, momentum, sample, small_model
from job_checks import check, refused


def interrupted(call):
    """Ctrl-C while it waits, which ends it soon."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Timer(0.3, send).start()
    refused(KeyboardInterrupt, call)
    assert time.monotonic() - sent[0] < 5


@check
def interrupts(rank, size):
    """Ctrl-C ends waits for ranks that do not come. What was waited for can be waited for again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
    others = _job.job().group  # by which the others learn that they may come
    if rank == 0:
        handle = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name="late")
        interrupted(lambda: hvd.synchronize(handle))
        interrupted(lambda: hvd.allreduce(torch.ones(1), op=hvd.Sum, name="later"))
        interrupted(hvd.barrier)
    others.barrier().wait()
    if rank > 0:
        handle = hvd.allreduce_async(torch.ones(1), op=hvd.Sum, name="late")
        hvd.allreduce(torch.ones(1), op=hvd.Sum, name="later")
        hvd.barrier()
    assert hvd.synchronize(handle) == size
    hvd.barrier()
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    model(sample(rank)).pow(2).mean().backward()
    wrapped.step()
    if rank == 0:
        interrupted(hvd.join)  # taking part in others' steps
    others.barrier().wait()
    hvd.shutdown()
    others.barrier().wait()
    del wrapped
    hvd.init()
    if rank == 0:
        interrupted(hvd.join)
    others.barrier().wait()


@check
def forks(rank, size):
    """Children take part in nothing, and disturb nothing, whatever is under way."""
    names = [f"forked.{number}" for number in range(100)]
    handles = [hvd.allreduce_async(torch.ones(1000), op=hvd.Sum, name=name) for name in names if rank == 0]
    children = []
    for number in range(2):
        child = os.fork()
        if child == 0:
            refused(ValueError, lambda: hvd.allreduce(torch.ones(1)), "forked")
            refused(libddp.Unavailable, hvd.init, "forked")
            for handle in handles:
                refused(libddp.Unavailable, lambda: hvd.poll(handle), "forked")
                refused(libddp.Error, lambda: hvd.synchronize(handle), "forked")
            sys.stdout = open(os.devnull, "w")
            os._exit(7) if number == 0 else sys.exit(7)
        children.append(child)

    class Ranks(torch.utils.data.Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return [str(refused(ValueError, call)) for call in (hvd.rank, lambda: hvd.allreduce(torch.ones(1)))]

    loaded = [each for batch in torch.utils.data.DataLoader(Ranks(), num_workers=2, batch_size=None) for each in batch]
    assert len(loaded) == 4 and all(f"worker {number // 2} of a DataLoader" in each for number, each in enumerate(loaded)), loaded
    assert [os.waitpid(child, 0)[1] for child in children] == [7 << 8] * 2
    handles = handles or [hvd.allreduce_async(torch.ones(1000), op=hvd.Sum, name=name) for name in names]
    assert all((hvd.synchronize(handle) == size).all() for handle in handles)


@check
def resized(rank, size):
    """The memory of what is under way stays, and keeps its size."""
    given = {dtype: torch.full((50_000,), rank + 1, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.int64)}
    scalar = torch.tensor(float(rank))
    calls = [*(lambda each=each: hvd.allreduce_async_(each, op=hvd.Max) for each in given.values()),
             lambda: hvd.grouped_allreduce_async_([scalar], op=hvd.Max), lambda: hvd.broadcast_async_(scalar, 0),
             lambda: hvd.allgather_async(given[torch.float32]), lambda: hvd.reducescatter_async(given[torch.float32], op=hvd.Sum),
             lambda: hvd.alltoall_async(given[torch.int64][:2 * size])]
    handles = [call() for call in calls] if rank == 0 else []
    for each in (*given.values(), scalar):
        if rank == 0:
            refused(RuntimeError, lambda: each.detach().resize_(1_000_000), "resiz")  # which leaves that view unusable
            refused(RuntimeError, lambda: each.untyped_storage().resize_(0), "resiz")
    _job.job().group.barrier().wait()
    handles = handles or [call() for call in calls]
    made = [hvd.synchronize(handle) for handle in handles]
    assert all((each == size).all() for each in given.values()) and scalar == size - 1, (given, scalar)
    assert made[5].numel() == 50_000 * size
    result = hvd.allreduce(torch.ones(3))
    assert result.resize_(100).numel() == 100, "results are the caller's"
    model = small_model()
    hvd.broadcast_parameters(model.state_dict(), 0)
    assert all(each.untyped_storage().resizable() for each in model.parameters()), "what is not under way is the caller's, too"


@check
def resizable_again(rank, size):
    """With the adapter, what has ended is the caller's again, also where several operations have used it."""
    from libddp import _adapter
    _adapter.load()
    given, group = torch.full((1000,), float(rank)), _job.job().group
    calls = [lambda: hvd.allreduce_async_(given, op=hvd.Max, name="kept"), lambda: hvd.allgather_async(given[:7], name="kept"),
             lambda: hvd.grouped_allreduce_async_([given], op=hvd.Max, name="kept group"), lambda: hvd.broadcast_async_(given, 0, name="kept")]
    for round_ in range(2):
        handles = [call() for call in calls] if rank == 0 else []
        if rank == 0:
            refused(RuntimeError, lambda: given.detach().resize_(1_000_000), "resiz")
        group.barrier().wait()
        for handle in handles or [call() for call in calls]:
            hvd.synchronize(handle)
        assert given.untyped_storage().resizable() and given.resize_(2000).numel() == 2000
        given.resize_(1000)
    wrong = torch.ones(1)
    handle = hvd.allreduce_async_(wrong, op=hvd.Max if rank == 0 else hvd.Min, name="wrong")
    refused(hvd.HorovodInternalError, lambda: hvd.synchronize(handle), "'wrong'")
    assert wrong.untyped_storage().resizable()


@check
def struck(rank, size):
    """A rank is killed or stopped, at a moment of its own, among operations of all kinds in random and in learned orders."""
    victim, how, after = os.environ["STRUCK"].split()
    victim, pids = int(victim), hvd.allgather_object(os.getpid())
    store = torch.distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    pair = hvd.add_process_set([0, size - 1])
    whole = time.monotonic()  # when the last step was

    def steps():
        nonlocal whole
        for step in itertools.count():
            order = list(range(30))
            if step // 10 % 2:
                random.Random(step * size + rank).shuffle(order)
            for each in order:
                chosen = pair if each % 5 == 0 and pair.included() else hvd.global_process_set
                if each % 5 == 0 and not pair.included():
                    continue
                given, name = torch.full((2 + each * each,), float(rank + 1)), f"{each}"
                handles[name] = (hvd.allreduce_async(given, op=hvd.Sum, name=name, process_set=chosen) if each % 3 == 0 else
                                 hvd.allgather_async(given, name=name, process_set=chosen) if each % 3 == 1 else
                                 hvd.broadcast_async(given, 0, name=name, process_set=chosen))
            for name in list(handles):
                each, made = int(name), hvd.synchronize(handles[name])
                del handles[name]
                members = chosen_ranks(each)
                expected = {0: [sum(members) + len(members)], 1: [member + 1 for member in members], 2: [1]}[each % 3]
                assert set(made.tolist()) == set(map(float, expected)), (name, made)
            whole = time.monotonic()

    def chosen_ranks(each):
        return [0, size - 1] if each % 5 == 0 else list(range(size))

    handles = {}
    if rank == victim:
        threading.Timer(float(after), os.kill, (os.getpid(), getattr(signal, how))).start()
    try:
        error = refused(hvd.HorovodInternalError, steps)
        # None ends before all have noticed: they would have lost that one, too.
        store.set(f"noticed {rank}", "")
        store.wait([f"noticed {each}" for each in range(size) if each != victim], timedelta(seconds=60))
        assert error.ranks == (victim,), (error.code, error.ranks, str(error))
        assert error.code == "peer_lost" or (how == "SIGSTOP" and error.code == "timeout"), error
        seconds = time.monotonic() - whole
        assert seconds < (10 if how == "SIGKILL" else 30), seconds
        for handle in list(handles.values())[1:]:  # some may have ended before
            try:
                hvd.synchronize(handle)
            except hvd.HorovodInternalError as other:
                assert other.ranks == (victim,), other
        refused(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1), name="after"))
        sys.stdout.write(f"after {seconds:.2f} s: {error}\n")
    finally:
        if rank == (victim + 1) % size and how == "SIGSTOP":
            os.kill(pids[victim], signal.SIGKILL)


@check
def silence(rank, size):
    """Rank 0, which decides what is ready, is stopped while the other one has nothing else to wait for."""
    pids = hvd.allgather_object(os.getpid())
    hvd.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    error = refused(hvd.HorovodInternalError, lambda: hvd.allreduce(torch.ones(1), name="undecided"), "does not answer")
    assert error.code == "timeout" and error.ranks == (0,) and "'undecided'" in str(error), error
    os.kill(pids[0], signal.SIGKILL)
