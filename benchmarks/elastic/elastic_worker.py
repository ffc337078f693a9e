"""elastic_worker.cpp with torch: steps of DistributedDataParallel over gloo.

ELASTIC_STATE: bytes of a tensor that is restored before the first step, where a generation before has saved it in ELASTIC_FOLDER;
by libddp's checkpoints in memory under ddprun, by a file of torch's else.
"""

import os
import struct
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

STEP = 7


def restored(state):
    """Whether there was a checkpoint. Saves one otherwise."""
    folder = os.environ["ELASTIC_FOLDER"]
    if os.environ.get("ELASTIC_LIBDDP") == "1":
        import libddp
        checkpoints = libddp.Checkpoints(libddp.init().process_group(), folder, memory=True)
        if checkpoints.restore({"state": state.numpy()}):
            return True
        checkpoints.save(STEP, {"state": state.fill_(STEP).numpy()})
        return False
    path = os.path.join(folder, "checkpoint.pt")
    if os.path.exists(path):
        state.copy_(torch.load(path, mmap=True, weights_only=True)["state"])
        return True
    dist.barrier()  # all have looked
    if dist.get_rank() == 0:
        torch.save({"state": state.fill_(STEP)}, path + ".new")
        os.replace(path + ".new", path)
    dist.barrier()
    return False


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    token = torch.tensor([os.getpid() if rank == 0 else 0])
    dist.all_reduce(token)
    if size := int(os.environ.get("ELASTIC_STATE", 0)):
        state = torch.empty(size // 4)
        if restored(state) and not (state[0] == state[-1] == STEP):
            raise RuntimeError("the state was not restored")
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(8, 256)
    marks = os.environ["ELASTIC_MARKS"]
    steps = os.open(f"{marks}.{os.getpid()}", os.O_WRONLY | os.O_CREAT, 0o600)
    marked = False
    while True:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.monotonic_ns()
        os.pwrite(steps, struct.pack("=q", now), 0)
        if not marked:
            file = os.open(marks, os.O_WRONLY | os.O_APPEND)
            os.write(file, f"{now} {int(token)} {rank} {world} {os.getpid()}\n".encode())
            os.close(file)
            marked = True
        time.sleep(0.01)


main()
