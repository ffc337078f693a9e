"""python -m libddp.training.advise on tests/support/advise_job.py: parts of steps, trials under other settings, and what they leave."""

import json
import re
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
from jobs import SUPPORT, adapter, ddprun, run  # noqa: E402, F401

JOB = SUPPORT / "advise_job.py"
FIRST, MEASURED, TRIAL = 5, 8, 24  # batches: left out, measured, of a trial
BEFORE = FIRST + MEASURED
SETTINGS = {"ddp": ["buckets of 5 MiB", "gradient_as_bucket_view", "fp16 gradients in the exchange", "bf16 gradients in the exchange",
                    "PowerSGD, rank 1", "accumulation of 2 batches", "accumulation of 4 batches", "without exchange: the limit"],
            "hvd": ["buckets of 5 MiB", "fp16 gradients in the exchange", "bf16 gradients in the exchange", "accumulation of 2 batches",
                    "accumulation of 4 batches", "without exchange: the limit"]}


def advise(*arguments, ranks=2):
    return run(sys.executable, "-m", "libddp.training.advise", "-n", ranks, "--steps", MEASURED, *arguments)


def batches(done):
    return [json.loads(line) for line in re.findall(r"BATCH (\{.*\})", done.stdout)]


def table(text, header):
    """Rows of cells after a line that begins with header."""
    lines = text.split(header)[1].splitlines()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in lines[1:] if line.startswith("|")]
    end = next((place for place, line in enumerate(lines[1:]) if not line.startswith(("|", "+"))), len(lines))
    return rows[:sum(line.startswith("|") for line in lines[1:end + 1])]


@pytest.mark.parametrize("kind", ["ddp", "hvd"])
def test_trials_run_with_other_settings_and_leave_no_trace(adapter, kind):  # noqa: F811
    """Rank 1 loads data slowly. After each trial, weights, buffers, optimizer and learning rate are those from before all; in the end they
    are those of a run without the trials' batches."""
    trials = len(SETTINGS[kind]) + 2
    total = BEFORE + trials * TRIAL + 4
    done = advise(JOB, kind, total, BEFORE)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = batches(done)
    assert len(steps) == total
    ends = [BEFORE + TRIAL * number - 1 for number in range(trials + 1)]
    assert len({steps[end]["state"] for end in ends}) == 1, "a trial's steps have left a trace"
    plain = ddprun(2, JOB, kind, total, 0, f"{BEFORE}:{BEFORE + trials * TRIAL}")
    assert plain.returncode == 0, plain.stderr
    expected = batches(plain)
    assert [each["state"] for each in expected] == [each["state"] for each in steps[:BEFORE] + steps[-4:]]
    assert [each["rate"] for each in expected[BEFORE:]] == [each["rate"] for each in steps[-4:]]

    assert [row[0] for row in table(done.stdout, "trials, 20 batches each")][1:] == ["current settings", *SETTINGS[kind]]
    tried = [steps[end + 1:end + 1 + TRIAL] for end in ends[:-1]]
    used = [{name: each[-1][name] for name in ("cap", "hook")} for each in tried]
    assert used[0] == used[-1] and used[1]["cap"] == 5 << 20 != used[0]["cap"], used
    for word in ("fp16", "bf16", "powerSGD")[:3 if kind == "ddp" else 2]:
        other = {"fp16": "float16", "bf16": "bfloat16"}.get(word, word)
        assert sum(word in each["hook"] or other in each["hook"].split() for each in used) == 1, used
    if kind == "ddp":
        assert [all(step["view"] for step in each) for each in tried].count(True) == 1
        assert not any(step["exchanges"] for step in tried[-2])
    for passes, each in ((2, tried[-4]), (4, tried[-3])):
        assert each[-2]["steps"] - each[0]["steps"] == TRIAL // passes - 1, "the optimizer steps after as many batches"
        if kind == "ddp":
            assert [step["exchanges"] for step in each] == [(place + 1) % passes == 0 for place in range(TRIAL)]
        else:
            assert {step["passes"] for step in each} == {passes}


def test_parts_of_steps_name_the_slowest_rank_and_what_it_does(adapter):  # noqa: F811
    done = advise("--stop", JOB, "ddp", 1000, BEFORE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(batches(done)) < 1000, "--stop ends the program"
    header, *rows = table(done.stdout, f"parts of a step, mean of {MEASURED} steps")
    assert header == ["rank", "step", "data loading", "forward", "backward", "exposed communication", "waiting for the slowest", "optimizer",
                      "other"] and len(rows) == 2, done.stdout
    found = [dict(zip(header, map(float, row))) for row in rows]
    for each in found:
        assert abs(each["step"] - sum(value for name, value in each.items() if name not in ("rank", "step"))) < 0.1
    assert found[1]["data loading"] > 200 > found[0]["data loading"], done.stdout
    assert found[0]["waiting for the slowest"] + found[0]["exposed communication"] > 100, "rank 0 waits in the exchange"
    assert re.search(r"^- rank 1 is the slowest: .*Its part 'data loading' takes [\d.]+ ms, the other ranks' [\d.]+ ms$", done.stdout, re.M), done.stdout


@pytest.mark.parametrize("kind, count, words", [
    ("ddp", BEFORE + TRIAL + 10, "training has ended 9 trials early"), ("ddp", 10, "no trials: training has ended before"),
    ("ddp", 3, "training has ended within its first 5 steps"), ("join", BEFORE + 30, "no trials: join() gives ranks different numbers of steps"),
    ("pair", BEFORE + 2, "no trials: the program trains several wrapped models or optimizers"), ("hvd", 10, "no trials: training has ended before")])
def test_what_cannot_be_tried_is_reported(adapter, kind, count, words):  # noqa: F811
    done = advise(JOB, kind, count)
    assert done.returncode == 0 and words in done.stdout, done.stdout + done.stderr
    assert len(batches(done)) == count


def test_one_rank_has_nothing_to_try(adapter):  # noqa: F811
    done = advise(JOB, "ddp", BEFORE + 2, ranks=1)
    assert done.returncode == 0 and "no trials: there is one rank, which exchanges nothing" in done.stdout, done.stdout + done.stderr


def test_wrong_command_lines(adapter, tmp_path):  # noqa: F811
    done = advise(JOB, "plain", 2)
    assert done.returncode == 1 and "made neither a libddp.torch.DistributedDataParallel nor an hvd.DistributedOptimizer" in done.stderr
    for arguments, words in ((["--steps", "0", JOB], "'0' is not a number of 1 or more"), ([tmp_path / "a b.py"], "a b.py: there is no such file"),
                             ([], "the following arguments are required: program")):
        done = run(sys.executable, "-m", "libddp.training.advise", *arguments, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert done.returncode == 2 and words in done.stderr, done.stderr
