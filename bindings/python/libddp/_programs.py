"""The programs that come with the package, as commands: ddprun and ddp-info."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_FOLDER = Path(__file__).resolve().parent / "bin"


def path_of(name: str) -> Path:
    return _FOLDER / name


def start(name: str, arguments: list[str]) -> NoReturn:
    """In the place of this process."""
    try:
        os.execv(path_of(name), [name, *arguments])
    except OSError as error:
        sys.exit(f"starting {path_of(name)}: {error.strerror}; install the package again")


def ddprun() -> NoReturn:
    os.environ.setdefault("PYTHON_EXEC", sys.executable)  # the Python that has libddp
    start("ddprun", sys.argv[1:])


def ddp_info() -> NoReturn:
    start("ddp-info", sys.argv[1:])
