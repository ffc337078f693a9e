"""The programs that come with the package, as commands; ddp-selftest and ddp-plugin in the wheel of scripts/wheel."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

_PACKAGE = Path(__file__).resolve().parent
_FOLDER = _PACKAGE / "bin"
CMAKE = _PACKAGE / "lib" / "cmake" / "ddp"


def path_of(name: str) -> Path:
    return _FOLDER / name


def start(name: str, arguments: list[str], program: Path | None = None) -> NoReturn:
    """In the place of this process."""
    program = program or path_of(name)
    try:
        os.execv(program, [name, *arguments])
    except OSError as error:
        sys.exit(f"starting {program}: {error.strerror}; install the package again")


def ddprun() -> NoReturn:
    os.environ.setdefault("PYTHON_EXEC", sys.executable)  # the Python that has libddp
    start("ddprun", sys.argv[1:])


def ddp_info() -> NoReturn:
    start("ddp-info", sys.argv[1:])


def ddp_selftest() -> NoReturn:
    start("ddp-selftest", sys.argv[1:])


def ddp_plugin() -> NoReturn:
    """For admins: ddp-plugin on."""
    start("ddp-plugin", sys.argv[1:], _PACKAGE / "share" / "libddp" / "scripts" / "ddp-plugin")
