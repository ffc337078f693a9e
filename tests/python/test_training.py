"""libddp.training: metrics, parameter servers, trainers and their benchmark, by tests/support/training_job.py and training_parts_job.py."""

import csv
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import BIN, SITE, SUPPORT, adapter, checked, checked_by, ddprun, python, run  # noqa: E402, F401

JOB = SUPPORT / "training_job.py"
PARTS = SUPPORT / "training_parts_job.py"
ALONE = ["metrics_api", "measured_methods", "jumping_clocks", "bounded_metrics", "cuda_metrics", "workload", "averages", "wrong_gradients", "no_memory"]
THREE = ["training_by_group", "uneven_data", "reduced_metrics", "raising_steps", "wrong_trainers", "spoilt_servers", "silent_server", "training_by_rpc"]


def test_metrics_and_servers_in_one_process():
    done = python(PARTS, *ALONE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"CHECKED (\w+)", done.stdout) == ALONE


def test_traces_of_ranks_are_merged(tmp_path):
    program = ("import sys, time\nfrom libddp.training import MetricsLogger\nfor rank in (0, 1):\n    logger = MetricsLogger(rank)\n"
               "    for _ in range(3):\n        with logger.measure('forward_pass', 'forward_metric'):\n            time.sleep(0.001)\n"
               "    open(f'{sys.argv[1]}/{rank}.json', 'w').write(logger.trace_json())\n")
    assert python("-c", program, tmp_path).returncode == 0
    done = run(BIN / "ddp-info", "trace", tmp_path)
    assert done.returncode == 0, done.stderr
    events = json.loads(done.stdout)["traceEvents"]
    assert [each["args"]["name"] for each in events if each["name"] == "thread_name"] == ["forward_metric,forward_pass"] * 2, events
    events = [each for each in events if each["ph"] == "X"]
    assert [(each["pid"], each["name"]) for each in events].count((1, "forward_metric,forward_pass")) == 3 and len(events) == 6, events


def test_two_trainers_and_a_server(adapter):
    checked(ddprun(3, JOB, *THREE), THREE, 3)


@pytest.mark.parametrize("check, survivors", [("killed_trainer", "02"), ("killed_server", "01"), ("killed_rpc_server", "01"), ("stopped_trainer", "02")])
def test_a_dead_or_stopped_rank_is_named_on_the_others(adapter, check, survivors):
    checked_by(ddprun(3, JOB, check), check, survivors)


def benchmark(*arguments, **variables):
    return run(sys.executable, "-m", "libddp.training.benchmark", *arguments, **variables)


NO_CUDA = shutil.which("nvidia-smi") is None and not Path("/dev/nvidia0").exists()


# not in the order of the model's arguments
SMALL = {"DummyModel": {"sparse": False, "dense_layers_count": 2, "dense_output_size": 64, "dense_input_size": 16, "embedding_dim": 16,
                        "num_embeddings": 64},
         "Own": {"class": "own_model:make", "width": 8}}
OWN_MODEL = """
import torch
def make(width):
    return torch.nn.Sequential(torch.nn.EmbeddingBag(64, width), torch.nn.Linear(width, 64))
"""


def configurations(folder):
    (folder / "model_configurations.json").write_text(json.dumps(SMALL))
    (folder / "data_configurations.json").write_text(json.dumps(
        {"DummyData": {"max_val": 64, "sample_count": 40, "sample_length": 4, "sparsity_percentage": 20}}))
    (folder / "own_model.py").write_text(OWN_MODEL)
    return folder


def test_the_benchmark_prints_upstreams_tables(adapter, tmp_path):
    """Three experiments in one start, with data that three of the batches do not divide, and upstream's spelling of flags."""
    folder = configurations(tmp_path)
    done = benchmark("--compare", "ddp_allreduce,ddp_cpu_rpc,ddp_batch_cpu_rpc@rpc", "--config_dir", folder, "--batch_size=8", "--epochs", 1,
                     "--rpc-timeout", 120, "--master_addr=nowhere", "--filestore", "/nowhere", "--wide", "--csv", tmp_path / "a b.csv", "--json", tmp_path / "t.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^metrics for (.*)$", done.stdout, re.M) == [
        "trainer=0", "trainer=1", "all trainer", *["trainer=0", "trainer=1", "all trainer", "server=0", "all server"] * 2]
    assert re.search(r"^\| name +\| +min \| +max \| +mean \| +variance \| +stdev \| +p95 \| slowest_rank \|$", done.stdout, re.M), done.stdout
    assert done.stdout.count("train epoch=0") == 6, "a run to warm up, and another"
    tables = json.loads((tmp_path / "t.json").read_text())
    assert list(tables) == ["ddp_allreduce", "ddp_cpu_rpc@group", "ddp_batch_cpu_rpc@rpc"]
    for title, found in tables.items():
        counts = {name: found[name]["batch_level_metric,batch_all"]["count"] for name in ("trainer=0", "trainer=1", "all trainer")}
        assert counts == {"trainer=0": 3, "trainer=1": 2, "all trainer": 5}, (title, counts)
        hook = "hook_future_metric,ddp_dense_allreduce" if title == "ddp_allreduce" else "hook_future_metric,rpc_dense"
        assert found["all trainer"][hook]["mean"] > 0
    assert tables["ddp_cpu_rpc@group"]["all server"]["method_metric,average computation"]["count"] >= 3
    rows = list(csv.reader((tmp_path / "a b.csv").open(newline="")))
    assert rows[0] == ["experiment", "metrics_for", "name", "min", "max", "mean", "variance", "stdev"] and len(rows) > 30
    assert re.search(r"ddp_cpu_rpc@group +\| +\S+ \| +\S+ \| +[\d.]+ \|", done.stdout.split("ratios to ddp_allreduce")[1]), done.stdout


def test_the_benchmark_plots_bars(adapter, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    folder, file = configurations(tmp_path), tmp_path / "a b.svg"
    done = benchmark("--compare", "ddp_allreduce,ddp_cpu_rpc", "--config_dir", folder, "--batch_size=20", "--epochs", 1, "--plot", file,
                     "--backend=CPU:gloo")  # as torch takes it
    assert done.returncode == 0, done.stdout + done.stderr
    text = file.read_text()
    assert text.startswith("<?xml")
    for word in ("batch_level_metric,batch_all", "hook_future_metric,gloo_dense_allreduce", "hook_future_metric,rpc_dense", "ddp_cpu_rpc@group", "ddp_allreduce", "standard deviation"):
        assert word in text, word
    program = ("import sys\nfrom libddp.training import MetricsLogger\nfrom libddp.training.benchmark import tables\nlogger = MetricsLogger(0)\n"
               "with logger.measure('part'):\n    pass\ntables.write_plot(sys.argv[1], {'alone': logger.statistics()})\n")
    assert python("-c", program, tmp_path / "t.png").returncode == 0
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_the_benchmark_as_ranks_of_a_launcher_with_an_own_model(adapter, tmp_path):
    """One batch for each trainer: one sample of a metric has no variance."""
    folder = configurations(tmp_path)
    command = [BIN / "ddprun", "--bind=none", "-n", 3, "--no-python", sys.executable, "-m", "libddp.training.benchmark", "--experiment=ddp_cpu_rpc"]
    done = run(*command, "--config-dir", folder, "--model=Own", "--batch-size=20", "--epochs=1", PYTHONPATH=f"{SITE}:{folder}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\| batch_level_metric,batch_all +(\| +[\d.e-]+ ){3}\| +nan \| +nan \|", done.stdout), done.stdout
    wrong = run(*command, "--nserver=2", "--config-dir", folder)
    assert "4 ranks are needed (2 trainers, 2 servers), the launcher started 3" in wrong.stderr and wrong.returncode == 2, wrong.stderr


WRONG = [(["--experiment", "ddp_gpu_rpc"], "unknown experiment 'ddp_gpu_rpc'; experiments are ddp_allreduce,"),
         (["--experiment=ddp_cpu_rpc@tcp"], "unknown transport 'tcp'"),
         (["--experiment=ddp_cpu_rpc", "--compare=ddp_allreduce"], "contradict each other"),
         (["--experiment=ddp_nccl_allreduce", "--ntrainer=2", "--ncudatrainer=0"], "NCCL has no CPU tensors"),
         (["--ntrainer=0"], "no trainers"),
         (["--experiment=ddp_cpu_rpc", "--nserver=0"], "rpc_hook needs --nserver"),
         (["--experiment=ddp_cpu_rpc", "--ntrainer=3", "--nserver=2"], "2 servers cannot share 3 trainers equally"),
         (["--ddp_hook", "power_hook"], "--ddp-hook power_hook: it is not one of allreduce_hook,"),
         (["--iteration-step", "no.module:step"], "there is no module 'no.module'"),
         (["--model", "Large"], "--model Large: there is no such configuration; there are DummyModel,"),
         (["--model_config_path", "/nowhere.json"], "configurations of /nowhere.json: No such file"),
         (["--config-dir", "/nowhere"], "it is not a folder"),
         (["--data-config-path", "BROKEN"], "configurations of "),
         (["--data-config-path", "UNKNOWN"], "configuration DummyData: unknown keys samples; DummyData knows max_val,"),
         (["--backend", "mpi"], "backends are ddp, gloo, nccl and multi"),
         (["--backend", "cpu:gloo,cuda:mpi"], "backends are ddp, gloo, nccl and multi"),
         (["--backend", "cpu:gloo,cpu:ddp"], "it is not DEVICE:BACKEND for cpu, cuda or both"),
         (["--backend", "gloo,cuda:nccl"], "it is not DEVICE:BACKEND"),
         (["--backend", "cpu:nccl,cuda:nccl"], "NCCL has no CPU tensors"),
         (["--backend", "cuda:nccl"], "has none for cpu, where the trainers' gradients are"),
         (["--experiment=ddp_gloo_nccl_allreduce", "--backend=cpu:gloo"], "has none for cuda"),
         *[(["--backend", given], "NCCL needs a CUDA device, and this machine has none") for given in ("cpu:gloo,cuda:nccl", "multi") if NO_CUDA],
         (["--csv", "/nowhere/t.csv"], "its folder does not exist"),
         (["--plot", "t.pdf"], "--plot t.pdf: give a name that ends in .svg or .png"),
         (["--plot", "t.svg"], "--plot t.svg: matplotlib is not installed; pip install matplotlib"),
         (["--epochs=0"], "1 at least")]


def test_wrong_command_lines_are_one_line_each(tmp_path):
    """Before anything starts, and before torch is imported; so they are checked in one process."""
    (tmp_path / "broken.json").write_text('{"DummyData": ')
    (tmp_path / "unknown.json").write_text('{"DummyData": {"samples": 3}}')
    files = {"BROKEN": str(tmp_path / "broken.json"), "UNKNOWN": str(tmp_path / "unknown.json")}
    program = ("import json, sys\nfrom libddp.training.benchmark.__main__ import main\n"
               "sys.modules['matplotlib'] = None  # as if it were not installed\nfor words in json.loads(sys.argv[1]):\n    sys.argv[1:] = words\n    print(main(), file=sys.stderr)\n"
               "assert 'torch' not in sys.modules\n")
    words = [[files.get(word, word) for word in arguments] for arguments, _ in WRONG]
    done = run(sys.executable, "-c", program, json.dumps(words), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    for arguments, expected in WRONG:
        end = lines.index("2")
        said, lines = lines[:end], lines[end + 1:]
        assert any(expected in line for line in said) and all(line.startswith("libddp.training.benchmark: ") for line in said), (arguments, said)
    assert not lines
