"""Checks of horovod_job.py on the steps of optimizers: closures, states of all kinds, steps that are left out or fail, compiled
models."""

import os

import libddp.horovod as hvd
import torch

from horovod_checks import equal_on_all, momentum, same, sample, small_model, trained_alone
from job_checks import check, refused


@check
def closures(rank, size):
    """Each closure's gradients are averaged, and LBFGS goes as far on all ranks: as one process with all samples."""
    for search, op in ((None, hvd.Average), ("strong_wolfe", hvd.Average), ("strong_wolfe", hvd.Sum)):
        model, alone = small_model().double(), small_model().double()
        made = [torch.optim.LBFGS(each.parameters(), lr=0.5, max_iter=6, line_search_fn=search, tolerance_change=1e-3) for each in (model, alone)]
        wrapped, plain = hvd.DistributedOptimizer(made[0], model.named_parameters(), op=op), made[1]
        calls = [0, 0]

        def loss_of(of, number):
            return of(sample(number).double()).pow(2).mean()

        def own():
            calls[0] += 1
            wrapped.zero_grad()
            loss = loss_of(model, rank)
            loss.backward()
            return loss

        def whole():
            calls[1] += 1
            plain.zero_grad()
            loss = sum(loss_of(alone, each) for each in range(size)) / (size if op == hvd.Average else 1)
            loss.backward()
            return loss

        for _ in range(3):
            torch.testing.assert_close(wrapped.step(own), plain.step(whole).detach())
        assert calls[0] == calls[1], calls
        same(model, alone)
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    for step in range(3):
        def closure():
            wrapped.zero_grad()
            loss = model(sample(rank) + step).pow(2).mean()
            loss.backward()
            return loss
        assert wrapped.step(closure).requires_grad, "it is what the closure has returned"
    same(model, trained_alone(size))


def frozen(model, every):
    for place, each in enumerate(model.parameters()):
        each.requires_grad_(bool(place % every))
    return model


@check
def states(rank, size):
    """Broadcast to ranks that have none, without a step; then each optimizer's step is the same on all ranks."""
    def linear():
        return small_model(), lambda of: of(sample(rank)).pow(2).mean()

    def embedding():
        torch.manual_seed(0)
        return torch.nn.Embedding(8, 3, sparse=True), lambda of: of(torch.tensor([rank, rank + 1])).sum()

    def matrix():
        torch.manual_seed(0)
        return torch.nn.Linear(4, 3, bias=False), lambda of: of(sample(rank)).pow(2).mean()

    kinds = [(embedding, torch.optim.SparseAdam), (linear, lambda p: torch.optim.Adam(p, torch.tensor(0.1 * (rank + 1)))),
             (lambda: (frozen(linear()[0], 2), linear()[1]), lambda p: torch.optim.AdamW(p, 0.1 * (rank + 1))),
             (linear, lambda p: torch.optim.NAdam([{"params": list(p)[:2], "lr": 0.1 + rank}, {"params": list(small_model().parameters())[:1]}]))]
    if hasattr(torch.optim, "Adafactor"):
        kinds.append((linear, torch.optim.Adafactor))
    if hasattr(torch.optim, "Muon"):
        kinds.append((matrix, lambda p: torch.optim.Muon(p, lr=0.1 * (rank + 1))))
    for make_model, make in kinds:
        model, loss = make_model()
        optimizer = make(model.parameters())
        before = [each.detach().clone() for each in model.parameters()]
        if rank == size - 1:
            loss(model).backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for each, old in zip(model.parameters(), before):
                    each.copy_(old)
        hvd.broadcast_optimizer_state(optimizer, root_rank=size - 1)
        assert all(torch.equal(each, old) for each, old in zip(model.parameters(), before)), "weights have moved"
        equal_on_all([repr(sorted(each.items())) for each in optimizer.state_dict()["state"].values()] + [repr(optimizer.param_groups[0]["lr"])])
        wrapped = hvd.DistributedOptimizer(optimizer)
        wrapped.zero_grad()
        loss(model).backward()
        wrapped.step()
        equal_on_all([each.tolist() for each in model.parameters()])
        assert any(not torch.equal(each, old) for each, old in zip(model.parameters(), before)), type(wrapped).__name__
    model = frozen(small_model(), 1).requires_grad_(False)
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    hvd.broadcast_optimizer_state(wrapped, 0)
    wrapped.zero_grad()
    wrapped.step()
    same(model, small_model())


class Refuses(torch.optim.SGD):
    refuses = False

    def step(self, closure=None):
        if self.refuses:
            raise ArithmeticError("an optimizer of one rank")
        return super().step(closure)


@check
def unusual_steps(rank, size):
    """Steps without a backward pass, passes without a step, and what fails on one rank alone."""
    def backward(of, step=0):
        of(sample(rank) + step).pow(2).mean().backward()

    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    wrapped.step()  # moves nothing
    same(model, small_model())
    backward(model, 7)
    wrapped.zero_grad()
    for step in range(3):
        backward(model, step)
        if step == 1:
            wrapped.zero_grad()
            backward(model, step)
        wrapped.step()
        wrapped.zero_grad()
    same(model, trained_alone(size))
    wrapped.step()  # by momentum alone
    equal_on_all([each.tolist() for each in model.parameters()])
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    for step in range(3):
        for each in range(2):  # accumulates, though a step has one
            backward(model, step + each)
        wrapped.step()
        wrapped.zero_grad()
    same(model, trained_alone(size, passes=2))

    model = small_model()
    wrapped = hvd.DistributedOptimizer(Refuses(model.parameters(), 0.1, momentum=0.9), model.named_parameters())
    for step in range(3):
        wrapped.zero_grad()
        backward(model, step)
        wrapped.refuses = rank == step == 1
        if wrapped.refuses:
            refused(ArithmeticError, wrapped.step, "of one rank")
            wrapped.refuses = False
        wrapped.step()  # again, there
    same(model, trained_alone(size))

    class Fails(hvd.Compression.none):
        @staticmethod
        def compress(tensor):
            if rank == 1:
                raise ArithmeticError("a compressor of one rank")
            return tensor, None

    if size > 1:
        model = small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), compression=Fails)
        error = refused(Exception, lambda: backward(model))
        assert isinstance(error, ArithmeticError if rank == 1 else hvd.HorovodInternalError), repr(error)
        assert "rank 1" in str(error) or rank == 1, error
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum) == size


@check
def compiled(rank, size):
    import compiled_overlap  # and PyTorch's compiler, which takes time
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    fast = torch.compile(model, backend="aot_eager")
    for step in range(3):
        wrapped.zero_grad()
        fast(sample(rank) + step).pow(2).mean().backward()
        equal_on_all([each.grad.tolist() for each in model.parameters()])
        wrapped.step()
    same(model, trained_alone(size))
    wide = compiled_overlap.Model()
    os.environ["HOROVOD_FUSION_THRESHOLD"] = str(1 << 20)
    wrapped = hvd.DistributedOptimizer(momentum(wide.parameters()), wide.named_parameters(), comm_hook=compiled_overlap.hook)
    del os.environ["HOROVOD_FUSION_THRESHOLD"]
    compiled_overlap.check(torch.compile(wide, backend="aot_eager"), wrapped.zero_grad, wrapped.step)
