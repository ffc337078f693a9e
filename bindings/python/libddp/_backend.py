"""The backend "ddp" of torch.distributed: CPU tensors over libddp's shared memory and TCP, CUDA tensors over NCCL."""

from __future__ import annotations

import datetime
import functools
import inspect
import secrets
import sys
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

import libddp

NAME = "ddp"


def _make(store: Any, rank: int, size: int, label: str, ranks: list[int], timeout: datetime.timedelta,
          cuda: bool = False, device: int | None = None) -> Any:
    from libddp import _adapter
    # a store may have had a group of this prefix before: init_process_group() after destroy_process_group()
    fresh = PrefixStore(f"libddp/{store.add(f'libddp/{rank}', 1)}/", store)
    return _adapter.load(store).make_backend(store=fresh, rank=rank, size=size, label=f"torch.{label}.", own=secrets.token_hex(4),
                                             global_ranks=ranks, timeout_ms=int(timeout.total_seconds() * 1000), cuda=cuda,
                                             device=device, secret=_secret(size))


def _secret(size: int) -> bytes:
    """What the ranks of the World know, if that is of the default group's ranks: their store may serve others, too."""
    total = dist.get_world_size() if dist.is_initialized() else size
    return libddp.world().secret if libddp.initialized() and libddp.world().world_size == total else b""


def create(options: Any, _: Any = None) -> Any:
    """For torch.distributed: a c10d Backend over the ranks that share options.store. Collective over them."""
    from libddp import _adapter
    global _device
    _admit_monitored_barriers()
    _timeouts[options.group_id] = options.timeout
    cuda, device = _wanted()
    made = _make(options.store, options.group_rank, options.group_size, options.group_id,
                 list(options.global_ranks_in_group), options.timeout, cuda, _device if device is None else device)
    _device = _adapter.load().cuda_device_of(made) if _device is None else _device
    return made


def default() -> str:
    """What programs get that name no backend, where DDP_BACKEND=ddp asks for it: "ddp" for all tensors, unless this
    installation, which all ranks share, cannot have CUDA tensors there and torch can."""
    plugin = Path(libddp.__file__).parent / "lib" / "libddp_nccl.so"
    serves_cuda = plugin.exists() and hasattr(torch.Stream, "native_handle") and torch.version.hip is None
    if serves_cuda or not torch.cuda.is_available() or not dist.is_nccl_available():
        return NAME
    return f"cpu:{NAME},cuda:nccl"


def _wanted() -> tuple[bool, int | None]:
    """Whether CUDA tensors will come, and this rank's device, where it is named. torch.distributed gives its backends neither;
    its function that makes groups, which is calling, knows. Where that is another than is known here: yes, and none."""
    cuda, index, frame = True, None, sys._getframe()
    while frame is not None and frame.f_code.co_name != "_new_process_group_helper":
        frame = frame.f_back  # type: ignore[assignment]
    try:
        asked = frame.f_locals
        index = getattr(asked.get("device_id"), "index", None)
        if isinstance(asked.get("backend"), str):
            backends = asked["backend"].lower().split(",")
            cuda = NAME in backends or f"cuda:{NAME}" in backends
    except Exception:  # also without such a function
        pass
    return cuda, index if isinstance(index, int) else None


def _of_ours(refusing: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, datetime.timedelta, bool] | None:
    """What monitored_barrier() is asked for, if that is a group of this backend."""
    try:
        asked = inspect.signature(refusing).bind(*given, **named)
        asked.apply_defaults()
        group, timeout, all_ranks = (asked.arguments[name] for name in ("group", "timeout", "wait_all_ranks"))
        if dist.get_rank(group) < 0 or dist.get_backend(group) != NAME:
            return None
        limit = timeout if isinstance(timeout, datetime.timedelta) else datetime.timedelta(seconds=timeout or 0)
        return group or dist.distributed_c10d._get_default_group(), limit, bool(all_ranks)
    except Exception:  # torch's own says what is wrong, or knows arguments that are not known here
        return None


def _admit_monitored_barriers() -> None:
    """torch's monitored_barrier() admits gloo alone. Once, when the first group of this backend is made."""
    refusing: Any = getattr(dist, "monitored_barrier", None)
    if refusing is None or hasattr(refusing, "_libddp"):
        return

    @functools.wraps(refusing)
    def monitored_barrier(*given: Any, **named: Any) -> Any:
        ours = _of_ours(refusing, given, named)
        if ours is None:
            return refusing(*given, **named)
        group, limit, all_ranks = ours
        return group.monitored_barrier(limit, all_ranks)

    monitored_barrier._libddp = True  # type: ignore[attr-defined]
    for module in (dist, dist.distributed_c10d):
        setattr(module, "monitored_barrier", monitored_barrier)


def of(group: dist.ProcessGroup, apart: bool = False, device: torch.device = torch.device("cpu")) -> Any:
    """A "ddp" backend over a process group's ranks, for a device's tensors: its own, or one made beside it, which is collective.

    apart: not its own, since others start operations there at times of their own.
    """
    if not apart and f"{device.type}:{NAME}" in dist.get_backend_config(group):
        backend = group._get_backend(device)
        return getattr(backend, "wrapped_pg", backend)  # with TORCH_DISTRIBUTED_DEBUG=DETAIL
    return _beside(group, device)


def _beside(group: dist.ProcessGroup, device: torch.device) -> Any:
    for name in [name for name, (other, _) in _made.items() if other not in dist.distributed_c10d._world.pg_map]:
        del _made[name]  # destroyed
    name = f"{group.group_name}/{device.type}"
    known = _made.get(name)
    if known is None or known[0] is not group:
        _, store = dist.distributed_c10d._world.pg_map[group]
        made = _make(PrefixStore(f"beside/{device.type}/", store), group.rank(), group.size(), group.group_name,
                     dist.get_process_group_ranks(group), _timeout_of(group), device.type == "cuda", device.index)
        known = _made[name] = (group, made)
    return known[1]


def _timeout_of(group: dist.ProcessGroup) -> datetime.timedelta:
    if NAME in str(dist.get_backend_config(group)) and group.group_name in _timeouts:
        return _timeouts[group.group_name]
    backend: Any = group._get_backend(group._device_types[0])
    options = getattr(getattr(backend, "wrapped_pg", backend), "options", None)  # Gloo's and NCCL's
    return cast(datetime.timedelta,
                getattr(options, "_timeout", dist.distributed_c10d._get_default_timeout(dist.Backend("gloo"))))


_device: int | None = None  # this rank's, from the first group that has one
_made: dict[str, tuple[dist.ProcessGroup, Any]] = {}
_timeouts: dict[str, datetime.timedelta] = {}  # of groups with this backend
