"""examples/p2p.py and examples/pytorch: one file each, under the launchers of one host."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (scripts/python-env)")
ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SITE = ROOT / "build" / "python" / "site"
if not (SITE / "libddp").is_dir() or not (BIN / "ddprun").exists():
    pytest.skip("the package or ddprun is not built: scripts/python-package, scripts/build", allow_module_level=True)
EXAMPLES = ROOT / "examples"
# Longest time for one command on a busy machine.
PATIENCE = 240
OUTSIDE = re.compile("(PET|DDP|PMIX?|SLURM|TORCHELASTIC|OMPI|MASTER|PYTHON)_|PYTHONPATH|(.*_)?RANK$|.*WORLD_SIZE$")


def run(*command):
    kept = {name: value for name, value in os.environ.items() if not OUTSIDE.match(name)}
    done = subprocess.run([str(word) for word in command], timeout=PATIENCE, capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, cwd="/",
                          env={**kept, "PYTHONPATH": str(SITE), "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
                               "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_p2p_finds_its_ranks(tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    launchers = {"torchrun": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=3"],
                 "ddprun": [BIN / "ddprun", "--nproc-per-node=3"]}
    if shutil.which("mpirun"):  # whose ranks come by PMIx
        launchers["mpirun"] = ["mpirun", "--hostfile", tmp_path / "hosts", "-np", "3", sys.executable]
    for name, launcher in launchers.items():
        output = run(*launcher, EXAMPLES / "p2p.py", "--elements", "10")
        assert "rank 0 exchanged 10 elements with 2 ranks by gloo" in output, f"{name}: {output}"
        assert {"rank 1 of 3 got 45", "rank 2 of 3 got 90"} <= set(output.splitlines()), f"{name}: {output}"


def test_resnet_learns_digits():
    output = run(BIN / "ddprun", "--nproc-per-node=2", EXAMPLES / "pytorch" / "resnet18.py", "--width=8", "--epochs=2")
    right = [float(number) for number in re.findall(r"epoch \d: ([\d.]+) %", output)]
    assert len(right) == 2 and right[-1] > 60, output  # by chance: 10


def test_gpt_learns_letters():
    output = run(BIN / "ddprun", "--nproc-per-node=2", EXAMPLES / "pytorch" / "gpt.py", "--width=32", "--layers=1",
                 "--context=32", "--steps=60")
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 3 and losses[-1] < losses[0] - 0.2, output
