"""Rank 0 sends a message to every other rank, and each of them answers. The same file under any launcher:

    torchrun --nproc-per-node=4 p2p.py
    mpirun --hostfile hosts -np 4 python p2p.py
    mpirun -np 4 -x MASTER_ADDR=n0 -x MASTER_PORT=29500 python p2p.py   # without libddp
    ddprun --nproc-per-node=4 p2p.py
    srun -n4 --ddp p2p.py                  # or: srun -n4 --mpi=pmix python p2p.py

--backend gloo (default), nccl or ddp: who carries the messages.
"""

import argparse
import os
import sys

import torch
import torch.distributed as dist


def join(backend: str) -> torch.device:
    """torchrun, ddprun and srun --ddp set the ranks' variables, mpirun its own; without MASTER_ADDR libddp finds the other ranks."""
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:  # of mpirun, or of ddprun --imitate mpirun
        os.environ.update(RANK=os.environ["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=os.environ["OMPI_COMM_WORLD_SIZE"],
                          LOCAL_RANK=os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
    told = "MASTER_ADDR" in os.environ and "RANK" in os.environ
    if backend == "ddp" or not told:
        import libddp.torch  # registers pmix:// and "ddp"
    dist.init_process_group(backend, init_method="env://" if told else "pmix://")
    if backend != "nccl":
        return torch.device("cpu")
    local_rank = int(os.environ["LOCAL_RANK"]) if told else libddp.world().local_rank
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("gloo", "nccl", "ddp"), default="gloo")
    parser.add_argument("--elements", type=int, default=1000)
    arguments = parser.parse_args()

    device = join(arguments.backend)
    rank, size = dist.get_rank(), dist.get_world_size()
    message = torch.arange(arguments.elements, dtype=torch.float32, device=device)
    if rank == 0:
        for peer in range(1, size):
            dist.send(message * peer, dst=peer)
        answers = [torch.empty_like(message) for _ in range(1, size)]
        for peer, answer in enumerate(answers, start=1):
            dist.recv(answer, src=peer)
            assert torch.equal(answer, message * (peer + 1)), f"rank {peer} answered something else"
        said = f"rank 0 exchanged {arguments.elements} elements with {size - 1} ranks by {arguments.backend}"
    else:
        received = torch.empty_like(message)
        dist.recv(received, src=0)
        dist.send(received + message, dst=0)
        said = f"rank {rank} of {size} got {received.sum().item():.0f}"
    sys.stdout.write(said + "\n")  # one write: launchers do not keep lines of several ranks apart
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
