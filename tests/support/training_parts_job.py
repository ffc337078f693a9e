"""What parts of libddp.training do in one process.

    training_parts_job.py CHECK...     runs these checks, in this order

Prints "CHECKED <name>" after each check that held; what does not hold is an exception.
"""

import itertools
import json
import math
import sys
import threading
import time
import warnings
from pathlib import Path

import libddp
import torch
from libddp import training
from libddp.training import metrics as metrics_module
from libddp.training.benchmark.workload import DummyData, DummyModel
from libddp.training.parameter_server import added, divided

from job_checks import CHECKS, check, refused, say_checked

# ---- metrics, in one process -------------------------------------------------------------------------------------------


@check
def metrics_api():
    logger = training.MetricsLogger(0)
    logger.record_start("forward_metric", "0,1", "forward_pass")
    refused(RuntimeError, lambda: logger.record_start("forward_metric", "0,1", "again"), "metric_type=forward_metric with key=0,1 already exists")
    logger.record_end("forward_metric", "0,1")
    refused(RuntimeError, lambda: logger.record_end("forward_metric", "0,1"), "end for metric_type=forward_metric with key=0,1 already exists")
    refused(RuntimeError, lambda: logger.record_end("forward_metric", ("other", 7)), "with key=('other', 7) not found")
    refused(RuntimeError, lambda: logger.record_start("forward_metric", "0,1", "again"), "already exists")
    refused(RuntimeError, lambda: logger.record_start("x", 1, "on a GPU", cuda=True), "device is required for cuda")

    @logger.measure("recursive")
    def factorial(number, *, step=1):
        return 1 if number == 0 else number * factorial(number - step, step=step)

    assert factorial(3) == 6 and factorial.__name__ == "factorial"
    with logger.measure("slow", "sleep_metric"):
        time.sleep(0.05)
    refused(KeyError, lambda: failing(logger))
    logger.record_start("left", 1.5, "running")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = logger.get_processed_metrics()
    assert "1 metrics have not ended and are left out; the first: metric_type=left with key=1.5, 'running'" in str(said[0].message)
    assert {name: len(values) for name, values in found.items()} == {
        "forward_metric,forward_pass": 1, "method_metric,recursive": 4, "sleep_metric,slow": 1, "method_metric,raises": 1}
    assert 0.05 <= found["sleep_metric,slow"][0] < 30, "seconds"
    assert logger.get_metrics()["left"][1.5].seconds is None and logger.get_metrics()["forward_metric"]["0,1"].seconds >= 0
    events = json.loads(logger.trace_json())["traceEvents"]
    slow = next(each for each in events if each["name"] == "sleep_metric,slow")
    assert slow["ph"] == "X" and slow["dur"] >= 5e4 and abs(slow["ts"] / 1e6 - time.time()) < 60
    assert math.isnan(logger.statistics()["sleep_metric,slow"].variance), "one sample"
    logger.clear_metrics()
    assert logger.get_processed_metrics() == {}


def failing(logger):
    with logger.measure("raises"):
        raise KeyError


class Named:
    """A class whose methods are measured."""

    def __init__(self):
        self.metrics = training.MetricsLogger(0)

    @training.TrainerBase.methodmetric("named", "own")
    def scaled(self, value, *, factor=1):
        if factor == 0:
            raise ZeroDivisionError
        return value * factor


@check
def measured_methods():
    """Keyword arguments arrive, and a metric ends where the method raises, also in several threads at once."""
    named = Named()
    assert named.scaled(3, factor=4) == 12
    refused(ZeroDivisionError, lambda: named.scaled(1, factor=0))
    threads = [threading.Thread(target=lambda: [named.scaled(1) for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(named.metrics.get_processed_metrics()["own,named"]) == 1202


@check
def jumping_clocks():
    """The wall clock, which administrators and NTP set, is in no metric: neither in its time nor in its key, nor in a trace."""
    logger, clock = training.MetricsLogger(0), (time.time, time.time_ns)
    hours = itertools.cycle((0, -5, 7))
    time.time = lambda: clock[0]() + 3600 * next(hours)
    time.time_ns = lambda: clock[1]() + 3600 * 10**9 * next(hours)
    try:
        named = Named()
        for number in range(6):
            with logger.measure("part", "step"):
                named.scaled(number)
        trace = json.loads(logger.trace_json())["traceEvents"]
    finally:
        time.time, time.time_ns = clock
    assert all(0 <= seconds < 60 for seconds in logger.get_processed_metrics()["step,part"]), logger.get_processed_metrics()
    assert len(named.metrics.get_processed_metrics()["own,named"]) == 6
    begins = [each["ts"] for each in trace if each["ph"] == "X"]
    assert len(begins) == 6 and begins == sorted(begins) and begins[-1] - begins[0] < 60e6, begins


@check
def bounded_metrics():
    """A million records keep the exact moments, a sample, and no more memory than 10,000; so do unfinished ones."""
    count, ticks = 1_000_000, itertools.count(0, 1000)
    clock, metrics_module._now = metrics_module._now, lambda: next(ticks) ** 2
    try:
        logger = training.MetricsLogger(0)
        for number in range(count):
            logger.record_start("many", number, "all")
            logger.record_end("many", number)
    finally:
        metrics_module._now = clock
    took = torch.arange(count, dtype=torch.float64).mul_(4).add_(1).div_(1e3)  # (2 n + 1)^2 - (2 n)^2
    found = logger.statistics()["many,all"]
    assert (found.count, found.min, found.max) == (count, took[0], took[-1])
    assert math.isclose(found.mean, took.mean(), rel_tol=1e-9) and math.isclose(found.stdev, took.std(), rel_tol=1e-9)
    assert abs(found.p50 / took[count // 2] - 1) < 0.05 and abs(found.p99 / took[count * 99 // 100] - 1) < 0.02, found
    assert len(logger.get_processed_metrics()["many,all"]) == 10_000
    assert sum(map(len, logger.get_metrics().values())) <= 20_000
    for number in range(30_000):
        logger.record_start("open", number, "never ends")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        logger.get_processed_metrics()
    assert "30000 metrics have not ended" in str(said[0].message) and len(logger.get_metrics()["open"]) <= 10_000


class Stream:
    """A double of a CUDA stream that takes 2 ms for what lies between two events."""

    def __init__(self):
        self.position, self.reached = 0, 0


class Event:
    """A double of torch.cuda.Event."""

    made, queried, stream = 0, 0, None

    def __init__(self, enable_timing):
        assert enable_timing
        Event.made += 1

    def record(self, stream):
        stream.position += 1
        self.stream, self.at = stream, stream.position

    def query(self):
        Event.queried += 1
        return self.at <= self.stream.reached

    def synchronize(self):
        self.stream.reached = max(self.stream.reached, self.at)

    def elapsed_time(self, other):
        if self.at > self.stream.reached or other.at > other.stream.reached:
            raise RuntimeError("CUDA error: device not ready")
        return 2.0 * (other.at - self.at)


class Cuda:
    """A double of torch.cuda."""

    Event = Event

    def __init__(self):
        self.stream, self.asked = Stream(), 0

    def handle(self):
        return id(self.stream)

    def current_stream(self):
        self.asked += 1
        return self.stream


@check
def cuda_metrics():
    """On a double: seconds beside the processor's seconds, events used again, nothing waited for before it is asked for, a query for
    dozens of metrics, and none mistaken where two streams take turns and one is behind."""
    cuda = Cuda()
    logger = training.MetricsLogger(0, "cuda:0", _cuda=cuda)

    def measured(first, last, reach=True):
        for number in range(first, last):
            logger.record_start("backward_metric", number, "backward")
            logger.record_end("backward_metric", number)
            if reach:
                cuda.stream.reached = cuda.stream.position

    measured(0, 5, reach=False)
    logger.record_start("host", 0, "on the processor", cuda=False)
    logger.record_end("host", 0)
    assert cuda.stream.reached == 0 and Event.made == 10 and logger.get_metrics()["backward_metric"][0].seconds is None
    assert logger.get_processed_metrics()["backward_metric,backward"] == [0.002] * 5
    Event.queried = 0
    measured(5, 5000)
    assert Event.made <= 2 * 512, "they are used again"
    assert Event.queried <= 5000 // 64 and cuda.asked == 1, (Event.queried, cuda.asked)
    assert logger.get_processed_metrics()["backward_metric,backward"] == [0.002] * 5000
    logger.clear_metrics()
    late, cuda.stream = cuda.stream, Stream()
    fast = cuda.stream
    for number in range(0, 2000, 2):
        cuda.stream = late
        measured(number, number + 1, reach=False)
        cuda.stream = fast
        measured(number + 1, number + 2)
    assert logger.get_metrics()["backward_metric"][1].seconds is None, "it is behind one that the device has not reached"
    cuda.stream = late
    logger.record_start("across", 0, "two streams")
    cuda.stream = fast
    logger.record_end("across", 0)
    fast.reached = fast.position
    assert logger.get_metrics()["across"][0].seconds is None
    assert logger.get_processed_metrics()["backward_metric,backward"] == [0.002] * 2000
    assert late.reached == late.position


@check
def workload():
    """Upstream's configuration; logits, not probabilities; samples with at most a fifth of the words."""
    sizes = json.loads((Path(training.__file__).parent / "benchmark/configurations/model_configurations.json").read_text())
    assert sizes["DummyModelSparse"] == {**sizes["DummyModel"], "sparse": True}
    model = DummyModel(**sizes["DummyModel"])
    assert sum(each.numel() for each in model.parameters()) == 1024 * 1024 + 8 * (1024 * 1024 + 1024)
    words, target = DummyData(1024, 4, 300, 20)[3]
    assert words.shape == (300,) and 0 <= target < 1024 and len(set(words.tolist())) <= 204
    assert (model(words[None]).sum() - 1).abs() > 1e-3 and (model(words[None]) < 0).any(), "cross entropy takes logits"


# ---- servers, in one process ---------------------------------------------------------------------------------------------

SERVERS = training.AverageParameterServer, training.AverageBatchParameterServer


def gradients_of(trainers, dtype=torch.float32, sparse=False):
    made = []
    for trainer in range(trainers):
        torch.manual_seed(trainer)
        values = torch.randn(50, 4) * 10.0 ** trainer
        if sparse:  # with rows that come twice
            made.append(torch.sparse_coo_tensor(torch.randint(0, 20, (1, 50)), values, (20, 4)).to(dtype))
        else:
            made.append(values.to(dtype))
    return made


@check
def averages():
    """They are averages; and the same bits in every order of arrival, by both classes."""
    for dtype, sparse in itertools.product((torch.float32, torch.float64, torch.bfloat16), (False, True)):
        given = gradients_of(3, dtype, sparse)
        expected = sum(each.double().to_dense() for each in given) / 3
        bits = set()
        for kind, order in itertools.product(SERVERS, itertools.permutations(range(3))):
            server, answers = kind(0, 3), {}
            for trainer in order:
                assert not answers, "answered before the last gradient"
                server.contribute(trainer, 1, 0, given[trainer].clone(), lambda averaged, trainer=trainer: answers.update({trainer: averaged}))
            assert sorted(answers) == [0, 1, 2] and len({id(each) for each in answers.values()}) == 1
            averaged = answers[0].to_dense()
            assert averaged.dtype is dtype and answers[0].is_sparse == sparse
            assert torch.allclose(averaged.double(), expected, rtol=1e-2 if dtype is torch.bfloat16 else 1e-5, atol=1e-4), (kind, dtype, sparse)
            bits.add(averaged.double().numpy().tobytes())
            assert {name: len(values) for name, values in server.get_metrics().items()} == {
                "parameter_server_straggler_metric,param_index_straggler": 1, "parameter_server_batch_metric,param_index_batch": 1,
                "method_metric,average computation": 1}
        assert len(bits) == 1, (dtype, sparse)
    assert torch.equal(divided(added(added(None, torch.ones(2)), torch.ones(2)), 2), torch.ones(2))


@check
def wrong_gradients():
    """Each is named to all that wait, stays the answer to what follows, and is over after a reset."""
    one = torch.ones(3)
    faults = [("began with batch", libddp.InvalidArgument, [(0, 2, 0, one), (1, 2, 0, one), (0, 3, 0, one), (0, 2, 1, one)], (10,), "batch 3 has begun"),
              ("behind", libddp.Mismatch, [(0, 2, 0, one), (1, 2, 0, one), (0, 3, 0, one), (1, 2, 1, one)], (10, 11), "trainers 0 have begun batch 3"),
              ("twice", libddp.InvalidArgument, [(0, 1, 0, one), (0, 1, 0, one)], (10,), "sent it before"),
              ("shape", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, torch.ones(4))], (11,), "float32[4], another trainer's is float32[3]"),
              ("type", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one.double())], (11,), "float64[3]"),
              ("layout", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one.to_sparse())], (11,), "sparse float32[3]"),
              ("buckets", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one), (0, 1, 1, one), (1, 2, 0, one)], (11,), "bucket 1 of batch 1 lacks"),
              ("trainer", libddp.InvalidArgument, [(7, 1, 0, one)], (), "there are 2 trainers"),
              ("finite", libddp.InvalidArgument, [(0, 1, 0, one), (1, 1, 0, one * torch.tensor([1, math.nan, math.inf]))], (11,),
               "2 of 3 values are not finite"),
              ("sparse finite", libddp.InvalidArgument, [(0, 1, 0, (one * math.nan).to_sparse())], (10,), "3 of 3 values are not finite")]
    for kind in SERVERS:
        for name, error, sent, ranks, words in faults:
            server, answers = kind(5, 2, trainer_ranks=[10, 11], check_finite=True), []
            for trainer, batch, bucket, gradient in sent:
                server.contribute(trainer, batch, bucket, gradient.clone(), answers.append)
            assert len(answers) == len(sent), (name, "each is answered")
            failed = [each for each in answers if isinstance(each, error)]
            assert failed and failed[-1].ranks == ranks and words in str(failed[-1]), (name, answers)
            server.contribute(0, 9, 0, one.clone(), answers.append)
            assert answers[-1] is failed[-1], name
            server.reset()
            for trainer in (1, 0):
                server.contribute(trainer, 1, 0, torch.full((3,), float(trainer)), answers.append)
            assert torch.equal(answers[-1], torch.full((3,), 0.5)), name
        server, answers = kind(5, 3, timeout=0.2, trainer_ranks=[10, 11, 12]), []
        server.contribute(1, 1, 4, one.clone(), answers.append)
        limit = time.monotonic() + 60
        while not answers and time.monotonic() < limit:
            time.sleep(0.01)
        assert isinstance(answers[0], libddp.Timeout) and answers[0].ranks == (10, 12), answers
        assert "bucket 4 of batch 1 on the server of rank 5" in str(answers[0]) and "within 0.2 s" in str(answers[0])
        nan, answers = torch.tensor([math.nan, 1.0]), []
        server.reset()
        for trainer in range(3):
            server.contribute(trainer, 1, 0, nan.clone(), answers.append)
        assert answers[0][0].isnan() and answers[0][1] == 1


@check
def no_memory():
    """A server whose memory is gone fails for all trainers that wait, and is usable after a reset."""
    for kind in SERVERS:
        class Full(kind):
            full = True

            def process_gradient(self, gradient, param_loc, trainer):
                if self.full and trainer == 1:
                    torch.empty(1 << 60)  # raises as PyTorch does
                super().process_gradient(gradient, param_loc, trainer)

        server, answers = Full(5, 2), []
        for trainer in (0, 1):
            server.contribute(trainer, 1, 0, torch.ones(3), answers.append)
        assert len(answers) == 2 and all(isinstance(each, libddp.SystemFailure) and each.ranks == (5,) for each in answers), answers
        assert "averaging bucket 0 of batch 1 of trainer 1 on the server of rank 5" in str(answers[0])
        server.reset()
        server.full = False
        for trainer in (0, 1):
            server.contribute(trainer, 1, 0, torch.ones(3), answers.append)
        assert torch.equal(answers[-1], torch.ones(3))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        CHECKS[name]()
        say_checked(name)
