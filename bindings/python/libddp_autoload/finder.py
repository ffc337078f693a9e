"""What DDP_AS asks for: a program's `import horovod.torch` and `from mpi4py import MPI` give libddp's, though neither is
installed, or in the place of one that is. Loaded by libddp_as.pth when Python starts, or by `import torch`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_OURS = {"horovod": "libddp.horovod", "mpi4py": "libddp.mpi"}
_PACKAGES = {"horovod": {"horovod", "horovod.common"}, "mpi4py": {"mpi4py"}}
_HOROVOD = {"horovod.torch": "libddp.horovod", "horovod.common.exceptions": "libddp.horovod.exceptions",
            "horovod.common.elastic": "libddp.horovod.elastic", "horovod.common.process_sets": "libddp.horovod.process_sets", "horovod.runner": "libddp.horovod.runner"}


def wanted() -> list[str]:
    return [name.strip() for name in os.environ.get("DDP_AS", "").split(",") if name.strip()]


class _Alias(importlib.abc.Loader):
    """Gives a module of libddp's, which keeps its own name."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._spec: Any = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._target)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has put the alias' one there


class _Empty(importlib.abc.Loader):
    """A package of nothing but what is below it."""

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__version__"] = "0.28.1"  # whose interface it has


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def _target(self, name: str) -> str | None:
        if name.startswith("mpi4py."):
            return f"libddp.mpi.{name.removeprefix('mpi4py.')}"
        for given, target in _HOROVOD.items():
            if name == given or name.startswith(given + "."):
                return target + name.removeprefix(given)
        return None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        root = name.partition(".")[0]
        if root not in self._names:
            return None
        if name in _PACKAGES[root]:
            if name == root:
                _say(f"{root} is {_OURS[root]} (DDP_AS={os.environ['DDP_AS']})")
            return importlib.machinery.ModuleSpec(name, _Empty(), is_package=True)
        alias = self._target(name)
        if alias is None or importlib.util.find_spec(alias) is None:
            _say(f"libddp has no {name}, and DDP_AS asks for libddp's {root}")
            return None  # programs ask whether there is one
        return importlib.machinery.ModuleSpec(name, _Alias(alias), is_package=False)


def _say(words: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(f"libddp: {words}", file=sys.stderr)


def install() -> None:
    """Idempotent. Raises ValueError for a name that is not known."""
    names = wanted()
    if unknown := [name for name in names if name not in _PACKAGES]:
        raise ValueError(f"DDP_AS={os.environ['DDP_AS']}: {', '.join(unknown)} is none of horovod and mpi4py")
    if names and not any(isinstance(each, Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, Finder(names))


install()
