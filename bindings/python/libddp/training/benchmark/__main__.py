"""The benchmark's entry: checks the command line, then runs as a rank, or starts the ranks by ddprun."""

from __future__ import annotations

import sys
from typing import NoReturn

import libddp
from libddp import _errors, _programs

from .options import Plan, Wrong, dashed, parser, plans_of

_EXIT_USAGE = 2


def _complain(lines: list[str]) -> None:
    for line in lines:
        print(f"libddp.training.benchmark: {line}", file=sys.stderr)


def _start(ranks: int) -> NoReturn:
    """Becomes ddprun with this command line in each rank."""
    _programs.start("ddprun", ["-n", str(ranks), "--no-python", sys.executable, "-m", "libddp.training.benchmark", *sys.argv[1:]])


def _needed(plans: list[Plan]) -> int:
    return max(plan.trainers for plan in plans) + max(plan.servers for plan in plans)


def main() -> int:
    """Exit status: 0, 1 if a run fails, 2 for a command line or configuration that cannot be used."""
    options = parser().parse_args(dashed(sys.argv[1:]))
    try:
        plans = plans_of(options)
    except Wrong as wrong:
        _complain(wrong.lines)
        return _EXIT_USAGE
    needed = _needed(plans)
    world = libddp.init()
    if world.world_size != needed:
        alone = world.source == "single"
        size = world.world_size
        world.close()
        if alone:
            _start(needed)
        _complain([f"{needed} ranks are needed ({max(plan.trainers for plan in plans)} trainers, {max(plan.servers for plan in plans)} servers), "
                   f"the launcher started {size}"])
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
