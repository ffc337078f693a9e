"""The benchmark's experiments, by upstream's names, command line and configurations, checked before anything starts.
Imports no torch."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import Any

from . import tables

KINDS = ("data", "model", "server", "trainer")
TRANSPORTS = ("group", "rpc")
_PARTS = {"preprocess_data": "preprocess_dummy_data", "create_criterion": "cel", "create_ddp_model": "basic_ddp_model",
          "hook_state": "BasicHookState", "ddp_hook": "allreduce_hook", "iteration_step": "basic_iteration_step"}
_HOOKS = ("allreduce_hook", "hybrid_hook", "rpc_hook", "sparse_rpc_hook")
_OWN = {"preprocess_data": ("preprocess_dummy_data",), "create_criterion": ("cel",), "create_ddp_model": ("basic_ddp_model",),
        "hook_state": ("BasicHookState",), "ddp_hook": _HOOKS, "iteration_step": ("basic_iteration_step",)}
_CLASSES = {"data": ("DummyData",), "model": ("DummyModel", "DummyModelSparse"), "trainer": ("DdpTrainer",),
            "server": ("AverageParameterServer", "AverageBatchParameterServer")}
_KNOWN_KEYS = {"DummyData": {"max_val", "sample_count", "sample_length", "sparsity_percentage"},
               "DummyModel": {"num_embeddings", "embedding_dim", "dense_input_size", "dense_output_size", "dense_layers_count", "sparse"},
               "AverageParameterServer": {"timeout"}, "DdpTrainer": set()}
_KNOWN_KEYS |= {"DummyModelSparse": _KNOWN_KEYS["DummyModel"], "AverageBatchParameterServer": _KNOWN_KEYS["AverageParameterServer"]}


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
            made.append(Experiment(f"ddp{batch}_{device}_sparse_rpc_nccl_allreduce", "sparse_rpc_hook", "nccl", server,
                                   "DummyModelSparse", **on_cuda, **servers))
    return {each.name: each for each in made}


EXPERIMENTS = _all()
"""Upstream's eleven, and ddp_allreduce, on the backend "ddp"."""


class Wrong(Exception):
    """What the user has to change, one line each."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines


@dataclasses.dataclass
class Plan:
    """One experiment with its flags and configurations."""

    experiment: Experiment
    parts: dict[str, str]
    """Names of the trainer's parts: upstream's, or module:function."""
    configurations: dict[str, dict[str, Any]]
    """Constructor arguments by kind: data, model, server, trainer."""
    data: str
    trainer: str

    @property
    def title(self) -> str:
        """The experiment's name, with its transport if it has a server."""
        return f"{self.experiment.name}@{self.experiment.transport}" if self.servers else self.experiment.name

    @property
    def backend(self) -> str:
        """As torch takes it."""
        given = self.experiment.backend.lower()
        return "cpu:gloo,cuda:nccl" if given == "multi" else given

    @property
    def trainers(self) -> int:
        """How many."""
        return self.experiment.ntrainer + self.experiment.ncudatrainer

    @property
    def servers(self) -> int:
        """How many."""
        return self.experiment.nserver + self.experiment.ncudaserver


def parser() -> argparse.ArgumentParser:
    """All flags; those of upstream's launcher may have _ or -."""
    made = argparse.ArgumentParser(prog="python -m libddp.training.benchmark", description="Measures training with averages by all_reduce and "
                                   "by parameter servers. Starts its ranks by ddprun, or is one of those that a launcher started.")
    add = made.add_argument
    add("--experiment", metavar="NAME", help=f"one of {', '.join(EXPERIMENTS)}; with @rpc or @group for the server's transport")
    add("--compare", metavar="A,B,...", help="several experiments in turn in the same processes, and ratios to the first")
    add("--transport", choices=TRANSPORTS, help="of gradients to servers: libddp's group (default), or torch RPC")
    for flag, words in (("ntrainer", "trainers on CPUs"), ("ncudatrainer", "trainers on CUDA devices"), ("nserver", "servers on CPUs"),
                        ("ncudaserver", "servers on CUDA devices")):
        add(f"--{flag}", type=_count, metavar="N", help=words)
    add("--rpc-timeout", type=_seconds, default=60.0, metavar="SECONDS", help="for a late trainer or server, by either transport (60)")
    add("--backend", help="of the trainers' process group: ddp, gloo, nccl, one for each device as cpu:gloo,cuda:nccl, or multi, which is that")
    add("--epochs", type=_count, default=2, metavar="N", help="passes over the data, after as many to warm up (2)")
    add("--batch-size", type=_count, default=8, metavar="N", help="samples of a batch (8)")
    for kind, classes in _CLASSES.items():
        add(f"--{kind}", metavar="ID", help=f"configuration: {', '.join(classes)}, of --config-dir, or module:function")
        add(f"--{kind}-config-path", metavar="FILE", help="JSON with configurations by id")
    add("--config-dir", metavar="FOLDER", help="with data_configurations.json, model_..., server_..., trainer_...")
    for part, default in _PARTS.items():
        add(f"--{part.replace('_', '-')}", metavar="NAME", help=f"default {default}; or module:function")
    add("--torch-seed", type=int, default=0, metavar="N", help="of data and models (0)")
    add("--cuda-seed", type=int, default=0, metavar="N", help="of CUDA devices (0)")
    add("--wide", action="store_true", help="also the 95th percentile and the slowest rank")
    add("--csv", metavar="FILE", help="write the tables there")
    add("--json", metavar="FILE", help="the same with all statistics")
    add("--plot", metavar="FILE.svg|png", help="bars of the trainers' metrics for each experiment; needs matplotlib")
    for flag in ("master-addr", "master-port", "filestore"):
        add(f"--{flag}", help="accepted, not needed")
    return made


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is negative")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of seconds")
    return number


def dashed(arguments: list[str]) -> list[str]:
    """Flags with - for _."""
    def one(word: str) -> str:
        name, equals, value = word.partition("=")
        return name.replace("_", "-") + equals + value if word.startswith("--") else word
    return [one(word) for word in arguments]


def plans_of(options: argparse.Namespace) -> list[Plan]:
    """What is to run, in order. Raises Wrong with all problems that are found."""
    problems: list[str] = []
    if options.experiment and options.compare:
        raise Wrong(["--experiment and --compare contradict each other; give one"])
    names = (options.compare or options.experiment or "ddp_allreduce").split(",")
    plans = [plan for name in names if (plan := _plan(name.strip(), options, problems)) is not None]
    if len({(plan.experiment.ntrainer, plan.experiment.ncudatrainer) for plan in plans}) > 1:
        problems.append("--compare needs experiments with equal trainers; give --ntrainer and --ncudatrainer")
    if options.epochs == 0 or options.batch_size == 0:
        problems.append("--epochs and --batch-size are 1 at least")
    if options.plot and (problem := tables.plot_problem(options.plot)) is not None:
        problems.append(problem)
    for flag in ("csv", "json", "plot"):
        path = getattr(options, flag)
        if path and not Path(path).absolute().parent.is_dir():
            problems.append(f"--{flag} {path}: its folder does not exist")
    if problems:
        raise Wrong(list(dict.fromkeys(problems)))
    return plans


def _plan(name: str, options: argparse.Namespace, problems: list[str]) -> Plan | None:
    bare, _, transport = name.partition("@")
    if bare not in EXPERIMENTS:
        problems.append(f"unknown experiment '{bare}'; experiments are {', '.join(EXPERIMENTS)}")
        return None
    if transport and transport not in TRANSPORTS:
        problems.append(f"unknown transport '{transport}' in '{name}'; transports are {', '.join(TRANSPORTS)}")
        return None
    given = {field: getattr(options, field) for field in ("ddp_hook", "backend", "server", "model", "ntrainer", "ncudatrainer", "nserver",
                                                          "ncudaserver", "transport") if getattr(options, field) is not None}
    if transport:
        given["transport"] = transport
    experiment = dataclasses.replace(EXPERIMENTS[bare], **given)
    if not EXPERIMENTS[bare].server and not options.server:  # flags of servers are for the experiments that have one
        experiment = dataclasses.replace(experiment, server="")
        if options.compare:
            experiment = dataclasses.replace(experiment, nserver=0, ncudaserver=0)
    parts = {part: getattr(options, part) or default for part, default in _PARTS.items()} | {"ddp_hook": experiment.ddp_hook}
    plan = Plan(experiment, parts, {}, options.data or "DummyData", options.trainer or "DdpTrainer")
    problems += _contradictions(plan)
    problems += [line for part, value in parts.items() for line in _unknown(part.replace("_", "-"), value, _OWN[part])]
    wanted = {"data": plan.data, "model": experiment.model, "server": experiment.server, "trainer": plan.trainer}
    for kind, identity in wanted.items():
        if identity:
            plan.configurations[kind] = _configuration(kind, identity, options, problems)
    return plan


def _contradictions(plan: Plan) -> list[str]:
    found, experiment = [], plan.experiment
    by_server = "rpc_hook" in experiment.ddp_hook
    if plan.trainers == 0:
        found.append(f"{experiment.name}: no trainers; give --ntrainer or --ncudatrainer")
    if experiment.ntrainer and experiment.ncudatrainer:
        found.append(f"{experiment.name}: --ntrainer and --ncudatrainer contradict each other: gradients of one group are on one kind of device")
    if by_server and plan.servers == 0:
        found.append(f"{experiment.name}: {experiment.ddp_hook} needs --nserver or --ncudaserver")
    if by_server and not experiment.server:
        found.append(f"{experiment.name}: {experiment.ddp_hook} needs --server")
    if plan.servers and plan.trainers % plan.servers:
        found.append(f"{experiment.name}: {plan.servers} servers cannot share {plan.trainers} trainers equally")
    if plan.servers and not experiment.server:
        found.append(f"{experiment.name}: it has no server class; give --server, or no --nserver and --ncudaserver")
    found += _of_backend(plan)
    if (experiment.ncudatrainer or experiment.ncudaserver) and not _has_cuda():
        found.append(f"{experiment.name}: this machine has no CUDA device; give --ntrainer N --ncudatrainer 0 --ncudaserver 0 --backend ddp")
    return found


def _has_cuda() -> bool:
    return shutil.which("nvidia-smi") is not None or os.path.exists("/dev/nvidia0")


def _of_backend(plan: Plan) -> list[str]:
    """What is wrong with it, in the forms that torch's init_process_group() takes."""
    experiment, text = plan.experiment, plan.backend
    by_device = dict.fromkeys(("cpu", "cuda"), text) if ":" not in text else {}
    for part in text.split(",") if not by_device else []:
        device, _, name = part.partition(":")
        if device not in ("cpu", "cuda") or device in by_device:
            return [f"--backend {experiment.backend}: it is not DEVICE:BACKEND for cpu, cuda or both, as cpu:gloo,cuda:nccl"]
        by_device[device] = name
    if not set(by_device.values()) <= {"ddp", "gloo", "nccl"}:
        return [f"--backend {experiment.backend}: backends are ddp, gloo, nccl and multi"]
    found = []
    if by_device.get("cpu") == "nccl" and (experiment.ntrainer or ":" in text):
        found.append(f"{experiment.name}: NCCL has no CPU tensors; give --ncudatrainer in place of --ntrainer, or --backend ddp")
    for device, count in (("cpu", experiment.ntrainer), ("cuda", experiment.ncudatrainer)):
        if count and device not in by_device:
            found.append(f"{experiment.name}: --backend {experiment.backend} has none for {device}, where the trainers' gradients are")
    if by_device.get("cuda") == "nccl" and not experiment.ncudatrainer and not found and not _has_cuda():
        found.append(f"--backend {experiment.backend}: NCCL needs a CUDA device, and this machine has none; give --backend gloo or ddp")
    return found


def _unknown(flag: str, value: str, known: tuple[str, ...]) -> list[str]:
    if value in known:
        return []
    module, colon, _ = value.partition(":")
    if not colon:
        return [f"--{flag} {value}: it is not one of {', '.join(known)}, nor module:function"]
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    return [] if found is not None else [f"--{flag} {value}: there is no module '{module}'"]


def _configuration(kind: str, identity: str, options: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = f"{kind}_configurations.json"
    files = [Path(__file__).parent / "configurations" / name]
    if options.config_dir:
        if not Path(options.config_dir).is_dir():
            problems.append(f"--config-dir {options.config_dir}: it is not a folder")
        files += [path for path in (Path(options.config_dir) / name,) if path.exists()]
    given = getattr(options, f"{kind}_config_path")
    for path in files + ([Path(given)] if given else []):
        try:
            content = json.loads(path.read_text())
            if not isinstance(content, dict) or not all(isinstance(each, dict) for each in content.values()):
                raise ValueError("it is not an object of configurations by id")
        except (OSError, ValueError) as error:
            problems.append(f"configurations of {path}: {error.strerror if isinstance(error, OSError) else error}")
            continue
        found |= content
    if identity not in found and ":" not in identity:
        problems.append(f"--{kind} {identity}: there is no such configuration; there are {', '.join(found)}")
        return {}
    configuration: dict[str, Any] = dict(found.get(identity, {}))
    made_by = configuration.get("class", identity)
    problems += _unknown(kind, made_by, _CLASSES[kind])
    unknown = sorted(set(configuration) - {"class"} - _KNOWN_KEYS.get(made_by, set(configuration)))
    if unknown:
        problems.append(f"configuration {identity}: unknown keys {', '.join(unknown)}; {made_by} knows {', '.join(sorted(_KNOWN_KEYS[made_by]))}")
    missing = sorted(_KNOWN_KEYS.get(made_by, set()) - set(configuration)) if kind in ("data", "model") else []
    if missing:
        problems.append(f"configuration {identity}: keys {', '.join(missing)} are missing")
    return {"class": made_by, **configuration}
