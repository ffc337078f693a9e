"""The same micro-batches on any number of ranks: exact_job.py METHOD...; rank 0 prints each method's digest of the weights.

METHOD: ddp, hvd, served (the last rank is the server, the others train), or kept (it keeps the parameters by name); with -uneven, the last step has one micro-batch fewer, which
the last rank leaves out by join() or in a server's way, and one rank alone takes as zeros; with -reversed, ranks have each other's
micro-batches. Each step has four micro-batches. The ranks that train are 1, 2 or 4; uneven 1 or 4.
"""

import hashlib
import sys

import libddp
import torch
import torch.distributed as dist
from libddp import training

STEPS, MICRO = 3, 4


def network():
    torch.manual_seed(3)
    # large enough for several buckets of the small first limit; sizes that no vector divides
    return torch.nn.Sequential(torch.nn.Linear(7, 301), torch.nn.Tanh(), torch.nn.Linear(301, 1001), torch.nn.ReLU(), torch.nn.Linear(1001, 3))


def loss_of(model, step, micro, scale=1.0):
    generator = torch.Generator().manual_seed(100 * step + micro)
    inputs, targets = torch.randn(5, 7, generator=generator), torch.randint(3, (5,), generator=generator)
    # magnitudes that differ by far: the order of additions changes the bits of a plain sum
    return torch.nn.functional.cross_entropy(model(inputs), targets) * scale * 10.0 ** (2 * micro - 3)


def share(step, rank, ranks, how):
    """This rank's micro-batches of a step, each with the factor of its loss."""
    order = list(reversed(range(MICRO))) if "reversed" in how else list(range(MICRO))
    mine = order[rank * MICRO // ranks:(rank + 1) * MICRO // ranks]
    missing = MICRO - 1 if "uneven" in how and step == STEPS - 1 else None
    if ranks == 1:
        return [(each, 0.0 if each == missing else 1.0) for each in mine]
    return [(each, 1.0) for each in mine if each != missing]


def ddp(rank, ranks, how):
    model = libddp.torch.DistributedDataParallel(network(), bucket_cap_mb=0.2)
    model.register_comm_hook(None, libddp.torch.exact_average_hook)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    with model.join(enable="uneven" in how):
        for step in range(STEPS):
            mine = share(step, rank, ranks, how)
            if not mine:
                break
            optimizer.zero_grad()
            for micro, scale in mine[:-1]:
                with model.no_sync():
                    loss_of(model, step, micro, scale).backward()
            loss_of(model, step, *mine[-1]).backward()
            optimizer.step()
    return model.module


def hvd(rank, ranks, how):
    import libddp.horovod as hvd
    hvd.init()
    model = network()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9), model.named_parameters(),
                                         op=hvd.ExactAverage, backward_passes_per_step=MICRO // ranks)
    for step in range(STEPS):
        mine = share(step, rank, ranks, how)
        if not mine:
            break
        optimizer.zero_grad()
        for micro, scale in mine:
            loss_of(model, step, micro, scale).backward()
        optimizer.step()
    if "uneven" in how:
        hvd.join()
    return model


class Trainer:
    """What a hook's state needs."""

    use_cuda_rpc, backend = False, "ddp"

    def __init__(self, server):
        self.server, self.metrics = server, training.MetricsLogger(0)
        self.record_start, self.record_end = self.metrics.record_start, self.metrics.record_end


def served(rank, size, how):
    ranks = size - 1
    group = libddp.world().process_group().new_group([ranks, *range(ranks)])
    trainers = dist.new_group(list(range(ranks)))
    if rank == ranks:
        kind = training.AverageBatchParameterServer if "reversed" in how else training.AverageParameterServer
        training.serve(kind(rank, ranks, exact=True), group)
        return None
    server = training.GroupServer(group)
    plain = MICRO == ranks  # one micro-batch each: the plain hook sends gradients as they are
    state = (training.BasicHookState(Trainer(server), trainers) if plain
             else training.ExactHookState(Trainer(server), trainers, MICRO // ranks))
    model = torch.nn.parallel.DistributedDataParallel(network(), process_group=trainers, bucket_cap_mb=0.2)
    model.register_comm_hook(state, training.rpc_hook if plain else training.exact_rpc_hook)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    for step in range(STEPS):
        state.next_batch()
        optimizer.zero_grad()
        for micro, scale in share(step, rank, ranks, how) or [(0, 0.0)]:
            loss_of(model, step, micro, scale).backward()
        optimizer.step()
    server.close()
    return model.module


def kept(rank, size, how):
    ranks = size - 1
    group = libddp.world().process_group().new_group([ranks, *range(ranks)])
    model = network()
    parameters = dict(model.named_parameters())
    if rank == ranks:
        training.serve(training.KeyValueParameterServer(rank, parameters.items(), lambda given: torch.optim.SGD(given, 1e-3, momentum=0.9),
                                                        ranks, exact=True), group)
        return None
    connection = training.KeyValueConnection(group)
    for step in range(STEPS):
        connection.pull(parameters)
        mine = share(step, rank, ranks, how) or [(0, 0.0)]
        for number, (micro, scale) in enumerate(mine):
            model.zero_grad()
            loss_of(model, step, micro, scale).backward()
            send = connection.push if number == len(mine) - 1 else connection.add
            send(parameters, [each.grad for each in parameters.values()])
    connection.pull(parameters, latest=True)
    connection.close()
    return model


def main():
    import libddp.torch  # noqa: F401, pmix://
    torch.set_num_threads(1)
    dist.init_process_group("ddp", init_method="pmix://")
    for how in sys.argv[1:]:
        model = {"ddp": ddp, "hvd": hvd, "served": served, "kept": kept}[how.partition("-")[0]](dist.get_rank(), dist.get_world_size(), how)
        if dist.get_rank() == 0:
            weights = b"".join(each.detach().numpy().tobytes() for each in model.parameters())
            assert all(bool(each.isfinite().all()) for each in model.parameters())
            print("DIGEST", how, hashlib.sha256(weights).hexdigest()[:16], flush=True)


main()
