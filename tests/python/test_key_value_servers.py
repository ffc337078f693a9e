"""Key-value servers of libddp.training, by tests/support/key_value_job.py."""

import re

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import SUPPORT, adapter, checked, checked_by, ddprun, python  # noqa: E402, F401

JOB = SUPPORT / "key_value_job.py"
ALONE = ["key_value_updates", "key_value_staleness", "key_value_faults", "key_value_exact_averages", "key_value_failed_optimizer", "key_value_shards"]
FOUR = ["key_values_train", "key_values_asynchronous", "wrong_key_value_trainers"]


def test_servers_in_one_process():
    done = python(JOB, *ALONE, ALONE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"CHECKED (\w+)", done.stdout) == ALONE


def test_two_servers_and_two_trainers(adapter):  # noqa: F811
    checked(ddprun(4, JOB, *FOUR), FOUR, 4)


@pytest.mark.parametrize("check, survivors", [("killed_key_value_trainer", "023"), ("killed_key_value_server", "012")])
def test_a_dead_rank_is_named_on_the_others(adapter, check, survivors):  # noqa: F811
    checked_by(ddprun(4, JOB, check), check, survivors)
