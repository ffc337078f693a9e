"""An ordinary PyTorch program for launchers: knows nothing of ddprun, and checks what it gets from torch.distributed.

    torch_job.py CHECK...                 run these checks, in this order ("all": all of them)
    torch_job.py --die RANK CHECK...      the same, but in attempt 0 this rank dies after the checks

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception. The first line
is "JOB <rank> <local rank> <node> <attempt> <world size> <host>".
"""

import argparse
import datetime
import os
import signal
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def say(*words):
    # One write, as the lines of several ranks meet in one stream.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def expect(condition, what):
    if not condition:
        raise AssertionError(f"rank {RANK}: {what}")


def collectives():
    tensor = torch.full((1000,), float(RANK + 1))
    dist.all_reduce(tensor)
    expect(torch.all(tensor == SIZE * (SIZE + 1) / 2), f"all_reduce gave {tensor[0]}")
    dist.all_reduce(low := torch.tensor(RANK - 5), dist.ReduceOp.MIN)
    expect(low == -5, f"the least is {low}")
    parts = [torch.empty(3) for _ in range(SIZE)]
    dist.all_gather(parts, torch.full((3,), float(RANK)))
    expect(all(torch.all(part == i) for i, part in enumerate(parts)), f"all_gather gave {parts}")
    for root in range(SIZE):
        dist.broadcast(word := torch.full((7,), float(RANK)), root)
        expect(torch.all(word == root), f"broadcast from {root} gave {word}")
    dist.barrier()


def point_to_point():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    got = torch.empty(5)
    sending = dist.isend(torch.full((5,), float(RANK)), after, tag=3)
    dist.recv(got, before, tag=3)
    sending.wait()
    expect(torch.all(got == before), f"from rank {before} came {got}")


def objects():
    everyone = [None] * SIZE
    dist.all_gather_object(everyone, {"rank": RANK, "text": "ü" * (RANK + 1)})
    expect(everyone == [{"rank": i, "text": "ü" * (i + 1)} for i in range(SIZE)], f"all_gather_object gave {everyone}")
    plan = [["layers", 3], None] if RANK == 0 else [None, None]
    dist.broadcast_object_list(plan)
    expect(plan == [["layers", 3], None], f"broadcast_object_list gave {plan}")


def groups():
    # Every rank makes every group, as torch demands.
    last = dist.new_group([SIZE - 1])
    everyone = dist.new_group(range(SIZE))
    dist.all_reduce(one := torch.ones(1), group=everyone)
    expect(one == SIZE, f"the group of all has {one} ranks")
    if RANK == SIZE - 1:
        dist.all_reduce(one := torch.ones(1), group=last)
        expect(one == 1, f"the group of the last rank has {one} ranks")
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=60))
    # The last rank does not come: rank 0 must be told who it is. A group of its own, as this one is broken afterwards.
    monitored = dist.new_group(range(SIZE), timeout=datetime.timedelta(seconds=60))
    if RANK == SIZE - 1:
        return
    try:
        dist.monitored_barrier(monitored, datetime.timedelta(seconds=0.5))
    except RuntimeError as error:
        expect(RANK != 0 or f"Rank {SIZE - 1}" in str(error), f"the missing rank is not named: {error}")
    else:
        expect(SIZE == 1, "a barrier ended without the last rank")


def store():
    # The store that torch itself uses, and a further client of the same server, as scripts make one.
    own = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    following = (RANK + 1) % SIZE
    for shared in (dist.distributed_c10d._get_default_store(), own):
        expect(not shared.check([f"from/{RANK}"]), "there is a key of an earlier attempt")
        shared.set(f"from/{RANK}", str(RANK * 7))
        expect(shared.get(f"from/{following}") == str(following * 7).encode(), "another rank's key has another value")
        shared.add("visitors", 1)
        dist.barrier()
        expect(shared.add("visitors", 0) == SIZE, "not everyone was counted, or an earlier attempt, too")


def small_model():
    torch.manual_seed(11)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def train(model, inputs, targets, steps=5):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def ddp():
    # Equal shares, so that the mean of the shares' gradients is the gradient of the mean over the whole batch. Only the
    # order of the sums differs: some 1e-16 for each of few steps in double precision, which 1e-12 leaves room for.
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SIZE * 8, 6, generator=generator, dtype=torch.float64)
    targets = inputs.prod(dim=1, keepdim=True)
    share = slice(RANK * 8, (RANK + 1) * 8)
    whole = train(small_model(), inputs, targets)
    ours = train(DistributedDataParallel(small_model()), inputs[share], targets[share])
    difference = (ours - whole).abs().max().item()
    expect(difference < 1e-12, f"parameters differ by {difference} from those of one process with the whole batch")
    alone = train(small_model(), inputs[share], targets[share])
    expect(SIZE == 1 or (alone - whole).abs().max() > 1e-3, "training on a share alone gives the same")


def data_loader():
    data = TensorDataset(torch.arange(SIZE * 12))
    sampler = DistributedSampler(data, shuffle=False)
    batches = list(DataLoader(data, batch_size=4, sampler=sampler, num_workers=2))
    mine = torch.cat([batch for (batch,) in batches])
    expect(torch.equal(mine, torch.arange(RANK, SIZE * 12, SIZE)), f"the loader's workers gave {mine}")
    dist.all_reduce(total := mine.sum())
    expect(total == sum(range(SIZE * 12)), f"all samples together are {total}")


def child(index, results):
    results.put((index, os.getppid(), os.environ["RANK"], torch.ones(3).sum().item()))
    raise ValueError("of a child")


def children():
    # One is enough: each child starts an interpreter and imports torch.
    if RANK == 0:
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        try:
            torch.multiprocessing.spawn(child, (results,), nprocs=1)
        except torch.multiprocessing.ProcessRaisedException as error:
            expect("ValueError: of a child" in str(error), f"the child's error is not there: {error}")
        else:
            expect(False, "an error in a child was not reported")
        expect(results.get() == (0, os.getpid(), "0", 3.0), "the child saw another world")
    dist.barrier()


def rpc():
    """Workers reach each other at the interface that the launcher has named, not by their hosts' names."""
    from torch.distributed import rpc
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=SIZE)
    other = (RANK + 1) % SIZE
    expect(rpc.rpc_sync(f"worker{other}", pow, (other, 2)) == other**2, "a call of another worker gave something else")
    rpc.shutdown()


CHECKS = {
    function.__name__: function
    for function in (store, collectives, point_to_point, objects, ddp, data_loader, children, groups, rpc)
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--die", type=int)
    parser.add_argument("checks", nargs="+", choices=["all", *CHECKS])
    options = parser.parse_args()
    facts = [RANK, os.environ["LOCAL_RANK"], os.environ["GROUP_RANK"], ATTEMPT, SIZE, socket.gethostname()]
    say("JOB", *facts)
    expect(dist.is_torchelastic_launched(), "torch does not see that a launcher started it")
    dist.init_process_group("gloo")
    expect((dist.get_rank(), dist.get_world_size()) == (RANK, SIZE), "torch has other ranks than the environment")
    for name in CHECKS if "all" in options.checks else options.checks:
        CHECKS[name]()
        say("CHECKED", name, RANK)
    dist.barrier()  # all have said what they checked
    if ATTEMPT == 0 and RANK == options.die:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
