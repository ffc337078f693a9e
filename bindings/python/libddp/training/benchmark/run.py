"""The benchmark's experiments in this rank: trainers first, then servers. Each trains twice, the first time to warm up."""

from __future__ import annotations

import argparse
import datetime
import importlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

import libddp
import libddp.torch  # noqa: F401: pmix://
from libddp import training

from .. import rpc_server
from .._statistics import Summary
from ..group_server import Server
from ..metrics import merged
from ..parameter_server import AverageParameterServer
from . import tables, workload
from .options import Plan

Measured = dict[str, dict[str, Summary]]
"""Metrics by "trainer=0" or "server=0"."""


def everything(plans: Sequence[Plan], options: argparse.Namespace) -> None:
    """Runs the plans in turn; rank 0 prints and writes the tables. Collective over all ranks."""
    world = libddp.world()
    limit = datetime.timedelta(seconds=max(options.rpc_timeout * 2, 60))
    dist.init_process_group("gloo", init_method="pmix://", timeout=limit)
    by_rpc = any(plan.servers and plan.experiment.transport == "rpc" for plan in plans)
    if by_rpc:
        rpc_server.begin(_name(world.rank), options.rpc_timeout)
    results: dict[str, list[tables.Table]] = {}
    for plan in plans:
        gathered: list[Any] = [None] * world.world_size
        dist.all_gather_object(gathered, _Run(plan, options).measured())
        together: Measured = {name: table for each in gathered for name, table in each.items()}
        results[plan.title] = _tables(together)
        if world.rank == 0:
            print(f"experiment {plan.title}: {plan.trainers} trainers, {plan.servers} servers, backend {plan.experiment.backend}, "
                  f"{plan.experiment.ddp_hook}", flush=True)
            print(tables.printed(results[plan.title], options.wide), flush=True)
    if world.rank == 0:
        _report(results, options)
    if by_rpc:
        rpc_server.end()
    dist.destroy_process_group()


def _report(results: dict[str, list[tables.Table]], options: argparse.Namespace) -> None:
    of_trainers = {title: dict(found)["all trainer"] for title, found in results.items()}
    if len(results) > 1:
        print(tables.compared(of_trainers), flush=True)
    if options.plot:
        tables.write_plot(options.plot, of_trainers)
    if options.csv:
        tables.write_csv(options.csv, results)
    if options.json:
        tables.write_json(options.json, results)


def _tables(measured: Measured) -> list[tables.Table]:
    found: list[tables.Table] = []
    for role in ("trainer", "server"):
        own = {name: table for name, table in measured.items() if name.startswith(role)}
        found += [(name, merged([table])) for name, table in own.items()]
        if own:
            found.append((f"all {role}", merged(own.values())))
    return found


def _name(rank: int) -> str:
    return f"rank{rank}"


def _object(name: str, *homes: Any) -> Any:
    """By a name in one of these modules, or module:function."""
    module, colon, attribute = name.partition(":")
    if colon:
        return getattr(importlib.import_module(module), attribute)
    return next(getattr(home, name) for home in homes if hasattr(home, name))


class _Run:
    """One experiment in this rank."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        self._plan, self._options = plan, options
        self._world = libddp.world()
        self._rank = self._world.rank
        self._trainers = list(range(plan.trainers))
        self._share = plan.trainers // plan.servers if plan.servers else plan.trainers
        self._group: Any = dist.new_group(self._trainers, backend=plan.backend)
        # one group for each server: collective, in the same order on all ranks
        groups = [self._world.process_group().new_group([plan.trainers + number, *self._trainers_of(number)])
                  for number in range(plan.servers if plan.experiment.transport == "group" else 0)]
        self._exchange = next((group for group in groups if group is not None), None)

    def _trainers_of(self, server: int) -> list[int]:
        return self._trainers[server * self._share:(server + 1) * self._share]

    def _made(self, kind: str, *given: Any, **named: Any) -> Any:
        configuration = dict(self._plan.configurations[kind])
        home = {"data": workload, "model": workload, "server": training, "trainer": training}[kind]
        name = configuration.pop("class")
        made_by = _object("DummyModel" if name == "DummyModelSparse" else name, home)
        return made_by(*given, **{**named, **configuration})

    def measured(self) -> Measured:
        """Trains, serves or waits, by this rank's number. Collective over all ranks."""
        number = self._rank - self._plan.trainers
        found: Measured = {}
        if number < 0:
            found[f"trainer={self._rank}"] = self._train()
        elif number < self._plan.servers:
            server = self._serve(number)
            dist.barrier()
            rpc_server.serve(None)
            return {f"server={number}": server.metrics.summaries()}
        dist.barrier()  # servers by RPC are needed until here
        return found

    def _serve(self, number: int) -> AverageParameterServer:
        experiment = self._plan.experiment
        device = self._cuda() if number >= experiment.nserver else torch.device("cpu")
        # averages go through the CPU's memory by both transports: TensorPipe's own way for CUDA tensors needs device maps
        server: AverageParameterServer = self._made("server", self._rank, self._share, False, device=device,
                                                    timeout=self._options.rpc_timeout, trainer_ranks=self._trainers_of(number))
        if self._exchange is not None:
            training.serve(server, self._exchange)
        else:
            rpc_server.serve(server)
            dist.barrier()  # it can be found from here on
        return server

    def _cuda(self) -> torch.device:
        index = self._world.device_index
        device = torch.device("cuda", self._world.local_rank if index is None else index)
        torch.cuda.set_device(device)
        return device

    def _connection(self) -> Server | None:
        if not self._plan.servers:
            return None
        if self._exchange is not None:
            return training.GroupServer(self._exchange, self._options.rpc_timeout)
        dist.barrier()
        number = self._rank // self._share
        rank = self._plan.trainers + number
        return training.RpcServer(rpc_server.reference_of(_name(rank)), self._rank % self._share, self._options.rpc_timeout, rank)

    def _train(self) -> dict[str, Summary]:
        plan, options = self._plan, self._options
        device = self._cuda() if plan.experiment.ncudatrainer else torch.device("cpu")
        connection = self._connection()
        parts = [_object(plan.parts[part], training) for part in ("preprocess_data", "create_criterion", "create_ddp_model", "hook_state",
                                                                  "ddp_hook", "iteration_step")]
        trainer = self._made("trainer", self._group, False, connection, plan.backend, options.epochs, *parts, device=device)
        torch.manual_seed(options.torch_seed)
        data = list(torch.utils.data.DataLoader(self._made("data"), options.batch_size))[self._rank::plan.trainers]
        for warm in (True, False):
            torch.manual_seed(options.torch_seed)
            if device.type == "cuda":
                torch.cuda.manual_seed(options.cuda_seed)
            trainer.train(self._made("model"), data)
            dist.barrier(self._group)
            if warm:
                trainer.clear_metrics()
                if connection is not None and self._rank % self._share == 0:
                    connection.reset()
                dist.barrier(self._group)
        if connection is not None:
            connection.close()
        return dict(trainer.metrics.summaries())
