"""Checks for libddp_torch_parallel.py: what other people's programs do with the wrapper. Numbers are those of torch's class, over
gloo."""

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Theirs
from torch.utils.checkpoint import checkpoint

import libddp
from libddp.torch import DistributedDataParallel as Ours
from libddp_torch_training import error_of

STEPS = 4


def layers(inputs, outputs):
    return torch.nn.Sequential(torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs))


def as_torchs(program, *cases):
    """program(wrap, case) gives a module; all its parameters are those of torch's class."""
    gloo = dist.new_group(backend="gloo")
    for case in cases:
        trained = []
        for wrap in (Ours, lambda net, **options: Theirs(net, process_group=gloo, **options)):
            torch.manual_seed(5)
            trained.append(program(wrap, case))
        for (name, mine), theirs in zip(trained[0].named_parameters(), trained[1].parameters()):
            torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7, msg=lambda text, name=name, case=case: f"{case}, {name}: {text}")


def data(step, columns):
    return torch.randn(6, columns, generator=torch.Generator().manual_seed(100 * step + dist.get_rank()))


def adversaries():
    """Two wrapped models: each learns while the other is frozen and passes the gradient on."""
    def trained(wrap, case):
        options = {"find_unused_parameters": True} if case == "unused" else {}
        if case == "view":
            options = {"gradient_as_bucket_view": True}
        nets = torch.nn.ModuleList([layers(3, 4), layers(4, 1)])
        maker, judge = (wrap(net, **options) for net in nets)
        first, second = (torch.optim.SGD(net.parameters(), 0.05) for net in nets)
        for step in range(STEPS):
            nets[1].requires_grad_(True)
            second.zero_grad()
            if case == "one pass":
                both = judge(torch.cat([data(step, 4), maker(data(step, 3)).detach()]))
                (both[6:].mean() - both[:6].mean() + both.pow(2).mean()).backward()
            else:
                (judge(maker(data(step, 3)).detach()).mean() - judge(data(step, 4)).pow(2).mean()).backward()
            second.step()
            nets[1].requires_grad_(False)
            first.zero_grad()
            if case == "evaluated":  # the frozen one alone, in between
                judge(data(step, 4))
            (-judge(maker(data(step, 3))).mean()).backward()
            first.step()
            nets[1].zero_grad()
        return nets

    as_torchs(trained, "frozen", "view", "unused", "one pass", "evaluated")


class Keeping(torch.nn.Module):
    """Keeps its loss; returns what has no gradient."""

    def __init__(self, what):
        super().__init__()
        self.net, self.head, self.what = layers(4, 3), torch.nn.Linear(3, 2), what
        self.loss = None

    def forward(self, x):
        hidden = self.net(x)
        if self.what == "checkpointed":
            hidden = checkpoint(self.head, hidden, use_reentrant=True)
        else:
            hidden = self.head(hidden)
        self.loss = hidden.pow(2).mean()
        return {"none": None, "number": self.loss.item(), "detached": hidden.detach(), "dictionary": {"loss": self.loss.item(), "n": [3]},
                "output": (self.loss.detach(), hidden), "checkpointed": None}[self.what]


def kept_losses():
    def trained(wrap, case):
        what, options = case
        net = Keeping(what)
        model = wrap(net, **options)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for step in range(STEPS):
            optimizer.zero_grad()
            model(data(step, 4))
            net.loss.backward()
            optimizer.step()
            net.loss = None
        return net

    as_torchs(trained, ("none", {}), ("number", {}), ("detached", {"gradient_as_bucket_view": True}), ("dictionary", {}), ("output", {}),
              ("checkpointed", {}))
    nets = []
    for options in {}, {"find_unused_parameters": True}:  # with which torch's class treats all parameters as unused
        torch.manual_seed(5)
        nets.append(trained(Ours, ("none", options)))
    for first, second in zip(*(net.parameters() for net in nets)):
        torch.testing.assert_close(first, second)


def checkpointed_wrappers():
    def trained(wrap, case):
        reentrant, how, options = case
        nets = torch.nn.ModuleList([layers(4, 4), torch.nn.Linear(4, 2)])
        nets[0].register_buffer("mean", torch.zeros(3))
        model = wrap(nets[0], **options)
        head = wrap(nets[1])
        optimizer = torch.optim.SGD(nets.parameters(), 0.1)

        def loss(x):
            return head(model(x)).pow(2).mean()

        for step in range(STEPS):
            optimizer.zero_grad()
            x = data(step, 4).requires_grad_()
            if how == "model":
                head(checkpoint(model, x, use_reentrant=reentrant)).pow(2).mean().backward()
            elif how == "twice":
                head(checkpoint(model, checkpoint(model, x, use_reentrant=reentrant), use_reentrant=reentrant)).pow(2).mean().backward()
            elif how == "accumulated":
                with model.no_sync(), head.no_sync():
                    checkpoint(loss, x, use_reentrant=reentrant).backward()
                checkpoint(loss, data(step + 50, 4).requires_grad_(), use_reentrant=reentrant).backward()
            else:
                checkpoint(loss, x, use_reentrant=reentrant).backward()
            optimizer.step()
        return nets

    as_torchs(trained, (False, "model", {}), (False, "loss", {}), (False, "twice", {}), (False, "accumulated", {}),
              (False, "model", {"find_unused_parameters": True}), (True, "model", {}), (True, "loss", {}))


def copies_on_one_rank():
    """As for a moving average of the weights; the copy that all ranks make also trains."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    model = Ours(net)
    if dist.get_rank() == 1:
        average = copy.deepcopy(model)
        for each in average.parameters():
            each.requires_grad_(False)
        copy.deepcopy(average)
    for step in range(2):
        model(data(step, 3)).sum().backward()
        with torch.no_grad():
            for each in model.parameters():
                each -= 0.1 * each.grad
                each.grad = None
        if dist.get_rank() == 1:
            for mine, new in zip(average.parameters(), model.parameters()):
                mine.lerp_(new, 0.5)
            average.module.eval()(data(step, 3))
    if dist.get_rank() == 1:
        assert all(torch.equal(one, other) for one, other in zip(copy.deepcopy(model).parameters(), model.parameters()))
    other = copy.deepcopy(model)
    other._set_static_graph()
    other.register_comm_hook(None, lambda _, bucket: dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
                             .get_future().then(lambda done: done.value()[0]))
    other(torch.ones(4, 3) * (dist.get_rank() + 1)).pow(2).sum().backward()
    sums = other.module[0].weight.grad.clone()
    dist.all_reduce(sums, dist.ReduceOp.AVG)
    torch.testing.assert_close(sums, other.module[0].weight.grad)


def changed_modules():
    """Programs that torch's class trains on each rank separately are an error."""
    def unfrozen(net):
        net[0].weight.requires_grad_(True)

    def replaced(net):
        net[2].weight = torch.nn.Parameter(torch.ones(3, 8))

    def another_head(net):
        net[2] = torch.nn.Linear(8, 3)

    def assigned(net):
        net.load_state_dict({name: value.clone() for name, value in net.state_dict().items()}, assign=True)

    def added(net):
        net.append(torch.nn.Linear(3, 3))

    def doubled(net):
        net.double()

    for change, words in ((unfrozen, "parameter '0.weight' has been unfrozen since it was wrapped"),
                          (replaced, "parameter '2.weight' has been replaced since it was wrapped"),
                          (another_head, "parameter '2.weight' has been replaced since"),
                          (assigned, "parameter '2.weight' has been replaced since"), (added, "parameter '3.weight' has been added since"),
                          (doubled, "has become Double[")):
        for options in ({}, {"find_unused_parameters": True}):
            net = layers(4, 3)
            net[0].requires_grad_(False)
            model = Ours(net, **options)
            model(data(0, 4)).sum().backward()
            change(net)
            x = data(1, 4).to(net[2].weight.dtype)
            error_of(libddp.InvalidArgument, words, lambda: model(x))
            error_of(libddp.InvalidArgument, "wrap", lambda: model(x))
            with torch.no_grad():
                model(x)
            again = Ours(net)  # as it says, while the first one is there
            again(x).sum().backward()

    def pruned(wrap, options):  # does not count as such a change
        net = torch.nn.ModuleDict({"body": layers(4, 3), "old": torch.nn.Linear(3, 1)})
        forward = torch.nn.Module()
        forward.net, forward.forward = net, lambda x: sum(part(net["body"](x)).mean() for name, part in net.items() if name != "body")
        model = wrap(forward, **options)
        model(data(0, 4)).backward()
        del net["old"]
        net["none"] = torch.nn.Identity()
        for each in net["body"][0].parameters():
            each.requires_grad_(False)
        net.zero_grad()
        model(data(1, 4)).backward()
        with torch.no_grad():
            for each in net["body"][2].parameters():
                each -= each.grad
        return net

    as_torchs(pruned, {"find_unused_parameters": True})


class Failing(torch.autograd.Function):
    """A backward pass that seems to run out of memory where `fails` says so."""
    fails = None

    @staticmethod
    def forward(context, x, name):
        context.name = name
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        if Failing.fails == context.name:
            Failing.fails = None
            raise torch.OutOfMemoryError("CUDA out of memory")
        return gradient, None


class Fragile(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.seen += x.detach().mean(0)
        hidden = Failing.apply(torch.tanh(self.first(Failing.apply(x.requires_grad_(), "first"))), "middle")
        return Failing.apply(self.last(hidden), "last")


def failed_backwards():
    """A retry, as with smaller batches, gives the numbers of a program without a failure."""
    rank = dist.get_rank()
    # a bucket a parameter: those of `last` are under way when `middle` fails; all are at `first`
    small = {"bucket_cap_mb": 1 / 2**20}
    for ranks, place, options in (
            ([0, 1], "last", {}), ([0], "last", {"find_unused_parameters": True}), ([0], "middle", {"static_graph": True}),
            ([1], "first", {"gradient_as_bucket_view": True}), ([0, 1], "middle", small), ([0], "middle", small),
            ([0], "middle", {**small, "find_unused_parameters": True}), ([0, 1], "first", {**small, "gradient_as_bucket_view": True})):
        nets = []
        for fails in (True, False):
            torch.manual_seed(5)
            net = Fragile()
            model = Ours(net, **options)
            optimizer = torch.optim.SGD(net.parameters(), 0.1)

            def backward(step):
                optimizer.zero_grad()
                model(data(step, 4)).pow(2).sum().backward()

            for step in range(STEPS):
                Failing.fails = place if fails and step == 2 and rank in ranks else None
                try:
                    backward(step)
                except torch.OutOfMemoryError:
                    assert rank in ranks
                    backward(step)
                except libddp.InvalidArgument as error:  # what others have launched cannot be taken back
                    assert ("bucket_cap_mb" in options or place == "first") and rank not in ranks, error
                    assert f"on rank {ranks[0]}, the backward pass has failed" in str(error) and error.ranks == tuple(ranks), error
                    backward(step)
                optimizer.step()
            nets.append(net)
        for (name, one), other in zip(nets[0].named_parameters(), nets[1].parameters()):
            torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{place} of {ranks} with {options}, {name}: {text}")


def modules_without_memory():
    with torch.device("meta"):
        net = layers(3, 2)
    error_of(ValueError, "to_empty(device=", lambda: Ours(net))


def layouts():
    """Tensors of one shape with another memory order on rank 0, or on all ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def made(number, order):
        values = (torch.arange(24.) + 100 * number).reshape(2, 3, 2, 2)
        if order == "columns":
            return values.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
        return values.contiguous(memory_format=torch.channels_last if order == "channels" else torch.contiguous_format)

    rows = [made(number, "rows") for number in range(size)]
    for orders in ("columns", "rows"), ("rows", "channels"), ("channels", "columns"), ("columns", "columns"):
        order = orders[rank]

        def outputs():
            return [made(9, order) for _ in range(size)]

        def same(found, wanted, what):
            assert torch.equal(found, wanted), f"{what}, {orders}: {found} instead of {wanted}"
            assert found.stride() == made(0, order).stride(), f"{what}: it lies as before"

        for root in range(size):
            dist.broadcast(x := made(rank, order), root)
            same(x, rows[root], "broadcast")
            dist.reduce(x := made(rank, order), root)
            if rank == root:
                same(x, sum(rows), "reduce")
            dist.gather(made(rank, order), got := outputs() if rank == root else None, root)
            for found, wanted in zip(got or (), rows):
                same(found, wanted, "gather")
            dist.scatter(x := made(9, order), [made(number, order) for number in range(size)] if rank == root else None, root)
            same(x, rows[rank], "scatter")
        dist.all_reduce(x := made(rank, order))
        same(x, sum(rows), "all_reduce")
        work = dist.all_reduce(x := made(rank, order), dist.ReduceOp.MAX, async_op=True)
        same(work.get_future().wait()[0], rows[-1], "the future of all_reduce")
        dist.all_reduce_coalesced([x := made(rank, order), y := made(1, order)])
        same(x, sum(rows), "all_reduce_coalesced")
        same(y, size * rows[1], "all_reduce_coalesced")
        dist.all_gather(got := outputs(), made(rank, order))
        for found, wanted in zip(got, rows):
            same(found, wanted, "all_gather")
        dist.reduce_scatter(x := made(9, order), [made(number, order) for number in range(size)])
        same(x, size * rows[rank], "reduce_scatter")
        dist.all_gather_into_tensor(whole := torch.empty(2 * size, 3, 2, 2), made(rank, order))
        assert torch.equal(whole, torch.cat(rows)), "all_gather_into_tensor"
        dist.reduce_scatter_tensor(x := made(9, order), torch.cat([made(number, order) for number in range(size)]))
        same(x, size * rows[rank], "reduce_scatter_tensor")
        dist.all_to_all_single(x := made(9, order), made(rank, order))
        same(x, torch.stack([each[rank] for each in rows]), "all_to_all_single")
    for gaps in torch.zeros(4, 6)[:, ::2], torch.zeros(3).expand(2, 3):
        error_of(libddp.InvalidArgument, "contiguous", lambda: dist.all_reduce(gaps))


def uneven_splits():
    """If one side of an all_to_all_single gives no sizes, its rows are dealt equally or not at all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    many, few = torch.arange(5.).reshape(5, 1), torch.empty(4, 1)
    error_of(libddp.InvalidArgument, "5 rows of the input cannot be dealt to 2 ranks equally", lambda: dist.all_to_all_single(few, many, [2, 2]))
    error_of(libddp.InvalidArgument, "5 rows of the output cannot", lambda: dist.all_to_all_single(many, few, None, [2, 2]))
    error_of(libddp.InvalidArgument, "1 rows of the output cannot", lambda: dist.all_to_all_single(torch.empty(1, 2), torch.empty(1, 2)))
    error_of(libddp.InvalidArgument, "give input_split_sizes", lambda: dist.all_to_all_single(torch.empty(4), torch.empty(3), [2, 2]))
    for splits in None, [2] * size:
        dist.all_to_all_single(got := torch.empty(2 * size, 1), torch.full((2 * size, 1), float(rank)), splits)
        assert got.flatten().tolist() == [0, 0, 1, 1], got
    dist.all_to_all_single(empty := torch.empty(0, 3), torch.empty(0, 3), None, [0, 0])
    assert empty.shape == (0, 3)
