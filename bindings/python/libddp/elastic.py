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

from ._errors import make

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
        cause = f"{_FOLDER if not folder else 'RANK'} is not set"
        raise make("unavailable", f"{attempted}: {cause}; {hint}", attempted, cause, "", (), hint)
    path = os.path.join(folder, f"restart.{rank}")
    try:
        with open(path, "w"):
            pass
    except OSError as error:
        raise make("system", f"{attempted}: {error}; {hint}", attempted, str(error), f"errno {error.errno}", (), hint) from error
    raise SystemExit(0)
