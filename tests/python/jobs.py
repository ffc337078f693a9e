"""Commands and jobs of this host that use the package, and what programs of checks (tests/support) have printed.

scripts/python-package makes the package in build/python; DDP_BIN_DIR: where ddprun is. The adapter to PyTorch is
compiled once, into build/python/cache.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import forked
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SITE = ROOT / "build" / "python" / "site"
CACHE = ROOT / "build" / "python" / "cache"
SUPPORT = ROOT / "tests" / "support"
if not (SITE / "libddp").is_dir() or not (BIN / "ddprun").exists():
    pytest.skip("the package or ddprun is not built: scripts/python-package, scripts/build", allow_module_level=True)
# Longest time for one command on a busy machine.
PATIENCE = 300
COMPILE_PATIENCE = 1200
COMPILER = {"CXX": "ccache g++", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
# What tells a process who it is: not to be inherited from where the tests run.
OUTSIDE = re.compile(
    "(PET|DDP|PMIX?|SLURM|TORCHELASTIC|TORCH|OMPI|MASTER|PYTHON)_|PYTHONPATH|(.*_)?RANK$|.*WORLD_SIZE$")


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not OUTSIDE.match(name)}
    own = {"PYTHONPATH": str(SITE), "DDP_TORCH_CACHE": str(CACHE), "OMP_NUM_THREADS": "1"}
    return {**kept, **own, **COMPILER, **variables}


def run(*command, timeout=PATIENCE, **variables):
    return subprocess.run([str(word) for word in command], timeout=timeout, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, cwd="/", env=environment(**variables))


def python(*arguments, timeout=PATIENCE, **variables):
    return forked.python(*arguments, environment=environment(**variables), timeout=timeout)


def ddprun(ranks, *command, options=(), **variables):
    """Ranks of a program of Python."""
    return run(BIN / "ddprun", "--bind=none", "-n", ranks, *options, sys.executable, *command, **variables)


def checked(done, names, ranks):
    """Asserts that a job has ended well, and that each of its ranks says so of each check."""
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"CHECKED (\w+ \d)", done.stdout)
    assert sorted(found) == sorted(f"{name} {rank}" for name in names for rank in range(ranks))


def checked_by(done, name, ranks):
    """Asserts that these ranks, a word of digits, say so of one check, whatever has become of the others."""
    assert all(f"CHECKED {name} {rank}" in done.stdout for rank in ranks), done.stdout + done.stderr


@pytest.fixture(scope="module")
def adapter():
    done = python("-m", "libddp.torch", timeout=COMPILE_PATIENCE)
    assert done.returncode == 0 and Path(done.stdout.strip()).exists(), done.stdout + done.stderr
    return Path(done.stdout.strip())
