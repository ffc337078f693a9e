"""What `import torch` calls (entry point torch.backends): makes two names known to torch.distributed, the backend "ddp" and
init_method="pmix://". No library is loaded until a program uses one of them. Programs that use gloo end safely (gloo_exit).

TORCH_DEVICE_BACKEND_AUTOLOAD=0 turns it off. Beside the package libddp, which is not imported before.
"""

from __future__ import annotations

import os
from typing import Any

NAME = "ddp"


def _create(options: Any, more: Any = None) -> Any:
    from libddp import _backend
    return _backend.create(options, more)


def _meet(url: str, **named: Any) -> Any:
    import libddp.torch
    return libddp.torch._rendezvous(url, **named)


def register() -> None:
    """Idempotent. Without torch.distributed there is nothing to do."""
    import torch.distributed as dist
    if not dist.is_available() or hasattr(dist.Backend, NAME.upper()):
        return
    from torch.distributed.rendezvous import register_rendezvous_handler
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("pmix", _meet)  # type: ignore[no-untyped-call]


def load() -> None:
    if os.environ.get("DDP_AS"):
        from libddp_autoload import finder  # noqa: F401  where libddp_as.pth was not read
    from libddp_autoload import gloo_exit  # noqa: F401
    wanted = os.environ.get("DDP_BACKEND") == NAME
    try:
        register()
    except Exception:  # a torch of another kind: only programs that use libddp need to know
        if wanted:
            raise
    if wanted:
        _make_default()


def _make_default() -> None:
    """init_process_group() without a backend takes "ddp"; one that the program names stays."""
    import functools

    import libddp.torch  # noqa: F401  a libddp that cannot be loaded is an error now
    import torch.distributed as dist
    from libddp import _backend
    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original(backend or _backend.default(), *args, **kwargs)

    for module in (dist, dist.distributed_c10d, dist.device_mesh):  # each has a name of its own for it
        setattr(module, "init_process_group", init_process_group)
