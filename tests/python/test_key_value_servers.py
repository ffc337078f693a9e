"""Key-value servers of libddp.training, by tests/support/key_value_job.py."""

import re
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from test_libddp_torch import BIN, ROOT, adapter, python, run  # noqa: E402, F401

JOB = ROOT / "tests" / "support" / "key_value_job.py"
ALONE = ["key_value_updates", "key_value_staleness", "key_value_faults", "key_value_exact_averages", "key_value_failed_optimizer", "key_value_shards"]
FOUR = ["key_values_train", "key_values_asynchronous", "wrong_key_value_trainers"]


def test_servers_in_one_process():
    done = python(JOB, *ALONE, ALONE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"CHECKED (\w+)", done.stdout) == ALONE


def test_two_servers_and_two_trainers(adapter):  # noqa: F811
    done = run(BIN / "ddprun", "--bind=none", "-n", 4, sys.executable, JOB, *FOUR)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(re.findall(r"CHECKED (\w+ \d)", done.stdout)) == sorted(f"{name} {rank}" for name in FOUR for rank in range(4))


@pytest.mark.parametrize("check, survivors", [("killed_key_value_trainer", "023"), ("killed_key_value_server", "012")])
def test_a_dead_rank_is_named_on_the_others(adapter, check, survivors):  # noqa: F811
    done = run(BIN / "ddprun", "--bind=none", "-n", 4, sys.executable, JOB, check)
    for rank in survivors:
        assert f"CHECKED {check} {rank}" in done.stdout, done.stdout + done.stderr
