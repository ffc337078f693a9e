"""Trains a small regression as a Horovod program does, with metrics merged by mpi4py.

    ddprun --as horovod,mpi4py -np 2 train.py        as it is
    ddprun -np 2 train.py --libddp                   with libddp's names; also srun --ddp, srun --mpi=pmix, mpirun
"""

import argparse
import os
import random
import shutil
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

if "--libddp" in sys.argv:
    import libddp.horovod as hvd
    from libddp.mpi import MPI
else:
    import horovod.torch as hvd
    from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--libddp", action="store_true", help="import libddp's names")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--save", default="", help="folder for the log, the code and the weights; default: none")
parser.add_argument("--eval", action="store_true", help="only evaluate the initial model")


class Logger:
    """Writes what rank 0 prints to a file, too."""

    def __init__(self, path):
        self.terminal, self.file = sys.stdout, open(path, "a", encoding="utf-8")

    def write(self, text):
        self.terminal.write(text)
        self.file.write(text)

    def flush(self):
        self.terminal.flush()
        self.file.flush()


def data(samples=512):
    """The same on all ranks: y = the sum of x, with some noise."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True) + 0.01 * torch.randn(samples, 1, generator=generator))


def merged(metrics):
    """The ranks' metrics, averaged."""
    everyone = MPI.COMM_WORLD.allgather(metrics)
    return {name: sum(each[name] for each in everyone) / len(everyone) for name in metrics}


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses = [torch.nn.functional.mse_loss(model(x), y).item() for x, y in loader]
    model.train()
    return merged({"loss": sum(losses) / max(len(losses), 1)})


def main():
    arguments = parser.parse_args()
    hvd.init()
    seed = hvd.rank()
    torch.manual_seed(seed)
    random.seed(seed)
    if arguments.save and hvd.rank() == 0:
        os.makedirs(arguments.save, exist_ok=True)
        sys.stdout = Logger(os.path.join(arguments.save, "log"))
        shutil.copy(__file__, arguments.save)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-2),
                                         named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    dataset = data()
    sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    first = evaluate(model, loader)
    if hvd.rank() == 0:
        print(f"before: loss {first['loss']:.4f}", flush=True)
    for epoch in range(0 if arguments.eval else arguments.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            optimizer.step()
        last = evaluate(model, loader)
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {last['loss']:.4f}", flush=True)
            if arguments.save:
                torch.save(model.state_dict(), os.path.join(arguments.save, f"{epoch + 1}.pt"))
    print(f"rank {hvd.rank()} of {hvd.size()}: weights {sum(each.double().sum() for each in model.parameters()):.9f}", flush=True)


if __name__ == "__main__":
    main()
