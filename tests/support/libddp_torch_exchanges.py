"""Checks of libddp_torch_parallel.py: gradients that are exchanged apart from the buckets."""

import copy

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Theirs

import libddp.torch
from libddp.torch import DistributedDataParallel as Ours
from libddp_torch_training import STEPS, assert_same, error_of, trained, trained_alone


class Words(torch.nn.Module):
    """Embeddings with sparse gradients beside a dense layer, in float64; batches of other lengths in each step, some empty."""

    def __init__(self, leaves_out=False):
        super().__init__()
        self.words = torch.nn.Embedding(9, 4, sparse=True)
        self.bags = torch.nn.EmbeddingBag(7, 4, mode="sum", sparse=True)
        self.head = torch.nn.Linear(4, 2)
        self.leaves_out = leaves_out
        self.double()

    def forward(self, x):
        words, bag = x
        hidden = self.words(words).sum(0)
        if len(bag) < 3 or not self.leaves_out:
            hidden = hidden + self.bags(bag, torch.tensor([0]))[0]
        return self.head(hidden)

    def inputs(self, generator):
        words, bag = torch.randint(0, 4, (2,), generator=generator).tolist()
        return (torch.randint(0, 9, (words,), generator=generator), torch.randint(0, 7, (bag,), generator=generator))


def sparse_gradients():
    for net, options in ((Words, {}), (Words, {"static_graph": True}), (Words, {"gradient_as_bucket_view": True}),
                         (lambda: Words(leaves_out=True), {"find_unused_parameters": True})):
        ours = trained(net, lambda it: Ours(it, **options), accumulate=2, view="gradient_as_bucket_view" in options)
        expected = trained_alone(net, STEPS, 2)
        for name in expected:
            torch.testing.assert_close(ours[name], expected[name], msg=f"{name} {options}")
    gloo = dist.new_group(backend="gloo")
    assert_same(trained(Words, Ours), trained(Words, lambda it: Theirs(it, process_group=gloo)))

    rank, size = dist.get_rank(), dist.get_world_size()
    model = Ours(torch.nn.EmbeddingBag(50, 2, mode="sum", sparse=True))
    optimizer = torch.optim.SparseAdam(model.parameters(), lr=0.5)
    before = model.module.weight.detach().clone()
    model(torch.tensor([[3, 3, 5 + rank]])).sum().backward()
    gradient = model.module.weight.grad
    assert gradient.is_coalesced() and gradient.indices().tolist() == [[3, *range(5, 5 + size)]], gradient
    torch.testing.assert_close(gradient.values()[:, 0], torch.tensor([2.0] + size * [1 / size]))
    optimizer.step()
    assert (model.module.weight != before).all(1).nonzero().flatten().tolist() == [3, *range(5, 5 + size)]

    for announced, words in ((False, "sparse"), (True, "Float[4, 3] on cpu, not rows")):
        wrong = Ours(torch.nn.Embedding(4, 3, sparse=announced))
        wrong.module.sparse = not announced
        error_of(libddp.InvalidArgument, f"averaging the gradient of 'weight': it is {words}",
                 lambda: wrong(torch.tensor([1])).sum().backward())
    error_of(libddp.Mismatch, "with a sparse gradient", lambda: Ours(torch.nn.Embedding(4, 3, sparse=rank == 0)))


def sparse_tensors():
    """all_reduce of sparse tensors has the bits of gloo's."""
    rank, gloo = dist.get_rank(), dist.new_group(backend="gloo")
    generator = torch.Generator().manual_seed(5 + rank)

    def sparse(shape, dims, elements, dtype=torch.float32):
        indices = torch.stack([torch.randint(0, size, (elements,), generator=generator) for size in shape[:dims]])
        values = torch.randn((elements, *shape[dims:]), generator=generator).mul(10).to(dtype)
        return torch.sparse_coo_tensor(indices, values, shape)  # some elements several times

    for shape, dims, elements, dtype in (((7, 5), 2, 20, torch.float32), ((9, 3, 2), 1, 6, torch.float64), ((50,), 1, rank, torch.int64),
                                         ((4, 6), 1, 3 * rank, torch.bfloat16), ((5,), 1, 0, torch.float32)):
        ours, theirs = (tensor.clone() for tensor in (sparse(shape, dims, elements, dtype),) * 2)
        dist.all_reduce(theirs, group=gloo)
        work = dist.all_reduce(ours, async_op=True)
        assert work.wait() and work.get_future().value()[0] is not None
        assert ours.is_coalesced() and torch.equal(ours.indices(), theirs.indices()), (shape, ours, theirs)
        assert torch.equal(ours.values(), theirs.values()), (shape, ours, theirs)
    tensor = sparse((3,), 1, 2)
    error_of(libddp.InvalidArgument, "libddp adds them only", lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX))
    error_of(libddp.Mismatch, "adding sparse tensors: they differ from rank 0's", lambda: dist.all_reduce(sparse((4 + rank,), 1, 2)))


def delayed_parameters():
    def wrapped(kind, net, hooked=1, **options):
        layers = list(net.module)
        delayed = [(f"module.2.{name}", each) for name, each in layers[2].named_parameters()]
        return kind(net, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=layers[hooked].weight, **options)

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

        def forward(self, x):
            return self.module(x)

        def inputs(self, generator):
            return torch.randn(3, 4, generator=generator)

    all_reduce = dist.all_reduce
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce = lambda tensor, async_op, **rest: all_reduce(tensor, **rest)  # torch's class does not wait for it
    expected = trained(Layers, lambda net: wrapped(Theirs, net, process_group=gloo), steps=6, accumulate=2)
    dist.all_reduce = all_reduce
    for view in (False, True):
        ours = trained(Layers, lambda net: wrapped(Ours, net, gradient_as_bucket_view=view), steps=6, accumulate=2, view=view)
        assert_same(ours, expected)
    assert_same(expected, trained_alone(Layers, 6, 2))

    for hooked, buckets in ((1, [[3], [1, 2], [4, 5], [0]]), (0, [[3], [1, 2], [0], [4, 5]])):
        model = wrapped(Ours, Layers(), hooked, bucket_cap_mb=64 / 2**20)
        assert model._get_ddp_logging_data()["buckets"] == buckets, model._get_ddp_logging_data()
        assert len(list(model.parameters())) == 6 and len(model.state_dict()) == 6
        clone = copy.deepcopy(model)
        assert clone._get_ddp_logging_data()["buckets"] == buckets
    error_of(ValueError, "at the same time", lambda: Ours(Layers(), delay_all_reduce_named_params=[]))
    other = torch.nn.Linear(1, 1).weight
    error_of(ValueError, "not the module's", lambda: Ours(
        Layers(), delay_all_reduce_named_params=[("other", other)], param_to_hook_all_reduce=other))
    error_of(ValueError, "not a parameter of the module", lambda: Ours(
        Layers(), delay_all_reduce_named_params=[], param_to_hook_all_reduce=other))
