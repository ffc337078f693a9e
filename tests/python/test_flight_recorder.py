"""Files of libddp's flight recorder in PyTorch's analyser, converted as docs/reference/ddp-info.md says: both name the same rank.

Where the programs are: DDP_BIN_DIR (default: build/dev/bin).
"""

import gc
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace",
                               reason="this torch has no flight recorder's analyser")

ROOT = Path(__file__).resolve().parents[2]
BINARIES = Path(os.environ.get("DDP_BIN_DIR", ROOT / "build" / "dev" / "bin"))
for program in ("ddprun", "rank_program", "ddp-info"):
    if not (BINARIES / program).exists():
        pytest.skip(f"{BINARIES / program} is not built; DDP_BIN_DIR says where it is", allow_module_level=True)
PATIENCE = 120
CULPRIT = 2


def converter():
    page = (ROOT / "docs" / "reference" / "ddp-info.md").read_text()
    return re.search(r"<!-- begin pickle -->\n```python\n(.*?)```", page, re.DOTALL).group(1)


@pytest.mark.parametrize(("difference", "ours", "theirs"), [
    ("size", "other_size", "SIZE_OR_SYNTAX_MISMATCH"),
    ("kind", "other_operation", "COLLECTIVE_TYPE_MISMATCH"),
    ("dtype", "other_dtype", "COLLECTIVE_DTYPE_MISMATCH"),
])
def test_analysers_agree(tmp_path, caplog, difference, ours, theirs):
    dumps, pickles = tmp_path / "dumps", tmp_path / "pickles"
    dumps.mkdir()
    pickles.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PMI", "DDP_"))}
    job = subprocess.run([BINARIES / "ddprun", "--nproc-per-node=4", "--bind=none", BINARIES / "rank_program", "differ",
                          difference, str(CULPRIT), "60"],
                         env=environment | {"DDP_FLIGHT_DIR": str(dumps)}, capture_output=True, text=True,
                         timeout=PATIENCE, check=False)
    assert job.returncode != 0
    report = subprocess.run([BINARIES / "ddp-info", "flight", dumps, "--json"], capture_output=True, text=True,
                            timeout=PATIENCE, check=True)
    first = json.loads(report.stdout)["first"]
    assert (first["kind"], first["ranks"]) == (ours, [CULPRIT]), report.stdout

    subprocess.run([sys.executable, "-c", converter(), dumps, pickles], timeout=PATIENCE, check=True)
    caplog.set_level("INFO")
    fr_trace.main([str(pickles), "-p", "rank_"])
    gc.enable()  # it has switched that off
    assert f"Culprit rank {CULPRIT}; Error type: {theirs}" in caplog.text
    assert re.findall(r"Culprit rank (\d+)", caplog.text) == [str(CULPRIT)], caplog.text
