#!/usr/bin/env python3
"""Trains a model with a parameter server: the last rank serves, the others train, and print the same weights.

    ddprun -n 3 train.py         # or srun --mpi=pmix, mpirun, srun --ddp
"""

import sys

import libddp
import torch
import torch.distributed as dist
from libddp import training


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(100, 32, sparse=True), torch.nn.Linear(32, 2))


def data(rank, batches=20):
    """Sums of words that are above or below the average."""
    torch.manual_seed(1 + rank)
    words = torch.randint(0, 100, (batches, 16, 5))
    return [(each, (each.sum(1) > 247).long()) for each in words]


def main():
    world = libddp.init()
    if world.world_size < 2:
        sys.exit("a server and a trainer are two ranks: ddprun -n 3 train.py")
    server_rank = world.world_size - 1
    trainers = list(range(server_rank))
    dist.init_process_group("ddp", init_method="pmix://")
    process_group = dist.new_group(trainers)
    # of gradients and averages; its first rank is the server
    exchange = world.process_group().new_group([server_rank, *trainers])
    if world.rank == server_rank:
        server = training.AverageParameterServer(world.rank, len(trainers), trainer_ranks=trainers, timeout=60)
        training.serve(server, exchange)
        averaged = len(server.get_metrics()["method_metric,average computation"])
        print(f"the server averaged {averaged} buckets", flush=True)
        return
    connection = training.GroupServer(exchange, timeout=60)
    trainer = training.DdpTrainer(process_group, False, connection, "ddp", 10, training.preprocess_dummy_data, training.cel,
                                  training.basic_ddp_model, training.BasicHookState, training.rpc_hook, training.basic_iteration_step,
                                  optimizer=lambda parameters: torch.optim.SGD(parameters, 0.5))
    trained = model()
    trainer.train(trained, data(world.rank))
    steps = trainer.get_metrics()["batch_level_metric,batch_all"]
    words, above = data(-1)[0]
    right = (trained(words).argmax(1) == above).float().mean()
    weights = sum(each.double().sum() for each in trained.state_dict().values())
    print(f"rank {world.rank}: {len(steps)} steps, {right:.0%} right, weights {weights:.9f}", flush=True)
    connection.close()


if __name__ == "__main__":
    main()
