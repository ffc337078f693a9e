"""A program of libddp.training, for launchers.

    training_job.py CHECK...     runs these checks, in this order, in all ranks; those of several ranks: the last one serves

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception.
"""

import collections
import itertools
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import warnings
from pathlib import Path

import libddp
import torch
import torch.distributed as dist
from libddp import training
from libddp.training import metrics as metrics_module
from libddp.training import rpc_server
from libddp.training.benchmark.workload import DummyData, DummyModel
from libddp.training.parameter_server import added, divided

CHECKS = {}
PATIENCE = 60.0  # of servers that nothing fails
SHORT = 3.0  # of those that a trainer lets wait


def check(function):
    CHECKS[function.__name__] = function
    return function


def refused(kind, call, *words):
    try:
        call()
    except kind as error:
        assert all(each in str(error) for each in words), error
        return error
    raise AssertionError(f"no {kind.__name__} with {words}")


# ---- metrics, in one process -------------------------------------------------------------------------------------------


@check
def metrics_api(rank, size):
    logger = training.MetricsLogger(rank)
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
def measured_methods(rank, size):
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
def bounded_metrics(rank, size):
    """100,000 records keep the exact moments, a sample, and no more memory than 10,000; so do unfinished ones."""
    ticks = itertools.count(0, 1000)
    clock, metrics_module._now = metrics_module._now, lambda: next(ticks) ** 2
    try:
        logger = training.MetricsLogger(rank)
        for number in range(100_000):
            logger.record_start("many", number, "all")
            logger.record_end("many", number)
    finally:
        metrics_module._now = clock
    took = [((2 * number + 1) ** 2 - (2 * number) ** 2) / 1e3 for number in range(100_000)]
    found = logger.statistics()["many,all"]
    assert (found.count, found.min, found.max) == (100_000, took[0], took[-1])
    assert math.isclose(found.mean, statistics.fmean(took), rel_tol=1e-9) and math.isclose(found.stdev, statistics.stdev(took), rel_tol=1e-9)
    assert abs(found.p50 / took[50_000] - 1) < 0.05 and abs(found.p99 / took[99_000] - 1) < 0.02, found
    assert len(logger.get_processed_metrics()["many,all"]) == 10_000
    assert sum(map(len, logger.get_metrics().values())) <= 20_000
    for number in range(30_000):
        logger.record_start("open", number, "never ends")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        logger.get_processed_metrics()
    assert "30000 metrics have not ended" in str(said[0].message) and len(logger.get_metrics()["open"]) <= 10_000


class Event:
    """A double of torch.cuda.Event on a stream that takes 2 ms for what lies between two events."""

    made, reached, position = 0, 0, 0

    def __init__(self, enable_timing):
        assert enable_timing
        Event.made += 1

    def record(self):
        Event.position += 1
        self.at = Event.position

    def query(self):
        return self.at <= Event.reached

    def synchronize(self):
        Event.reached = max(Event.reached, self.at)

    def elapsed_time(self, other):
        assert self.query() and other.query()
        return 2.0 * (other.at - self.at)


@check
def cuda_metrics(rank, size):
    """On a double: seconds beside the processor's seconds, events used again, nothing waited for before it is asked for."""
    logger = training.MetricsLogger(rank, "cuda:0", _cuda=collections.namedtuple("Cuda", "Event")(Event))
    for number in range(5):
        logger.record_start("backward_metric", number, "backward")
        logger.record_end("backward_metric", number)
    logger.record_start("host", 0, "on the processor", cuda=False)
    logger.record_end("host", 0)
    assert Event.reached == 0 and Event.made == 10 and logger.get_metrics()["backward_metric"][0].seconds is None
    assert logger.get_processed_metrics()["backward_metric,backward"] == [0.002] * 5
    for number in range(5, 50):
        logger.record_start("backward_metric", number, "backward")
        logger.record_end("backward_metric", number)
        Event.reached = Event.position
    assert Event.made == 10, "no new ones"
    assert logger.get_processed_metrics()["backward_metric,backward"] == [0.002] * 50


@check
def workload(rank, size):
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
def averages(rank, size):
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
def wrong_gradients(rank, size):
    """Each is named to all that wait, stays the answer to what follows, and is over after a reset."""
    one = torch.ones(3)
    faults = [("began with batch", libddp.InvalidArgument, [(0, 2, 0, one), (1, 2, 0, one), (0, 3, 0, one), (0, 2, 1, one)], (10,), "batch 3 has begun"),
              ("behind", libddp.Mismatch, [(0, 2, 0, one), (1, 2, 0, one), (0, 3, 0, one), (1, 2, 1, one)], (10, 11), "trainers 0 have begun batch 3"),
              ("twice", libddp.InvalidArgument, [(0, 1, 0, one), (0, 1, 0, one)], (10,), "sent it before"),
              ("shape", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, torch.ones(4))], (11,), "float32[4], another trainer's is float32[3]"),
              ("type", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one.double())], (11,), "float64[3]"),
              ("layout", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one.to_sparse())], (11,), "sparse float32[3]"),
              ("buckets", libddp.Mismatch, [(0, 1, 0, one), (1, 1, 0, one), (0, 1, 1, one), (1, 2, 0, one)], (11,), "bucket 1 of batch 1 lacks"),
              ("trainer", libddp.InvalidArgument, [(7, 1, 0, one)], (), "there are 2 trainers")]
    for kind in SERVERS:
        for name, error, sent, ranks, words in faults:
            server, answers = kind(5, 2, trainer_ranks=[10, 11]), []
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


# ---- several ranks: the last one serves -----------------------------------------------------------------------------------


class World:
    """Groups of the trainers, and of a server with them, made when they are first asked for."""

    made = None

    def __init__(self, rank, size):
        self.rank, self.size, self.trainers = rank, size, list(range(size - 1))
        self.serves = rank == size - 1
        if not dist.is_initialized():
            dist.init_process_group("ddp", init_method="pmix://")
        self.training = dist.new_group(self.trainers)

    def exchange(self):
        """A new group whose first rank is the server."""
        return libddp.world().process_group().new_group([self.size - 1, *self.trainers])

    def server(self, kind=training.AverageParameterServer, timeout=PATIENCE):
        return kind(self.rank, self.size - 1, timeout=timeout, trainer_ranks=self.trainers)

    @staticmethod
    def of(rank, size):
        World.made = World.made or World(rank, size)
        return World.made


class Words(torch.nn.Module):
    def __init__(self, sparse):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.EmbeddingBag(64, 32, sparse=sparse)
        self.layers = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))

    def forward(self, words):
        return self.layers(self.embedding(words))


def trainer_of(world, server, hook, epochs=2):
    return training.DdpTrainer(world.training, False, server, "ddp", epochs, training.preprocess_dummy_data, training.cel, training.basic_ddp_model,
                               training.BasicHookState, hook, training.basic_iteration_step,
                               optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1), log=lambda text: None)


def trained(world, server, hook, sparse, batches=3, model=None):
    """A trainer, and the weights that it has got."""
    torch.manual_seed(world.rank)
    data = [(torch.randint(0, 64, (16, 5)), torch.randint(0, 8, (16,))) for _ in range(batches)]
    trainer, model = trainer_of(world, server, hook), model or Words(sparse)
    trainer.train(model, data)
    return trainer, torch.cat([each.detach().flatten() for each in model.parameters()])


def same_on_all(value, group):
    everyone = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, value, group)
    assert all(each == everyone[0] for each in everyone), everyone


@check
def training_by_group(rank, size):
    """Servers train as all_reduce does: equal bits for two trainers, dense and sparse."""
    world = World.of(rank, size)
    for kind, sparse in itertools.product(SERVERS, (False, True)):
        group = world.exchange()
        if world.serves:
            server = world.server(kind)
            training.serve(server, group)
            assert server.get_metrics() == {}, "reset by the trainer"
            continue
        connection = training.GroupServer(group, PATIENCE)
        plain, expected = trained(world, None, training.allreduce_hook, sparse)
        names = set(plain.get_metrics())
        futures = {"hook_future_metric,ddp_dense_allreduce"} | ({"hook_future_metric,ddp_sparse_allreduce"} if sparse else set())
        assert names == {"batch_level_metric,batch_all", "forward_metric,forward_pass", "backward_metric,backward"} | futures, names
        for hook in (training.rpc_hook, training.sparse_rpc_hook, training.hybrid_hook):
            trainer, weights = trained(world, connection, hook, sparse)
            assert torch.equal(weights, expected), (kind, sparse, hook.__name__, (weights - expected).abs().max())
            counts = {name: len(values) for name, values in trainer.get_metrics().items()}
            assert counts["batch_level_metric,batch_all"] == 6, counts
            wanted = {"rpc_hook": "hook_future_metric,rpc_dense", "sparse_rpc_hook": "hook_future_metric,ddp_dense_allreduce",
                      "hybrid_hook": "hook_future_metric,ddp_dense_allreduce"}[hook.__name__]
            assert wanted in counts and ("hook_future_metric,rpc_sparse" in counts) == (sparse and hook is not training.hybrid_hook), counts
            assert ("hook_c10d_metric,ddp_sparse_allreduce" in counts) == (sparse and hook is training.hybrid_hook), counts
            dist.barrier(world.training)
            if rank == 0 and hook is not training.hybrid_hook:
                served = connection.get_metrics()
                assert served["method_metric,average computation"] if sparse or hook is training.rpc_hook else served == {}, served
                connection.reset()
            dist.barrier(world.training)
        same_on_all(expected.tolist(), world.training)
        connection.close()


def alone(*batches):
    """What two trainers with so many batches get, in one process."""
    model = Words(True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    given = []
    for rank, count in enumerate(batches):
        torch.manual_seed(rank)
        given.append([(torch.randint(0, 64, (16, 5)), torch.randint(0, 8, (16,))) for _ in range(count)])
    for _ in range(2):
        for index in range(max(batches)):
            optimizer.zero_grad()
            for own in given:
                if index < len(own):
                    (torch.nn.functional.cross_entropy(model(own[index][0]), own[index][1]) / 2).backward()
            optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@check
def uneven_data(rank, size):
    """A trainer with fewer batches takes part in the others' averages; one without any is named."""
    world = World.of(rank, size)
    group = world.exchange()
    if world.serves:
        return training.serve(world.server(), group)
    connection = training.GroupServer(group, PATIENCE)
    for sparse in (False, True):
        trainer, weights = trained(world, connection, training.rpc_hook, sparse, batches=2 + rank)
        plain, expected = trained(world, None, training.allreduce_hook, sparse, batches=2 + rank)
        assert torch.equal(weights, expected), sparse
        same_on_all(weights.tolist(), world.training)
        for each in (trainer, plain):
            assert {len(values) for name, values in each.get_metrics().items() if name.startswith("batch")} == {4 + 2 * rank}
        dist.barrier(world.training)
        if rank == 0:
            connection.reset()
        dist.barrier(world.training)
    assert torch.allclose(weights, alone(2, 3), rtol=1e-5, atol=1e-6), "each trainer's gradients by the number of trainers"
    error = refused(libddp.InvalidArgument, lambda: trained(world, connection, training.rpc_hook, False, batches=rank), "trainers 0 have no batches")
    assert error.ranks == (0,)
    connection.close()


@check
def reduced_metrics(rank, size):
    """One exchange; the same statistics on all."""
    logger = training.MetricsLogger(rank)
    logger._add_series("step", "took").fresh += [rank + 1.0] * 20 * (rank + 1)
    if rank == 1:
        logger._add_series("own", "of rank 1").fresh.append(3.0)
    group = libddp.world().process_group()
    found = logger.reduce(group)
    values = [each + 1.0 for each in range(size) for _ in range(20 * (each + 1))]
    took = found["step,took"]
    assert took.count == len(values) and math.isclose(took.mean, statistics.fmean(values)) and math.isclose(took.stdev, statistics.stdev(values))
    assert (took.min, took.max, took.slowest_rank, took.p99) == (1.0, size, size - 1, size)
    assert found["own,of rank 1"].slowest_rank == 1 and found["own,of rank 1"].p50 == 3.0 and math.isnan(found["own,of rank 1"].stdev)
    assert len(set(map(str, group.all_gather_object(found)))) == 1
    assert str(logger.reduce(World.of(rank, size) and None)) == str(found), "by torch.distributed"
    assert training.scalars(found)["step,took/mean"] == took.mean


@check
def raising_steps(rank, size):
    """A step that raises ends its metrics."""
    world = World.of(rank, size)
    if world.serves:
        return

    def criterion(output, target):
        raise ZeroDivisionError

    trainer = trainer_of(world, None, training.allreduce_hook)
    trainer.create_criterion = lambda device: criterion
    refused(ZeroDivisionError, lambda: trainer.train(Words(False), [(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {name: len(values) for name, values in trainer.get_metrics().items()} == {"batch_level_metric,batch_all": 1, "forward_metric,forward_pass": 1}


def failing_group(world, act, kind, *words, ranks, timeout=SHORT):
    """act(connection) in trainers must raise this, which the server gets, too."""
    group = world.exchange()
    began = time.monotonic()
    if world.serves:
        error = refused(kind, lambda: training.serve(world.server(timeout=timeout), group), *words)
    else:
        error = refused(kind, lambda: act(training.GroupServer(group, timeout)), *words)
    assert set(error.ranks) <= set(ranks) and error.ranks, error
    assert time.monotonic() - began < timeout + 60
    libddp.world().process_group().barrier().wait()


def sent(connection, *gradients):
    """The averages of (batch, bucket, gradient), all sent before the first is awaited."""
    values = [each.wait() for each in [connection.average_gradient(*each) for each in gradients]]
    for value in values:
        if isinstance(value, libddp.Error):
            raise value
    return values


@check
def wrong_trainers(rank, size):
    """Each is named on all ranks, and nothing hangs."""
    world = World.of(rank, size)
    one = torch.ones(3)
    wrong = rank == 1

    def late(connection):
        if wrong:
            time.sleep(SHORT * 1.5)
        sent(connection, (1, 0, one.clone()))

    failing_group(world, late, libddp.Timeout, "no gradient of trainers 1 within 3 s", ranks=(1,))
    def another_shape(connection):
        dist.barrier(world.training) if wrong else None  # so that the other's is first
        future = connection.average_gradient(1, 0, torch.ones(4 if wrong else 3))
        None if wrong else dist.barrier(world.training)
        if isinstance(future.wait(), libddp.Error):
            raise future.value()

    failing_group(world, another_shape, libddp.Mismatch, "bucket 0 of batch 1", "float32", ranks=(0, 1), timeout=PATIENCE)

    def more_buckets(connection):
        sent(connection, (1, 0, one.clone()))
        sent(connection, (2, 0, one.clone())) if wrong else sent(connection, (1, 1, one.clone()))

    failing_group(world, more_buckets, libddp.Mismatch, "bucket 1 of batch 1", ranks=(0, 1), timeout=PATIENCE)

    def older(connection):
        sent(connection, (5, 0, one.clone()))
        dist.barrier(world.training)
        if not wrong:
            dist.barrier(world.training)
            return sent(connection, (6, 0, one.clone()))
        future = connection.average_gradient(4, 0, one.clone()).wait()
        dist.barrier(world.training)
        raise future

    failing_group(world, older, libddp.InvalidArgument, "bucket 0 of batch 4 of trainer 1", ranks=(1,), timeout=PATIENCE)


@check
def training_by_rpc(rank, size):
    """The same bits as by the group; a late trainer is named."""
    world = World.of(rank, size)
    server = world.server(training.AverageBatchParameterServer, timeout=SHORT) if world.serves else None
    rpc_server.serve(server)
    rpc_server.begin(f"worker{rank}", 60.0)
    if not world.serves:
        connection = training.RpcServer(rpc_server.reference_of(f"worker{size - 1}"), rank, SHORT, size - 1)
        for sparse in (False, True):
            _, expected = trained(world, None, training.allreduce_hook, sparse)
            _, weights = trained(world, connection, training.rpc_hook, sparse)
            assert torch.equal(weights, expected), sparse
            dist.barrier(world.training)
            if rank == 0:
                assert connection.get_metrics()["parameter_server_batch_metric,param_index_batch"]
                connection.reset()
            dist.barrier(world.training)
        if rank == 0:
            error = refused(libddp.Timeout, lambda: sent(connection, (1, 0, torch.ones(2))), "no gradient of trainers 1 within 3 s")
            assert error.ranks == (1,)
    rpc_server.end()


# ---- deaths, each in a job of its own ------------------------------------------------------------------------------------


def train_until_failure(world, victim):
    """A rank dies in a step; the others name it."""
    group = world.exchange()
    torch.manual_seed(0)
    began = time.monotonic()

    def forever():
        if world.serves:
            if world.rank == victim:
                threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            training.serve(world.server(), group)
        connection = training.GroupServer(group, PATIENCE)
        for batch in itertools.count(1):
            if batch == 3 and world.rank == victim:
                connection.average_gradient(batch, 0, torch.ones(100_000))
                os.kill(os.getpid(), signal.SIGKILL)
            sent(connection, (batch, 0, torch.ones(100_000)), (batch, 1, torch.ones(10)))

    error = refused(libddp.PeerLost, forever)
    assert victim in error.ranks and time.monotonic() - began < PATIENCE, error


@check
def killed_trainer(rank, size):
    train_until_failure(World.of(rank, size), 1)


@check
def killed_server(rank, size):
    train_until_failure(World.of(rank, size), size - 1)


if __name__ == "__main__":
    several = libddp.init()
    numbers = several.rank, several.world_size
    if numbers[1] > 1:
        several.process_group()
    for name in sys.argv[1:]:
        CHECKS[name](*numbers)
        # one write, as the lines of several ranks meet in one stream
        sys.stdout.write(f"CHECKED {name} {numbers[0]}\n")
        sys.stdout.flush()
