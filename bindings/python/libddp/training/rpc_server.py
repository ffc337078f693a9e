"""Gradients to a parameter server by torch RPC (TensorPipe): for comparison, and for programs that have a server_rref."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.distributed import rpc

import libddp
import libddp.torch
from libddp import _errors
from libddp._errors import problem

from .parameter_server import AverageParameterServer, rpc_format

_SLACK = 2.0  # seconds by which a trainer waits longer than the server, which knows the late trainer
_serving: AverageParameterServer | None = None


def begin(name: str, timeout: float) -> None:
    """rpc.init_rpc() among all ranks of the launcher, without MASTER_ADDR. Collective; `name` is this rank's. timeout: seconds of a call."""
    world = libddp.world() if libddp.initialized() else libddp.init()
    if world.num_nodes > 1:
        os.environ.setdefault("TP_SOCKET_IFNAME", world.interface_name)
    options = rpc.TensorPipeRpcBackendOptions(init_method="pmix://", rpc_timeout=timeout)
    begin_rpc: Any = rpc.init_rpc  # untyped
    begin_rpc(name, rank=world.rank, world_size=world.world_size, rpc_backend_options=options)


def end() -> None:
    """rpc.shutdown(): waits for all ranks."""
    rpc.shutdown()


def serve(server: AverageParameterServer | None) -> None:
    """Makes it this process's server, which reference_of() finds. It serves in RPC's own threads until end()."""
    global _serving
    _serving = server


def _served() -> AverageParameterServer:
    if _serving is None:
        raise problem("unavailable", "asking for the parameter server", "this process serves none")
    return _serving


def _get_metrics(reference: Any) -> dict[str, list[float]]:
    return dict(reference.local_value().get_metrics())


def reference_of(name: str) -> Any:
    """An RRef to the server of the worker of this name."""
    return rpc.remote(name, _served)


class RpcServer:
    """A trainer's connection to a server by RPC. The same methods and errors as GroupServer's.

    server_rref: an RRef to an AverageParameterServer or the like. trainer: this one's number. timeout: that of the server, in seconds.
    server_rank: for messages.
    """

    def __init__(self, server_rref: Any, trainer: int, timeout: float = 600.0, server_rank: int = -1) -> None:
        self._reference, self._trainer, self._patience = server_rref, trainer, timeout + _SLACK
        self._ranks = [server_rank] if server_rank >= 0 else []

    def average_gradient(self, batch: int, bucket: int, gradient: torch.Tensor) -> torch.futures.Future[Any]:
        """As Server's."""
        sent = rpc_format(gradient.detach())
        future: torch.futures.Future[Any] = self._reference.rpc_async(timeout=self._patience).average_gradient(
            self._reference, batch, bucket, sent, self._trainer)

        def convert(ended: torch.futures.Future[Any]) -> Any:
            try:
                value = ended.value()
            except Exception as error:
                return self._failed(f"waiting for the average of bucket {bucket} of batch {batch}", error)
            return torch.sparse_coo_tensor(*value, is_coalesced=True, check_invariants=False) if isinstance(value, list) else value
        return future.then(convert)

    def _failed(self, attempted: str, error: Exception) -> _errors.Error:
        if isinstance(error, _errors.Error):
            return error
        lines = str(error).splitlines() or [type(error).__name__]
        code = "timeout" if "timeout" in lines[0].lower() else "unavailable"
        return problem(code, attempted, f"no answer of the parameter server by RPC: {lines[0]}", self._ranks)

    def _call(self, attempted: str, function: Any) -> Any:
        try:
            return rpc.rpc_sync(self._reference.owner(), function, args=(self._reference,), timeout=self._patience)
        except Exception as error:
            raise self._failed(attempted, error) from None

    def get_metrics(self) -> dict[str, list[float]]:
        """As Server's."""
        return dict(self._call("asking for the server's metrics", _get_metrics))

    def reset(self) -> None:
        """As Server's."""
        self._call("resetting the parameter server", AverageParameterServer.reset_state)

    def close(self) -> None:
        """Nothing: rpc.shutdown() ends servers."""
