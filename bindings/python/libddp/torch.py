"""libddp for programs of torch.distributed: ranks from the launcher, the backend "ddp", DistributedDataParallel.

    dist.init_process_group("ddp", init_method="pmix://")
    model = libddp.torch.DistributedDataParallel(model)

No MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE is needed, under whatever libddp.init() knows: srun --mpi=pmix or pmi2, mpirun,
ddprun, torchrun.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from typing import Any

import libddp_autoload
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

import libddp
from libddp import _backend  # noqa: F401
from libddp._core import TorchStore, torch_store
from libddp._comm_hooks import exact_average_hook, power_sgd_hook, quantize_hook
from libddp._data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel", "exact_average_hook", "meet", "power_sgd_hook", "quantize_hook"]
_TIMEOUT = datetime.timedelta(minutes=30)  # torch.distributed's own default
_stores: list[tuple[libddp.World, TorchStore]] = []
_meetings = 0


def _name_interface(world: libddp.World) -> None:
    """gloo, RPC and NCCL would choose by host name and by luck; libddp's ranks have agreed on one."""
    if world.num_nodes > 1:
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            os.environ.setdefault(name, world.interface_name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + world.interface_name)


def _store_of(world: libddp.World, timeout: datetime.timedelta = _TIMEOUT) -> TorchStore:
    """One for each World, as long as the process lives: process groups use it, too. The first call is collective."""
    if not _stores or _stores[-1][0] is not world:
        _stores.append((world, torch_store(world, timeout)))
    return _stores[-1][1]


def meet(world: libddp.World, timeout: datetime.timedelta = _TIMEOUT) -> Store:
    """A new store of all ranks: that of their launcher, or one that rank 0 serves to the job's user only. Collective."""
    global _meetings
    served = _store_of(world, timeout)
    _meetings += 1  # as often in all ranks
    client = TCPStore(served.address, served.port, world.world_size, is_master=False, timeout=timeout, wait_for_workers=False)
    return PrefixStore(f"{served.prefix}{_meetings}/", client)


def _rendezvous(url: str, timeout: datetime.timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """torch.distributed's handler of pmix://."""
    world = libddp.world() if libddp.initialized() else libddp.init(timeout)
    _name_interface(world)
    yield meet(world, timeout), world.rank, world.world_size
    # the generator is asked again only where workers come and go
    raise RuntimeError("pmix:// cannot rendezvous again in the same process group; destroy it, and make another")


if __name__ == "__main__":  # python -m libddp.torch: what `import torch` may have imported already
    import argparse
    import sys

    from libddp import _adapter
    parser = argparse.ArgumentParser("python -m libddp.torch", description="Compiles the adapter to the installed PyTorch ahead of a job.")
    parser.add_argument("--check", action="store_true", help="say whether there is one, or a compiler, and compile nothing")
    parser.add_argument("--download-nothing", action="store_true", help="no effect: libddp never downloads")
    if not parser.parse_args().check:
        print(_adapter.library())
    else:
        try:
            print(_adapter.check())
        except libddp.Error as problem:
            sys.exit(f"python -m libddp.torch --check: {problem}")
else:
    libddp_autoload.register()
