"""torchrun --rdzv-backend=pmix: torchrun's agents, one per node under srun --mpi=pmix and the like, rendezvous over libddp.

torchrun finds it by the entry point torchrun.handlers. No --rdzv-endpoint is needed; nodes cannot join or leave.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (RendezvousHandler, RendezvousInfo, RendezvousParameters,
                                                  RendezvousStoreInfo)

import libddp
import libddp.torch


class _Handler(RendezvousHandler):
    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters = parameters
        self._world: libddp.World | None = None
        self._store: Store | None = None
        self._closed = False

    def get_backend(self) -> str:
        return "pmix"

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        if self._world is not None:
            raise RuntimeError("torchrun's agents can rendezvous by pmix once; for restarts use ddprun --max-restarts, or let "
                               "the launcher start the job again")
        self._world = libddp.init()
        if self._world.world_size != self._parameters.max_nodes:
            raise ValueError(f"torchrun got --nnodes={self._parameters.max_nodes}, but the launcher has started "
                             f"{self._world.world_size} of it; start one on each node: srun --ntasks-per-node=1")
        # the ranks are torchrun's; they inherit what says that the launcher's rank is this process
        os.environ["DDP_LAUNCH"] = "torchrun"
        self._store = libddp.torch.meet(self._world)
        store = PrefixStore(self._parameters.run_id, self._store)
        served = libddp.torch._store_of(self._world)
        where = RendezvousStoreInfo(served.address, served.port)
        return RendezvousInfo(store, self._world.rank, self._world.world_size, where)

    def is_closed(self) -> bool:
        return self._closed

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._parameters.run_id

    def shutdown(self) -> bool:
        self._closed = True
        if self._world is not None:
            self._world.close()
        return True


def get() -> Callable[[RendezvousParameters], RendezvousHandler]:
    return _Handler
