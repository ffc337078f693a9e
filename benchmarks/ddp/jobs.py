"""Starts jobs of ddp_worker.py by ddprun or srun, and makes columns of what they report."""

import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))
from measuring import TORCH_PYTHON, reports  # noqa: E402
from spread import Ratio, Spread  # noqa: E402

BARE, OURS, TORCH_DDP, TORCH_GLOO = "bare", "libddp", "torch on ddp", "torch on gloo"
CONTENDERS = (OURS, TORCH_DDP, TORCH_GLOO)
OTHERS = CONTENDERS[1:]
TITLES = {OURS: "libddp's DDP", TORCH_DDP: "torch's DDP on \"ddp\"", TORCH_GLOO: "torch's DDP on gloo"}
PACKAGE = ROOT / "build" / "python"
LIMIT_S = 600


def environment():
    """The package that scripts/python-package has made, and its adapter to PyTorch, compiled once for tests and benchmarks."""
    if not (PACKAGE / "site" / "libddp").is_dir():
        sys.exit("ddp: there is no Python package; DDP_BIN_DIR=build/release/bin scripts/python-package")
    compiler = {"CXX": "ccache g++", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"} if shutil.which("ccache") else {}
    return {**os.environ, "PYTHONPATH": str(PACKAGE / "site"), "DDP_TORCH_CACHE": str(PACKAGE / "cache"),
            "OMP_NUM_THREADS": "1", **compiler}


def run(binaries, ranks, measurement, variables=None, nodes=1, **options):
    """What rank 0 reports. variables: of the job's environment, besides. nodes: of Slurm's, if there is more than one."""
    launcher = [str(binaries / "ddprun"), "--standalone", f"--nproc-per-node={ranks}", "--bind=none"]
    if nodes > 1:
        launcher = ["srun", f"-N{nodes}", f"-n{ranks}", "--mpi=pmix", "--cpu-bind=none"]
        variables = {"GLOO_SOCKET_IFNAME": "eth0", **(variables or {})}
    line = [*launcher, TORCH_PYTHON, HERE / "ddp_worker.py", measurement, json.dumps(options)]
    found = reports(line, LIMIT_S, env={**environment(), **(variables or {})})
    print(f"ddp: {measurement} of {ranks} ranks", file=sys.stderr)
    return found[0]


def column(report, name):
    return [each[name] for each in report["rounds"]]


def above(report, name, base):
    """How much more than another in each round."""
    return [a - b for a, b in zip(column(report, name), column(report, base))]


def ms(values, digits=1):
    return Spread(values).scaled(1e3, digits)


def never_slower(report, what):
    """A line about the target that libddp takes no longer than the best of the others."""
    best = min(OTHERS, key=lambda name: Spread(column(report, name)).median)
    ratio = Ratio(column(report, OURS), column(report, best))
    return f"- {what}: {'met' if ratio.of_medians <= 1 else 'missed'}, {ratio} of {TITLES[best]}"
