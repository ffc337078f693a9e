"""The backend "ddp" of torch.distributed on CUDA tensors, by tests/support/libddp_torch_cuda.py. Where PyTorch has a CUDA device, on
that, with the NCCL that it brings; ranks that find no device of their own share one. Else over the doubles of CUDA's driver and of
NCCL, with a PyTorch that gets CUDA by a double, too.

scripts/python-package makes the package in build/python; DDP_BIN_DIR: where ddprun is, and beside it the doubles.
"""

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from jobs import (BIN, COMPILE_PATIENCE, COMPILER, PATIENCE, ROOT, SITE, SUPPORT, adapter, checked,  # noqa: E402, F401
                  environment, run)

CUDA_JOB = SUPPORT / "libddp_torch_cuda.py"
LIBRARIES = BIN.parent / "lib"
REAL = torch.cuda.is_available()
if not (SITE / "libddp" / "lib" / "libddp_nccl.so").exists():
    pytest.skip("libddp is built without CUDA or NCCL", allow_module_level=True)
if not REAL and torch.version.cuda:
    pytest.skip("this PyTorch has CUDA, but no device", allow_module_level=True)
if not REAL and not (LIBRARIES / "fake_cuda" / "libcuda.so.1").exists():
    pytest.skip("the doubles of CUDA and NCCL are not built", allow_module_level=True)
DOUBLES = {"DDP_CUDA_LIBRARY": str(LIBRARIES / "fake_cuda" / "libcuda.so.1"),
           "DDP_NCCL_LIBRARY": str(LIBRARIES / "fake_nccl" / "libnccl.so.2"),
           "FAKE_CUDA_KERNELS": str(LIBRARIES / "libhost_kernels.so"), "FAKE_CUDA_DEVICES": "2", "FAKE_CUDA_MEMORY_MIB": "256", "DDP_PEER_TIMEOUT": "5"}


OPERATIONS = ["all_operations", "transfers", "types", "beside_the_host", "memory_is_kept", "futures"]
TRAINING = ["training", "sparse_training", "torchs_training", "sharded_training", "hooks", "refused_training"]
GRAPHS = [["captured_operations"], ["captured_torchs_training"], ["captured_training"]]
# On the doubles in one job, since each starts slowly; no double captures what PyTorch does.
CHECKS = [(2, ["no_name", *OPERATIONS, *TRAINING, "launches", "nothing_blocks", "absent"])] if not REAL else [
    (1, [*OPERATIONS[:1], *OPERATIONS[4:]]), (1, TRAINING[:-1]), *((1, each) for each in GRAPHS),
    (2, ["no_name", *OPERATIONS]), (2, TRAINING), (2, ["nothing_blocks"]), (2, ["absent"]), *((2, each) for each in GRAPHS)]


@pytest.fixture(scope="module")
def cuda(adapter, tmp_path_factory):  # noqa: F811
    """What a job needs to know of its devices. PyTorch's double of CUDA is compiled as the adapter is."""
    if REAL:
        return {"DDP_PEER_TIMEOUT": "5"}
    made = tmp_path_factory.mktemp("double") / "torch_cuda_double"
    sys.path.insert(0, str(SITE))
    try:
        ours = importlib.import_module("libddp._adapter")
        flags = [flag for flag in ours._flags() if flag != "-O1"]
        libraries = [word for word in ours._libraries()
                     if not Path(word).name.startswith("libddp.so") and word != "-ltorch_python"]  # folders may have any name
    finally:
        sys.path.remove(str(SITE))
    compiler = COMPILER.get("CXX", "g++").split()
    objects = [f"{made}{part}.o" for part in ("", "_sparse")]
    sources = [ROOT / "tests" / "support" / f"{Path(each).stem}.cpp" for each in objects]
    for command in (*([*compiler, *flags, "-O0", "-c", str(source), "-o", each] for source, each in zip(sources, objects)),
                    [*compiler, "-shared", *objects, *libraries, "-o", f"{made}.so"]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_PATIENCE, cwd=made.parent,
                              env={**os.environ, **COMPILER})
        assert done.returncode == 0, done.stderr[-8000:]
    return {**DOUBLES, "TEST_CUDA_DOUBLE": f"{made}.so"}


@pytest.mark.parametrize("ranks, checks", CHECKS, ids=lambda value: value if isinstance(value, int) else f"{value[0]}+{len(value) - 1}")
def test_checks(cuda, ranks, checks):
    """What the doubles do in streams and threads comes later, by times drawn from a seed."""
    done = run(BIN / "ddprun", "--bind=none", "--gpus=none", "--backend=ddp", "--nproc-per-node", ranks, sys.executable, CUDA_JOB, *checks,
               timeout=120 if REAL else PATIENCE, **cuda, FAKE_CUDA_JITTER_SEED=os.environ.get("DDP_TEST_JITTER_SEED", "5"), FAKE_NCCL_JITTER="5")
    checked(done, checks, ranks)
    assert "fake NCCL: " not in done.stderr, f"complaints of the double: {done.stderr}"


@pytest.mark.skipif(REAL, reason="this machine has a device")
def test_a_pytorch_with_cuda_does_without_a_device(cuda):
    done = run(BIN / "ddprun", "--bind=none", "--backend=ddp", "--nproc-per-node=2", sys.executable, CUDA_JOB, "no_device",
               **{**cuda, "FAKE_CUDA_DEVICES": "0"})
    assert done.returncode == 0 and done.stdout.count("CHECKED no_device") == 2, done.stdout + done.stderr


def test_survivors_name_a_rank_that_was_killed(cuda):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    try:
        for rank in range(2):
            who = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                   "TEST_BACKEND": "cpu:ddp,cuda:ddp", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
            processes.append(subprocess.Popen([sys.executable, CUDA_JOB, "killed"], text=True, stdin=subprocess.DEVNULL,
                                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
                                              env=environment(**cuda, **who)))
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, -signal.SIGKILL], outputs
    assert "LOST (1,)\n" in outputs[0], outputs[0]
