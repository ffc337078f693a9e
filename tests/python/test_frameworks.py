"""Lightning and Accelerate under ddprun: programs that know nothing of libddp. Lightning takes the backend "ddp", too.

DDP_FRAMEWORKS_PYTHON: a Python that has torch, lightning and accelerate (default: that of the tests); what it has not is skipped.
"""

import os
import re
import subprocess
import sys

import pytest

from jobs import BIN, SUPPORT, run

PYTHON = os.environ.get("DDP_FRAMEWORKS_PYTHON", sys.executable)


@pytest.mark.parametrize("name, backends", [("lightning", ["gloo", "ddp"]), ("accelerate", ["gloo"])])
def test_trains_unchanged(name, backends):
    found = subprocess.run([PYTHON, "-c", f"import importlib.util as i; exit(not i.find_spec('{name}'))"])
    if found.returncode != 0:
        pytest.skip(f"{PYTHON} has no {name}")
    states = set()
    for backend in backends:
        done = run(BIN / "ddprun", "--bind=none", "--nproc-per-node=2", PYTHON, SUPPORT / f"{name}_job.py", backend)
        lines = re.findall(rf"TRAINED (\d) 2 {backend} (.*)", done.stdout)
        assert done.returncode == 0 and sorted(rank for rank, _ in lines) == ["0", "1"], done.stdout + done.stderr
        states |= {state for _, state in lines}
    assert len(states) == 1 and states.pop().startswith("8 "), states  # steps, and the sum of weights
