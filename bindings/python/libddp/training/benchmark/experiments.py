"""The benchmark's experiments by upstream's names: who averages, with what, and where."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Defaults of an experiment; flags of the command line replace them."""

    name: str
    ddp_hook: str
    backend: str
    server: str = ""
    model: str = "DummyModel"
    ntrainer: int = 2
    ncudatrainer: int = 0
    nserver: int = 0
    ncudaserver: int = 0
    transport: str = "group"


def _all() -> dict[str, Experiment]:
    on_cuda: dict[str, Any] = {"ntrainer": 0, "ncudatrainer": 2}
    made = [Experiment("ddp_allreduce", "allreduce_hook", "ddp"),
            Experiment("ddp_nccl_allreduce", "allreduce_hook", "nccl", **on_cuda),
            Experiment("ddp_gloo_allreduce", "allreduce_hook", "gloo"),
            Experiment("ddp_gloo_nccl_allreduce", "hybrid_hook", "multi", model="DummyModelSparse", **on_cuda)]
    for batch, server in (("", "AverageParameterServer"), ("_batch", "AverageBatchParameterServer")):
        made.append(Experiment(f"ddp{batch}_cpu_rpc", "rpc_hook", "ddp", server, nserver=1))
        made.append(Experiment(f"ddp{batch}_cuda_rpc", "rpc_hook", "nccl", server, ncudaserver=1, **on_cuda))
        served: dict[str, dict[str, Any]] = {"cpu": {"nserver": 1}, "cuda": {"ncudaserver": 1}}
        for device, servers in served.items():
            made.append(Experiment(f"ddp{batch}_{device}_sparse_rpc_nccl_allreduce", "sparse_rpc_hook", "nccl", server, "DummyModelSparse",
                                   **on_cuda, **servers))
    return {each.name: each for each in made}


EXPERIMENTS = _all()
"""Upstream's eleven, and ddp_allreduce, on the backend "ddp"."""
