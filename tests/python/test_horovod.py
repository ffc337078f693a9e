"""libddp.horovod, libddp.mpi, and the names under which DDP_AS gives them, by programs of tests/support under ddprun."""

import json
import os
import re
import shutil
import sys
import time

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, ROOT, SITE, SUPPORT, adapter, checked, checked_by, ddprun, python, run  # noqa: E402, F401

JOB = SUPPORT / "horovod_job.py"
MPI = SUPPORT / "mpi_job.py"


@pytest.mark.parametrize("ranks, checks", [
    (3, ["operations", "memory", "resized", "gradients", "errors", "orders", "process_sets", "joins", "state", "batch_norm", "forks", "restarts", "interface", "set_origins", "adaptive_sums", "elastic_events", "state_of_others",
         "resizable_again"]),
    (3, ["optimizer", "optimizer_features", "optimizer_missing", "optimizer_joins", "optimizer_refusals", "optimizer_hooks", "compressors", "sparse_gradients",
         "closures", "states", "unusual_steps", "optimizer_in_distributed_autograd", "elastic"]),
    (2, ["unnamed", "operations", "optimizer", "joins", "idle"]),
    (4, ["orders", "leaves"]),
], ids=["operations", "optimizers", "two", "four"])
def test_checks(adapter, ranks, checks):
    done = ddprun(ranks, JOB, *checks)
    checked(done, checks, ranks)
    assert "Fatal Python error" not in done.stderr and "terminate called" not in done.stderr, done.stderr


@pytest.mark.parametrize("check", ["killed", "killed_in_a_step"])
def test_a_killed_rank_is_an_exception_in_the_others(adapter, check):
    done = ddprun(3, JOB, check)
    checked_by(done, check, "01")


def test_worlds_of_a_part_of_the_ranks_begin_beside_each_other():
    program = ("import libddp, libddp.horovod as hvd, torch\n"
               "from libddp.horovod import _job\n"
               "world = libddp.init()\n"
               "own = [0, 2] if world.rank % 2 == 0 else [1]\n"
               "hvd.init(comm=own)\n"
               "assert hvd.allreduce(torch.tensor([world.rank]), op=hvd.Sum) == sum(own) and hvd.size() == len(own)\n"
               "if hvd.size() == 2: _job.restart()\n"
               "assert hvd.size() == len(own) and hvd.allreduce(torch.ones(1), op=hvd.Sum) == len(own)\n")
    done = run(BIN / "ddprun", "-n", 3, "--no-python", sys.executable, "-c", program)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_program_ends_with_operations_that_nobody_waits_for():
    program = ("import libddp.horovod as hvd, torch; hvd.init()\n"
               "handles = [hvd.allreduce_async(torch.ones(1000), name=f'{each}') for each in range(50)]\n"
               "alone = hvd.allreduce_async(torch.ones(1), name='alone') if hvd.rank() == 0 else None\n"
               "hvd.barrier()\n")  # before which none may have shut down
    done = run(BIN / "ddprun", "-n", 2, "--no-python", sys.executable, "-c", program)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr


def test_one_process_alone():
    done = python(JOB, "operations", "state", "joins", "restarts")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("variable, words", [("HOROVOD_STALL_CHECK_TIME_SECONDS=soon", "is not a number of seconds"),
                                             ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=nan", "is not a number of seconds"),
                                             ("HOROVOD_FUSION_THRESHOLD=-1", "is not a number of bytes")])
def test_wrong_variables_are_refused(variable, words):
    name, _, value = variable.partition("=")
    done = python(JOB, "operations", **{name: value})
    assert done.returncode == 1 and variable in done.stderr and words in done.stderr, done.stderr


STALL = """
import libddp.horovod as hvd, torch, time
def loads_a_batch():
    if hvd.rank() == 1:
        time.sleep(300)
hvd.init()
hvd.allreduce(torch.ones(1), name='loss')
loads_a_batch()
hvd.allreduce(torch.ones(1), name='layer.weight')
"""


def test_a_stalled_operation_is_reported_with_what_the_missing_rank_does_and_ends(tmp_path):
    (tmp_path / "train.py").write_text(STALL)
    if not shutil.which("py-spy"):  # what it prints, for one rank
        (tmp_path / "py-spy").write_text("#!/bin/sh\nprintf 'Thread %s (idle): \"MainThread\"\\n    loads_a_batch (train.py:5)\\n' $3\n")
        (tmp_path / "py-spy").chmod(0o755)
    done = ddprun(2, tmp_path / "train.py", HOROVOD_STALL_CHECK_TIME_SECONDS="0.5",
                  HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="6", PATH=f"{os.environ['PATH']}:{tmp_path}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "all_reduce 'layer.weight' waits for rank 1; rank 1 has submitted nothing else" in done.stderr, done.stderr
    instead = r"rank 1 is in loads_a_batch \(.*train.py:5\).*; it submitted all_reduce 'loss' last, \d+ s ago"
    assert re.search("others wait: " + instead, done.stderr), done.stderr
    assert re.search("HorovodInternalError.*rank 1 did not submit it in time; " + instead, done.stderr), done.stderr


def test_a_rank_that_waits_in_another_group_is_reported_with_its_operation():
    program = ("import libddp.horovod as hvd, torch; hvd.init()\n"
               "if hvd.rank() == 1: hvd._job.job().group.all_reduce(torch.ones(1)).wait()\n"
               "else: hvd.allreduce(torch.ones(1), name='layer.weight')\n")
    done = run(BIN / "ddprun", "-n", 2, "--no-python", sys.executable, "-c", program, HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="5")
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search(r"rank 1 .*has been in all_reduce #\d+ of group '[\w.]+' for \d+ s; it has submitted no named operation", done.stderr), done.stderr


@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi(ranks):
    done = ddprun(ranks, MPI)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"CHECKED (\d)", done.stdout)) == [str(rank) for rank in range(ranks)]


def test_abort_ends_the_job_with_its_status():
    done = ddprun(2, MPI, "abort")
    assert done.returncode == 7 and "MPI.Abort(7) called by rank 1" in done.stderr, done.stdout + done.stderr


def test_what_one_rank_cannot_pickle_ends_the_job_with_its_reason():
    done = ddprun(2, MPI, "pickle")
    assert done.returncode == 1 and re.search(r"Root Cause.*?rank +: 1 .*?pickle", done.stderr, re.S), done.stderr


UNCHANGED = """
import site; site.addsitedir({site!r})  # as Python does with the folder that pip installs into
import horovod.torch as hvd
from mpi4py import MPI
from horovod.common.exceptions import HorovodInternalError
import torch
comm = MPI.COMM_WORLD
hvd.init()
metrics = comm.allgather({{"rank": hvd.rank()}})
assert [each["rank"] for each in metrics] == list(range(hvd.size())) and issubclass(HorovodInternalError, Exception)
assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == comm.Get_size() == 2
try:
    import horovod.tensorflow
except ModuleNotFoundError:
    pass
else:
    raise AssertionError
import importlib.util
assert importlib.util.find_spec("mpi4py.futures") is None
import sys
sys.stdout.write(f"UNCHANGED {{hvd.rank()}}\\n")  # at once, as both ranks write
"""


def test_an_unchanged_program_of_horovod_and_mpi4py(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(UNCHANGED.format(site=str(SITE)))
    done = ddprun(2, program, options=["--as", "horovod,mpi4py"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"UNCHANGED (\d)", done.stdout)) == ["0", "1"]
    assert done.stderr.count("horovod is libddp.horovod") == 1 and done.stderr.count("mpi4py is libddp.mpi") == 1, done.stderr
    assert done.stderr.count("libddp has no horovod.tensorflow") == 1, done.stderr
    without = ddprun(2, program)
    assert without.returncode == 1 and "No module named 'horovod'" in without.stderr, without.stderr
    (tmp_path / "installed" / "horovod").mkdir(parents=True)
    (tmp_path / "installed" / "horovod" / "__init__.py").write_text("raise SystemExit('the installed one')")
    beside = {"PYTHONPATH": f"{SITE}:{tmp_path / 'installed'}"}
    own = ddprun(2, program, options=["--as", "horovod,mpi4py"], **beside)
    assert own.returncode == 0 and own.stderr.count("horovod is libddp.horovod") == 1, own.stdout + own.stderr
    left = ddprun(2, program, **beside)
    assert left.returncode == 1 and "the installed one" in left.stderr and "is libddp" not in left.stderr, left.stderr


def test_the_example_trains_alike_under_its_names_and_libddps(tmp_path):
    example = ROOT / "examples" / "horovod_train" / "train.py"
    program = tmp_path / "as_it_is.py"
    program.write_text(f"import runpy, site; site.addsitedir({str(SITE)!r}); runpy.run_path({str(example)!r}, run_name='__main__')\n")
    own = ddprun(2, example, "--libddp", "--save", tmp_path / "saved")
    assert own.returncode == 0, own.stdout + own.stderr
    given = ddprun(2, program, options=["--as", "horovod,mpi4py"])
    assert given.returncode == 0, given.stdout + given.stderr
    weights = [re.findall(r"weights (-?[\d.]+)", done.stdout) for done in (own, given)]
    assert len(weights[0]) == 2 and len({*weights[0], *weights[1]}) == 1, weights
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", own.stdout)]
    assert losses[-1] < losses[0] / 2
    assert {each.name for each in (tmp_path / "saved").iterdir()} == {"log", "train.py", "1.pt", "2.pt", "3.pt"}


HOROVODRUN = "import sys; from libddp._horovodrun import main; sys.argv[0] = 'ddp-horovodrun'; main()"


def horovodrun(*arguments, **variables):
    return run(sys.executable, "-c", HOROVODRUN, *arguments, **variables)


def test_horovodruns_command_line():
    done = horovodrun("-np", 4, "-H", "n0:2,n1:2", "-p", 2222, "-i", "my key", "--fusion-threshold-mb", 32, "--cycle-time-ms", 3, "--gloo",
                      "--output-filename", "logs", "--network-interfaces", "eth0,eth1", "--timeline-filename", "t.json", "--timeline-mark-cycles", "--dry-run", "python", "train.py", "-np", "7")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "env DDP_SOCKET_IFNAME=eth0,eth1 NCCL_SOCKET_IFNAME==eth0,eth1 HOROVOD_TIMELINE_MARK_CYCLES=1 HOROVOD_FUSION_THRESHOLD=33554432 HOROVOD_TIMELINE=t.json ddprun -n 4 -H n0:2,n1:2 --ssh-port 2222 "
        "--ssh-command 'ssh -i '\"'\"'my key'\"'\"'' -t 3 --log-layout rank --log-dir logs --as horovod,mpi4py --imitate horovodrun python train.py -np 7\n")
    assert done.stderr == "ddp-horovodrun: no effect: --cycle-time-ms, --gloo\n"
    assert "[X] PyTorch" in horovodrun("--check-build").stdout and horovodrun("-cb").stdout == horovodrun("--check-build").stdout
    for arguments, words in ((["--min-np", 2, "true"], "do not leave or come"), (["-np", 2], "no program")):
        done = horovodrun(*arguments)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    done = horovodrun("-np", 2, "sh", "-c", "echo $HOROVOD_RANK of $HOROVOD_SIZE, $HOROVOD_CROSS_RANK $HOROVOD_LOCAL_SIZE $DDP_AS")
    assert done.returncode == 0 and sorted(done.stdout.splitlines()) == ["0 of 2, 0 2 horovod,mpi4py", "1 of 2, 0 2 horovod,mpi4py"], done.stderr


# horovodrun's options: words, or variables, of ddprun; what is said.
OPTIONS = {
    "-np 3": "-n 3", "--num-proc 3": "-n 3", "-H a:1,b:2": "-H a:1,b:2", "--hosts a:1": "-H a:1", "-hostfile f": "--hostfile f", "--hostfile f": "--hostfile f",
    "-p 22": "--ssh-port 22", "--ssh-port 22": "--ssh-port 22", "-i k": "--ssh-command 'ssh -i k'", "--ssh-identity-file k": "--ssh-command 'ssh -i k'",
    "--start-timeout 45": "DDP_INIT_TIMEOUT=45 --rdzv-conf join_timeout=45", "--network-interfaces a,b": "DDP_SOCKET_IFNAME=a,b NCCL_SOCKET_IFNAME==a,b",
    "--network-interface a": "DDP_SOCKET_IFNAME=a NCCL_SOCKET_IFNAME==a", "--output-filename D": "-t 3 --log-layout rank --log-dir D",
    "-prefix-timestamp": "--log-timestamps", "--prefix-output-with-timestamp": "--log-timestamps", "--verbose": "-v",
    "--timeline-filename F": "HOROVOD_TIMELINE=F", "--timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES=1",
    "--no-timeline-mark-cycles": "HOROVOD_TIMELINE_MARK_CYCLES=0", "--fusion-threshold-mb 2": "HOROVOD_FUSION_THRESHOLD=2097152",
    "--fusion-threshold-mb 0.5": "HOROVOD_FUSION_THRESHOLD=524288", "--no-stall-check": "HOROVOD_STALL_CHECK_DISABLE=1", "--stall-check": "",
    "--stall-check-warning-time-seconds 5": "HOROVOD_STALL_CHECK_TIME_SECONDS=5", "--stall-check-shutdown-time-seconds 9": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS=9",
    "--gloo-timeout-seconds 8": "HOROVOD_GLOO_TIMEOUT_SECONDS=8",
    **{f"--log-level {upstream}": f"DDP_LOG_LEVEL={own}" for upstream, own in (("TRACE", "debug"), ("DEBUG", "debug"), ("INFO", "info"), ("WARNING", "warning"),
                                                                               ("ERROR", "error"), ("FATAL", "error"))}}
NO_EFFECT = ["--gloo", "--mpi", "--jsrun", "--tcp", "--mpi-args=-x A", "--cycle-time-ms 1", "--cache-capacity 9", "--disable-cache", "--hierarchical-allreduce",
             "--no-hierarchical-allreduce", "--hierarchical-allgather", "--no-hierarchical-allgather", "--torus-allreduce", "--no-torus-allreduce", "--no-autotune",
             "--autotune-log-file f", "--autotune-warmup-samples 1", "--autotune-steps-per-sample 1", "--autotune-bayes-opt-max-samples 1",
             "--autotune-gaussian-process-noise 1", "--mpi-threads-disable", "--no-mpi-threads-disable", "--num-nccl-streams 2", "--thread-affinity 0",
             "--log-with-timestamp", "--log-without-timestamp", "--log-hide-timestamp"]
ELASTIC = ["--min-np 1", "--min-num-proc 1", "--max-np 4", "--max-num-proc 4", "--slots-per-host 1", "--slots 1", "--host-discovery-script f", "--reset-limit 3",
           "--elastic-timeout 5", "--blacklist-cooldown-range 5"]
TRANSLATES = """
import json, os, shlex, sys
from libddp._horovodrun import translate
def one(given):
    try:
        words, variables, notices, options = translate([*given, "train.py", "-np", "9"])
    except SystemExit as end:
        return end.code
    assert options.command == ["train.py", "-np", "9"]
    return " ".join([*(f"{name}={value}" for name, value in variables.items()), shlex.join(words)]).strip(), notices
sys.stderr = open(os.devnull, "w")
json.dump({text: one(words) for text, words in json.loads(sys.argv[1]).items()}, sys.stdout)
"""


def test_each_option_of_horovodrun_has_a_meaning_or_is_said_to_have_none():
    # words of one option: its text's, the value as one
    given = {text: [text] if "=" in text else text.split(" ", 1) for text in (*OPTIONS, *NO_EFFECT, *ELASTIC, "--autotune", "--binding-args a", "--min 1")}
    done = run(sys.executable, "-c", TRANSLATES, json.dumps(given))
    found = json.loads(done.stdout)
    for text, words in OPTIONS.items():
        assert found[text] == [words, []], (text, found[text])
    for text in NO_EFFECT:
        name = text.replace("=", " ").split()[0].replace("-without-", "-with-").replace("-hide-", "-with-")
        assert found[text] == ["", [f"no effect: {name}"]], (text, found[text])
    for text in (*ELASTIC, "--min 1"):
        assert found[text] == 2, (text, found[text])
    assert "advise" in found["--autotune"][1][1] and found["--binding-args a"] == ["", ["instead of --binding-args, ddprun places ranks by --bind"]]
    assert horovodrun("-v").stdout.startswith("ddp-horovodrun (libddp) ")


CONFIG = """
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  hierarchical_allreduce: true
autotune:
  enabled: false
stall_check:
  enabled: false
  warning_time_seconds: 120
library_options:
  gloo_timeout_seconds: 60
logging:
  level: INFO
"""


def test_horovodruns_config_file(tmp_path):
    pytest.importorskip("yaml", reason="PyYAML is not installed")
    file = tmp_path / "my config.yaml"
    file.write_text(CONFIG)
    done = horovodrun("--config-file", file, "-np", 2, "--dry-run", "true")
    assert done.stdout == ("env DDP_LOG_LEVEL=info HOROVOD_STALL_CHECK_DISABLE=1 HOROVOD_FUSION_THRESHOLD=33554432 "
                           "HOROVOD_STALL_CHECK_TIME_SECONDS=120 HOROVOD_GLOO_TIMEOUT_SECONDS=60 ddprun -n 2 "
                           "--as horovod,mpi4py --imitate horovodrun true\n"), done.stderr
    assert done.stderr == "ddp-horovodrun: no effect: --cycle-time-ms, --hierarchical-allreduce, --no-autotune\n"
    own = horovodrun("--stall-check", "--fusion-threshold-mb", 1, "--config-file", file, "--log-level", "ERROR", "--dry-run", "true")
    assert "DISABLE" not in own.stdout and "THRESHOLD=1048576" in own.stdout and "DDP_LOG_LEVEL=error" in own.stdout, own.stderr
    file.write_text("")
    assert horovodrun("--config-file", file, "--dry-run", "true").returncode == 0
    for text, words in (("params: {fusion: 3}", "'fusion' in 'params' is none of fusion_threshold_mb"), ("param: {}", "'param' is none of params"),
                        ("- params", "the file has no keys"), ("params: 3", "'params' has no keys"), ("params: {a: [}", "is not YAML"),
                        ("stall_check: {enabled: often}", "neither true nor false"), ("params: {cycle_time_ms: [1]}", "not one value"),
                        ("logging: {level: LOUD}", "invalid choice"), ("!!python/object/apply:os._exit [7]", "is not YAML")):
        file.write_text(text)
        wrong = horovodrun("--config-file", file, "true")
        assert wrong.returncode == 2 and words in wrong.stderr and "Traceback" not in wrong.stderr, wrong.stderr
    missing = horovodrun("--config-file", tmp_path / "none", "true")
    assert missing.returncode == 2 and "cannot be read: No such file" in missing.stderr, missing.stderr


def test_a_config_file_needs_pyyaml(tmp_path):
    (tmp_path / "yaml.py").write_text("raise ImportError('no yaml')\n")
    done = horovodrun("--config-file", tmp_path / "none", "true", PYTHONPATH=f"{tmp_path}:{SITE}")
    assert done.returncode == 2 and "needs PyYAML, which is not installed: pip install pyyaml" in done.stderr, done.stderr


def test_output_files_are_those_of_horovodrun(tmp_path):
    done = horovodrun("-np", 2, "--output-filename", tmp_path / "my logs", "sh", "-c", "echo out $RANK; echo err $RANK >&2")
    assert done.returncode == 0 and "out 1" in done.stdout, done.stdout + done.stderr
    assert {str(each.relative_to(tmp_path / "my logs")): each.read_text() for each in (tmp_path / "my logs").glob("*/*")} == {
        f"rank.{rank}/{stream}": f"{stream[3:]} {rank}\n" for rank in (0, 1) for stream in ("stdout", "stderr")}


def test_variables_of_horovod_by_libddps_names():
    program = ("import os, libddp.horovod as hvd; hvd.init()\n"
               "os.write(1, f\"{os.environ.get('DDP_LOG_LEVEL')} {os.environ.get('DDP_SOCKET_IFNAME')}\\n\".encode())\n")
    settings = {"HOROVOD_LOG_LEVEL": "FATAL", "HOROVOD_GLOO_IFACE": "lo", "HOROVOD_AUTOTUNE_LOG": "x", "HOROVOD_CYCLE_TIME": "1"}
    done = run(BIN / "ddprun", "-n", 2, "--no-python", sys.executable, "-c", program, **settings)
    assert done.stdout == "error lo\n" * 2, done.stdout + done.stderr
    assert done.stderr.count("no effect: HOROVOD_CYCLE_TIME, HOROVOD_AUTOTUNE_LOG\n") == 1, done.stderr
    own = python("-c", "import libddp; libddp.init()\n" + program, DDP_LOG_LEVEL="debug", **settings)
    assert own.stdout == "debug lo\n" and "HOROVOD_GLOO_IFACE (libddp.init() was called before hvd.init())" in own.stderr, own.stderr
    wrong = python("-c", program, HOROVOD_LOG_LEVEL="loud")
    assert wrong.returncode == 1 and "HOROVOD_LOG_LEVEL=loud is none of trace" in wrong.stderr, wrong.stderr


def test_variables_of_open_mpi():
    program = "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $OMPI_COMM_WORLD_LOCAL_RANK $OMPI_COMM_WORLD_LOCAL_SIZE ${HOROVOD_RANK-none}"
    done = run(BIN / "ddprun", "-np", 2, "--imitate", "mpirun", "sh", "-c", program)
    assert sorted(done.stdout.splitlines()) == ["0 2 0 2 none", "1 2 1 2 none"], done.stdout + done.stderr


def test_an_mpi_of_one_rank_is_no_mpi_of_the_job(tmp_path):
    """As Open MPI runs each rank of a launcher that serves no MPI."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "class COMM_WORLD:\n    Get_size = staticmethod(lambda: 1)\nIs_initialized = lambda: True\nIs_finalized = lambda: False\n")
    program = "from mpi4py import MPI\nimport libddp\nlibddp.init()\n"
    done = run(BIN / "ddprun", "-n", 2, "--no-python", sys.executable, "-c", program, PYTHONPATH=f"{SITE}:{tmp_path}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MPI.COMM_WORLD of mpi4py has size 1, but the job has 2 ranks" in done.stderr, done.stderr


# Argument: a file. Steps of one small tensor, two that are fused and rows of several sizes: first negotiated, then learned.
TIMELINE = """
import json, os, sys, time
import libddp.horovod as hvd, torch
hvd.init()
def step():
    for each in [hvd.allreduce_async(torch.ones(5000), name=name) for name in ("a", "b")]:
        hvd.synchronize(each)
    hvd.allreduce(torch.ones(1), name="loss")
    hvd.allgather(torch.ones(hvd.rank() + 1), name='"rows" \\u00e4')
def read(file, attempts=3):
    try:
        return json.loads(open(file).read())
    except ValueError:  # a file is no snapshot: the two calls that read it met the write between
        if attempts == 0:
            raise
        return read(file, attempts - 1)
def until(condition):
    limit = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)
"""


def tracks(events):
    """By rank and operation: events in their order, without those around them."""
    names = {(each["pid"], each["tid"]): each["args"]["name"] for each in events if each["name"] == "thread_name"}
    found = {}
    for each in events:
        if each["ph"] == "X":
            found.setdefault((each["pid"], names[each["pid"], each["tid"]]), []).append(each)
    return found


def check_track(events):
    """Negotiation, then the operation with its parts in it, then the next negotiation."""
    end, inner = 0, 0
    for each in events:
        assert each["dur"] >= 0, each
        if each["name"].startswith("NEGOTIATE_"):
            assert each["ts"] >= end, each
            end = inner = each["ts"] + each["dur"]
        elif each["name"].isupper() and each["name"] in ("ALLREDUCE", "ALLGATHER", "BARRIER", "BROADCAST"):
            assert each["ts"] == end, each
            end = each["ts"] + each["dur"]
        else:
            assert inner <= each["ts"] and each["ts"] + each["dur"] <= end, each
            inner = each["ts"] + each["dur"]


def test_a_timeline_shows_what_all_ranks_do(adapter, tmp_path):
    program = TIMELINE + """
model = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
for each in range(3):
    step()
hvd.barrier()
hvd.start_timeline(sys.argv[1], mark_cycles=True)
hvd.barrier()
for each in range(20):
    step()
    for handle in [hvd.allreduce_async(torch.ones(1)) for _ in range(3)]:
        hvd.synchronize(handle)
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
hvd.barrier()
if hvd.rank() == 0:  # which the others need not stop for
    until(lambda: sum(event["name"] == "ALLGATHER" for event in read(sys.argv[1])) == 20 * hvd.size())
    assert hvd._job.job().named.counts()["learned"] > 0
hvd.stop_timeline()
hvd.barrier()
step()
hvd.barrier()
hvd.start_timeline(sys.argv[1] + ".second")
hvd.barrier()
step()
hvd.barrier()
"""
    (tmp_path / "train.py").write_text(program)
    file = tmp_path / "timeline.json"
    done = ddprun(3, tmp_path / "train.py", file)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    events = json.loads(file.read_text())
    assert events[0]["args"]["start_time_since_epoch_in_micros"] > 1e15
    found = tracks(events)
    operations = ["allreduce.a", "allreduce.b", "allreduce.loss", 'allgather."rows" \u00e4']
    for rank in range(3):
        for name in operations:
            track = found[rank, name]
            check_track(track)
            kinds = [each["name"] for each in track]
            kind = "ALLGATHER" if "rows" in name else "ALLREDUCE"
            assert [kinds.count(prefix + kind) for prefix in ("NEGOTIATE_", "", "DDP_")] == [20] * 3 and kinds.count("QUEUE") == 20, kinds
        rows = [name for of, name in found if of == rank and "noname" in name]  # do not grow with what runs one after the other
        assert 2 <= len(rows) <= 4 and {"barrier.noname", "allreduce.noname"} <= set(rows), rows
        for name in rows:
            check_track(found[rank, name])
        numbers = [each["args"]["number"] for name in rows for each in found[rank, name] if each["name"] == "ALLREDUCE"]
        assert len(numbers) == len(set(numbers)) == 60, numbers
        buckets = found[rank, "allreduce.DistributedOptimizer.0.bucket.0"]
        check_track(buckets)
        assert sum(each["name"] == "ALLREDUCE" for each in buckets) == 19, "from the second step on"
        assert {"MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER"} <= {each["name"] for each in found[rank, "allreduce.a"]}
    assert {each["pid"] for each in events if each["name"] == "CYCLE_START"} == {0, 1, 2}
    for ends in zip(*([each["ts"] + each["dur"] for each in found[rank, "allreduce.loss"] if each["name"] == "ALLREDUCE"] for rank in range(3)),
                    *([each["ts"] for each in found[rank, "allreduce.loss"] if each["name"] == "NEGOTIATE_ALLREDUCE"] for rank in range(3))):
        assert min(ends[:3]) >= max(ends[3:]), "on one clock, none is done before all have submitted it"
    second = json.loads((tmp_path / "timeline.json.second").read_text())  # by the program's end
    assert sum(each["name"] == "ALLGATHER" for each in second) == 3 and not any(each["name"] == "CYCLE_START" for each in second)
    merged = run(BIN / "ddp-info", "trace", tmp_path)
    assert merged.returncode == 0 and sum(each["name"] == "ALLGATHER" for each in json.loads(merged.stdout)["traceEvents"]) == 60, merged.stderr


CLOCK = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  const char *ahead = getenv("TEST_CLOCK_AHEAD");
  const int status = syscall(SYS_clock_gettime, clock, now);
  if (clock == CLOCK_REALTIME && ahead) now->tv_sec += atoi(ahead);
  return status;
}
"""


def test_a_timeline_of_hosts_whose_clocks_differ_has_one_clock(adapter, tmp_path):
    program = TIMELINE + """
assert abs(time.time() - float(sys.argv[2]) - int(os.environ["TEST_CLOCK_AHEAD"])) < 600, "the clock is not shifted"
model = torch.nn.Linear(3, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1))
hvd.barrier()
hvd.start_timeline(sys.argv[1])
hvd.barrier()
for each in range(5):
    step()
    optimizer.zero_grad()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
hvd.barrier()
hvd.stop_timeline()
"""
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "clock.c").write_text(CLOCK)
    done = run("cc", "-shared", "-fPIC", "-o", tmp_path / "clock.so", tmp_path / "clock.c")
    assert done.returncode == 0, done.stderr
    shift = f'export LD_PRELOAD={tmp_path}/clock.so TEST_CLOCK_AHEAD=$(($RANK * 7200 - 3600 * ($RANK > 1))); exec "$@"'  # 0, 2 and 3 hours
    file = tmp_path / "timeline.json"
    done = run(BIN / "ddprun", "-n", 3, "--no-python", "sh", "-c", shift, "sh", sys.executable, tmp_path / "train.py", file, time.time())
    assert done.returncode == 0, done.stdout + done.stderr
    found = tracks(json.loads(file.read_text()))
    times = [[each["ts"] for (of, _), track in found.items() if of == rank for each in track] for rank in range(3)]
    for rank in (1, 2):
        assert (rank, "allreduce.DistributedOptimizer.0.bucket.0") in found and len(times[rank]) >= len(times[0]) / 2, found.keys()
        assert min(times[0]) - 600e6 < min(times[rank]) and max(times[rank]) < max(times[0]) + 600e6, (rank, times)


def test_a_timeline_of_a_job_that_is_killed_is_json(adapter, tmp_path):
    program = TIMELINE + """
file = os.environ["HOROVOD_TIMELINE"]
read(file) if hvd.rank() == 0 else None
step()
if hvd.rank() == 0:
    until(lambda: any(event["name"] == "ALLGATHER" for event in read(file)))
while True:
    step()
    if hvd.rank() == 0 and {event["pid"] for event in read(file) if event["name"] == "ALLGATHER"} == {0, 1}:
        os.kill(os.getpid(), 9)
"""
    (tmp_path / "train.py").write_text(program)
    done = ddprun(2, tmp_path / "train.py", HOROVOD_TIMELINE=tmp_path / "timeline.json",
                  HOROVOD_TIMELINE_MARK_CYCLES="1")
    assert done.returncode != 0 and "SIGKILL" in done.stdout + done.stderr and "Assertion" not in done.stderr, done.stdout + done.stderr
    events = json.loads((tmp_path / "timeline.json").read_text())
    assert any(each["name"] == "CYCLE_START" for each in events)
    for track in tracks(events).values():
        check_track(track)


def test_a_timeline_that_cannot_be_written_is_one_error_on_all_ranks(tmp_path):
    program = ("import libddp, libddp.horovod as hvd, os, torch\n"
               "try: hvd.init(); hvd.allreduce(torch.ones(1), name='a')\n"
               "except libddp.Error as error: os.write(1, f'{error}\\n'.encode())\n")
    done = run(BIN / "ddprun", "-n", 2, "--no-python", sys.executable, "-c", program, HOROVOD_TIMELINE=tmp_path / "none" / "t")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"writing the timeline '.*/none/t' on rank 0.*ENOENT", done.stdout)) == 2, done.stdout
    caught = ("import libddp.horovod as hvd, torch; hvd.init()\n"
              "try: hvd.start_timeline('/none/t')\n"
              "except hvd.HorovodInternalError as error: print(error.native)\n"
              "hvd.stop_timeline(); hvd.allreduce(torch.ones(1), name='a')\n")
    done = python("-c", caught)
    assert done.returncode == 0 and "ENOENT" in done.stdout, done.stdout + done.stderr
