"""libddp.progress() and what writes metrics: of rank 0, for people and files."""

import fcntl
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[2] / "build" / "python" / "site"
if not (SITE / "libddp").is_dir():
    pytest.skip("the package is not built: scripts/python-package", allow_module_level=True)
sys.path.insert(0, str(SITE))

import libddp  # noqa: E402
from libddp.training import MetricsLogger  # noqa: E402


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def lines(items, seconds, **options):
    """What is shown for items of a second each, and what came through."""
    clock, file, seen = Clock(), io.StringIO(), []
    bar = libddp.progress(items, file=file, clock=clock, rank=0, **options)
    for item in bar:
        clock.now += seconds
        seen.append(item)
        bar.set(loss=item / 8)
    return file.getvalue().splitlines(), seen


def test_lines_where_nobody_watches():
    shown, seen = lines(range(100), 1, samples=32, text="epoch 3")
    assert seen == list(range(100))
    assert len(shown) == 4, shown  # each 30 seconds, and the end
    assert shown[0] == "epoch 3:  30% [######..............] 30/100, 00:30<01:10, 32 samples/s, loss 3.625"
    assert shown[-1] == "epoch 3: 100% [####################] 100/100, 01:40, 32 samples/s, loss 12.38"


def test_samples_of_items_without_a_length():
    shown, _ = lines(iter([1, 2, 3]), 0.5, samples=lambda item: item * 10)
    assert shown == ["3 steps, 00:01, 40 samples/s, loss 0.375"]
    assert lines([], 1)[0] == ["0/0, 00:00, 0.00 steps/s"]


def test_one_line_on_a_terminal():
    clock, file = Clock(), Terminal()
    bar = libddp.progress("abcd", file=file, clock=clock, rank=0)
    for _ in bar:
        clock.now += 1
    text = file.getvalue()
    assert text.count("\r") == 5 and text.endswith("\n") and text.count("\n") == 1
    assert len(bar) == 4
    with pytest.raises(TypeError, match="total="):
        len(libddp.progress(iter("ab"), rank=0))


def test_communication_of_a_log():
    ours = {"hidden_communication_share": 0.914, "avg_backward_comm_time": 5, "straggler_rank": 3, "straggler_delay": 2_500_000}
    torchs = {"avg_backward_comm_time": 1000, "avg_backward_compute_comm_overlap_time": 250}
    for log, words in ((ours, "91% of communication hidden, slowest rank 3 (+2.5 ms)"), (torchs, "25% of communication hidden"),
                       (type("Log", (), ours), "91%"), ({}, "loss")):
        assert words in lines([1], 1, log=lambda: log)[0][-1]


def test_others_show_nothing_and_the_rank_must_be_known():
    file = io.StringIO()
    assert list(libddp.progress([1, 2], file=file, rank=1)) == [1, 2] and not file.getvalue()
    with pytest.raises(libddp.Unavailable, match="rank="):
        libddp.progress([1])


def test_csv(tmp_path):
    path = tmp_path / "metrics.csv"
    with libddp.CsvWriter(path, rank=0) as writer:
        writer.write(1, {"loss": 0.1, "accuracy": None})
        writer.write(2, {"accuracy": 1, "loss": 1e-30})
        with pytest.raises(libddp.InvalidArgument, match="loss, accuracy"):
            writer.write(3, {"loss": 1})
    assert path.read_text() == "step,loss,accuracy\n1,0.1,\n2,1e-30,1.0\n"
    path.write_text(path.read_text() + "3,0.")  # cut off
    with libddp.CsvWriter(path, rank=0) as writer:
        writer.write(3, {"loss": 0.5, "accuracy": 0.5})
        writer.close()
        with pytest.raises(libddp.Unavailable, match="closed"):
            writer.write(4, {"loss": 0.5, "accuracy": 0.5})
    assert path.read_text().endswith("3,0.\n3,0.5,0.5\n")
    with libddp.CsvWriter(path, rank=0) as writer, pytest.raises(libddp.InvalidArgument, match="another file"):
        writer.write(1, {"gain": 1})
    with libddp.CsvWriter(tmp_path / "none.csv", rank=1) as writer:
        writer.write(1, {"loss": 1})
    assert not (tmp_path / "none.csv").exists()


def prometheus_memory():
    """What this process offers to those outside, and whether it can still change."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            name = os.readlink(file)
        except FileNotFoundError:  # the folder's own
            continue
        if name.startswith("/memfd:ddp-training-metrics"):
            found.append((json.loads(file.read_bytes())["series"], fcntl.fcntl(int(file.name), fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE != 0))
    return found


def test_prometheus_gets_whole_memory():
    """One piece, complete, however often it is written; ddprun's side is in test_metrics.py."""
    logger = MetricsLogger(0)
    with libddp.PrometheusWriter() as writer:
        for count in range(1, 4):
            with logger.measure("a, b", "kind"):
                pass
            writer.write(logger.statistics())
            [([[kind, name, counted, total, *quantiles]], sealed)] = prometheus_memory()
            assert (kind, name, counted, sealed) == ("kind", "a, b", count, True) and 0 < min(quantiles) <= total
        for wrong, words in (({f"t,{number}": None for number in range(101)}, "there are 101, at most 100"), ({"no_comma": None}, "'no_comma' is not"),
                             ({"t," + "\u00e9" * 65: None}, "1 to 128 bytes")):
            with pytest.raises(libddp.InvalidArgument, match=words):
                writer.write(wrong)
        assert prometheus_memory()[0][0][0][2] == 3, "as before"
    assert prometheus_memory() == []


def test_prometheus_without_memory_is_an_error_of_libddp(monkeypatch):
    """As under a seccomp filter."""
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with libddp.PrometheusWriter() as writer, pytest.raises(libddp.Unavailable, match="memfd_create: Operation not permitted; .*seccomp"):
        writer.write({})


FAKE = "class SummaryWriter:\n    def __init__(self, folder): print(folder)\n" \
       "    def add_scalar(self, *words): print(*words)\n    def close(self): print('closed')\n"
USE = "import libddp\nwith libddp.TensorBoardWriter('runs', rank=0) as w: w.write(7, {'loss': 0.5, 'none': None})"


def test_tensorboard_by_whoever_is_there(tmp_path):
    """With a double: neither package is installed here."""
    def use(path):
        return subprocess.run([sys.executable, "-S", "-c", USE], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PYTHONPATH": f"{SITE}:{path}"})

    missing = use("")
    assert "Unavailable" in missing.stderr and "pip install tensorboard" in missing.stderr, missing.stderr
    (tmp_path / "tensorboardX.py").write_text(FAKE)
    assert use(tmp_path).stdout == "runs\nloss 0.5 7\nclosed\n"
