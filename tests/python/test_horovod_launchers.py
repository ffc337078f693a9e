"""libddp.horovod under other launchers on this host, and libddp beside a real mpi4py, in either order. ddprun: test_horovod.py."""

import shutil
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, SUPPORT, adapter, checked, run  # noqa: E402, F401

JOB = SUPPORT / "horovod_job.py"
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", 2, "--no-python"]


@pytest.mark.parametrize("launcher", [MPIRUN, TORCHRUN], ids=["mpirun", "torchrun"])
def test_a_script_runs(adapter, launcher):
    if not shutil.which(launcher[0]):
        pytest.skip(f"{launcher[0]} is not installed (scripts/dependencies test)")
    done = run(*launcher, sys.executable, JOB, "operations", "optimizer")
    checked(done, ["operations", "optimizer"], 2)


BOTH = """
import sys
parts = {}
def mpi():
    from mpi4py import MPI
    return MPI
def ddp():
    import libddp
    return libddp.init()
for name in sys.argv[1:]:
    parts[name] = globals()[name]()
import libddp, numpy
world, group, comm = parts["ddp"], parts["ddp"].process_group(), parts["mpi"].COMM_WORLD
def both():
    values = numpy.array([world.rank + 1.0])
    group.all_reduce(values).wait()
    return values[0], comm.allreduce(world.rank + 1)
assert (comm.Get_rank(), comm.Get_size()) == (world.rank, world.world_size) == (world.rank, 2), comm.Get_size()
assert both() == (3, 3) and both() == (3, 3)
if sys.argv[1] == "mpi":  # the end of one leaves the other alone
    parts["mpi"].Finalize()
    values = numpy.ones(1)
    group.all_reduce(values).wait()
    assert values[0] == 2
else:
    del group
    world.close()
    assert comm.allreduce(1) == 2
sys.stdout.write("BOTH\\n")
"""


@pytest.fixture
def mpi4py():
    """Open MPI's version in it."""
    done = run(sys.executable, "-c", "from mpi4py import MPI; print(MPI.Get_library_version())")
    if done.returncode != 0 or not shutil.which("mpirun"):
        pytest.skip("mpi4py or mpirun is not installed (pip install mpi4py; scripts/dependencies test)")
    return done.stdout


@pytest.mark.parametrize("order", [("mpi", "ddp"), ("ddp", "mpi")], ids=" then ".join)
def test_mpi4py_beside_libddp(mpi4py, tmp_path, order):
    (tmp_path / "both.py").write_text(BOTH)
    done = run(*MPIRUN, sys.executable, tmp_path / "both.py", *order)
    assert done.returncode == 0 and done.stdout.count("BOTH") == 2, done.stdout + done.stderr


def test_a_real_mpi_of_one_rank_is_refused(mpi4py, tmp_path):
    if "Open MPI v4" not in mpi4py:
        pytest.skip("under ddprun, this MPI has the job's ranks, or none")
    (tmp_path / "train.py").write_text("from mpi4py import MPI\nimport libddp\nlibddp.init()\n")
    done = run(BIN / "ddprun", "-n", 2, sys.executable, tmp_path / "train.py")
    assert done.returncode == 1 and "libddp.Conflict: " in done.stderr, done.stdout + done.stderr  # it has changed PMIx's variables
