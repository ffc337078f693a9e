"""A rank with a CUDA device (torch_cuda.py), a double or a real one: the backend "ddp" on CUDA tensors.
tests/python/test_libddp_torch_cuda.py starts it with the names of checks.

Work on streams is delayed at random: where one does not wait for another, numbers are wrong.
"""

import contextlib
import datetime
import os
import signal
import sys
import time
from unittest import mock

from torch_cuda import NUMBER, REAL, gpu  # before torch

import torch
import torch.distributed as dist

import libddp.torch
from libddp_torch_cuda_graphs import captured_operations, captured_torchs_training, captured_training  # noqa: F401, checks
from libddp_torch_cuda_training import (hooks, launches, refused_training, sharded_training, sparse_training,  # noqa: F401, checks
                                        torchs_training, training)

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", NUMBER)
SUM = SIZE * (SIZE + 1) // 2
STREAMS = 3
COUNT = 1000  # elements


def full(value, shape=(COUNT,), dtype=torch.float32):
    """Filled in the current stream, some time."""
    return gpu.full(shape, value, dtype, NUMBER)


def expect(what, tensor, *values):
    """Parts of equal size have these values: read in the current stream."""
    found = tensor.cpu()
    for part, value in zip(found.chunk(len(values)), values):
        assert (part == value).all(), f"{what}: {found.flatten()[::max(1, found.numel() // 8)]} instead of {values}"


def ended(work):
    limit = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < limit, "it does not end"
        time.sleep(0.001)


def by_rank(first=1, step=1):
    return [first + step * rank for rank in range(SIZE)]


def all_operations():
    """Once for each way in which the rest of the program may follow."""
    operations = [
        ("all_reduce", lambda **more: reduced(dist.all_reduce, **more)),
        ("broadcast", lambda **more: (t := full(RANK + 1), dist.broadcast(t, SIZE - 1, **more), (SIZE,))),
        ("reduce", lambda **more: reduced(dist.reduce, 0, only=0, **more)),
        ("all_gather_into_tensor", lambda **more: (t := full(-1, (SIZE * COUNT,)),
                                                   dist.all_gather_into_tensor(t, full(RANK + 1), **more), by_rank())),
        ("all_gather", gathered),
        ("gather", gathered_at_one),
        ("scatter", scattered),
        ("reduce_scatter_tensor", lambda **more: (t := full(-1), dist.reduce_scatter_tensor(
            t, full(RANK + 1, (SIZE * COUNT,)), **more), (SUM,))),
        ("reduce_scatter", lambda **more: (t := full(-1), dist.reduce_scatter(
            t, [full(RANK + 1 + i) for i in range(SIZE)], **more), (SUM + SIZE * RANK,))),
        ("all_to_all_single", lambda **more: (t := full(-1, (SIZE * COUNT,)), dist.all_to_all_single(
            t, torch.cat([full(10 * RANK + i) for i in range(SIZE)]), **more), by_rank(RANK, 10))),
        ("uneven_all_to_all", uneven),
        ("all_to_all", all_to_all),
        ("all_reduce_coalesced", coalesced),
        ("coalescing_manager", managed),
    ]
    for number in range(2 * STREAMS):
        gpu.use_stream(NUMBER, number % STREAMS)
        for name, start in operations:
            outputs, _, values = start()  # waits for it in the current stream
            check_outputs(name, outputs, values)
            outputs, work, values = start(async_op=True)
            work.wait()
            check_outputs(f"{name}, waited for", outputs, values)
            if isinstance(work, torch._C.Future):
                continue
            outputs, work, values = start(async_op=True)
            ended(work)
            work.synchronize()
            check_outputs(f"{name}, ended", outputs, values)
            outputs, work, values = start(async_op=True)
            work.get_future().wait()
            check_outputs(f"{name}, its future", outputs, values)


def check_outputs(name, outputs, values):
    if not isinstance(outputs, list):
        return expect(name, outputs, *values) if values else None
    for output, value in zip(outputs, values):
        expect(name, output, value)


def reduced(operation, *arguments, only=None, **more):
    tensor = full(RANK + 1)
    work = operation(tensor, *arguments, **more)
    return tensor, work, (SUM,) if only in (None, RANK) else ()


def gathered(**more):
    parts = [full(-1) for _ in range(SIZE)]
    return parts, dist.all_gather(parts, full(RANK + 1), **more), by_rank()


def gathered_at_one(**more):
    parts = [full(-1) for _ in range(SIZE)] if RANK == 0 else None
    return parts or [], dist.gather(full(RANK + 1), parts, 0, **more), by_rank()


def scattered(**more):
    output = full(-1)
    return output, dist.scatter(output, [full(i + 5) for i in range(SIZE)] if RANK == 0 else None, 0, **more), (RANK + 5,)


def uneven(**more):
    """Rank a sends a + b rows to rank b."""
    sizes = [RANK + i for i in range(SIZE)]
    output = full(-1, (sum(sizes), 100))
    work = dist.all_to_all_single(output, full(RANK + 1, (sum(sizes), 100)), sizes, sizes, **more)
    return list(output.split(sizes)), work, by_rank()


def all_to_all(**more):
    outputs = [full(-1) for _ in range(SIZE)]
    return outputs, dist.all_to_all(outputs, [full(10 * RANK + i) for i in range(SIZE)], **more), by_rank(RANK, 10)


def coalesced(async_op=False):
    tensors = [full(RANK + 1), full(10 * (RANK + 1))]
    return tensors, dist.all_reduce_coalesced(tensors, async_op=async_op), (SUM, 10 * SUM)


def managed(async_op=False):
    tensors = [full(RANK + 1), full(2 * (RANK + 1))]
    with dist._coalescing_manager(device=DEVICE, async_ops=async_op) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    return tensors, manager.works[0] if async_op else None, (SUM, 2 * SUM)


def transfers():
    other = (RANK + 1) % SIZE
    for number in range(STREAMS):
        gpu.use_stream(NUMBER, number)
        if RANK == 0:
            dist.send(full(7), 1)
            dist.recv(got := full(-1), 1)
            expect("recv", got, 8)
        else:
            dist.recv(got := full(-1), 0)
            dist.send(full(8), 0)
            expect("recv", got, 7)
        # both send before they receive, more than NCCL keeps
        got, sent = full(-1, (100 * COUNT,)), full(RANK + 1, (100 * COUNT,))
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, other), dist.P2POp(dist.irecv, got, other)]):
            work.wait()
        expect("batch_isend_irecv", got, other + 1)
        on_host = torch.full((COUNT,), -1.0)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((COUNT,), RANK + 1.0), other),
                                            dist.P2POp(dist.irecv, on_host, other)]):
            work.wait()
        expect("batch_isend_irecv on the host", on_host, other + 1)


def types():
    for dtype in torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.complex64:
        dist.all_reduce(tensor := full(RANK + 1, dtype=dtype))
        expect(f"all_reduce of {dtype}", tensor, SUM)
    dist.broadcast(tensor := full(RANK, dtype=torch.int16), 1)  # moved as bytes
    expect("broadcast of int16", tensor, 1)
    dist.all_reduce(tensor := full(RANK + 1), dist.ReduceOp.AVG)
    expect("an average", tensor, SUM / SIZE)
    dist.all_reduce(tensor := full(RANK + 1, (20, 30)).t())
    expect("transposed", tensor, SUM)


def beside_the_host():
    """Tensors of both kinds, objects, barriers, groups of some ranks."""
    dist.all_reduce(on_host := torch.full((COUNT,), RANK + 1.0))
    assert (on_host == SUM).all()
    objects = [None] * SIZE
    dist.all_gather_object(objects, RANK)
    assert objects == list(range(SIZE))
    dist.barrier()
    alone = [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    dist.all_reduce(tensor := full(3), group=alone)
    expect("alone", tensor, 3)
    both = dist.new_group(list(reversed(range(SIZE))))
    dist.all_reduce(tensor := full(RANK + 1), group=both)
    expect("a second group", tensor, SUM)
    host_only = dist.new_group(backend="cpu:ddp")
    dist.all_reduce(on_host, group=host_only)
    assert libddp._adapter.load().cuda_device_of(libddp._backend.of(host_only)) is None
    assert libddp._adapter.load().cuda_device_of(libddp._backend.of(both, device=DEVICE)) == NUMBER
    if REAL and torch.cuda.device_count() == 1:
        return
    try:
        dist.all_reduce(gpu.full((4,), 1, torch.float32, (NUMBER + 1) % SIZE))
        sys.exit("a tensor on another device was taken")
    except libddp.InvalidArgument as error:
        assert f"on CUDA device {(NUMBER + 1) % SIZE}, but this rank's in the group is {NUMBER}" in str(error), error


def memory_is_kept():
    """What the program has dropped is used until the operation is over."""
    for number in range(10):
        gpu.use_stream(NUMBER, number % STREAMS)
        outputs = [(full(-1, (SIZE * COUNT,)), [full(-1) for _ in range(SIZE)]) for _ in range(4)]
        works = []
        for i, (whole, parts) in enumerate(outputs):
            works.append(dist.all_gather_into_tensor(whole, full(i + RANK), async_op=True))
            works.append(dist.all_gather(parts, full(i + RANK), async_op=True))
        for work in works:
            work.wait()
        for i, (whole, parts) in enumerate(outputs):
            expect("all_gather_into_tensor of what was dropped", whole, *by_rank(i))
            check_outputs("all_gather of what was dropped", parts, by_rank(i))


def futures():
    for number in range(5):
        gpu.use_stream(NUMBER, number % STREAMS)
        tensor = full(RANK + 1)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        doubled = future.then(lambda done: torch.cat([done.value()[0], done.value()[0]]))
        expect("what is behind a future", doubled.wait(), SUM, SUM)


def nothing_blocks():
    """The host goes on while its stream stands still."""
    gpu.use_stream(NUMBER, 1)

    def started():
        tensor, parts = full(RANK + 1), [full(-1) for _ in range(SIZE)]
        works = [dist.all_reduce(tensor, async_op=True), dist.all_gather(parts, full(RANK + 1), async_op=True)]
        over = [(work.wait(), work.is_completed()) for work in works]
        return works, over, torch.cat([tensor, *parts])

    started()[-1].cpu()  # a driver that loads code for the first time waits for the device, and NCCL connects
    gpu.pause(NUMBER)
    before = time.monotonic()
    works, over, late = started()
    assert over == [(True, False)] * 2, over
    works[0].get_future()
    try:
        works[0].wait(datetime.timedelta(seconds=0.3))
        sys.exit("a wait with a limit has ended")
    except libddp.Timeout as error:
        assert "still running" in str(error), error
    assert 0.3 <= time.monotonic() - before < 10
    gpu.resume(NUMBER)
    expect("behind a stream that stood still", late, SUM, *by_rank())
    for work in works:
        assert work.wait(datetime.timedelta(seconds=60)) and work.is_completed()
    gpu.pause(NUMBER)
    works = [dist.barrier(async_op=True)]  # of the host
    works[0].wait()
    gpu.resume(NUMBER)


def with_cuda_and_nccl():
    """What torch says of itself where it has both."""
    said = contextlib.ExitStack()
    for place, name in (torch.cuda, "is_available"), (dist, "is_nccl_available"):
        said.enter_context(mock.patch.object(place, name, lambda: True))
    return said


def no_name():
    """ddprun --backend=ddp, of a program that names no backend: "ddp" for all tensors, unless it has no CUDA tensors."""
    assert dist.get_backend_config() == "cpu:ddp,cuda:ddp", dist.get_backend_config()
    with with_cuda_and_nccl():
        for place, name, value in ((torch.version, "hip", "7.0"), (torch, "Stream", object), (libddp, "__file__", "/nowhere/x")):
            with mock.patch.object(place, name, value):
                assert libddp._backend.default() == "cpu:ddp,cuda:nccl", name


def no_device():
    """CPU tensors do without."""
    dist.all_reduce(on_host := torch.full((COUNT,), RANK + 1.0))
    assert (on_host == SUM).all()
    assert libddp._adapter.load().cuda_device_of(libddp._backend.of(dist.group.WORLD)) is None


def absent():
    """Rank 0 alone starts an operation."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=1))
    dist.all_reduce(full(1), group=group)
    dist.barrier()
    if RANK == 0:
        work = dist.all_reduce(full(1), group=group, async_op=True)
        work.wait()  # the stream's concern
        ended(work)
        assert not work.is_success()
        for use in lambda: work.wait(datetime.timedelta(seconds=5)), lambda: dist.all_reduce(full(1), group=group):
            try:
                use()
                sys.exit("it is no error that a rank is absent")
            except libddp.Timeout as error:
                assert error.ranks == (1,), error
    dist.barrier()


def killed():
    """The last rank dies while the others wait for it."""
    dist.all_reduce(full(1))
    dist.barrier()
    if RANK == SIZE - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(full(1), async_op=True)
    try:
        work.wait(datetime.timedelta(seconds=30))
        sys.exit("it is no error that a rank is lost")
    except libddp.PeerLost as error:
        print(f"LOST {error.ranks}", flush=True)
    ended(work)
    assert not work.is_success()
    try:
        dist.all_reduce(full(1))
        sys.exit("the group goes on")
    except libddp.PeerLost as error:
        assert error.ranks == (SIZE - 1,), error
    os._exit(0)


with with_cuda_and_nccl():
    dist.init_process_group(os.environ.get("TEST_BACKEND"), timeout=datetime.timedelta(seconds=60))
for check in sys.argv[1:]:
    globals()[check]()
    sys.stdout.write(f"CHECKED {check} {RANK}\n")
dist.destroy_process_group()
