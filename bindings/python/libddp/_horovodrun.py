"""ddp-horovodrun: horovodrun's command line, for ddprun. Says once what has no effect, then becomes ddprun."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import NoReturn

from . import _horovodrun_config

_NO_EFFECT = ("cycle-time-ms", "cache-capacity", "autotune-log-file", "autotune-warmup-samples", "autotune-steps-per-sample",
              "autotune-bayes-opt-max-samples", "autotune-gaussian-process-noise", "num-nccl-streams", "thread-affinity",
              "mpi-args")
_NO_EFFECT_FLAGS = ("hierarchical-allreduce", "no-hierarchical-allreduce", "hierarchical-allgather", "no-hierarchical-allgather",
                    "torus-allreduce", "no-torus-allreduce", "autotune", "no-autotune", "disable-cache", "mpi-threads-disable",
                    "no-mpi-threads-disable")
_ELASTIC = ("min-np", "min-num-proc", "max-np", "max-num-proc", "slots-per-host", "slots", "host-discovery-script", "reset-limit",
            "elastic-timeout", "blacklist-cooldown-range")
_VARIABLES = {"fusion-threshold-mb": "HOROVOD_FUSION_THRESHOLD", "stall-check-warning-time-seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
              "stall-check-shutdown-time-seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
              "gloo-timeout-seconds": "HOROVOD_GLOO_TIMEOUT_SECONDS", "timeline-filename": "HOROVOD_TIMELINE"}
NAMES = ("--as", "horovod,mpi4py", "--imitate", "horovodrun")  # what programs expect, as ddprun's words
_LEVELS = {"TRACE": "debug", "DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "FATAL": "error"}
_BUILD = """\
libddp's interface of Horovod 0.28.1:

Available Frameworks:
    [ ] TensorFlow
    [{}] PyTorch
    [ ] MXNet

Available Controllers:
    [ ] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [ ] CCL
    [ ] MPI
    [X] Gloo
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ddp-horovodrun", description=__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="show the version and exit")
    add("-np", "--num-proc", type=int, help="ranks of the job: ddprun -n")
    add("-cb", "--check-build", action="store_true", help="show what is supported and exit")
    add("--dry-run", action="store_true", help="print ddprun's command line and exit")
    add("--verbose", action="store_true")
    add("-H", "--hosts")
    add("-hostfile", "--hostfile")
    add("-p", "--ssh-port")
    add("-i", "--ssh-identity-file")
    add("--start-timeout", type=float, default=os.environ.get("HOROVOD_START_TIMEOUT"))
    add("--network-interfaces", "--network-interface")
    add("--output-filename", metavar="FOLDER", help="also write ranks' output to FOLDER/rank.N/stdout and stderr")
    add("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true")
    add("--log-level", choices=sorted(_LEVELS))
    add("--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp", action="store_true")
    add("--no-stall-check", action="store_true")
    add("--stall-check", action="store_false", dest="no_stall_check", default=False)
    add("--timeline-mark-cycles", action=argparse.BooleanOptionalAction)
    add("--config-file", metavar="FILE", help="options by horovodrun's names in YAML; needs PyYAML")
    add("--binding-args")
    for name in ("gloo", "mpi", "jsrun", "tcp"):
        add(f"--{name}", action="store_true")
    for name in (*_NO_EFFECT, *_VARIABLES):
        add(f"--{name}")
    for name in _NO_EFFECT_FLAGS:
        add(f"--{name}", action="store_true")
    for name in _ELASTIC:
        add(f"--{name}")
    add("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def translate(arguments: list[str]) -> tuple[list[str], dict[str, str], list[str], argparse.Namespace]:
    """ddprun's words, variables for it, what to say, and the options. Exits for what is wrong."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.config_file:
        try:
            from_file = _horovodrun_config.read(given.config_file)
        except _horovodrun_config.Refused as error:
            parser.error(str(error))
        given = parser.parse_args([*from_file, *arguments])  # what is on the command line comes later, and so holds
    value = {name: getattr(given, name.replace("-", "_")) for name in (*_NO_EFFECT, *_VARIABLES, *_NO_EFFECT_FLAGS, *_ELASTIC)}
    if elastic := [f"--{name}" for name in _ELASTIC if value[name] is not None]:
        parser.error(f"{', '.join(elastic)}: ranks do not leave or come while a program runs; give -np, or let ddprun "
                     "--nnodes MIN:MAX start it again on the nodes that are there")
    words, variables = [], {}
    for option, text in (("-n", given.num_proc), ("-H", given.hosts), ("--hostfile", given.hostfile), ("--ssh-port", given.ssh_port)):
        if text is not None:
            words += [option, str(text)]
    if given.ssh_identity_file:
        words += ["--ssh-command", f"ssh -i {shlex.quote(given.ssh_identity_file)}"]
    if given.start_timeout is not None:
        words += ["--rdzv-conf", f"join_timeout={float(given.start_timeout):g}"]
        variables["DDP_INIT_TIMEOUT"] = f"{float(given.start_timeout):g}"
    if given.output_filename:
        words += ["-t", "3", "--log-layout", "rank", "--log-dir", given.output_filename]
    if given.prefix_output_with_timestamp:
        words.append("--log-timestamps")
    if given.verbose:
        words.append("-v")
    if given.network_interfaces:
        variables["DDP_SOCKET_IFNAME"] = given.network_interfaces  # the first that all nodes have
        variables["NCCL_SOCKET_IFNAME"] = "=" + given.network_interfaces
    if given.log_level:
        variables["DDP_LOG_LEVEL"] = _LEVELS[given.log_level]
    if given.no_stall_check:
        variables["HOROVOD_STALL_CHECK_DISABLE"] = "1"
    if given.timeline_mark_cycles is not None:
        variables["HOROVOD_TIMELINE_MARK_CYCLES"] = str(int(given.timeline_mark_cycles))
    for name, variable in _VARIABLES.items():
        if value[name] is not None:
            variables[variable] = str(int(float(value[name]) * 2**20)) if name == "fusion-threshold-mb" else value[name]
    idle = [f"--{name}" for name in (*_NO_EFFECT, *_NO_EFFECT_FLAGS) if value[name]]
    idle += ["--log-with-timestamp"] if given.log_with_timestamp else []
    idle += [f"--{name}" for name in ("gloo", "mpi", "jsrun", "tcp") if getattr(given, name)]
    notices = [f"no effect: {', '.join(idle)}"] if idle else []
    if given.binding_args:
        notices.append("instead of --binding-args, ddprun places ranks by --bind")
    if value["autotune"]:
        notices.append("instead of --autotune, python -m libddp.training.advise measures settings on the running program")
    return words, variables, notices, given


def main() -> NoReturn:
    words, variables, notices, given = translate(sys.argv[1:])
    if given.version:
        import libddp
        print(f"ddp-horovodrun (libddp) {libddp.__version__}")
        sys.exit(0)
    if given.check_build:
        import importlib.util
        print(_BUILD.format("X" if importlib.util.find_spec("torch") else " "), end="")
        sys.exit(0)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        _parser().error("no program to run")
    for notice in notices:
        print(f"ddp-horovodrun: {notice}", file=sys.stderr)
    words += [*NAMES, *command]
    if given.dry_run:
        settings = [f"{name}={text}" for name, text in variables.items()]
        print(shlex.join([*(["env", *settings] if settings else []), "ddprun", *words]))
        sys.exit(0)
    os.environ.update(variables)
    from libddp import _programs
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    _programs.start("ddprun", words)
