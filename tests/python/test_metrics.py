"""What ddprun shows Prometheus of real ranks, read by the parser of Prometheus' Python client, and its event log's progress.

Where the programs are: DDP_BIN_DIR (default: build/dev/bin).
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
SITE = ROOT / "build" / "python" / "site"  # by scripts/python-package
PATIENCE = 120  # seconds, for what must happen
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"  # by scripts/unpack-package
PROMTOOL, PROMETHEUS = (shutil.which(name) or shutil.which(UNPACKED / name) for name in ("promtool", "prometheus"))


def scrape(url):
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        text = answer.read().decode()
    return {family.name: family for family in parser.text_string_to_metric_families(text)}


def by_rank(families, name):
    return {sample.labels["rank"]: sample.value for sample in families[name].samples}


class Job:
    def __init__(self, folder, *options, program, ranks=2):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DDP_METRICS"))}
        environment["PYTHONPATH"] = str(SITE)
        self.errors = folder / "errors"
        with open(self.errors, "wb") as errors:
            self.process = subprocess.Popen(
                [BINARIES / "ddprun", f"--nproc-per-node={ranks}", "--metrics-port=auto", *options, *program],
                env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            )

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(PATIENCE)

    def url(self):
        for line in self.errors.read_text().splitlines():
            if "metrics at http://" in line:
                return line.split()[-1]
        return None

    def until(self, what):
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            assert self.process.poll() is None, self.errors.read_text()
            if self.url():
                families = scrape(self.url())
                if what(families):
                    return families
            time.sleep(0.2)
        raise AssertionError("it did not happen: " + self.errors.read_text())


def test_steps_operations_and_resources_of_real_ranks(tmp_path):
    events = tmp_path / "events"
    program = [BINARIES / "rank_program", "steps", "600"]
    with Job(tmp_path, f"--event-log={events}", "--event-log-interval=1", "--rdzv-id=run7", program=program) as job:
        job.until(lambda families: "ddp_steps" in families and len(by_rank(families, "ddp_steps")) == 2
                  and min(by_rank(families, "ddp_steps").values()) >= 20)
        time.sleep(1.1)  # an answer is good for a second
        families = scrape(job.url())
        for family in families.values():
            assert family.documentation and family.type in ("counter", "gauge"), family
            for sample in family.samples:
                assert {"job", "node"} <= sample.labels.keys(), sample
        assert families["ddp_job_info"].samples[0].labels["job"] == "run7"
        assert {sample.labels["state"]: sample.value for sample in families["ddp_ranks"].samples}["running"] == 2
        # the last rank is late by 20 ms in each step: the other one waits for it
        assert set(by_rank(families, "ddp_straggler_rank").values()) <= {0, 1}
        steps, seconds = by_rank(families, "ddp_steps"), by_rank(families, "ddp_step_seconds")
        for rank in "01":
            assert seconds[rank] / steps[rank] >= 0.025
            assert by_rank(families, "ddp_operations")[rank] > steps[rank]
            # 4346 float32 gradients a step, and some bytes of ranks' reports
            assert by_rank(families, "ddp_operation_bytes")[rank] >= steps[rank] * 4 * 4346
            assert 0 <= by_rank(families, "ddp_hidden_communication_ratio")[rank] <= 1
            assert by_rank(families, "ddp_rank_cpu_seconds")[rank] > 0
            assert by_rank(families, "ddp_rank_resident_bytes")[rank] > 1e6
            assert by_rank(families, "ddp_rank_phase")[rank] == 2
        later = job.until(lambda now: min(by_rank(now, "ddp_steps").values()) > max(steps.values()))
        assert by_rank(later, "ddp_operations")["0"] > by_rank(families, "ddp_operations")["0"]

        def progress():
            lines = [json.loads(line) for line in events.read_text().splitlines()]
            return [line for line in lines if line["event"] == "progress"]

        job.until(lambda families: len(progress()) >= 2)
        line = progress()[-1]
        assert line["ranks"] == 2 and line["attempt"] == 0 and line["steps"]["least"] > 0
        assert line["step_seconds"]["mean"] >= 0.025
        assert line["straggler"]["rank"] in (0, 1)
        assert 0 <= line["hidden_communication"] <= 1


def test_restarts_exits_and_stops_of_any_program(tmp_path):
    # of '$$', ddprun makes '$'
    script = 'test "$TORCHELASTIC_RESTART_COUNT" != 0 || exit 7; env > "$0.$RANK"; kill -STOP $$$$; exec sleep 600'
    with Job(tmp_path, "--max-restarts=2", "--shutdown-timeout=1", program=["--no-python", "bash", "-c", script, tmp_path / "environment"]) as job:
        families = job.until(
            lambda now: {sample.labels["state"]: sample.value for sample in now["ddp_ranks"].samples}["stopped"] == 2)
        assert families["ddp_attempts"].samples[0].value == 2
        assert families["ddp_restarts"].samples[0].value == 1
        assert families["ddp_restarts_allowed"].samples[0].value == 2
        exits = {(sample.labels["code"], sample.labels["signal"]): sample.value for sample in families["ddp_rank_exits"].samples}
        assert exits[("7", "")] >= 1 and sum(exits.values()) == 2
        assert families["ddp_rank_running"].samples[0].value == 1
        assert "ddp_steps" not in families
        for rank in range(2):
            assert "DDP_METRICS" not in (tmp_path / f"environment.{rank}").read_text()


PARTS = """
import os, sys, time
import libddp
from libddp.training import MetricsLogger
rank = int(os.environ["RANK"])
metrics = MetricsLogger(rank)
for number in range(4 + rank):
    with metrics.measure('load "x"\\\\', "data\\nmetric"):
        time.sleep(0.01)
page = libddp.PrometheusWriter()
page.write(metrics.statistics())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
if rank == 0:
    with metrics.measure("late", "method_metric"):
        pass
    page.write(metrics.statistics())
else:  # another program, whose memory is not what it should be
    page._memory = lambda content, make=page._memory: make(b'{"series": [[1, 2')
    page.write({})
time.sleep(600)
"""


def training(families):
    """(rank, name, quantile or the line's end): value."""
    return {(sample.labels["rank"], sample.labels["name"], sample.labels.get("quantile") or sample.name.rpartition("_")[2]): sample.value
            for sample in families["ddp_training_seconds"].samples}


@pytest.mark.skipif(not (SITE / "libddp").is_dir(), reason="the package is not built: scripts/python-package")
def test_a_program_s_own_times_are_on_the_page_and_what_is_malformed_is_counted(tmp_path):
    """CSV and TensorBoard aside, --metrics-port takes MetricsLogger's statistics: a summary of each rank's parts."""
    with Job(tmp_path, program=["--no-python", sys.executable, "-c", PARTS, tmp_path / "go"]) as job:
        families = job.until(lambda now: "ddp_training_seconds" in now and {rank for rank, *_ in training(now)} == {"0", "1"})
        family, values = families["ddp_training_seconds"], training(families)
        assert family.type == "summary" and {sample.labels["type"] for sample in family.samples} == {"data?metric"}
        name = 'load "x"\\'
        for rank, count in (("0", 4), ("1", 5)):
            assert values[rank, name, "count"] == count
            assert values[rank, name, "sum"] >= count * 0.01
            assert 0.01 <= values[rank, name, "0.5"] <= values[rank, name, "0.95"] <= values[rank, name, "0.99"] <= values[rank, name, "sum"]
        assert by_rank(families, "ddp_training_refused") == {"0": 0, "1": 0}
        if PROMTOOL:
            page = urllib.request.urlopen(job.url(), timeout=PATIENCE).read()
            check = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE)
            assert check.returncode == 0 and not check.stdout + check.stderr, check
        (tmp_path / "go").touch()
        later = job.until(lambda now: ("0", "late", "count") in training(now) and by_rank(now, "ddp_training_refused")["1"] == 1)
        assert {rank for rank, *_ in training(later)} == {"0"} and training(later)["0", name, "count"] == 4
        assert job.process.poll() is None


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, of Debian's package prometheus")
def test_promtool_finds_nothing_wrong(tmp_path):
    with Job(tmp_path, program=[BINARIES / "rank_program", "steps", "600"]) as job:
        job.until(lambda families: "ddp_steps" in families)
        page = urllib.request.urlopen(job.url(), timeout=PATIENCE).read()
    assert b"ddp_steps_total" in page
    check = subprocess.run([PROMTOOL, "check", "metrics"], input=page, capture_output=True, timeout=PATIENCE)
    assert check.returncode == 0 and not check.stdout + check.stderr, check
    # Prometheus reads what the dashboard asks, too: each question as a recording rule.
    questions = set()

    def collect(part):
        if isinstance(part, dict):
            questions.update(value for name, value in part.items() if name == "expr")
        for below in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
            collect(below)

    collect(json.loads((ROOT / "contrib" / "grafana" / "libddp.json").read_text()))
    assert len(questions) > 10
    rules = [{"record": f"question{number}", "expr": text.replace("$__rate_interval", "1m")}
             for number, text in enumerate(sorted(questions))]
    (tmp_path / "rules.json").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    check = subprocess.run([PROMTOOL, "check", "rules", tmp_path / "rules.json"], capture_output=True, text=True, timeout=PATIENCE)
    assert check.returncode == 0 and f"SUCCESS: {len(rules)} rules found" in check.stdout, check


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's package prometheus")
def test_a_prometheus_scrapes_a_job(tmp_path):
    with Job(tmp_path, program=[BINARIES / "rank_program", "steps", "600"]) as job:
        job.until(lambda families: "ddp_steps" in families)
        target = job.url().split("/")[2]
        (tmp_path / "prometheus.yml").write_text(json.dumps({"scrape_configs": [
            {"job_name": "libddp", "scrape_interval": "1s", "honor_labels": True, "static_configs": [{"targets": [target]}]}]}))
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with open(tmp_path / "log", "wb") as log:
            server = subprocess.Popen(
                [PROMETHEUS, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
                 f"--web.listen-address=127.0.0.1:{port}"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            def ask(question):
                with contextlib.suppress(OSError):  # it is starting
                    url = f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(question)}"
                    return json.load(urllib.request.urlopen(url, timeout=PATIENCE))["data"]["result"]
                return []

            end = time.monotonic() + PATIENCE
            while not ask("rate(ddp_steps_total[10s]) > 0"):
                assert server.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.5)
            assert [sample["value"][1] for sample in ask("up")] == ["1"]
            assert {sample["metric"]["rank"] for sample in ask("ddp_steps_total")} == {"0", "1"}
        finally:
            server.terminate()
            server.wait(PATIENCE)


def test_a_port_that_is_taken_is_an_error_before_any_rank_starts(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = subprocess.run(
            [BINARIES / "ddprun", "--no-python", "touch", tmp_path / "started"],
            env={**os.environ, "DDP_METRICS_PORT": str(port)}, capture_output=True, text=True, timeout=PATIENCE,
        )
    assert run.returncode == 1
    assert f"127.0.0.1 port {port}" in run.stderr and "EADDRINUSE" in run.stderr and "auto" in run.stderr
    assert not (tmp_path / "started").exists()


def test_strangers_do_not_hurt_the_job(tmp_path):
    with Job(tmp_path, program=["--no-python", "sleep", "600"]) as job:
        job.until(lambda families: True)
        port = int(job.url().split(":")[-1].split("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for number in range(300):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                with contextlib.suppress(ConnectionError):  # hung up on before it has sent all
                    stranger.sendall([b"GET /etc/passwd HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"A" * 100_000][number % 3])
        assert "ddp_ranks" in scrape(job.url())
        assert job.process.poll() is None
        for stranger in silent:
            stranger.close()
