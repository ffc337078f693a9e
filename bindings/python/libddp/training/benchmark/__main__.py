"""The benchmark's entry: checks the command line, then runs as a rank, or starts the ranks by ddprun."""

from __future__ import annotations

import sys

import libddp
from libddp import _errors, _programs

from .options import Wrong, dashed, parser, plans_of

_EXIT_USAGE = 2


def _complain(lines: list[str]) -> None:
    for line in lines:
        print(f"libddp.training.benchmark: {line}", file=sys.stderr)


def main() -> int:
    """Exit status: 0, 1 if a run fails, 2 for a command line or configuration that cannot be used."""
    options = parser().parse_args(dashed(sys.argv[1:]))
    try:
        plans = plans_of(options)
    except Wrong as wrong:
        _complain(wrong.lines)
        return _EXIT_USAGE
    trainers, servers = max(plan.trainers for plan in plans), max(plan.servers for plan in plans)
    needed = trainers + servers
    world = libddp.init()
    if world.world_size != needed:
        alone = world.source == "single"
        size = world.world_size
        world.close()
        if alone:  # becomes ddprun with this command line in each rank
            _programs.start("ddprun", ["-n", str(needed), "--no-python", sys.executable, "-m",
                                       "libddp.training.benchmark", *sys.argv[1:]])
        _complain([f"{needed} ranks are needed ({trainers} trainers, {servers} servers), the launcher started {size}"])
        return _EXIT_USAGE
    from . import run
    try:
        run.everything(plans, options)
    except _errors.Error as error:
        _complain([f"rank {world.rank}: {error}"])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
