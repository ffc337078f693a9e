"""horovod.run: a function as ranks of a job, over ddprun; the arguments are those of ddp-horovodrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from libddp import _horovodrun, _launch


def run(func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
        num_proc: int | None = None, min_num_proc: int | None = None, max_num_proc: int | None = None,
        slots: int | None = None, reset_limit: int | None = None, cooldown_range: Any = None, hosts: str | None = None,
        hostfile: str | None = None, start_timeout: float | None = None, ssh_port: int | None = None,
        ssh_identity_file: str | None = None, disable_cache: bool | None = None, output_filename: str | None = None,
        verbose: Any = None, use_gloo: bool | None = None, use_mpi: bool | None = None, mpi_args: str | None = None,
        network_interface: str | None = None, executable: str | None = None, network_interfaces: str | None = None,
        np: int | None = None) -> list[Any]:
    """What func(*args, **kwargs) returns in each rank, by rank. The ranks have Horovod's and mpi4py's names, too.

    func is pickled: by cloudpickle if it is installed, else it is one of a module, or of a program whose call of run() is
    below if __name__ == "__main__". disable_cache, use_gloo, use_mpi and mpi_args have no effect. Raises
    libddp.LaunchFailed where a rank fails, ValueError for arguments, NotImplementedError for those of elastic jobs.
    """
    elastic = {"min_num_proc": min_num_proc, "max_num_proc": max_num_proc, "slots": slots, "reset_limit": reset_limit,
               "cooldown_range": cooldown_range}
    if given := [name for name, value in elastic.items() if value is not None]:
        raise NotImplementedError(f"{', '.join(given)}: ranks cannot leave or come yet; give num_proc")
    if executable is not None and os.path.realpath(executable) != os.path.realpath(sys.executable):
        raise NotImplementedError("executable: ranks have the Python that calls run()")
    options: list[str] = []
    for option, value in (("-np", np if num_proc is None else num_proc), ("-H", hosts), ("--hostfile", hostfile),
                          ("--start-timeout", start_timeout), ("-p", ssh_port), ("-i", ssh_identity_file),
                          ("--output-filename", output_filename),
                          ("--network-interfaces", network_interfaces or network_interface)):
        if value is not None:
            options += [option, str(value)]
    try:
        words, variables, _, _ = _horovodrun.translate([*options, *(["--verbose"] if verbose else [])])
    except SystemExit:
        raise ValueError(f"hvd.run(): wrong arguments: {' '.join(options)}") from None
    call = _launch.launch(func, options=[*words, *_horovodrun.NAMES], env=variables)
    return call(*args, **(kwargs or {}))
