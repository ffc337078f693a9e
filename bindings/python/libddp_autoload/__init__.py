"""What `import torch` calls (entry point torch.backends): makes libddp known to torch.distributed without another import.

TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off. Beside the package libddp, so that a libddp that cannot be loaded leaves torch
alone, unless DDP_BACKEND=ddp asks for it.
"""

from __future__ import annotations

import functools
import os
from typing import Any


def load() -> None:
    wanted = os.environ.get("DDP_BACKEND") == "ddp"
    try:
        import libddp.torch  # noqa: F401
    except Exception:
        if wanted:
            raise
        return
    if wanted:
        _make_default()


def _make_default() -> None:
    """init_process_group() without a backend takes "ddp"; one that the program names stays."""
    import torch.distributed as dist
    from libddp import _backend
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original(backend or _backend.default(), *args, **kwargs)

    for module in (dist, dist.distributed_c10d, dist.device_mesh):  # each has a name of its own for it
        setattr(module, "init_process_group", init_process_group)
