"""Programs with libtorch and libddp: compiled as a user's are, against the libtorch within PyTorch, and run as ranks.

Where libddp is: DDP_BIN_DIR (default: build/dev/bin). tests/torch/build makes the programs.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import forked
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
numpy = pytest.importorskip("numpy", reason="numpy is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch is built without torch.distributed", allow_module_level=True)
NVCC = shutil.which("nvcc")
if torch.version.cuda and not (NVCC and (Path(NVCC).resolve().parents[1] / "include" / "cuda_runtime.h").exists()):
    pytest.skip("this libtorch is for CUDA, whose toolkit its CMake package looks for beside nvcc", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
PACKAGE = BINARIES.parent / "package"
if not (PACKAGE / "ddpConfig.cmake").exists() or not (BINARIES / "ddprun").exists():
    pytest.skip(f"{BINARIES.parent} has no libddp; DDP_BIN_DIR says where it is", allow_module_level=True)
BUILD = ROOT / "build" / "torch"
COMPILE_PATIENCE = 1200
PATIENCE = 180
STEPS, SAMPLES = 20, 5

# What tells a process who it is, or changes defaults: not to be inherited from where the tests run.
OUTSIDE = re.compile("(PET|DDP|PMIX?|SLURM|TORCHELASTIC|TORCH|GLOO|OMP|OMPI|MASTER)_|(.*_)?RANK$|.*WORLD_SIZE$")


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not OUTSIDE.match(name)}
    return {**kept, "OMP_NUM_THREADS": "1", **variables}


def checked(*command, timeout, **variables):
    done = subprocess.run([str(word) for word in command], env=environment(**variables), timeout=timeout, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def programs():
    checked(ROOT / "tests" / "torch" / "build", sys.executable, PACKAGE, timeout=COMPILE_PATIENCE)
    return BUILD


def ddprun(ranks, *command):
    return checked(BINARIES / "ddprun", "--bind=none", f"--nproc-per-node={ranks}", *command, timeout=PATIENCE)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_training_is_that_of_one_process(programs, ranks):
    assert ddprun(ranks, programs / "torch_rank", "equal_to_one_process").count("DONE") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_modules_of_all_kinds(programs, ranks):
    done = ddprun(ranks, programs / "torch_rank", "modules_of_all_kinds", "exchanges_of_all_kinds")
    assert done.count("DONE") == ranks


@pytest.mark.parametrize("ranks", [1, 3])
def test_collectives(programs, ranks):
    assert ddprun(ranks, programs / "torch_rank", "tensor_collectives", "c10d_collectives").count("DONE") == ranks


def test_survivors_name_a_rank_that_was_killed_in_its_backward_pass(programs):
    ranks = 3
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = []
    try:
        for rank in range(ranks):
            processes.append(subprocess.Popen(
                [programs / "torch_rank", "killed_in_backward"], text=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=environment(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks),
                                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port))))
        outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert processes[-1].returncode == -signal.SIGKILL, outputs[-1]
    for output in outputs[:-1]:
        assert f"lost in step 3: rank {ranks - 1}\n" in output, output


# ---- beside PyTorch's DistributedDataParallel ------------------------------------------------------------------------


def make_net():
    return torch.nn.Sequential(torch.nn.EmbeddingBag(20, 8, sparse=True), torch.nn.Linear(8, 16), torch.nn.Tanh(),
                               torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))


def train_with_pytorch(folder, rank, ranks, port):
    """A rank over gloo; the last lines of training.cpp's train_from_files in Python."""
    torch.set_num_threads(1)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    net = make_net()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            values = torch.from_numpy(numpy.fromfile(f"{folder}/{name}", numpy.float32))
            parameter.copy_(values.view(parameter.shape))
    inputs = torch.from_numpy(numpy.fromfile(f"{folder}/inputs", numpy.int64)).view(STEPS, ranks, SAMPLES, 8)
    targets = torch.from_numpy(numpy.fromfile(f"{folder}/targets", numpy.float32)).view(STEPS, ranks, SAMPLES, 4)
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=512 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs[step][rank]), targets[step][rank]).backward()
        optimizer.step()
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/pytorch.pt")
    # The end of a DistributedDataParallel over gloo waits, with the GIL, for a thread that may need it to forget its last work.
    os._exit(0)


def test_equal_to_pytorchs_own(programs, tmp_path):
    ranks = 2
    torch.manual_seed(3)
    start = {name: parameter.detach() for name, parameter in make_net().named_parameters()}
    data = {"inputs": torch.randint(20, (STEPS, ranks, SAMPLES, 8)), "targets": torch.randn(STEPS, ranks, SAMPLES, 4)}
    for name, tensor in {**start, **data}.items():
        tensor.numpy().tofile(tmp_path / name)
    ddprun(ranks, programs / "torch_rank", "train_from_files", tmp_path)
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pythons = [forked.Process([__file__, tmp_path, rank, ranks, store.port], environment()) for rank in range(ranks)]
    ended = [process.wait(PATIENCE) for process in pythons]
    assert [process.returncode for process in ended] == [0] * ranks, [process.stderr for process in ended]
    theirs = torch.load(tmp_path / "pytorch.pt")
    assert {f"trained.{name}" for name in theirs} == {path.name for path in tmp_path.glob("trained.*")}
    for name, expected in theirs.items():
        ours = torch.from_numpy(numpy.fromfile(tmp_path / f"trained.{name}", numpy.float32)).view(expected.shape)
        assert not torch.equal(ours, start[name.removeprefix("module.")])
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_the_example_learns_the_same_on_any_number_of_ranks(programs):
    reports = [ddprun(ranks, programs / "libtorch" / "train_libtorch", "4") for ranks in (1, 3)]
    for report in reports:
        reached = [float(text) for text in re.findall(r"epoch \d: test accuracy ([0-9.]+)", report)]
        assert len(reached) == 4 and reached[-1] > 0.85, report
    # rounding may move a sample or two of 360
    first, second = ([float(text) for text in re.findall(r"accuracy ([0-9.]+)", report)] for report in reports)
    assert all(abs(one - other) < 0.02 for one, other in zip(first, second)), reports


if __name__ == "__main__":
    train_with_pytorch(sys.argv[1], *map(int, sys.argv[2:]))
