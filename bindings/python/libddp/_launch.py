"""libddp.launch(): a function as the ranks of a job, called from Python or a notebook, over ddprun.

The function, and what ranks return, go through files of a folder that all hosts see. They are pickled, so that folder is the
user's alone.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from . import _errors, _programs

_ENDING = 60.0  # seconds in which ddprun ends its ranks, beyond its own 30


class LaunchFailed(_errors.Error):
    """A job of launch() failed. exceptions: what ranks raised, by rank; results: what others have returned until then. The
    exception that came first is __cause__."""

    def __init__(self, message: str, exceptions: Mapping[int, BaseException], results: Mapping[int, Any], status: int) -> None:
        super().__init__(message)
        self.exceptions, self.results, self.status = dict(exceptions), dict(results), status
        self.code, self.attempted, self.cause, self.native = "aborted", "launching a function", message, ""
        self.ranks, self.hint = tuple(sorted(exceptions)), ""

    def __reduce__(self) -> tuple[object, ...]:
        return LaunchFailed, (str(self), self.exceptions, self.results, self.status)


def _pickler() -> Any:
    """cloudpickle where it is installed, which takes lambdas and functions of notebooks by value; else pickle."""
    try:
        import cloudpickle  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return pickle
    return cloudpickle


def _packed(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """What ranks begin with: for multiprocessing's spawn.prepare(), and the call. Raises InvalidArgument for what cannot be
    pickled."""
    pickler = _pickler()
    prepared: dict[str, Any] = {"sys_path": [each or os.getcwd() for each in sys.path], "sys_argv": sys.argv}
    if pickler is pickle and getattr(function, "__module__", None) == "__main__":
        program = sys.modules["__main__"]
        if (spec := getattr(program, "__spec__", None)) is not None:
            prepared["init_main_from_name"] = spec.name
        elif (path := getattr(program, "__file__", None)) is not None:
            prepared["init_main_from_path"] = os.path.abspath(path)
        else:
            cause = f"{function!r} is of an interactive session, which ranks cannot import"
            raise _refused(cause, "install cloudpickle, or put the function into a module")
    try:
        return pickle.dumps((prepared, pickler.dumps((function, args, dict(kwargs)))))
    except Exception as error:
        hint = "" if pickler is not pickle else "give a function of a module, or install cloudpickle"
        raise _refused(f"the function or its arguments cannot be pickled: {error}", hint) from error


def _refused(cause: str, hint: str) -> _errors.Error:
    return _errors.problem("invalid_argument", "launching a function", cause, hint=hint)


def _write_result(folder: Path, rank: int, size: int, value: Any, error: BaseException | None, text: str) -> None:
    """The file is there once it is complete."""
    path = folder / f"result.{rank}"
    part = path.with_suffix(f".{rank}.part")
    part.write_bytes(pickle.dumps((size, _outcome(value, error), text)))
    part.replace(path)


def _results(folder: Path) -> dict[int, tuple[int, int, bytes, str]]:
    """By rank: when it was written, the number of ranks, what pickles to (value, error), and the traceback."""
    found = {}
    for path in folder.glob("result.*"):
        number = path.suffix[1:]
        if number.isdigit():
            size, outcome, text = pickle.loads(path.read_bytes())
            found[int(number)] = (path.stat().st_mtime_ns, size, outcome, text)
    return found


def _outcome(value: Any, error: BaseException | None) -> bytes:
    if error is None:
        try:
            return bytes(_pickler().dumps((value, None)))
        except Exception as problem:
            raise TypeError(f"what the function returned cannot be pickled: {problem}") from problem
    try:
        made = bytes(_pickler().dumps((None, error)))
        pickle.loads(made)  # many exceptions can be written only
        return made
    except Exception:
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


def run_rank(folder: str) -> None:
    """In each rank. What the function raises ends the rank, as it would end a program."""
    from multiprocessing import spawn
    where = Path(folder)
    try:
        prepared, packed = pickle.loads((where / "function").read_bytes())
    except FileNotFoundError:
        sys.exit(f"libddp.launch: {folder} is not on {os.uname().nodename}; give launch(folder=...) one that all hosts see")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    global _in_rank
    _in_rank = True
    try:
        spawn.prepare(prepared)
        function, args, kwargs = pickle.loads(packed)
        _in_rank = False  # it may launch jobs of its own
        value = function(*args, **kwargs)
        _write_result(where, rank, size, value, None, "")
    except BaseException as error:
        if isinstance(error, SystemExit) and not error.code:
            return _write_result(where, rank, size, None, None, "")
        _write_result(where, rank, size, None, error, traceback.format_exc())
        raise


_in_rank = False  # its program is being imported again


def _relay(source: Any, name: str) -> None:
    """A stream of ddprun, line by line to where Python writes: a notebook's cell, or a test's capture."""
    for line in source:
        getattr(sys, name).write(line)


def start(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs ddprun to its end; an exception meanwhile, as Ctrl-C, ends it first. Its exit status."""
    piped = [name for name in ("stdout", "stderr") if getattr(sys, name) is not getattr(sys, f"__{name}__")]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    running: subprocess.Popen[str] = subprocess.Popen(
        [str(_programs.path_of("ddprun")), *words], env=dict(environment), stdin=subprocess.DEVNULL, text=True, errors="replace",
        stdout=subprocess.PIPE if "stdout" in piped else None, stderr=subprocess.PIPE if "stderr" in piped else None)
    relays = [threading.Thread(target=_relay, args=(getattr(running, name), name), daemon=True) for name in piped]
    for each in relays:
        each.start()
    try:
        status = running.wait()
    except BaseException:
        running.terminate()
        try:
            running.wait(_ENDING)
        except subprocess.TimeoutExpired:
            running.kill()
        raise
    for each in relays:
        each.join(_ENDING)
    return status


@contextlib.contextmanager
def _folder(given: str | os.PathLike[str] | None, several_hosts: bool) -> Iterator[Path]:
    """A new one, of this user alone."""
    parent = given if given is not None else os.getcwd() if several_hosts else None
    made = Path(tempfile.mkdtemp(prefix=".ddp-launch-", dir=parent)).resolve()
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def collect(found: Mapping[int, tuple[int, int, bytes, str]], status: int) -> list[Any]:
    """Results by rank. Raises LaunchFailed."""
    exceptions: dict[int, BaseException] = {}
    values: dict[int, Any] = {}
    for rank in sorted(found, key=lambda each: found[each][0]):  # the first to end comes first
        value, error = pickle.loads(found[rank][2])
        if error is None:
            values[rank] = value
        else:
            exceptions[rank] = error
    size = next((each[1] for each in found.values()), 0)
    missing = [rank for rank in range(size) if rank not in found]
    if status == 0 and not exceptions and not missing and found:
        return [values[rank] for rank in range(size)]
    said = [f"rank {rank} raised {type(error).__name__}: {error}" for rank, error in exceptions.items()]
    if not found:
        said.append("no rank returned anything")
    elif missing and not exceptions:
        said.append(f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} returned nothing")
    first = next(iter(exceptions), None)
    text = f"\n\n{found[first][3]}" if first is not None else ""
    failure = LaunchFailed(f"{'; '.join(said) or 'ranks have failed'}; ddprun ended with status {status}{text}", exceptions, values,
                           status)
    raise failure from (exceptions[first] if first is not None else None)


def launch(function: Callable[..., Any], nproc_per_node: int | str | None = None, *, nnodes: int | None = None,
           nproc: int | None = None, hosts: str | None = None, hostfile: str | None = None, timeout: float | None = None,
           options: Sequence[str] = (), env: Mapping[str, str] | None = None,
           folder: str | os.PathLike[str] | None = None) -> Callable[..., list[Any]]:
    """launch(function, nproc_per_node=4)(*args, **kwargs) calls function(*args, **kwargs) in each rank of a job of ddprun, and
    returns what they return, by rank.

    nproc_per_node, nnodes, nproc, hosts, hostfile, timeout (seconds): ddprun's --nproc-per-node, --nnodes, -n, -H, --hostfile,
    --timeout. options: others of its words. env: variables for it and the ranks. folder: where a folder for the job can be made
    that all hosts see; default: the working folder where there are several, else that of temporary files.

    The function is pickled: by cloudpickle if it is installed, else it is one of a module, or of a program whose launch is
    below if __name__ == "__main__". Raises LaunchFailed where a rank fails, and InvalidArgument.
    """
    if not callable(function):
        raise _refused(f"{function!r} is not a function", "")
    words: list[str] = []
    for option, value in (("--nproc-per-node", nproc_per_node), ("--nnodes", nnodes), ("-n", nproc), ("-H", hosts),
                          ("--hostfile", hostfile), ("--timeout", timeout)):
        if value is not None:
            words += [option, str(value)]
    words += [str(each) for each in options]
    several = bool({"-H", "--hostfile"} & set(words)) or os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1"

    def call(*args: Any, **kwargs: Any) -> list[Any]:
        if _in_rank:
            raise _refused("each rank imports the program that calls launch()", "launch below if __name__ == '__main__'")
        packed = _packed(function, args, kwargs)
        with _folder(folder, several) as where:
            (where / "function").write_bytes(packed)
            environment = {**os.environ, "PYTHON_EXEC": sys.executable, **(env or {})}
            status = start([*words, "-m", "libddp._launched", str(where)], environment)
            return collect(_results(where), status)

    return call
