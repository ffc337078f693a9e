"""Trainers, metrics and parameter servers: the API of PyTorch's parameter server benchmark, with averages, times and errors in order.

    metrics = MetricsLogger(rank)
    with metrics.measure("forward_pass", "forward_metric"):
        ...
    metrics.reduce(group)                 # the statistics of all ranks

`python -m libddp.training.benchmark` compares averages by all_reduce and by a parameter server.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._statistics import Statistics
    from .group_server import GroupServer, serve
    from .hooks import allreduce_hook, exact_rpc_hook, hybrid_hook, rpc_hook, sparse_rpc_hook
    from .key_value_group import KeyValueConnection
    from .key_value_server import KeyValueParameterServer
    from .metrics import MetricsLogger, Record, method_metric, scalars
    from .parameter_server import AverageBatchParameterServer, AverageParameterServer, ParameterServerBase
    from .rpc_server import RpcServer
    from .steps import BasicHookState, ExactHookState, basic_ddp_model, basic_iteration_step, cel, preprocess_dummy_data
    from .trainer import DdpTrainer, TrainerBase

__all__ = ["AverageBatchParameterServer", "AverageParameterServer", "BasicHookState", "DdpTrainer", "ExactHookState", "GroupServer", "KeyValueConnection",
           "KeyValueParameterServer", "MetricsLogger", "ParameterServerBase", "Record", "RpcServer", "Statistics", "TrainerBase",
           "allreduce_hook", "basic_ddp_model", "basic_iteration_step", "cel", "exact_rpc_hook", "hybrid_hook", "method_metric", "preprocess_dummy_data",
           "rpc_hook", "scalars", "serve", "sparse_rpc_hook"]

_MODULES = {"_statistics": ("Statistics",),
            "metrics": ("MetricsLogger", "Record", "method_metric", "scalars"),
            "parameter_server": ("AverageBatchParameterServer", "AverageParameterServer", "ParameterServerBase"),
            "group_server": ("GroupServer", "serve"),
            "key_value_group": ("KeyValueConnection",),
            "key_value_server": ("KeyValueParameterServer",),
            "rpc_server": ("RpcServer",),
            "trainer": ("DdpTrainer", "TrainerBase"),
            "steps": ("BasicHookState", "ExactHookState", "basic_ddp_model", "basic_iteration_step", "cel", "preprocess_dummy_data"),
            "hooks": ("allreduce_hook", "exact_rpc_hook", "hybrid_hook", "rpc_hook", "sparse_rpc_hook")}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """When first asked for: metrics, and the benchmark's checks of its command line, need no torch."""
    if name not in _HOME:
        raise AttributeError(f"module 'libddp.training' has no attribute '{name}'")
    value: object = getattr(importlib.import_module("." + _HOME[name], __name__), name)
    globals()[name] = value
    return value
