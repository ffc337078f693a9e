"""Unmodified PyTorch programs under ddprun on this host, and what ranks get compared with what torchrun gives them.

Where ddprun is: DDP_BIN_DIR (default: build/dev/bin). Ranks run in the interpreter of these tests.
"""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import forked
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("torch is built without torch.distributed", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
DDPRUN = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin")) / "ddprun"
if not DDPRUN.exists():
    pytest.skip(f"{DDPRUN} is not built; DDP_BIN_DIR says where it is", allow_module_level=True)
SUPPORT = ROOT / "tests" / "support"
JOB = SUPPORT / "torch_job.py"
RECORDED = SUPPORT / "torch_recorded.py"
TORCHRUN = "-m", "torch.distributed.run"
# Longest time for one command: some torch imports, of 2 to 4 s each where the machine is busy.
PATIENCE = 120
CHECKS = ["store", "collectives", "point_to_point", "objects", "ddp", "data_loader", "children", "groups", "rpc"]

# What tells a process who it is, or changes defaults: not to be inherited from where the tests run.
OUTSIDE = re.compile(
    "(PET|DDP|PMIX?|SLURM|TORCHELASTIC|TORCH|GLOO|NCCL|OMP|UCX|CUDA|OMPI|FACTS|MASTER|ROLE)_|(.*_)?RANK$|.*WORLD_SIZE$")


def environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not OUTSIDE.match(name)}
    return {**kept, "PYTHON_EXEC": sys.executable, **variables}


def run(*command, cwd=None, **variables):
    """Runs a command to its end. Its streams are texts."""
    return subprocess.run([str(word) for word in command], cwd=cwd, env=environment(**variables), timeout=PATIENCE,
                          capture_output=True, text=True, stdin=subprocess.DEVNULL)


def torchrun(*arguments, cwd="/", **variables):
    return forked.python(*TORCHRUN, *arguments, folder=cwd, environment=environment(**variables), timeout=PATIENCE)


def start(*command, **variables):
    return subprocess.Popen([str(word) for word in command], env=environment(**variables), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL)


# ---- torch.distributed -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole_job():
    return run(DDPRUN, "--nproc-per-node", 2, JOB, "all")


@pytest.mark.parametrize("check", CHECKS)
def test_torch_distributed(whole_job, check):
    for rank in range(2):
        assert f"CHECKED {check} {rank}\n" in whole_job.stdout, whole_job.stderr


def test_the_whole_job_ends_well(whole_job):
    assert whole_job.returncode == 0, whole_job.stderr
    assert set(re.findall(r"CHECKED (\w+) ", whole_job.stdout)) == set(CHECKS)
    host = socket.gethostname()
    assert sorted(re.findall("JOB .*", whole_job.stdout)) == [f"JOB {rank} {rank} 0 0 2 {host}" for rank in range(2)]


def test_a_restart_begins_with_an_empty_store():
    job = run(DDPRUN, "--nproc-per-node", 2, "--max-restarts", 1, JOB, "--die", 1, "store", "collectives")
    assert job.returncode == 0, job.stderr
    assert "attempt 0 failed: rank 1" in job.stderr
    for check in ("store", "collectives"):
        for rank in range(2):
            assert job.stdout.count(f"CHECKED {check} {rank}\n") == 2, job.stdout + job.stderr
    assert sorted(word.split()[4] for word in re.findall("JOB .*", job.stdout)) == ["0", "0", "1", "1"]


MANY_JOBS = """
import sys, time
from pathlib import Path
import torch.distributed as dist
folder, jobs, number = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo")
(folder / number).touch()
deadline = time.monotonic() + 60
while len(list(folder.iterdir())) < jobs:
    assert time.monotonic() < deadline, "another job did not come"
    time.sleep(0.05)
# from here on, all jobs are known to run at the same time
store = dist.distributed_c10d._get_default_store()
store.set("number", number)
time.sleep(0.2)
assert store.get("number") == number.encode() and store.add("ranks", 1) == 1
dist.destroy_process_group()
"""


def test_jobs_at_the_same_time(tmp_path):
    """Each has a store of its own."""
    script, folder = tmp_path / "many_jobs.py", tmp_path / "ready"
    script.write_text(MANY_JOBS)
    folder.mkdir()
    options = [[], [], ["--standalone"], ["--standalone"]]
    jobs = [start(DDPRUN, *each, script, folder, len(options), number) for number, each in enumerate(options)]
    outputs = [job.communicate(timeout=PATIENCE)[0] for job in jobs]
    assert [job.returncode for job in jobs] == [0] * len(options), outputs


# ---- @record ---------------------------------------------------------------------------------------------------------

def test_the_error_file_of_record_reaches_the_report(tmp_path):
    report, logs = tmp_path / "report.json", tmp_path / "logs"
    options = ["--nproc-per-node", 2, "--failure-grace", 0, "--log-dir", logs, "--report-json", report]
    job = run(DDPRUN, *options, RECORDED)
    assert job.returncode == 85
    assert "rank      : 1 (local_rank: 1)" in job.stderr
    assert re.search(r"traceback : Traceback.*torch_recorded.py.*in main.*ValueError: bad loss", job.stderr, re.DOTALL)
    (failure,) = json.loads(report.read_text())["failures"]
    assert failure["error"]["message"] == "ValueError: bad loss"
    assert "in main" in failure["error"]["traceback"]
    # The file is where the report says, so that a user finds it afterwards.
    assert Path(failure["error"]["file"]).is_relative_to(logs)
    assert json.loads(Path(failure["error"]["file"]).read_text())["message"]["message"] == "ValueError: bad loss"
    # No error files, nothing to show but what everyone gets: exit code and standard error.
    job = run(DDPRUN, "--failure-grace", 0, "--log-dir", "/dev/null", RECORDED)
    assert job.returncode == 85
    assert "error_file: <N/A>" in job.stderr


def test_a_torchrun_outside_reports_what_a_rank_of_ddprun_recorded():
    job = torchrun("--no-python", DDPRUN, "--failure-grace", 0, RECORDED)
    assert job.returncode == 1  # torchrun has no other
    its_own = job.stderr[job.stderr.index("ChildFailedError"):]
    assert re.search(r"exitcode  : 85 .*ValueError: bad loss", its_own, re.DOTALL), its_own


# ---- Like torchrun ---------------------------------------------------------------------------------------------------

# What must be the same, value by value.
SAME = ["RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "LOCAL_WORLD_SIZE", "WORLD_SIZE",
        "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"]
# What must be there, with a value of its own. OMP_NUM_THREADS: torchrun always says 1, ddprun the rank's cores.
LIKE = {"MASTER_PORT": r"\d+", "MASTER_ADDR": r"\S+", "TORCHELASTIC_RUN_ID": ".+", "OMP_NUM_THREADS": r"[1-9]\d*"}
# What ddprun adds: facts for libddp and PMIx, and settings that torchrun leaves to the user.
MORE = re.compile("(PMIX|DDP|DDPRUN|GLOO|TP|NCCL|OMP|UCX|CUDA|ROCR|ZE)_")


class Facts:
    """What each rank saw, by rank."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()

    def of_ranks(self, count):
        assert sorted(path.name for path in self.folder.iterdir()) == [f"{rank}.json" for rank in range(count)]
        return [json.loads((self.folder / f"{rank}.json").read_text()) for rank in range(count)]


def same_ranks(ours, theirs, inherited, with_run_id=False):
    for our, their in zip(ours, theirs, strict=True):
        our_variables, their_variables = our["environment"], their["environment"]
        for name in SAME + ["TORCHELASTIC_RUN_ID"] * with_run_id:
            assert our_variables.get(name) == their_variables.get(name), name
        for name, pattern in LIKE.items():
            for variables in (our_variables, their_variables):
                assert name not in their_variables or re.fullmatch(pattern, variables[name]), name
        where = [variables["TORCHELASTIC_ERROR_FILE"].split("/")[-3:] for variables in (our_variables, their_variables)]
        assert where[0] == where[1]
        # Nothing is lost, and nothing else is changed or added.
        assert set(their_variables) <= set(our_variables)
        known = {*SAME, *LIKE, "TORCHELASTIC_ERROR_FILE", "FACTS_DIR", "_"}
        for name, value in our_variables.items():
            assert name in known or MORE.match(name) or value == inherited.get(name), name
        assert {**our, "environment": 0} == {**their, "environment": 0}


def compare(tmp_path, arguments, ranks, change=lambda facts: None, with_run_id=False, theirs=torchrun, **variables):
    """Runs the same command line under both; @p change takes out what is known to differ."""
    seen = []
    for name, launcher in (("ddprun", lambda *words, **more: run(DDPRUN, *words, **more)), ("torchrun", theirs)):
        facts = Facts(tmp_path / name)
        job = launcher(*arguments, cwd=SUPPORT, FACTS_DIR=str(facts.folder), **variables)
        assert job.returncode == 0, job.stderr
        seen.append(facts.of_ranks(ranks))
    for facts in seen[0] + seen[1]:
        change(facts)
    same_ranks(*seen, environment(**variables), with_run_id)
    return seen[0]


def test_a_script(tmp_path):
    arguments = ["torch_facts.py", "--local-rank=${local_rank}", "${local_rank}x"]
    odd = ["$local_rank", "$local_rankx", "$", "$1", "${", "${local_rank", "$$local_rank", "$$$$", "${x}", "$LOCAL_RANK"]
    ours = compare(tmp_path, ["--nproc-per-node", 2, *arguments, *odd], 2)
    assert [facts["arguments"][:3] for facts in ours] == [["--local-rank=0", "0x", "0"], ["--local-rank=1", "1x", "1"]]
    # The comparison itself sees a rank too many, another value, and a variable that came or went.
    for break_it in (lambda facts: facts.pop(),
                     lambda facts: facts[1]["environment"].update(LOCAL_RANK="0"),
                     lambda facts: facts[0]["environment"].update(EXTRA="1"),
                     lambda facts: facts[0]["environment"].pop("ROLE_NAME"),
                     lambda facts: facts[0].update(program="x")):
        broken = json.loads(json.dumps(ours))
        break_it(broken)
        with pytest.raises((AssertionError, ValueError)):
            same_ranks(broken, ours, environment())


def test_options_of_every_kind(tmp_path):
    options = ["--nnodes=1:1", "--nproc_per_node=2", "--rdzv-backend=c10d", "--rdzv_endpoint=localhost:0",
               "--rdzv-id=seven", "--max-restarts=3", "--role=trainer", "--local-addr=127.0.0.1",
               "--monitor-interval=1", "--signals-to-handle=SIGTERM,SIGUSR1"]
    ours = compare(tmp_path, [*options, "torch_facts.py"], 2, with_run_id=True,
                   OMP_NUM_THREADS="5", TORCH_NCCL_ASYNC_ERROR_HANDLING="3")
    assert ours[0]["environment"]["OMP_NUM_THREADS"] == "5"
    assert ours[1]["environment"]["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"


def test_variables_instead_of_options(tmp_path):
    ours = compare(tmp_path, ["--role", "wins", "torch_facts"], 2, with_run_id=True, PET_NPROC_PER_NODE="2",
                   PET_MAX_RESTARTS="2", PET_ROLE="loses", PET_RDZV_ID="nine", PET_MODULE="1", PET_STANDALONE="0",
                   PET_RDZV_BACKEND="c10d", PET_RDZV_ENDPOINT="localhost:0", PET_LOG_DIR="/dev/null")
    assert ours[0]["environment"]["ROLE_NAME"] == "wins"
    assert ours[0]["environment"]["TORCHELASTIC_ERROR_FILE"] == ""


def test_a_module(tmp_path):
    ours = compare(tmp_path, ["--nproc-per-node", 2, "-m", "torch_facts", "-m", "x"], 2)
    assert ours[0]["arguments"] == ["-m", "x"]


def test_a_path_for_runpy(tmp_path):
    def change(facts):
        # torchrun's ranks are then children of a Python process, share its session, find its modules first, and buffer
        # their output unless PYTHONUNBUFFERED is set.
        del facts["session of its own"], facts["import folder"], facts["unbuffered"]

    # an interpreter of its own: of this kind, torchrun starts ranks by what multiprocessing knows of it
    compare(tmp_path, ["--run-path", "--nproc-per-node", 2, "torch_facts.py", "a", "${local_rank}"], 2, change,
            theirs=lambda *words, **more: run(sys.executable, *TORCHRUN, *words, **more))


def test_any_program(tmp_path):
    compare(tmp_path, ["--no-python", "--nproc-per-node", 1, sys.executable, "-u", "torch_facts.py", "a b"], 1)


def test_one_local_rank_for_all(tmp_path):
    def change(facts):
        # torchrun names GPUs whether there are any or not.
        if not torch.cuda.is_available():
            facts["environment"].pop("CUDA_VISIBLE_DEVICES", None)

    ours = compare(tmp_path, ["--virtual-local-rank", "--nproc-per-node", 2, "torch_facts.py"], 2, change)
    assert [facts["environment"]["LOCAL_RANK"] for facts in ours] == ["0", "0"]


def test_two_static_nodes(tmp_path):
    seen = []
    for name in ("ddprun", "torchrun"):
        facts = Facts(tmp_path / name)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        options = ["--nnodes=2", "--nproc-per-node=2", "--rdzv-id=pair", "--rdzv-conf=timeout=100", "--master-addr=127.0.0.1",
                   f"--master-port={port}"]
        variables = {"FACTS_DIR": str(facts.folder), "XDG_CONFIG_HOME": str(tmp_path)}
        commands = [[*options, f"--node-rank={node}", SUPPORT / "torch_facts.py"] for node in (1, 0)]
        if name == "ddprun":
            nodes = [start(DDPRUN, *command, **variables) for command in commands]
            outputs = [node.communicate(timeout=PATIENCE)[0] for node in nodes]
            assert [node.returncode for node in nodes] == [0, 0], outputs
        else:
            nodes = [forked.Process([*TORCHRUN, *command], environment(**variables), os.getcwd()) for command in commands]
            ended = [node.wait(PATIENCE) for node in nodes]
            assert [node.returncode for node in ended] == [0, 0], [node.stderr for node in ended]
        seen.append(facts.of_ranks(4))
    same_ranks(*seen, environment(XDG_CONFIG_HOME=str(tmp_path)), with_run_id=True)
    assert [facts["environment"]["GROUP_RANK"] for facts in seen[0]] == ["0", "0", "1", "1"]
