"""Jobs that import the package libddp, for tests/cluster/python.bats: libddp_cluster_job.py JOB. Each line is one write.

Their ranks know of no address: what torch.distributed wants in the environment is taken away, where SOURCE says who launched.
"""

import os
import signal
import socket
import sys
import time

import numpy

import libddp


def say(*words):
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def join():
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"):
        os.environ.pop(name, None)
    world = libddp.init()
    assert world.source == os.environ["SOURCE"], world
    assert world.hostname(world.rank) == socket.gethostname()
    return world


def training():
    """torch.distributed by pmix://; libddp's DistributedDataParallel equal to torch's."""
    world = join()
    total = numpy.full(1000, 1 << world.rank)
    world.process_group().all_reduce(total).wait()
    assert (total == (1 << world.world_size) - 1).all(), total
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as Theirs

    import libddp.torch
    from libddp_torch_training import Branches, Convolutions, Tied, assert_same, trained
    torch.set_num_threads(1)
    dist.init_process_group("ddp", init_method="pmix://")
    assert (dist.get_rank(), dist.get_world_size()) == (world.rank, world.world_size)
    for net, options in ((Tied, {}), (Convolutions, {}), (Branches, {"find_unused_parameters": True})):
        ours = trained(net, lambda it: libddp.torch.DistributedDataParallel(it, **options), steps=4)
        assert_same(ours, trained(net, lambda it: Theirs(it, **options), steps=4))
    say("TRAINED", world.rank, socket.gethostname(), world.num_nodes)
    dist.destroy_process_group()


def death():
    """The last rank is killed between steps; the others say whom their exceptions name."""
    world = join()
    group, last = world.process_group(), world.world_size - 1
    for step in range(100):
        if step == 2 and world.rank == last:
            time.sleep(1)  # the others may still be in the step before
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.all_reduce(numpy.ones(1000)).wait()
        except libddp.PeerLost as error:
            say("SURVIVOR", world.rank, step, *error.ranks)
            assert str(last) in str(error), error
            return
    raise AssertionError("nobody has missed it")


def says_nothing():
    """Knows neither libddp nor its launcher."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group()
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    say("BACKEND", dist.get_backend(), dist.get_rank(), model.module.weight.grad[0, 0].item())


if __name__ == "__main__":
    globals()[sys.argv[1]]()
