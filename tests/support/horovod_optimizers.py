"""Checks of horovod_job.py on DistributedOptimizer."""

import warnings

import libddp.horovod as hvd
import libddp.torch
import torch

from horovod_checks import equal_on_all, momentum, same, sample, small_model, trained_alone
from job_checks import check, refused


@check
def optimizer(rank, size):
    for op, average in ((hvd.Average, True), (hvd.Sum, False)):
        for passes, of in ((1, 1), (2, 2), (2, 3)):  # the last: step() comes early
            model = small_model()
            wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), op=op,
                                               backward_passes_per_step=of)
            for step in range(3):
                wrapped.zero_grad(set_to_none=step != 1)
                for each in range(passes):
                    model(sample(rank) + step + each).pow(2).mean().backward()
                if passes == of:
                    equal_on_all(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)))
                wrapped.step()
            same(model, trained_alone(size, average, passes))
    assert isinstance(wrapped, torch.optim.SGD) and type(wrapped).__name__ == "SGD"
    for wrong in ("inf", "nan"):
        scaler, model = torch.amp.GradScaler("cpu", init_scale=8.0), small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
        for step in range(3):
            wrapped.zero_grad()
            loss = model(sample(rank)).pow(2).mean()
            scaler.scale(loss * float(wrong) if step == rank == 1 else loss).backward()
            scaler.unscale_(wrapped)
            scaler.step(wrapped)
            scaler.update()
        assert scaler.get_scale() == 4.0, "all ranks skip the step that one cannot take"
        equal_on_all([each.tolist() for each in model.parameters()])


@check
def optimizer_missing(rank, size):
    """What no rank has computed moves by momentum and weight decay, or stays."""
    for missing, stays in (("zeros", False), ("skip", True)):
        heads = torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(size + 1))
        hvd.broadcast_parameters(heads.state_dict(), 0)
        before = [each.detach().clone() for each in heads.parameters()]
        inner = torch.optim.SGD(heads.parameters(), 0.1, momentum=0.9, weight_decay=0.1)
        wrapped = hvd.DistributedOptimizer(inner, heads.named_parameters(), missing=missing)
        for passes in range(2):  # the second finds the gradients of the first gone
            wrapped.zero_grad()
            if passes == 0 or rank > 0:
                heads[rank](sample(rank)).sum().backward()
            wrapped.step()
        for place, (old, new) in enumerate(zip(before, heads.parameters())):
            assert torch.equal(old, new) == (stays and place >= 2 * size), (missing, place)
        equal_on_all([each.tolist() for each in heads.parameters()])
    for wrong in ({"missing": "none"}, {"missing": "skip", "op": hvd.Adasum},
                  {"missing": "skip", "comm_hook": libddp.torch.power_sgd_hook()}):
        try:
            hvd.DistributedOptimizer(momentum(heads.parameters()), heads.named_parameters(), **wrong)
        except ValueError as error:
            assert "missing='" in str(error), error
        else:
            raise AssertionError(wrong)


@check
def optimizer_features(rank, size):
    body, heads = torch.nn.Linear(4, 4), torch.nn.ModuleList(torch.nn.Linear(4, 1) for _ in range(size + 1))
    model = torch.nn.ModuleList([body, heads])
    hvd.broadcast_parameters(model.state_dict(), 0)
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    for step in range(4):
        wrapped.zero_grad()
        if step < 3 or rank > 0:  # at last one rank has no backward pass
            heads[(rank + step) % size](body(sample(rank))).sum().backward()
        body.weight.requires_grad_(step % 2 == 0)
        wrapped.step()
        assert not heads[size].weight.grad.any(), "no rank has computed it"
    body.weight.requires_grad_(True)
    equal_on_all([each.tolist() for each in model.parameters()])
    extra = torch.nn.Linear(4, 4)
    hvd.broadcast_parameters(extra.state_dict(), 0)
    wrapped.add_param_group({"params": list(extra.parameters())})
    scheduler = torch.optim.lr_scheduler.StepLR(wrapped, 1)
    wrapped.zero_grad()
    heads[0](body(extra(sample(rank)))).sum().backward()
    wrapped.synchronize()
    with wrapped.skip_synchronize():
        wrapped.step()
    scheduler.step()
    assert abs(wrapped.param_groups[0]["lr"] - 0.01) < 1e-9
    equal_on_all([each.tolist() for each in [*model.parameters(), *extra.parameters()]])
    wrapped.synchronize()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wrapped.step()
    assert any("skip_synchronize" in str(each.message) for each in said)
    for arguments in ({"compression": hvd.Compression.fp16}, {"compression": hvd.Compression.bf16}, {"op": hvd.Adasum},
                      {"op": hvd.Max}, {"op": hvd.ExactAverage}, {"groups": 2}, {"gradient_predivide_factor": 2.0}):
        model = small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), **arguments)
        for _ in range(2):
            wrapped.zero_grad()
            model(sample(rank)).pow(2).mean().backward()
            wrapped.step()
        equal_on_all([each.tolist() for each in model.parameters()])
    generator, critic = small_model(), torch.nn.Linear(2, 1)
    hvd.broadcast_parameters(critic.state_dict(), 0)
    both = [hvd.DistributedOptimizer(torch.optim.Adam(each.parameters()), each.named_parameters()) for each in (generator, critic)]
    for _ in range(3):
        both[1].zero_grad()
        critic(generator(sample(rank)).detach()).sum().backward()
        both[1].step()
        both[0].zero_grad()
        critic(generator(sample(rank))).sum().backward()
        both[0].step()
    equal_on_all([each.tolist() for each in [*generator.parameters(), *critic.parameters()]])
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        model = small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), process_set=pair)
        for step in range(3):
            wrapped.zero_grad()
            model(sample(rank) + step).pow(2).mean().backward()
            wrapped.step()
        same(model, trained_alone(2))
    hvd.remove_process_set(pair)
    model, named = small_model(), list(small_model().named_parameters())
    plain = momentum(model.parameters())
    for arguments, words in (({"named_parameters": [each for _, each in named]}, "tuples"),
                             ({"named_parameters": named[:1]}, "not named"),
                             ({"named_parameters": named[:1] * 2}, "Duplicate".lower()),
                             ({"backward_passes_per_step": 0}, "> 0"), ({"groups": -1}, "non-negative"),
                             ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "op != Average")):
        refused(ValueError, lambda: hvd.DistributedOptimizer(plain, **arguments), words)


@check
def optimizer_joins(rank, size):
    """Ranks with fewer batches take part with zeros."""
    for passes in (1, 2):
        model = small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), backward_passes_per_step=passes)
        for step in range(2 + 2 * rank):
            wrapped.zero_grad()
            for _ in range(passes):
                model(sample(rank) + step).pow(2).mean().backward()
            wrapped.step()
            active = sum(2 + 2 * each > step for each in range(size))
            assert hvd.allreduce(torch.ones(1), op=hvd.Sum, name="loss") == active
        last = hvd.join()
        equal_on_all(last)
        weights = hvd.allgather_object([each.tolist() for each in model.parameters()])
        assert size == 1 or weights[-1] != weights[0], "the last rank went on"
        del wrapped
    models = [small_model(), small_model()]
    both = [hvd.DistributedOptimizer(momentum(each.parameters()), each.named_parameters()) for each in models]
    if size > 1:
        refused(NotImplementedError, hvd.join, "one optimizer")
    for place in (0, 1):
        both[place].zero_grad()
        models[place](sample(rank)).pow(2).mean().backward()
        both[place].step()
    equal_on_all([each.tolist() for model in models for each in model.parameters()])
    # more backward passes than a step has, a failed one, and a parameter that is not frozen any more
    model = small_model()
    model[0].weight.requires_grad_(False)
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), backward_passes_per_step=2)
    for each in range(3):
        model(sample(rank) + each).pow(2).mean().backward()
    wrapped.step()
    equal_on_all([each.tolist() for each in model.parameters()])
    model[0].weight.requires_grad_(True)
    refused(ValueError, wrapped.synchronize, "zero_grad()")
    wrapped.zero_grad()
    for each in range(2):
        model(sample(rank)).pow(2).mean().backward()
    wrapped.step()
    equal_on_all([each.tolist() for each in model.parameters()])


@check
def optimizer_refusals(rank, size):
    """What would count a gradient once for each rank."""
    def loss(of, step=0):
        return of(sample(rank) + step).pow(2).mean()

    def gradients(of):
        return [each.grad.clone() for each in of.parameters()]

    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), op=hvd.Sum, backward_passes_per_step=2)
    for step in range(3):
        wrapped.zero_grad()
        for each in range(2):
            loss(model, step + each).backward()
        summed = gradients(model)
        error = refused(ValueError, loss(model).backward, "exchanged before")
        assert not isinstance(error, hvd.HorovodInternalError)
        for each, whole in zip(model.parameters(), summed):  # this rank's alone was added
            each.grad = whole
        wrapped.step()
        refused(ValueError, wrapped.step, "exchanged before")
    same(model, trained_alone(size, average=False, passes=2))
    for to_none in (True, False):  # gradients that the program empties itself, as where GradScaler skips a step
        for each in range(2):
            model.zero_grad(set_to_none=to_none)
            model(torch.full((1, 4), float("inf") if each == 0 else 1.0)).sum().backward()
            loss(model).backward()
            equal_on_all([each.tolist() for each in gradients(model)] if each else None)
    refused(ValueError, lambda: hvd.DistributedOptimizer(momentum(model.parameters()), op=hvd.ExactAverage,
                                                         compression=hvd.Compression.fp16), "leave out compression")
    refused(ValueError, lambda: hvd.allreduce(torch.ones(1), op=hvd.ExactAverage), "is none of")
    refused(ValueError, lambda: hvd.DistributedOptimizer(momentum(model.parameters()), compression=7), "compress")


@check
def optimizer_hooks(rank, size):
    """What libddp's and a program's own hooks make of the average."""
    import libddp.torch
    average = small_model()
    for each in range(size):
        (average(sample(each)).pow(2).mean() / size).backward()
    exact = [each.grad for each in average.parameters()]

    def made(comm_hook, of=None, **arguments):
        model = of or small_model()
        return model, hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), comm_hook=comm_hook, **arguments)

    def gradients(comm_hook, **arguments):
        model, wrapped = made(comm_hook, **arguments)
        model(sample(rank)).pow(2).mean().backward()
        found = [each.grad for each in model.parameters()]
        equal_on_all([each.tolist() for each in found])
        del wrapped
        return found

    low = gradients(libddp.torch.power_sgd_hook(rank=1, start_iteration=0, min_compression_rate=1))
    assert [int(torch.linalg.matrix_rank(each)) for each in (low[0], low[2], exact[0])] == [1, 1, 4]
    torch.testing.assert_close(low[1], exact[1])
    for per_channel in (False, True):
        rounded = gradients(libddp.torch.quantize_hook(per_channel))
        step = (max(each.max() for each in exact) - min(each.min() for each in exact)) * 2 / 255  # one rank's range may be larger
        assert all((got - right).abs().max() <= step for got, right in zip(rounded, exact))
        assert any(not torch.equal(got, right) for got, right in zip(rounded, exact))
    as_op = gradients(None, op=hvd.ExactAverage)
    assert all(torch.equal(one, two) for one, two in zip(gradients(libddp.torch.exact_average_hook), as_op))

    def doubles(state, bucket):
        state.append(bucket.index())
        done = torch.futures.Future()
        done.set_result(bucket.buffer().fill_(2.0))
        return done

    seen = []
    assert all((each == 2).all() for each in gradients((seen, doubles))) and seen == [0]

    model = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(size + 1))  # what one rank, or none, computes
    hvd.broadcast_parameters(model.state_dict(), 0)
    model, wrapped = made(libddp.torch.power_sgd_hook(rank=2, start_iteration=0, min_compression_rate=1), model)
    for step in range(3):
        wrapped.zero_grad()
        model[(rank + step) % size](sample(rank)).pow(2).mean().backward()
        assert not model[size].weight.grad.any() and model[0].weight.grad.any()
        wrapped.step()
    equal_on_all([each.tolist() for each in model.parameters()])
    refused(NotImplementedError, hvd.join, "comm_hook")
    del wrapped

    def fails_on_one(_, bucket):
        if rank == 1:
            raise ArithmeticError("a hook of one rank")
        return doubles([], bucket)

    model, wrapped = made(fails_on_one)
    error = refused(Exception, model(sample(rank)).pow(2).mean().backward)
    assert isinstance(error, ArithmeticError if rank == 1 else hvd.HorovodInternalError), repr(error)
    assert rank == 1 or error.ranks == (1,), error
    del wrapped
    for wrong, arguments in ((seen, {}), (doubles, {"op": hvd.Sum}), (doubles, {"compression": hvd.Compression.fp16})):
        refused(ValueError, lambda: made(wrong, **arguments), "comm_hook")


@check
def optimizer_in_distributed_autograd(rank, size):
    """Its context would get the gradients, and the optimizer average zeros. backward() without the context is right within it."""
    from torch.distributed import autograd, rpc
    import torch.distributed as dist
    import libddp.torch  # noqa: F401, makes pmix:// known
    dist.init_process_group("gloo", init_method="pmix://")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
    model = small_model()
    wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters())
    for to_none in (True, False):  # with gradients of zeros, too
        with autograd.context() as context:
            loss = model(sample(rank)).pow(2).mean()
            refused(RuntimeError, lambda: autograd.backward(context, [loss]), "torch.distributed.autograd.context()")
        model(sample(rank)).pow(2).mean().backward()
        wrapped.zero_grad(set_to_none=to_none)
    with autograd.context() as context:
        loss = model(sample(rank)).pow(2).mean()
        refused(RuntimeError, lambda: autograd.backward(context, [loss]), "torch.distributed.autograd.context()")
    for step in range(3):
        wrapped.zero_grad()
        with autograd.context():
            (model(sample(rank) + step)).pow(2).mean().backward()
        wrapped.step()
    same(model, trained_alone(size))
    rpc.shutdown()
    dist.destroy_process_group()


class Halved(hvd.Compression.none):
    """Sends the first half of each gradient's elements, rounded to integers, and knows the shape by its context."""

    @staticmethod
    def compress(tensor):
        flat = tensor.reshape(-1)
        return (flat[:(flat.numel() + 1) // 2] * 2**16).round().to(torch.int64), (tensor.shape, tensor.dtype)

    @staticmethod
    def decompress(tensor, ctx):
        shape, dtype = ctx
        made = torch.zeros(shape.numel(), dtype=dtype)
        made[:tensor.numel()] = tensor.to(dtype) / 2**16
        return made.view(shape)


class Narrow(hvd.Compression.none):
    """Of a type that depends on the gradient."""

    @staticmethod
    def compress(tensor):
        return tensor.to(torch.float64 if tensor.dim() == 1 else torch.float16), tensor.dtype

    @staticmethod
    def decompress(tensor, ctx):
        return tensor.to(ctx)


@check
def compressors(rank, size):
    """An optimizer's own ones see each gradient by itself, and its op holds of what they have made."""
    for kind, op in ((Halved, hvd.Average), (Narrow, hvd.Average), (Narrow, hvd.Sum), (hvd.Compression.fp16, hvd.Max)):
        model, mine = small_model(), small_model()
        wrapped = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), compression=kind, op=op,
                                           gradient_predivide_factor=2.0 if (kind, op) == (Narrow, hvd.Average) else 1.0)
        for _ in range(2):
            wrapped.zero_grad()
            model(sample(rank)).pow(2).mean().backward()
            mine.load_state_dict(model.state_dict())
            mine.zero_grad()
            mine(sample(rank)).pow(2).mean().backward()
            for got, own in zip(model.parameters(), mine.parameters()):
                sent, context = kind.compress(own.grad)
                expected = kind.decompress(hvd.allreduce(sent, op=op), context) if size > 1 else own.grad
                torch.testing.assert_close(got.grad, expected, rtol=2e-3, atol=1e-4)
            wrapped.step()

    class Fails(hvd.Compression.none):
        @staticmethod
        def compress(tensor):
            raise ArithmeticError("cannot compress")

    if size > 1:
        model = small_model()
        failing = hvd.DistributedOptimizer(momentum(model.parameters()), model.named_parameters(), compression=Fails)
        refused(ArithmeticError, model(sample(rank)).sum().backward, "cannot compress")
        del failing


@check
def sparse_gradients(rank, size):
    """Of an embedding, by rows, and as dense ones: as one process with all samples."""
    def made():
        torch.manual_seed(0)
        return torch.nn.ModuleList([torch.nn.Embedding(20, 3, sparse=True), torch.nn.Linear(3, 1)])

    def loss(of, rank, step):
        return of[1](of[0](torch.tensor([rank, 2 * rank, step, 19]))).pow(2).sum()

    for as_dense, passes in ((False, 1), (False, 2), (True, 1), (True, 2)):
        model, alone = made(), made()
        wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(),
                                           sparse_as_dense=as_dense, backward_passes_per_step=passes)
        plain = torch.optim.SGD(alone.parameters(), 0.1)
        for step in range(3):
            wrapped.zero_grad()
            plain.zero_grad()
            for each in range(passes):
                if rank > 0 or step != 1:  # one rank computes nothing in this step
                    loss(model, rank, step + each).backward()
                for other in range(size):
                    if other > 0 or step != 1:
                        (loss(alone, other, step + each) / size).backward()
            wrapped.synchronize()
            if size > 1:
                assert model[0].weight.grad.is_sparse != as_dense
            with wrapped.skip_synchronize():
                wrapped.step()
            plain.step()
        same(model, alone)
    model = made()
    if size > 1:
        refused(ValueError, lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum), "sparse_as_dense")
    wrapped = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), op=hvd.Sum, sparse_as_dense=True)
    loss(model, rank, 0).backward()
    wrapped.step()
    equal_on_all([each.tolist() for each in model.parameters()])
    if size > 1:
        refused(ValueError, loss(model, rank, 0).backward, "exchanged before")
