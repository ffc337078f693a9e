"""examples/p2p.py and examples/pytorch: one file each, under the launchers of one host."""

import os
import re
import shutil
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (scripts/python-env)")
import jobs  # noqa: E402
from jobs import BIN, ROOT  # noqa: E402

EXAMPLES = ROOT / "examples"
VARIABLES = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
             "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def output_of(done):
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(*command):
    return output_of(jobs.run(*command, **VARIABLES))


def torchrun(*command):
    return output_of(jobs.python("-m", "torch.distributed.run", *command, **VARIABLES))


def test_p2p_finds_its_ranks(tmp_path):
    (tmp_path / "hosts").write_text("localhost slots=3\n")
    launchers = {"ddprun": (3, lambda *words: run(BIN / "ddprun", "--nproc-per-node=3", *words)),
                 "torchrun": (2, lambda *words: torchrun("--nproc-per-node=2", *words))}
    if shutil.which("mpirun"):  # whose ranks come by PMIx
        launchers["mpirun"] = 2, lambda *words: run("mpirun", "--hostfile", tmp_path / "hosts", "-np", "2", sys.executable, *words)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        launchers["mpirun without libddp"] = 2, lambda *words: run(
            "mpirun", "--hostfile", tmp_path / "hosts", "-np", "2", "-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={port}", sys.executable, *words)
    # nothing says which rank this is but the variables of Open MPI's ranks
    launchers["imitated mpirun"] = 2, lambda *words: run(
        BIN / "ddprun", "-np", "2", "--imitate", "mpirun", "env", *(f"-u{name}" for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")), sys.executable, *words)
    for name, (ranks, launch) in launchers.items():
        output = launch(EXAMPLES / "p2p.py", "--elements", "10")
        assert f"rank 0 exchanged 10 elements with {ranks - 1} ranks by gloo" in output, f"{name}: {output}"
        assert {f"rank {rank} of {ranks} got {45 * rank}" for rank in range(1, ranks)} <= set(output.splitlines()), f"{name}: {output}"


def test_resnet_learns_digits():
    # not gloo: a thread of PyTorch's own can abort the interpreter's exit
    output = run(BIN / "ddprun", "--nproc-per-node=2", EXAMPLES / "pytorch" / "resnet18.py", "--backend=ddp", "--width=8",
                 "--epochs=2")
    right = [float(number) for number in re.findall(r"epoch \d: ([\d.]+) %", output)]
    assert len(right) == 2 and right[-1] > 60, output  # by chance: 10


def test_gpt_learns_letters():
    output = run(BIN / "ddprun", "--nproc-per-node=2", EXAMPLES / "pytorch" / "gpt.py", "--width=32", "--layers=1",
                 "--context=32", "--steps=60")
    losses = [float(number) for number in re.findall(r"loss ([\d.]+)", output)]
    assert len(losses) == 3 and losses[-1] < losses[0] - 0.2, output
