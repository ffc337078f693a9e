"""Checks for libddp_torch_parallel.py: optimizers that are sharded, that step within backward(), that scale; torch's Join."""

import contextlib
import copy

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer, _apply_optimizer_in_backward
from torch.distributed.optim.zero_redundancy_optimizer import _OverlapStatus
from torch.nn.parallel import DistributedDataParallel as Theirs

from libddp.torch import DistributedDataParallel as Ours
from libddp_torch_training import Branches, Convolutions, Tied, assert_same, error_of, loss_of

ADAM = {"lr": 0.02, "betas": (0.8, 0.9)}
STEPS = 6


class Counting(torch.nn.Module):
    """Whose buffer counts the steps of the rank that it came from."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x):
        if torch.is_grad_enabled():
            self.steps += 1
        return self.net(x)


def inputs_of(rank, step):
    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * rank + step))


def joined_alone(net, size, divide):
    """What all ranks come to, of one process; rank r has r + 2 steps."""
    model = copy.deepcopy(net)
    optimizer = torch.optim.Adam(model.parameters(), **ADAM)
    for step in range(size + 1):
        active = [rank for rank in range(size) if step < rank + 2]
        optimizer.zero_grad()
        for rank in active:
            (loss_of(model(inputs_of(rank, step))) / (size if divide else len(active))).backward()
        optimizer.step()
    return {name: each for name, each in model.named_parameters()}


def torchs_join():
    rank, size = dist.get_rank(), dist.get_world_size()
    gloo = dist.new_group(backend="gloo")
    for divide, options, group in ((True, {}, None), (False, {"gradient_as_bucket_view": True}, None),
                                   (True, {"find_unused_parameters": True}, gloo)):
        torch.manual_seed(3)
        net = Counting()
        expected = joined_alone(net, size, divide)
        model = Ours(net, process_group=group, bucket_cap_mb=40 / 2**20, **options)
        assert (model.join_process_group, model.join_device) == (group or dist.group.WORLD, torch.device("cpu"))
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, process_group=group, **ADAM)
        join = Join([model, optimizer], divide_by_initial_world_size=divide)
        with join:
            for step in range(rank + 2):
                if rank > 0:
                    with torch.no_grad():  # which is no step
                        model(inputs_of(rank, step))
                optimizer.zero_grad()
                loss_of(model(inputs_of(rank, step))).backward()
                optimizer.step()
        assert_same(dict(net.named_parameters()), expected)
        assert net.steps == size + 1, net.steps  # those of the last rank, with what it got from earlier last ones
        loss_of(model(inputs_of(rank, 9))).backward()
        assert not model._join_config.enable  # nobody is told of steps behind it
        assert model._get_ddp_logging_data()["join_uneven_inputs"]

    model = Ours(Counting())
    with Join([model], enable=False):
        loss_of(model(inputs_of(rank, 9))).backward()
    assert not model._get_ddp_logging_data()["join_uneven_inputs"]
    for _ in range(2):
        try:
            with Join([model], throw_on_early_termination=True):
                for step in range(rank + 2):
                    loss_of(model(inputs_of(rank, step))).backward()
            raise AssertionError("ranks that ran out ended nothing")
        except RuntimeError as error:
            assert "exhausted" in str(error), error
        loss_of(model(inputs_of(rank, 9))).backward()


def stepped(net, wrap, optimizer=None, within=None):
    """The state after some steps: of an optimizer behind backward(), or of none, and what within() registers before them."""
    torch.manual_seed(5)
    module = net()
    model = wrap(module)
    if within is not None:
        within(model)
    behind = optimizer(model.parameters()) if optimizer else None
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(STEPS):
        for accumulated in (False, True):
            with contextlib.nullcontext() if accumulated else model.no_sync():
                loss_of(model(module.inputs(generator))).backward()
        if behind is not None:
            behind.step()
            behind.zero_grad()
        elif within is None:
            assert all(each.grad is None for each in model.parameters())
        else:
            model.zero_grad()
    return model.state_dict()


def fused_optimizers():
    def capped(kind):
        return lambda net: kind(net, bucket_cap_mb=0.002)

    def adam(parameters):
        return torch.optim.Adam(parameters, **ADAM)

    def fused(model):
        model._register_fused_optim(torch.optim.Adam, **ADAM)

    def fused_first(model):
        model._register_fused_optim(torch.optim.Adam, optim_params=[next(model.parameters())], **ADAM)

    assert_same(stepped(Tied, capped(Ours), within=fused), stepped(Tied, capped(Ours), adam))
    for register in (fused, fused_first):
        assert_same(stepped(Tied, capped(Ours), within=register), stepped(Tied, capped(Theirs), within=register))
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    assert_same(stepped(Tied, lambda net: Ours(net, process_group=alone), within=fused),
                stepped(Tied, lambda net: Ours(net, process_group=alone), adam))
    error_of(NotImplementedError, "_apply_optimizer_in_backward", lambda: fused(Ours(Convolutions())))
    error_of(ValueError, "functional counterpart", lambda: Ours(Tied())._register_fused_optim(torch.optim.LBFGS))


def optimizers_in_backward():
    def momentum(parameters):
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.5)

    def within(net):
        def made():
            module = net()
            _apply_optimizer_in_backward(torch.optim.SGD, module.parameters(), {"lr": 0.05, "momentum": 0.5})
            return module
        return made

    for net, options in ((Tied, {}), (Convolutions, {}), (Convolutions, {"gradient_as_bucket_view": True}),
                         (Tied, {"static_graph": True})):
        def wrap(module, options=options):
            return Ours(module, bucket_cap_mb=0.002, **options)

        assert_same(stepped(within(net), wrap), stepped(net, wrap, momentum))

    # what no rank has used steps with zeros, else it is the same
    stepped(within(Branches), lambda module: Ours(module, find_unused_parameters=True))
    hooked = Ours(within(Tied)())
    hooked.register_comm_hook(None, lambda state, bucket: None)
    error_of(RuntimeError, "only be called once", lambda: hooked(torch.zeros(1, 2, dtype=torch.int64)))


def sharded_optimizer():
    def zero(parameters):
        return ZeroRedundancyOptimizer(parameters, torch.optim.Adam, **ADAM)

    def adam(parameters):
        return torch.optim.Adam(parameters, **ADAM)

    assert_same(stepped(Tied, Ours, zero), stepped(Tied, Theirs, adam))

    def overlapped(with_step, **options):
        def within(model):
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, **ADAM)
            model.register_comm_hook(None, with_step(allreduce_hook, model, optimizer, **options))
            optimizers.append(optimizer)
        return within

    optimizers = []
    # the interleaved one starts operations from callbacks, which torch's class leaves in no order
    theirs = stepped(Tied, lambda net: Theirs(net, bucket_cap_mb=0.002), within=overlapped(hook_with_zero_step))
    for with_step, options in ((hook_with_zero_step, {}), (hook_with_zero_step, {"shard_buckets": True}),
                               (hook_with_zero_step_interleaved, {})):
        assert_same(stepped(Tied, lambda net: Ours(net, bucket_cap_mb=0.002), within=overlapped(with_step, **options)), theirs)
    assert len(optimizers) == 4 and all(each._overlap_info.status == _OverlapStatus.INITIALIZED for each in optimizers)


def scaled_gradients():
    """In float16, whose scale shrinks on all ranks when gradients of one overflow."""
    def scaled(wrap):
        torch.manual_seed(5)
        model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        scales = []
        for step in range(4):
            optimizer.zero_grad()
            inputs = torch.full((3, 4), 0.1 + dist.get_rank())
            with torch.autocast("cpu", torch.float16):
                loss = loss_of(model(inputs).float())
            scaler.scale(loss * (float("inf") if step == 2 and dist.get_rank() == 1 else 1)).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        assert scales == [256, 256, 128, 128], scales
        return model.state_dict()

    assert_same(scaled(Ours), scaled(Theirs))
