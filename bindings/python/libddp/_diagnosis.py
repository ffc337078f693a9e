"""Why the extension module cannot be imported, for people."""

from __future__ import annotations

import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path


def explain(problem: ImportError) -> str:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    built = sorted(file.name.removeprefix("_core") for file in Path(__file__).parent.glob("_core*.so"))
    if not built:
        return "libddp is not built here: this folder has no _core*.so; pip install ., and start Python elsewhere than in the sources"
    if not set(built) & set(EXTENSION_SUFFIXES):
        return f"libddp was built for another Python than this {version}: {', '.join(built)}; install it with this one's pip"
    return f"libddp's library cannot be loaded: {problem}; ldd {Path(__file__).parent}/_core{built[0]} shows what is missing"
