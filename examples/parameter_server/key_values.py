#!/usr/bin/env python3
"""Trains a model whose parameters two servers keep: the last two ranks serve, the others pull values and push gradients.

    ddprun -n 4 key_values.py [STALENESS]       # or srun --mpi=pmix, mpirun, srun --ddp
"""

import sys

import libddp
import torch
from libddp import training

SERVERS = 2


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(100, 32, sparse=True), torch.nn.Linear(32, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))


def data(trainer, batches=200):
    """Sums of words that are above or below the average."""
    torch.manual_seed(1 + trainer)
    words = torch.randint(0, 100, (batches, 16, 5))
    return [(each, (each.sum(1) > 247).long()) for each in words]


def main():
    world = libddp.init()
    trainers = world.world_size - SERVERS
    if trainers < 1:
        sys.exit("two servers and a trainer are three ranks: ddprun -n 3 key_values.py")
    staleness = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    # the servers are the first ranks of the group, then come the trainers
    group = world.process_group().new_group([*range(trainers, world.world_size), *range(trainers)])
    if world.rank >= trainers:
        server = training.KeyValueParameterServer(world.rank, model().named_parameters(), lambda parameters: torch.optim.SGD(parameters, 0.5),
                                                  trainers, number=group.rank, servers=SERVERS, staleness=staleness, timeout=60)
        training.serve(server, group)
        print(f"server {group.rank}: {server.version} updates of {', '.join(server.parameters)}", flush=True)
        return
    connection = training.KeyValueConnection(group, timeout=60)
    trained = model()
    parameters = dict(trained.named_parameters())
    for words, above in data(world.rank):
        connection.pull(parameters)
        trained.zero_grad()
        torch.nn.functional.cross_entropy(trained(words), above).backward()
        connection.push(parameters, [each.grad for each in parameters.values()])
    connection.pull(parameters, latest=True)
    words, above = (torch.cat(each) for each in zip(*data(-1)))
    right = (trained(words).argmax(1) == above).float().mean()
    weights = sum(each.double().sum() for each in trained.state_dict().values())
    print(f"rank {world.rank}: {right:.0%} right, weights {weights:.9f}", flush=True)
    connection.close()


if __name__ == "__main__":
    main()
