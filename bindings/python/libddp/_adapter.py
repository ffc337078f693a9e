"""The C++ adapter to the installed PyTorch (libddp/adapter): compiled at its first use, and kept in a folder of the user's.

PyTorch's C++ interface changes with each version; the wheel of scripts/wheel brings it compiled for some releases, by their
commit. Ranks that start at once compile once.
DDP_TORCH_CACHE: the folder, instead of $XDG_CACHE_HOME/libddp or ~/.cache/libddp. CXX: the compiler. `python -m libddp.torch`
compiles it ahead; with --check it says whether there is one, or a compiler.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import torch
import torch.distributed as dist

import libddp
from libddp import _adapter_cache, _adapter_turn, _core, _errors
from libddp._adapter_cache import AdapterCache, Unusable

_PACKAGE = Path(__file__).resolve().parent
_SOURCE = _PACKAGE / "adapter" / "adapter.cpp"
_INCLUDE = _PACKAGE / "include"
_NAME = "_libddp_torch"
_OLDEST = (2, 9)  # PyTorch whose c10d the adapter compiles with
_PATIENCE = 900.0  # seconds, for a compiler, and for another process that compiles
_Found = TypeVar("_Found")
_loading = threading.Lock()
_loaded: Any = None
_served = 0  # the process that has the threads
_WITHOUT = ("without it work torch.distributed's own backends gloo and nccl, with DistributedDataParallel, under ddprun and "
            "srun --ddp, and libddp's process groups")
_THREADS = 4  # callbacks of futures that wait for others at a time; gloo has 2


def _unusable(cause: str, hint: str) -> libddp.Error:
    return _errors.problem("unavailable", "compiling libddp's adapter to PyTorch", cause, hint=hint)


def _compiler() -> list[str]:
    words = os.environ.get("CXX", "").split() or [next(filter(shutil.which, ("g++", "c++", "clang++")), "g++")]
    if shutil.which(words[0]) is None:
        raise _unusable(f"there is no compiler {words[0]}",
                        "install g++ 12 or newer, name one in CXX, or run python -m libddp.torch where there is one "
                        f"and share its DDP_TORCH_CACHE; {_WITHOUT}")
    return words


# Also packaging/wheel/adapters.py's.
_FLAGS = ("-std=c++20", "-O1", "-g0", "-DNDEBUG", "-fPIC", "-fvisibility=hidden", "-w", "-DTORCH_EXTENSION_NAME=_libddp_torch",
          "-DTORCH_API_INCLUDE_EXTENSION_H")


def _flags() -> list[str]:
    root = Path(torch.__file__).parent
    includes = [root / "include", root / "include" / "torch" / "csrc" / "api" / "include",
                Path(sysconfig.get_paths()["include"])]
    if not (includes[-1] / "Python.h").exists():
        raise _unusable(f"{includes[-1]}/Python.h is missing", "install Python's headers (python3-dev)")
    return [*_FLAGS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-isystem{path}" for path in includes), f"-I{_INCLUDE}"]


def _libraries() -> list[str]:
    own = next((_PACKAGE / "lib").glob("libddp.so.*"))
    return [f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10", str(own)]


def _key() -> str:
    """What the result depends on."""
    compiler = os.environ.get("CXX") or "g++"
    facts = hashlib.sha256(" ".join((torch.__version__, str(torch.version.git_version), libddp.__version__, compiler,
                                     str(sysconfig.get_config_var("SOABI")), " ".join(platform.libc_ver()))).encode())
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
        raise _unusable(f"{command[0]} failed: {first}", f"its whole output is in {log}")


def _compile(cache: AdapterCache, name: str, alone: bool) -> None:
    compiler, stem = _compiler(), name.removesuffix(".so")
    log = cache.path / f"{stem}.log"
    for left in cache.path.glob(f"{stem}.*.made") if alone else ():
        shutil.rmtree(left, ignore_errors=True)  # by a process that was killed
    with tempfile.TemporaryDirectory(prefix=f"{stem}.", suffix=".made", dir=cache.path) as folder:
        # in two steps, for compiler caches
        made = Path(folder) / "adapter.so"
        for target, command in ((made.with_suffix(".o"), [*compiler, *_flags(), "-c", str(_SOURCE)]),
                                (made, [*compiler, "-shared", str(made.with_suffix(".o")), *_libraries()])):
            _run([*command, "-o", str(target)], log)
            if not target.exists() or target.stat().st_size == 0:
                raise _unusable(f"{compiler[0]} succeeded, but produced nothing", "name another compiler in CXX")
        cache.keep(made, name)


def _not_writable(cache: AdapterCache) -> libddp.Error:
    return _unusable(f"it is not in {cache.path}, or does not load, and you may not write there",
                     "have it compiled there, or name a folder of your own in DDP_TORCH_CACHE")


def _provide(cache: AdapterCache, name: str, broken: int | None) -> int:
    """A descriptor of the library that is there, and is not the inode `broken`; compiled by one process if there is none."""
    made: list[int] = []

    def there() -> bool:
        if not made and (file := cache.open_library(name)) is not None:
            if os.fstat(file).st_ino == broken:
                os.close(file)
            else:
                made.append(file)
        return bool(made)

    if there():
        return made[0]
    if not cache.writable():
        raise _not_writable(cache)
    limit = time.monotonic() + _PATIENCE
    line = (f"libddp: compiling the adapter for torch {torch.__version__} into {cache.path}, once, about a minute "
            "(python -m libddp.torch does it ahead)")
    lock_name = name.removesuffix(".so") + ".lock"
    try:
        with _adapter_turn.on_this_node(lock_name, limit):
            if there():
                return made[0]
            lock = cache.open_lock(lock_name)
            try:
                with _adapter_turn.told(line):
                    got = _adapter_turn.wait_for(lock, there, limit)
                    if not there():
                        _compile(cache, name, alone=got is True)  # without locks all do; the last one's stays
            finally:
                os.close(lock)
    except TimeoutError:
        raise _unusable(f"another process has been compiling it for {_PATIENCE:.0f} s",
                        f"see which process holds {cache.path / lock_name}") from None
    if not there():
        raise _unusable(f"{cache.path / name} does not hold what was just written there", "see whether its disk is full or broken")
    return made[0]


def _with_cache(what: Callable[[AdapterCache, str], _Found]) -> _Found:
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) < _OLDEST:
        raise _unusable(f"PyTorch {torch.__version__} is too old", "take {}.{} or newer".format(*_OLDEST))
    try:
        cache = AdapterCache(_adapter_cache.place())
        try:
            return what(cache, f"{_key()}.so")
        finally:
            cache.close()
    except Unusable as problem:
        raise _unusable(problem.cause, problem.hint) from None
    except OSError as problem:  # no space, a quota, a file server that is gone
        raise _unusable(f"{problem.strerror} ({problem.filename})", "name a folder elsewhere in DDP_TORCH_CACHE") from None


def _obtain(broken: int | None = None) -> tuple[int, Path]:
    return _with_cache(lambda cache, name: (_provide(cache, name, broken), cache.path / name))


def _ahead() -> tuple[ModuleType, Path] | None:
    """What the wheel has for this Python and this commit of PyTorch, whose headers are the same in builds with and without CUDA."""
    release, commit = torch.__version__.partition("+")[0], str(torch.version.git_version)[:10]
    path = _SOURCE.parent / "ahead" / f"torch-{release}-{commit}.{sysconfig.get_config_var('SOABI')}.so"
    if not path.exists() or not torch._C._GLIBCXX_USE_CXX11_ABI:
        return None
    try:
        return _imported(str(path)), path
    except ImportError:  # of a build that differs after all, or from a file system without programs: as without it
        return None


def library() -> Path:
    """The compiled adapter; compiles it if it is missing. Other processes that want the same wait."""
    if (ahead := _ahead()) is not None:
        return ahead[1]
    file, path = _obtain()
    os.close(file)
    return path


def check() -> str:
    """Where the adapter is, or what will compile it; compiles nothing. Raises what a job's ranks would."""
    if (ahead := _ahead()) is not None:
        return f"the adapter for torch {torch.__version__} came with libddp: {ahead[1]}"

    def look(cache: AdapterCache, name: str) -> str:
        if (file := cache.open_library(name)) is not None:
            os.close(file)
            return f"the adapter for torch {torch.__version__} is {cache.path / name}"
        if not cache.writable():
            raise _not_writable(cache)
        _flags()
        return (f"{_compiler()[0]} will compile the adapter for torch {torch.__version__} at its first use, once, about a minute "
                "(python -m libddp.torch does it ahead)")

    return _with_cache(look)


def _imported(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    return importlib.util.module_from_spec(spec)


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


def _compiled() -> tuple[ModuleType, Path]:
    """By the descriptor that was judged, which stays open: the loader knows a library by its name."""
    file, path = _obtain()
    try:
        return _imported(f"/proc/self/fd/{file}"), path
    except ImportError:  # of a file system that has lost some of it, or of another system: once more
        broken = os.fstat(file).st_ino
        os.close(file)
    file, path = _obtain(broken)
    try:
        return _imported(f"/proc/self/fd/{file}"), path
    except ImportError as problem:
        os.close(file)
        raise _unusable(f"{path}, compiled just now, cannot be loaded ({problem})",
                        "see whether CXX and PyTorch fit together") from None


def _says_it(store: Any) -> bool:
    """Whether this rank is the job's first without the adapter; without a store of the job's, this host's first rank."""
    try:
        if store is None and dist.is_initialized():
            store = dist.distributed_c10d._get_default_store()
        if store is not None:
            return bool(store.add("libddp/no adapter", 1) == 1)
    except Exception:  # the rank that served it is gone
        return True
    return not libddp.initialized() or libddp.world().local_rank == 0


def load(store: Any = None) -> Any:
    """The adapter's module. store: c10d's, by which one rank of those that cannot have it says what to do."""
    global _loaded
    with _loading:
        if _loaded is None:
            try:
                module, path = _ahead() or _compiled()
            except libddp.Error as problem:
                if _says_it(store):
                    raise
                raise _unusable(problem.cause, "another rank's message says what to do") from None
            assert module.__spec__ is not None and module.__spec__.loader is not None
            module.__spec__.loader.exec_module(module)
            module.__file__ = str(path)
            _core.use_storage_functions(module.storage_functions)
            sys.modules[_NAME] = _loaded = module
        if _served != os.getpid():  # threads stay behind in a fork
            _serve(_loaded)
    return _loaded
