"""The C++ adapter to the installed PyTorch (libddp/adapter): compiled at its first use, and kept in a folder of the user's.

PyTorch's C++ interface changes with each version, so libddp cannot bring it compiled. Ranks that start at once compile once.
DDP_TORCH_CACHE: the folder, instead of $XDG_CACHE_HOME/libddp or ~/.cache/libddp. CXX: the compiler. `python -m libddp.torch`
compiles it ahead.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import libddp
from libddp import _errors

_PACKAGE = Path(__file__).resolve().parent
_SOURCE = _PACKAGE / "adapter" / "adapter.cpp"
_INCLUDE = _PACKAGE / "include"
_NAME = "_libddp_torch"
_OLDEST = (2, 9)  # PyTorch whose c10d the adapter compiles with
_PATIENCE = 900.0  # seconds, for a compiler, and for another process that compiles
_loading = threading.Lock()
_loaded: Any = None
_served = 0  # the process that has the threads
_THREADS = 4  # callbacks of futures that wait for others at a time; gloo has 2


def _unusable(cause: str, hint: str) -> libddp.Error:
    attempted = "compiling libddp's adapter to PyTorch"
    return _errors.make("unavailable", f"{attempted}: {cause}; {hint}", attempted, cause, "", (), hint)


def _compiler() -> list[str]:
    words = os.environ.get("CXX", "").split() or [next(filter(shutil.which, ("g++", "c++", "clang++")), "g++")]
    if shutil.which(words[0]) is None:
        raise _unusable(f"there is no compiler {words[0]}",
                        "install g++ 12 or newer, name one in CXX, or run python -m libddp.torch where there is one "
                        "and share its DDP_TORCH_CACHE")
    return words


def _folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    wanted = Path(os.environ.get("DDP_TORCH_CACHE") or Path(home) / "libddp").absolute()
    try:
        wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        raise _unusable(f"its folder {wanted} cannot be made ({problem.strerror})",
                        "name one that you may write to in DDP_TORCH_CACHE") from None
    facts = wanted.stat()
    if facts.st_uid not in (os.getuid(), 0) or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise _unusable(f"others may write to its folder {wanted}",
                        "name one of your own in DDP_TORCH_CACHE, or take their right away: chmod go-w")
    if not os.access(wanted, os.R_OK | os.X_OK):
        raise _unusable(f"its folder {wanted} cannot be read", "name one of your own in DDP_TORCH_CACHE")
    return wanted


def _flags() -> list[str]:
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include",
                Path(sysconfig.get_paths()["include"])]
    if not (includes[-1] / "Python.h").exists():
        raise _unusable(f"{includes[-1]}/Python.h is not there", "install Python's headers (python3-dev)")
    return ["-std=c++20", "-O1", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}", f"-DTORCH_EXTENSION_NAME={_NAME}",
            "-DTORCH_API_INCLUDE_EXTENSION_H", *(f"-isystem{path}" for path in includes), f"-I{_INCLUDE}"]


def _libraries() -> list[str]:
    own = next((_PACKAGE / "lib").glob("libddp.so.*"))
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", str(own)]


def _key() -> str:
    """What the result depends on."""
    compiler = os.environ.get("CXX") or "g++"
    facts = hashlib.sha256(" ".join((torch.__version__, str(torch.version.git_version), libddp.__version__, compiler,
                                     str(sysconfig.get_config_var("SOABI")))).encode())
    for path in sorted((*_SOURCE.parent.iterdir(), *_INCLUDE.rglob("*.hpp"))):
        if path.is_file():
            facts.update(path.name.encode() + path.read_bytes())
    return f"torch-{torch.__version__}-{sysconfig.get_config_var('SOABI')}-{facts.hexdigest()[:16]}"


def _run(command: list[str], log: Path) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=log.parent,
                              timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        raise _unusable(f"{command[0]} has not ended in {_PATIENCE:.0f} s",
                        "see why it hangs, or name another compiler in CXX") from None
    if done.returncode != 0:
        log.write_text(" ".join(command) + "\n" + done.stderr)
        first = next((line for line in done.stderr.splitlines() if "error" in line), "it says nothing")
        raise _unusable(f"{command[0]} failed: {first}", f"all it says is in {log}")


def _compile(target: Path, alone: bool) -> None:
    compiler, log = _compiler(), target.with_suffix(".log")
    for left in target.parent.glob(f"{target.stem}.*.made") if alone else ():
        shutil.rmtree(left, ignore_errors=True)  # by a process that was killed
    with tempfile.TemporaryDirectory(prefix=f"{target.stem}.", suffix=".made", dir=target.parent) as folder:
        # in two steps, for compiler caches
        made = Path(folder) / "adapter"
        _run([*compiler, *_flags(), "-c", str(_SOURCE), "-o", f"{made}.o"], log)
        _run([*compiler, "-shared", f"{made}.o", *_libraries(), "-o", f"{made}.so"], log)
        os.chmod(f"{made}.so", 0o755)  # root may have made it for all
        os.rename(f"{made}.so", target)


def library() -> Path:
    """The compiled adapter; compiles it if it is not there. Other processes that want the same wait."""
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < _OLDEST:
        raise _unusable(f"PyTorch {torch.__version__} is too old", "take {}.{} or newer".format(*_OLDEST))
    target = _folder() / f"{_key()}.so"
    if target.exists():
        return target
    if not os.access(target.parent, os.W_OK):
        raise _unusable(f"it is not in {target.parent}, where you may not write",
                        "have it compiled there, or name a folder of your own in DDP_TORCH_CACHE")
    limit = time.monotonic() + _PATIENCE
    with open(target.with_suffix(".lock"), "w") as lock:
        while not target.exists():
            alone = True
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise _unusable(f"another process has been at it for {_PATIENCE:.0f} s",
                                    f"see who holds {target.with_suffix('.lock')}") from None
                time.sleep(0.2)
                continue
            except OSError:  # a file system without locks: all compile, the last one's stays
                alone = False
            if not target.exists():
                _compile(target, alone)
    return target


def _serve(module: ModuleType) -> None:
    """Python's threads for what libddp's threads leave to them. They end before the interpreter does."""
    global _served
    owner = _served = os.getpid()
    module.start_tasks()
    threads = [threading.Thread(target=module.run_tasks, name="libddp-tasks", daemon=True) for _ in range(_THREADS)]
    for thread in threads:
        thread.start()

    @atexit.register
    def end() -> None:
        if os.getpid() == owner:
            module.stop_tasks()
            for thread in threads:
                thread.join(1.0)  # one whose callback waits for what never ends stays


def load() -> Any:
    """The adapter's module."""
    global _loaded
    with _loading:
        if _loaded is None:
            path = library()
            loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
            spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
            assert spec is not None
            try:
                module = importlib.util.module_from_spec(spec)
            except ImportError as problem:
                raise _unusable(f"{path} cannot be loaded ({problem})", "remove it: then it is compiled again") from None
            loader.exec_module(module)
            sys.modules[_NAME] = _loaded = module
        if _served != os.getpid():  # threads stay behind in a fork
            _serve(_loaded)
    return _loaded
