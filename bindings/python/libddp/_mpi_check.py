"""Whether an MPI in this process has the ranks that libddp has: a real one under a launcher without MPI silently runs each
rank as a world of one."""

from __future__ import annotations

import sys
from typing import Any

from libddp import _errors


def check(world: Any, attempted: str, required: bool = False) -> None:
    """Raises Conflict where mpi4py is initialized with another number of ranks than the World has."""
    module = sys.modules.get("mpi4py.MPI")
    if module is None or module.__name__.startswith("libddp") or not hasattr(module, "Is_initialized"):
        return
    if not module.Is_initialized() or module.Is_finalized():
        return
    size = module.COMM_WORLD.Get_size()
    if size == world.world_size or (world.world_size == 1 and not required):
        return
    cause = f"MPI.COMM_WORLD of mpi4py has size {size}, but the job has {world.world_size} ranks"
    hint = ("start the program by mpirun, or by srun --mpi=pmix with an MPI that knows PMIx; or write "
            "'from libddp.mpi import MPI' in the place of 'from mpi4py import MPI'")
    raise _errors.problem("conflict", attempted, cause, hint=hint)


def world_ranks(comm: Any) -> list[int]:
    """Ranks in MPI.COMM_WORLD of an MPI communicator's members: mpi4py's, or libddp.mpi's."""
    if hasattr(comm, "_world_ranks"):
        return list(comm._world_ranks)
    from mpi4py import MPI  # type: ignore[import-not-found, unused-ignore]
    group = comm.Get_group()
    return list(group.Translate_ranks(range(group.Get_size()), MPI.COMM_WORLD.Get_group()))
