"""torchrun --rdzv-backend=pmix: torchrun's agents, one per node under srun --mpi=pmix and the like, rendezvous over libddp.

torchrun finds it by the entry point torchrun.handlers. No --rdzv-endpoint is needed. The agents rendezvous again when one's
ranks have failed and restarts are left; nodes cannot join or leave.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed.elastic.rendezvous import (RendezvousClosedError, RendezvousHandler, RendezvousInfo,
                                                  RendezvousParameters, RendezvousStoreInfo, RendezvousTimeoutError)

import libddp
import libddp.torch

_JOIN_TIMEOUT_S = 600  # torchrun's default for join_timeout
_PAUSE_S = 0.1
_CLOSED = "closed"


class _Handler(RendezvousHandler):
    def __init__(self, parameters: RendezvousParameters) -> None:
        self._parameters = parameters
        self._world: libddp.World | None = None
        self._agents: Store | None = None
        self._round = 0
        self._closed = False

    def get_backend(self) -> str:
        return "pmix"

    @property
    def use_agent_store(self) -> bool:
        # torch expects an empty store of each round's ranks; later ones are rank 0's
        return self._round <= 1

    def next_rendezvous(self) -> RendezvousInfo:
        self._round += 1
        if self._world is None:
            return self._meet_first()
        assert self._agents is not None
        self._wait_for_all(self._world.world_size)
        store = PrefixStore(f"round{self._round}/{self._parameters.run_id}", self._agents)
        where = RendezvousStoreInfo.build(self._world.rank, store, libddp.torch._store_of(self._world).address)
        return RendezvousInfo(store, self._world.rank, self._world.world_size, where)

    def _meet_first(self) -> RendezvousInfo:
        self._world = libddp.init()
        if self._world.world_size != self._parameters.max_nodes:
            raise ValueError(f"torchrun got --nnodes={self._parameters.max_nodes}, but the launcher has started "
                             f"{self._world.world_size} of it; start one on each node: srun --ntasks-per-node=1")
        # the ranks are torchrun's; they inherit what says that the launcher's rank is this process
        os.environ["DDP_LAUNCH"] = "torchrun"
        self._agents = libddp.torch.meet(self._world)
        store = PrefixStore(self._parameters.run_id, self._agents)
        served = libddp.torch._store_of(self._world)
        where = RendezvousStoreInfo(served.address, served.port)
        return RendezvousInfo(store, self._world.rank, self._world.world_size, where)

    def _wait_for_all(self, nodes: int) -> None:
        """Until all agents want this round: those whose ranks run learn of it by num_nodes_waiting()."""
        assert self._agents is not None
        seconds = self._parameters.get_as_int("join_timeout", _JOIN_TIMEOUT_S) or _JOIN_TIMEOUT_S
        deadline = time.monotonic() + seconds
        self._agents.add(self._waiting_key(self._round), 1)
        while (waiting := self._agents.add(self._waiting_key(self._round), 0)) < nodes:
            if self.is_closed():
                raise RendezvousClosedError("another of torchrun's agents has ended, so the ranks cannot start again")
            if time.monotonic() > deadline:
                raise RendezvousTimeoutError(f"{waiting} of {nodes} of torchrun's agents came to rendezvous again within {seconds} s")
            time.sleep(_PAUSE_S)

    @staticmethod
    def _waiting_key(number: int) -> str:
        return f"waiting{number}"

    def is_closed(self) -> bool:
        return self._closed or (self._agents is not None and self._agents.add(_CLOSED, 0) > 0)

    def set_closed(self) -> None:
        self._closed = True
        if self._agents is not None:
            self._agents.add(_CLOSED, 1)

    def num_nodes_waiting(self) -> int:
        return self._agents.add(self._waiting_key(self._round + 1), 0) if self._agents is not None else 0

    def get_run_id(self) -> str:
        return self._parameters.run_id

    def shutdown(self) -> bool:
        try:
            self.set_closed()
        except RuntimeError:  # the agent that serves the store is gone
            pass
        self._agents = None
        if self._world is not None:
            self._world.close()
        return True


def get() -> Callable[[RendezvousParameters], RendezvousHandler]:
    return _Handler
