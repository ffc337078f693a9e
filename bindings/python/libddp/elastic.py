"""Nodes that join and leave a running job of `ddprun --nnodes MIN:MAX`. Guide: docs/howto/elastic.md.

    stop = libddp.EarlyStop()
    for batch in loader:
        if libddp.elastic.change_pending():
            stop.request()
        if stop.agree(group):            # all ranks, before the same step
            checkpoints.save(step, state, extra)
            libddp.elastic.restart_here()
        ...

libddp.ElasticSampler continues its epoch with the new number of ranks.
"""

from __future__ import annotations

import os
from typing import NoReturn

from ._errors import problem

__all__ = ["change_pending", "restart_here"]

_FOLDER = "DDP_CHANGE_DIR"


def change_pending() -> bool:
    """Whether nodes wait to join or to leave, so that all ranks are to start again. False in other jobs than those of
    ddprun --nnodes MIN:MAX. Costs one stat(2); does not communicate: ranks learn of a change at different times, and stop in the same
    step by EarlyStop. Thread-safe."""
    folder = os.environ.get(_FOLDER)
    return folder is not None and os.path.exists(os.path.join(folder, "pending"))


def restart_here() -> NoReturn:
    """Ends this process for another start of the job's ranks, which spends no restart: raises SystemExit(0). Call it in the main
    thread of all ranks, after saving. The others have ddprun's --resize-grace to follow. Without a change it starts the same nodes
    again; ranks that do so within 60 s of their start, three times in a row, end the job (--crash-loop). Raises Unavailable where
    ddprun cannot start the ranks again so."""
    folder, rank = os.environ.get(_FOLDER), os.environ.get("RANK")
    attempted, hint = "ending this rank for another start of the job", "start it by ddprun --nnodes MIN:MAX"
    if not folder or not rank:
        raise problem("unavailable", attempted, f"{_FOLDER if not folder else 'RANK'} is not set", hint=hint)
    try:
        open(os.path.join(folder, f"restart.{rank}"), "w").close()
    except OSError as error:
        raise problem("system", attempted, str(error), hint=hint, native=f"errno {error.errno}") from error
    raise SystemExit(0)
