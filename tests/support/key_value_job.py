"""Key-value servers of libddp.training, in one process and for launchers: the last two ranks serve, the others train.

    key_value_job.py CHECK...     runs these checks, in this order, in all ranks; with ALONE=1 without a launcher

Each rank prints "CHECKED <name> <rank>" after each check that held; what does not hold is an exception.
"""

import itertools
import math
import os
import signal
import time
from pathlib import Path

import libddp
import torch
import torch.distributed as dist
from libddp import training
from libddp.training import exact_sums
from libddp.training.key_value_server import shard_of

from job_checks import check, refused, run_checks

ROOT = Path(__file__).resolve().parents[2]
PATIENCE, SHORT = 60.0, 3.0
ALL = -1


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


# ---- servers, in one process -----------------------------------------------------------------------------------------------

VALUES = {"a": torch.ones(3), "g": torch.ones(2, 2), "rows": torch.ones(4, 2)}


def server_of(optimizer=sgd, trainers=2, **more):
    return training.KeyValueParameterServer(5, VALUES.items(), optimizer, trainers, **more)


def pulled(server, trainer, *keys, **more):
    """The version and values; nothing yet, while the trainer has to wait."""
    found = []
    server.pull(trainer, keys, lambda version, values: found.append((version, [each.clone() for each in values])), **more)
    return found


@check
def key_value_updates(rank, size):
    """A batch is one step with the average of all trainers, keys that a trainer does not push counting as zeros."""
    server, versions = server_of(), []
    server.on_update = versions.append
    expected = {key: value.clone().requires_grad_() for key, value in VALUES.items()}
    optimizer = sgd(expected.values())
    torch.manual_seed(0)
    for batch in (1, 2, 3):
        given = [{"a": torch.randn(3), "g": torch.randn(2, 2)}, {"a": torch.randn(3)}]
        sparse = torch.sparse_coo_tensor([[1, 3, 1]], torch.randn(3, 2), (4, 2), check_invariants=True)
        for number, gradients in enumerate(given):
            pulled(server, number)
            assert server.version == batch - 1
            server.push(number, batch, {key: value.clone() for key, value in gradients.items()} | ({"rows": sparse} if number else {}))
        expected["a"].grad = (given[0]["a"] + given[1]["a"]) / 2
        expected["g"].grad = given[0]["g"] / 2
        expected["rows"].grad = (sparse.coalesce() / 2).coalesce()
        optimizer.step()
        assert server.version == batch
        for key, value in expected.items():
            assert torch.equal(server.parameters[key], value), (batch, key)
    assert versions == [1, 2, 3] and server.delays == {0: 6}
    metrics = {name: len(values) for name, values in server.get_metrics().items()}
    assert metrics == {"parameter_server_straggler_metric,param_index_straggler": 3, "parameter_server_batch_metric,param_index_batch": 3,
                       "method_metric,update": 3}, metrics
    for number, gradients in enumerate(({"g": torch.ones(2, 2)}, {})):
        pulled(server, number)
        server.push(number, 4, gradients)
    optimizer.zero_grad()
    expected["g"].grad = torch.ones(2, 2) / 2
    optimizer.step()
    assert torch.equal(server.parameters["a"], expected["a"]), "keys that no trainer pushes get no step"
    other = server_of()
    other.load_state_dict(server.state_dict())
    other.begin(range(3), 4)
    for each in (server, other):
        for number in (0, 1):
            pulled(each, number)
            each.push(number, 5, {"a": torch.full((3,), 2.0)})
    assert other.version == 5 and all(torch.equal(server.parameters[key], other.parameters[key]) for key in VALUES), "with its momentum"
    refused(libddp.InvalidArgument, lambda: other.load_state_dict({"parameters": {"a": torch.ones(3)}}), "other keys or shapes")
    for wrong in ({"number": 2, "servers": 2}, {"trainers": 0}, {"staleness": -1}):
        refused(libddp.InvalidArgument, lambda wrong=wrong: server_of(**wrong), "there is no server")


@check
def key_value_staleness(rank, size):
    """A trainer may be so many batches ahead, and waits then until the others follow; an asynchronous one never waits."""
    for bound in (0, 1, 4):
        server = server_of(staleness=bound)
        for batch in range(1, bound + 1):
            server.push(0, batch, {"a": torch.ones(3)})
            assert pulled(server, 0, "a")[0][0] == 0, "without the updates that lack trainer 1"
        server.push(0, bound + 1, {"a": torch.ones(3)})
        waits, latest = pulled(server, 0, "a"), pulled(server, 0, latest=True)
        assert not waits and not latest
        server.push(1, 1, {"a": torch.ones(3)})
        assert waits[0][0] == 1 and torch.equal(waits[0][1][0], torch.full((3,), 0.9)), waits
        assert max(server.delays) == bound, server.delays
        for batch in range(2, bound + 2):
            assert not latest, "before all that the trainer has pushed"
            pulled(server, 1)
            server.push(1, batch, {})
        assert latest[0][0] == server.version == bound + 1
    server = server_of(staleness=None)
    for batch in range(1, 6):
        server.push(0, batch, {"a": torch.ones(3)})
        assert pulled(server, 0)[0][0] == batch
    server.push(1, 1, {"a": torch.ones(3)})
    assert server.version == 6 and server.delays == {0: 5, 5: 1}, server.delays


@check
def key_value_faults(rank, size):
    """Each is named with its trainer, and changes no value."""
    one = {"a": torch.ones(3)}
    faults = [("key", libddp.NotFound, 1, {"c": torch.ones(3)}, "no server keeps 'c'"),
              ("shape", libddp.Mismatch, 1, {"a": torch.ones(4)}, "the gradient of 'a' is float32[4], not float32[3]"),
              ("type", libddp.Mismatch, 1, {"a": torch.ones(3).double()}, "float64[3], not float32[3]"),
              ("layout", libddp.Mismatch, 1, {"a": torch.ones(3).to_sparse()}, "sparse float32[3], not float32[3]"),
              ("later", libddp.InvalidArgument, 2, one, "its last batch was 0"),
              ("older", libddp.InvalidArgument, 0, one, "its last batch was 0"),
              ("NaN", libddp.InvalidArgument, 1, {"a": torch.tensor([1, math.nan, math.inf])}, "key 'a': 2 of 3 values are not finite")]
    for name, kind, batch, gradients, words in faults:
        server = server_of()
        server.push(0, 1, {"a": torch.ones(3)})
        error = refused(kind, lambda: server.push(1, batch, gradients), words, f"batch {batch} of trainer 1 to the server of rank 5")
        assert error.ranks == (2,) and server.version == 0, name
        assert all(torch.equal(value, VALUES[key]) for key, value in server.parameters.items()), name
    server = server_of(check_finite=False)
    for number in (0, 1):
        server.push(number, 1, {"a": torch.full((3,), math.nan)})
    assert server.parameters["a"].isnan().all()
    error = refused(libddp.NotFound, lambda: pulled(server, 1, "a", "elsewhere"), "pulling for trainer 1", "no server keeps 'elsewhere'")
    assert error.ranks == (2,)
    refused(libddp.InvalidArgument, lambda: server.push(0, 1, one), "its last batch was 1")
    refused(libddp.InvalidArgument, lambda: server.push(0, 2, one), "its values have 0 updates, the staleness is 0")
    server.begin(range(3), 1)
    refused(libddp.InvalidArgument, lambda: server.push(0, 2, one), "its values have 0 updates")  # of an earlier group of ranks
    server = server_of(timeout=0.05)
    server.expire()
    server.push(1, 1, {"a": torch.ones(3)})
    time.sleep(0.1)
    assert refused(libddp.Timeout, server.expire, "no gradients of trainers 0 within 0.05 s").ranks == (1,)


@check
def key_value_exact_averages(rank, size):
    """The same bits in any order of arrival and on 1, 2 and 4 trainers, whatever the terms; what has no exact average is refused."""
    torch.manual_seed(9)
    micro = [torch.randn(3) * 10.0 ** (2 * number - 3) for number in range(4)]
    words = exact_sums.zeros(3, torch.device("cpu"))
    for each in micro:
        exact_sums.add_term(words, each)
    expected = torch.ones(3, requires_grad=True)
    optimizer = sgd([expected])
    expected.grad = exact_sums.mean_of(words, 4, torch.float32)
    optimizer.step()
    assert not all(torch.equal(sum(order) / 4, expected.grad) for order in itertools.permutations(micro)), "a plain sum has other bits"
    for trainers in (1, 2, 4):
        for order in itertools.permutations(range(trainers)):
            server = server_of(trainers=trainers, exact=True)
            for number in order:
                mine = micro[number * 4 // trainers:(number + 1) * 4 // trainers]
                gradient = mine[0].clone()
                if len(mine) > 1:
                    gradient = exact_sums.zeros(3, torch.device("cpu"))
                    for each in mine:
                        exact_sums.add_term(gradient, each)
                server.push(number, 1, {"a": gradient}, len(mine))
            assert server.version == 1 and torch.equal(server.parameters["a"], expected), (trainers, order)
            assert torch.equal(server.parameters["g"], VALUES["g"]), "keys that no trainer pushes get no step"
    for bound in (1, None):
        refused(libddp.InvalidArgument, lambda bound=bound: server_of(staleness=bound, exact=True), f"exact with a staleness of {bound}")
    one, sums = torch.ones(3), exact_sums.zeros(3, torch.device("cpu"))
    spoilt = exact_sums.zeros(3, torch.device("cpu"))
    exact_sums.add_term(spoilt, torch.tensor([1, math.inf, 2.0**23]))
    for kind, gradient, count, words in ((libddp.Mismatch, one.to_sparse(), 1, "sparse float32[3], not float32[3]"),
                                         (libddp.Mismatch, one, 2, "float32[3], not int64[7]"), (libddp.Mismatch, sums, 1, "int64[7], not float32[3]"),
                                         (libddp.Mismatch, sums[1:], 2, "int64[6], not int64[7]"),
                                         (libddp.InvalidArgument, sums, exact_sums.MOST_TERMS, f"are not 1 to {exact_sums.MOST_TERMS - 1}"),
                                         (libddp.InvalidArgument, sums, 0, "0 micro-batches are not 1"),
                                         (libddp.InvalidArgument, torch.tensor([1, 2, 2.0**23]), 1, "1 values are not finite, or 2^23"),
                                         (libddp.InvalidArgument, torch.tensor([1, 2, math.nan]), 1, "1 of 3 values are not finite"),
                                         (libddp.InvalidArgument, spoilt, 2, "2 values are not finite, or 2^23")):
        server = server_of(exact=True)
        server.push(0, 1, {"a": one})
        assert refused(kind, lambda: server.push(1, 1, {"a": gradient}, count), words, "batch 1 of trainer 1").ranks == (2,)
        server.push(1, 1, {"a": one})  # what was refused is in no sum
        assert torch.equal(server.parameters["a"], torch.full((3,), 0.9)), words
    refused(libddp.InvalidArgument, lambda: server_of().push(0, 1, {"a": sums}, 2), "2 micro-batches are not 1 to 1", "exact=True")
    server = server_of(trainers=1, exact=True, check_finite=False)
    server.push(0, 1, {"a": torch.tensor([1, 2, math.nan]), "g": torch.ones(2, 2)})
    assert server.parameters["a"].isnan().all() and torch.equal(server.parameters["g"], torch.full((2, 2), 0.9)), "of that key alone"


class Failing(torch.optim.SGD):
    def step(self, closure=None):
        super().step()
        raise MemoryError("none left")


@check
def key_value_failed_optimizer(rank, size):
    """Half an update is never given away."""
    server = server_of(lambda parameters: Failing(parameters, 0.1), trainers=1)
    refused(MemoryError, lambda: server.push(0, 1, {"a": torch.ones(3)}))
    refused(libddp.Unavailable, server.state_dict, "the optimizer failed in update 1")
    refused(libddp.Unavailable, lambda: pulled(server, 0, "a"), "the optimizer failed in update 1")


@check
def key_value_shards(rank, size):
    """Each of two servers applies a batch when both have it; one that missed the other's last word follows at the next start."""
    servers = [server_of(number=number, servers=2) for number in (0, 1)]
    assert [shard_of(key, 3) for key in VALUES] == [2, 1, 2], "on all machines"
    assert set(servers[0].parameters) == {"g"} and set(servers[1].parameters) == {"a", "rows"}
    said = []
    servers[0].announce, servers[1].announce = said.append, said.append
    for number in (0, 1):
        for each in servers:
            each.push(number, 1, {key: torch.ones_like(value) for key, value in each.parameters.items()})
            assert each.version == 0
    assert said == [(1, ALL)] * 2
    servers[0].confirm(1, (1, ALL))
    assert [each.version for each in servers] == [1, 0]
    for each in servers:
        each.begin(range(4), 1)
    assert [each.version for each in servers] == [1, 1] and torch.equal(servers[1].parameters["a"], torch.full((3,), 0.9))
    servers[0].confirm(1, (2, ALL))
    pulled(servers[0], 0)
    servers[0].push(0, 2, {})
    for each in servers:
        each.begin(range(4), 1)  # trainer 1's is missing: both forget batch 2
        assert each.version == 1 and each.table(0)["batch"] == 1
    assert refused(libddp.Mismatch, lambda: servers[1].begin(range(4), 3), "has applied 1 updates, another 3").ranks == (0, 1)
    late = server_of(number=1, servers=2, timeout=0.05)
    for number in (0, 1):
        late.push(number, 1, {})
    time.sleep(0.1)
    assert refused(libddp.Timeout, late.expire, "servers 0 did not get it").ranks == (0,)


# ---- over a group --------------------------------------------------------------------------------------------------------


class World:
    """Two trainers, and two servers, the last ranks."""

    made = None

    def __init__(self, rank, size):
        self.rank, self.size, self.trainers, self.servers = rank, size, [0, 1], [2, 3]
        self.serves = rank in self.servers
        dist.init_process_group("ddp", init_method="pmix://")
        self.training = dist.new_group(self.trainers)

    @staticmethod
    def of(rank, size):
        World.made = World.made or World(rank, size)
        return World.made

    def exchange(self):
        return libddp.world().process_group().new_group(self.servers + self.trainers)

    def server(self, model, optimizer=sgd, **more):
        return training.KeyValueParameterServer(self.rank, model.named_parameters(), optimizer, 2, number=self.rank - 2, servers=2, **more)


def digits():
    """Images, 0 to 1, and numbers."""
    rows = torch.tensor([list(map(int, line.split(","))) for line in (ROOT / "examples/digits/digits.csv").read_text().split()])
    return rows[:, :64] / 16, rows[:, 64]


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Tanh(), torch.nn.Linear(32, 10))


class Words(torch.nn.Module):
    """Classifies bags of words: an embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.embedding = torch.nn.EmbeddingBag(200, 16, sparse=True)
        self.layer = torch.nn.Linear(16, 2)

    def forward(self, words):
        return self.layer(self.embedding(words))


def words():
    torch.manual_seed(7)
    given = torch.randint(0, 200, (800, 6))
    return given, (given.sum(1) > 597).long()


def batches(data, rank, epochs, size=32):
    """This trainer's share, in the same order in each run."""
    inputs, targets = (each[rank::2] for each in data)
    count = len(data[0]) // 2 // size * size
    for _ in range(epochs):
        for first in range(0, count, size):
            yield inputs[first:first + size], targets[first:first + size]


def loss_of(model, inputs, targets):
    return torch.nn.functional.cross_entropy(model(inputs), targets)


def by_servers(connection, model, given, delay=lambda number: None):
    """Trains by pull and push; the model has the servers' values at the end."""
    parameters = dict(model.named_parameters())
    for number, (inputs, targets) in enumerate(given):
        connection.pull(parameters)
        delay(number)
        model.zero_grad()
        loss_of(model, inputs, targets).backward()
        connection.push(parameters, [each.grad for each in parameters.values()])
    connection.pull(parameters, latest=True)
    assert connection.version >= connection.batch


def by_all_reduce(world, model, given, optimizer):
    wrapped = torch.nn.parallel.DistributedDataParallel(model, process_group=world.training)
    optimizer = optimizer(wrapped.parameters())
    for inputs, targets in given:
        optimizer.zero_grad()
        loss_of(wrapped, inputs, targets).backward()
        optimizer.step()


def plain_sgd(rate):
    return lambda parameters: torch.optim.SGD(parameters, rate)


# model, data, optimizer, passes, staleness, and how far the loss falls; with momentum and staleness, rates would have to be smaller
TASKS = [(network, digits, sgd, 2, 0, 0.2), (network, digits, plain_sgd(0.1), 10, 4, 0.2),
         (Words, words, plain_sgd(1.0), 2, 0, 1.0), (Words, words, plain_sgd(1.0), 14, 4, 0.8)]


def bits(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@check
def key_values_train(rank, size):
    """Without staleness the weights have DistributedDataParallel's bits; with 4 its loss within 1 %, also where one trainer lags."""
    world = World.of(rank, size)
    for make, data, optimizer, epochs, staleness, falls in TASKS:
        group = world.exchange()
        if world.serves:
            server = world.server(make(), optimizer, staleness=staleness)
            assert server.parameters, "each has some"
            training.serve(server, group)
            assert max(server.delays) == staleness, server.delays
            continue
        model, plain = make(), make()
        connection = training.KeyValueConnection(group, PATIENCE)
        assert set(connection.keys) == {name for name, _ in model.named_parameters()}
        if staleness and rank:
            dist.barrier(world.training)  # the other trainer is ahead by all that it may be
        lags = (lambda number: time.sleep(0.002)) if staleness and rank else (lambda number: None)
        ahead = (lambda number: dist.barrier(world.training) if number == staleness else None) if staleness and not rank else lags
        by_servers(connection, model, batches(data(), rank, epochs), ahead)
        by_all_reduce(world, plain, batches(data(), rank, epochs), optimizer)
        start, trained, expected = (loss_of(each, *data()).item() for each in (make(), model, plain))
        assert expected < start * falls and abs(trained / expected - 1) < 0.01, (make, staleness, start, expected, trained)
        assert staleness or torch.equal(bits(model), bits(plain)), (bits(model) - bits(plain)).abs().max()
        assert all(each["method_metric,update"] for each in connection.get_metrics())
        connection.close()


@check
def key_values_asynchronous(rank, size):
    """A trainer does not wait for the other, which has not begun; both trainers' gradients count."""
    world = World.of(rank, size)
    group = world.exchange()
    model = network()
    if world.serves:
        server = world.server(model, plain_sgd(0.1), staleness=None)
        training.serve(server, group)
        assert server.version == 40, server.version
        return
    connection = training.KeyValueConnection(group, PATIENCE)
    if rank == 1:
        dist.barrier(world.training)
    by_servers(connection, model, itertools.islice(batches(digits(), rank, 1), 20))
    losses = [None, None]
    if rank == 0:
        dist.barrier(world.training)
    dist.all_gather_object(losses, loss_of(model, *digits()).item(), world.training)
    assert losses[1] < losses[0] < 2.3, losses
    connection.close()


def failing(world, act, kind, *words, ranks, timeout=PATIENCE):
    """act(connection) in trainers must raise this, which the servers get, too, without an update."""
    group = world.exchange()
    began = time.monotonic()
    if world.serves:
        server = world.server(network(), timeout=timeout)
        error = refused(kind, lambda: training.serve(server, group), *words)
        expected = dict(network().named_parameters())
        assert server.version == 0 and all(torch.equal(value, expected[key]) for key, value in server.parameters.items())
    else:
        # the other may be named while this one still connects
        error = refused(kind, lambda: act(training.KeyValueConnection(group, timeout)), *words)
    assert error.ranks == ranks, error
    assert time.monotonic() - began < timeout + 60
    libddp.world().process_group().barrier().wait()


@check
def wrong_key_value_trainers(rank, size):
    """Each is named on all ranks, and no server has applied anything."""
    world = World.of(rank, size)
    keys = [name for name, _ in network().named_parameters()]
    ones = [torch.ones_like(each) for each in network().parameters()]

    def act(wrong_keys=keys, wrong_gradients=ones, batch=None):
        def both(connection):
            connection.pull(keys)
            if rank == 1:
                connection.push(wrong_keys, wrong_gradients, batch)
            else:
                connection.push(keys, ones)
            connection.pull(keys)
        return both

    failing(world, act(["nothing", *keys[1:]]), libddp.NotFound, "no server keeps 'nothing'", ranks=(1,))
    failing(world, act(wrong_gradients=[*ones[:3], torch.ones(11)]), libddp.Mismatch, "'2.bias' is float32[11], not float32[10]", ranks=(1,))
    failing(world, act(wrong_gradients=[*ones[:3], ones[3].half()]), libddp.Mismatch, "'2.bias' is float16[10], not float32[10]", ranks=(1,))
    failing(world, act(batch=0), libddp.InvalidArgument, "batch 0 of trainer 1", "its last batch was 0", ranks=(1,))
    failing(world, act(batch=2), libddp.InvalidArgument, "batch 2 of trainer 1", "its last batch was 0", ranks=(1,))
    failing(world, act(wrong_gradients=[*ones[:3], ones[3] / 0]), libddp.InvalidArgument, "key '2.bias': 10 of 10 values are not finite", ranks=(1,))

    def unknown(connection):
        connection.pull(["nothing"] if rank else keys)
        connection.push(keys, ones)
        connection.pull(keys)
    failing(world, unknown, libddp.NotFound, "pulling for trainer 1", "no server keeps 'nothing'", ranks=(1,))

    def late(connection):
        connection.pull(keys)
        if rank == 1:
            time.sleep(SHORT * 1.5)
        connection.push(keys, ones)
        connection.pull(keys)
    failing(world, late, libddp.Timeout, "no gradients of trainers 1 within 3 s", ranks=(1,), timeout=SHORT)


# ---- deaths, each in a job of its own ------------------------------------------------------------------------------------


def train_until_failure(world, victim, act):
    """A rank dies in its third batch; the others name it."""
    group = world.exchange()
    model, began = network(), time.monotonic()
    given = itertools.cycle(batches(digits(), world.rank % 2, 1))
    server = world.server(model) if world.serves else None

    def forever():
        if server is not None:
            server.on_update = lambda version: act(server) if world.rank == victim and version == 3 else None
            training.serve(server, group)
        connection = training.KeyValueConnection(group, PATIENCE)
        push = connection.push
        connection.push = lambda *given: act(connection) if world.rank == victim and connection.batch == 2 else push(*given)
        by_servers(connection, model, given)

    error = refused(libddp.PeerLost, forever)
    assert victim in error.ranks and time.monotonic() - began < PATIENCE, error
    return server


@check
def killed_key_value_trainer(rank, size):
    """After it has pushed a batch to one of the servers: none of them applies it."""
    def act(connection):
        own, connection._servers = connection._servers, 1
        keys = [key for key in connection.keys if shard_of(key, own) == 0]
        type(connection).push(connection, keys, [torch.ones(connection.keys[key][0]) for key in keys])
        for work, _ in connection._kept:
            work.wait()
        time.sleep(1.0)  # until the server has taken it
        os.kill(os.getpid(), signal.SIGKILL)
    server = train_until_failure(World.of(rank, size), 1, act)
    if server is not None:
        assert server.version == 2 and (3, ALL) in server._updates, (server.version, server._updates)


@check
def killed_key_value_server(rank, size):
    train_until_failure(World.of(rank, size), 3, lambda server: os.kill(os.getpid(), signal.SIGKILL))


if __name__ == "__main__":
    if os.environ.get("ALONE"):
        numbers = 0, 1
    else:
        several = libddp.init()
        numbers = several.rank, several.world_size
        several.process_group()
    run_checks(*numbers)
