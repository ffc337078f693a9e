"""libddp for programs of torch.distributed: ranks from the launcher, the backend "ddp", DistributedDataParallel.

    dist.init_process_group("ddp", init_method="pmix://")
    model = libddp.torch.DistributedDataParallel(model)

No MASTER_ADDR, MASTER_PORT, RANK or WORLD_SIZE is needed, under whatever libddp.init() knows: srun --mpi=pmix or pmi2, mpirun,
ddprun, torchrun.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import register_rendezvous_handler

import libddp
from libddp import _backend
from libddp._data_parallel import DistributedDataParallel

__all__ = ["DistributedDataParallel", "meet"]
_TIMEOUT = datetime.timedelta(minutes=30)  # torch.distributed's own default
_stores = 0


def _name_interface(world: libddp.World) -> None:
    """gloo and NCCL would choose by host name and by luck; libddp's ranks have agreed on one."""
    if world.num_nodes > 1:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", world.interface_name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "=" + world.interface_name)


def meet(world: libddp.World, timeout: datetime.timedelta = _TIMEOUT) -> TCPStore:
    """A new store of all ranks: rank 0 serves it, and the launcher's key-value store says where. Collective."""
    global _stores
    _stores += 1  # as often in all ranks
    key = f"torch.store.{_stores}"
    if world.rank == 0:
        address = world.interface_address if world.num_nodes > 1 else "127.0.0.1"
        # TCPStore's own socket is for IPv6, too. Then it asks name servers for the name of each client's address, one after the
        # other while all wait, as /etc/hosts has no IPv4 address in IPv6's form; an answer that is lost costs 5 s.
        listener = socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
        port = listener.getsockname()[1]
        served = TCPStore(address, port, world.world_size, is_master=True, timeout=timeout, wait_for_workers=False,
                               master_listen_fd=listener.detach())
        world.store.put(key, f"{port} {address}".encode())
        world.store.fence(timeout)
        return served
    world.store.fence(timeout)
    port, address = world.store.get(0, key, timeout).decode().split()
    return TCPStore(address, int(port), world.world_size, is_master=False, timeout=timeout)


def _rendezvous(url: str, timeout: datetime.timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """torch.distributed's handler of pmix://."""
    world = libddp.world() if libddp.initialized() else libddp.init(timeout)
    _name_interface(world)
    yield meet(world, timeout), world.rank, world.world_size
    # the generator is asked again only where workers come and go
    raise RuntimeError("pmix:// cannot meet again in the same process group; destroy it, and make another")


if __name__ == "__main__":  # python -m libddp.torch: what `import torch` may have imported already
    from libddp import _adapter
    print(_adapter.library())
else:
    register_rendezvous_handler("pmix", _rendezvous)  # type: ignore[no-untyped-call]
    _backend.register()
