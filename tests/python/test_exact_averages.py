"""Exact averages: the same bits for the same micro-batches on 1, 2 and 4 ranks, by DDP's hook, hvd.ExactAverage and parameter servers, in
any order, and beside ranks that have run out of inputs. tests/support/exact_job.py."""

import re

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from jobs import SUPPORT, adapter, ddprun, python  # noqa: E402, F401

JOB = SUPPORT / "exact_job.py"


def digests(ranks, *methods):
    done = ddprun(ranks, JOB, *methods)
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(re.findall(r"DIGEST (\S+) (\w+)", done.stdout))
    assert list(found) == list(methods)
    return {(name, ranks): value for name, value in found.items()}


def test_bits_depend_on_the_micro_batches_alone(adapter):  # noqa: F811
    both = ["ddp", "hvd", "ddp-reversed", "hvd-reversed"]
    uneven = ["ddp-uneven", "hvd-uneven"]
    found = {**digests(1, *both, *uneven), **digests(2, *both, "served", "kept"),
             **digests(3, "served", "served-reversed", "kept", "kept-reversed"), **digests(4, *both, *uneven),
             **digests(5, "served", "served-reversed", "served-uneven", "kept", "kept-reversed", "kept-uneven")}
    even = {value for (name, _), value in found.items() if "uneven" not in name}
    fewer = {value for (name, _), value in found.items() if "uneven" in name}
    assert len(even) == 1 and len(fewer) == 1 and even != fewer, found


PROPERTIES = """
import fractions, random, struct, torch
from libddp.training import exact_sums
random.seed(5)
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    for terms in (1, 2, 3, 7, 1000):
        values = [torch.tensor([random.choice((-1, 1)) * random.random() * 2.0 ** random.randint(-70, 14) for _ in range(40)], dtype=torch.float64)
                  .to(dtype) for _ in range(terms)]
        values[0][0] = values[-1][0] = 0.0
        forth, back = (exact_sums.zeros(40, values[0].device) for _ in range(2))
        for each in values:
            exact_sums.add_term(forth, each)
        for each in reversed(values):
            exact_sums.add_term(back, each)
        assert torch.equal(forth, back)
        got = exact_sums.mean_of(forth, 1, torch.float64)
        unit = fractions.Fraction(1, 2**64)
        def rounded(value):  # to a multiple of 2^-64, halves away from zero
            exact = abs(fractions.Fraction(value)) / unit
            return (1 if value >= 0 else -1) * int(exact + fractions.Fraction(1, 2))
        for place in range(40):
            total = sum(rounded(float(each[place])) for each in values)
            assert got[place].item() == float(total * unit), (dtype, terms, place, got[place].item(), float(total * unit))
        assert torch.equal(exact_sums.mean_of(forth, terms, dtype), (got / terms).to(torch.float32 if dtype.itemsize == 2 else dtype).to(dtype))
# ties and carries at each width, of both signs
for high in [0, 1, 2**17, 2**18 - 1, 2**18, 2**30 + 1, 2**52 + 1, 2**53 + 1, 2**61 + 12345]:
    for low in [0, 1, 2**43, 2**43 + 1, 2**44 - 1]:
        for sign in (1, -1):
            words = torch.tensor([sign * high, sign * low, 0])
            exact = fractions.Fraction(sign * (high * 2**44 + low), 2**64)
            assert exact_sums.mean_of(words, 1, torch.float64).item() == float(exact), (high, low, sign)
for bad in (float("nan"), float("inf"), 2.0**23, -(2.0**23)):
    words = exact_sums.zeros(2, torch.device("cpu"))
    exact_sums.add_term(words, torch.tensor([1.0, bad]))
    assert exact_sums.mean_of(words, 1, torch.float32).isnan().all()
print("HELD")
"""


def test_sums_are_exact_and_rounded_once():
    """Against fractions."""
    done = python("-c", PROPERTIES)
    assert done.returncode == 0 and "HELD" in done.stdout, done.stderr


REFUSED = """
import torch, libddp
from libddp import training, torch as ours
def answer_of(server, gradient):
    got = []
    server.contribute(0, 1, 0, gradient, got.append)
    return got[0]
for exact, gradient, words in ((True, torch.eye(2).to_sparse(), "sparse float32[2, 2] has no exact average"),
                               (True, torch.ones(2, dtype=torch.complex64), "has no exact average"),
                               (False, torch.ones(2, dtype=torch.int64), "int64[2] has no average; exact averages")):
    error = answer_of(training.AverageParameterServer(7, 1, exact=exact, trainer_ranks=[3]), gradient)
    assert isinstance(error, libddp.InvalidArgument) and words in str(error).replace(" [ranks 3]", "") and error.ranks == (3,), error
for kind in (training.AverageParameterServer, training.AverageBatchParameterServer):
    assert answer_of(kind(7, 1, exact=True), torch.tensor([1.0, float("nan")])).isnan().all()
    assert torch.equal(answer_of(kind(7, 1, exact=True), torch.tensor([[0.1], [0.2]])), torch.tensor([[0.1], [0.2]]))
try:
    ours.exact_average_hook(None, None)
except libddp.InvalidArgument as error:
    assert "wrap it by that" in error.hint
else:
    raise AssertionError
print("HELD")
"""


def test_what_has_no_exact_average_is_refused():
    done = python("-c", REFUSED)
    assert done.returncode == 0 and "HELD" in done.stdout, done.stderr
