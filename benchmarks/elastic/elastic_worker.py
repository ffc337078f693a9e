"""elastic_worker.cpp with torch: steps of DistributedDataParallel over gloo."""

import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    token = torch.tensor([os.getpid() if rank == 0 else 0])
    dist.all_reduce(token)
    model = DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.ones(8, 256)
    marked = False
    while True:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if not marked:
            marks = os.open(os.environ["ELASTIC_MARKS"], os.O_WRONLY | os.O_APPEND)
            os.write(marks, f"{time.monotonic_ns()} {int(token)} {rank} {world} {os.getpid()}\n".encode())
            os.close(marks)
            marked = True
        time.sleep(0.01)


main()
