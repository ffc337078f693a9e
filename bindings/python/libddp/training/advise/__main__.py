"""Entry of python -m libddp.training.advise: checks the command line, then runs the program as this rank, or starts the ranks by
ddprun."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

from libddp import _programs

_NAME = "libddp.training.advise"
_EXIT_USAGE = 2


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return int(text)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m {_NAME}", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs a training program, prints where each rank's steps spend their time, then tries other settings on the running\n"
        "program and prints what each gains and the lines to change. The program averages gradients by\n"
        "libddp.torch.DistributedDataParallel or hvd.DistributedOptimizer.",
        epilog="Without -n, start it as ranks: ddprun -n 4 -m libddp.training.advise train.py, or srun.\n"
        "Trials take 24 batches each, some with rounded or missing gradients. Weights, buffers, optimizer state, learning rate\n"
        "schedulers and gradient scalers are saved before and put back after each, bit by bit; other state, such as averages of\n"
        "weights that the program keeps, is not. The batches are used up. Do not use what the program saves during trials.")
    made.add_argument("--steps", type=_number, default=200, metavar="N", help="steps whose parts are measured before trials (200)")
    made.add_argument("-n", "--num-proc", type=_number, metavar="N", help="start N ranks on this machine, by ddprun")
    made.add_argument("--stop", action="store_true", help="end the program once all is printed, with exit status 0")
    made.add_argument("program", help="Python script, as for python")
    made.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    return made


def _print(text: str) -> None:
    print(text, flush=True)


def _run(options: argparse.Namespace) -> int:
    import torch.distributed as dist

    from libddp import _observers, horovod

    from .step_parts import replaced
    from .trials import Advisor
    advisor = Advisor(options.steps, _print, options.stop)
    _observers.observers.append(advisor.observe)

    def before(original: Any) -> Any:
        def end(*arguments: Any, **named: Any) -> Any:
            advisor.end()
            return original(*arguments, **named)
        return end

    for owner, name in ((dist, "destroy_process_group"), (horovod, "shutdown")):
        replaced(owner, name, before)
    sys.argv = [options.program, *options.arguments]
    sys.path[0] = str(Path(options.program).resolve().parent)
    status: Any = 0
    try:
        runpy.run_path(options.program, run_name="__main__")
    except SystemExit as ended:
        status = ended.code or 0
        if status != 0:
            raise
    if advisor.end():
        return 0
    print(f"{_NAME}: {options.program} made neither a libddp.torch.DistributedDataParallel nor an hvd.DistributedOptimizer over all "
          "ranks; there is nothing to measure", file=sys.stderr)
    return 1


def main() -> int:
    """Exit status: the program's, 1 if nothing was measured, 2 for a command line that cannot be used."""
    options = parser().parse_args()
    if not Path(options.program).is_file():
        print(f"{_NAME}: {options.program}: there is no such file; give a Python script", file=sys.stderr)
        return _EXIT_USAGE
    if options.num_proc is not None:
        own = ["--steps", str(options.steps), *(["--stop"] if options.stop else [])]
        _programs.start("ddprun", ["-n", str(options.num_proc), "--no-python", sys.executable, "-m", _NAME, *own, options.program,
                                   *options.arguments])
    return _run(options)


if __name__ == "__main__":
    sys.exit(main())
