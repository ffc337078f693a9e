"""A program of libddp.training, for launchers: the last rank serves, the others train.

    training_job.py CHECK...     runs these checks, in this order, in all ranks

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception.
"""

import contextlib
import itertools
import math
import os
import signal
import statistics
import sys
import threading
import time
import warnings

import libddp
import torch
import torch.distributed as dist
from libddp import training
from libddp.training import group_server, rpc_server

from job_checks import check, refused, run_checks, say_checked

SERVERS = training.AverageParameterServer, training.AverageBatchParameterServer
PATIENCE = 60.0  # of servers that nothing fails
SHORT = 3.0  # of those that a trainer lets wait


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


def failing_group(world, act, kind, *words, ranks, timeout=SHORT, server=training.AverageParameterServer):
    """act(connection) in trainers must raise this, which the server gets, too."""
    group = world.exchange()
    began = time.monotonic()
    if world.serves:
        error = refused(kind, lambda: training.serve(world.server(server, timeout), group), *words)
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


class Full(training.AverageBatchParameterServer):
    """Has no memory left for a second gradient."""

    def process_gradient(self, gradient, param_loc, trainer):
        if self._waiting:
            torch.empty(1 << 60)  # raises as PyTorch does
        super().process_gradient(gradient, param_loc, trainer)


@check
def spoilt_servers(rank, size):
    """A gradient with NaN, a server without memory for an average and one without memory for a gradient: each is named on all ranks."""
    world = World.of(rank, size)

    def finite(*given, **named):
        return training.AverageParameterServer(*given, **named, check_finite=True)

    def with_nan(connection):
        sent(connection, (1, 0, torch.full((50_000,), math.nan if rank == 1 else 1.0)))

    failing_group(world, with_nan, libddp.InvalidArgument, "50000 of 50000 values are not finite", ranks=(1,), timeout=PATIENCE, server=finite)

    def whole(connection):
        sent(connection, (1, 0, torch.ones(50_000)))

    failing_group(world, whole, libddp.SystemFailure, "averaging bucket 0 of batch 1", ranks=(size - 1,), timeout=PATIENCE, server=Full)
    group = world.exchange()
    if world.serves:
        made, group_server.torch.empty = torch.empty, lambda *given, **named: made(1 << 60)
        try:
            refused(RuntimeError, lambda: training.serve(world.server(), group), "memory")
        finally:
            torch.empty = made
    else:
        error = refused(libddp.SystemFailure, lambda: whole(training.GroupServer(group, PATIENCE)), "serving trainers", "memory")
        assert error.ranks == (size - 1,), error
    libddp.world().process_group().barrier().wait()


@check
def silent_server(rank, size):
    """A server that does not answer is named."""
    world = World.of(rank, size)
    group = world.exchange()
    if not world.serves:
        error = refused(libddp.Timeout, lambda: sent(training.GroupServer(group, 1.0), (1, 0, torch.ones(3))))
        assert error.ranks == (size - 1,), error
    libddp.world().process_group().barrier().wait()


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
                connection.average_gradient(batch, 0, torch.ones(2_000_000))
                os.kill(os.getpid(), signal.SIGKILL)
            sent(connection, (batch, 0, torch.ones(2_000_000)), (batch, 1, torch.ones(10)))

    error = refused(libddp.PeerLost, forever)
    assert victim in error.ranks and time.monotonic() - began < PATIENCE, error


@check
def killed_trainer(rank, size):
    train_until_failure(World.of(rank, size), 1)


@check
def killed_server(rank, size):
    train_until_failure(World.of(rank, size), size - 1)


@check
def stopped_trainer(rank, size):
    """A trainer that the kernel has stopped answers nothing, and is named as one that is late."""
    world = World.of(rank, size)
    group = world.exchange()
    processes = libddp.world().process_group().all_gather_object(os.getpid())

    def forever():
        if world.serves:
            training.serve(world.server(timeout=SHORT), group)
        connection = training.GroupServer(group, SHORT)
        for batch in itertools.count(1):
            if batch == 3 and rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
                sys.exit("who has continued it?")
            sent(connection, (batch, 0, torch.ones(1000)))

    error = refused(libddp.Timeout, forever, "bucket 0 of batch 3", "no gradient of trainers 1 within 3 s")
    assert error.ranks == (1,), error
    say_checked("stopped_trainer", rank)
    with contextlib.suppress(ProcessLookupError):
        os.kill(processes[1], signal.SIGKILL)
    os._exit(0)


class Dying(training.AverageParameterServer):
    """Is killed in its third batch."""

    def average(self, param_loc):
        if self.batch_number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().average(param_loc)


@check
def killed_rpc_server(rank, size):
    world = World.of(rank, size)
    rpc_server.serve(world.server(Dying) if world.serves else None)
    rpc_server.begin(f"worker{rank}", 60.0)
    if world.serves:
        return rpc_server.end()
    connection = training.RpcServer(rpc_server.reference_of(f"worker{size - 1}"), rank, 1.0, size - 1)
    sent(connection, (1, 0, torch.ones(3)))
    error = refused(libddp.Error, lambda: [sent(connection, (batch, 0, torch.ones(3))) for batch in itertools.count(2)], "by RPC")
    assert error.ranks == (size - 1,) and error.code in ("timeout", "unavailable"), error
    say_checked("killed_rpc_server", rank)
    os._exit(0)  # rpc.shutdown() waits for all


if __name__ == "__main__":
    several = libddp.init()
    several.process_group()
    run_checks(several.rank, several.world_size)
