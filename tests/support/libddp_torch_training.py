"""Modules that libddp_torch_parallel.py trains as ranks, and how."""

import contextlib

import torch
import torch.distributed as dist

STEPS = 20


class Convolutions(torch.nn.Module):
    """With buffers, in channels-last order."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3),
            torch.nn.Flatten(), torch.nn.Linear(64, 5)).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.net(x.to(memory_format=torch.channels_last))

    def inputs(self, generator):
        return torch.randn(6, 3, 8, 8, generator=generator)


class Tied(torch.nn.Module):
    """A transformer whose output layer has the weights of its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(16, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return {"logits": self.head(self.layer(self.embedding(x)))}

    def inputs(self, generator):
        return torch.randint(0, 11, (3, 5), generator=generator)


class Branches(torch.nn.Module):
    """Ranks and steps use different parts."""

    def __init__(self):
        super().__init__()
        self.first, self.left, self.right = torch.nn.Linear(4, 6), torch.nn.Linear(6, 2), torch.nn.Linear(6, 2)
        self.step = 0

    def forward(self, x):
        self.step += 1
        part = self.left if (self.step + dist.get_rank()) % 3 else self.right
        return part(torch.tanh(self.first(x)))

    def inputs(self, generator):
        return torch.randn(3, 4, generator=generator)


def loss_of(output):
    tensor = output["logits"] if isinstance(output, dict) else output
    return (tensor * tensor).mean() + tensor.sum() / 100


def trained(net, wrap, steps=STEPS, accumulate=1, view=False):
    """The state after some steps."""
    torch.manual_seed(5)
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=not view)
        for part in range(accumulate):
            alone = contextlib.nullcontext() if part == accumulate - 1 else model.no_sync()
            with alone:
                loss_of(model(model.module.inputs(generator))).backward()
        optimizer.step()
    return model.state_dict()


def trained_alone(net, steps, accumulate):
    """What trained() does, of one process with all ranks' inputs."""
    torch.manual_seed(5)
    model, size = net(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    generators = [torch.Generator().manual_seed(100 + rank) for rank in range(size)]
    for _ in range(steps):
        optimizer.zero_grad()
        for generator in accumulate * generators:
            (loss_of(model(model.inputs(generator))) / size).backward()
        optimizer.step()
    return {"module." + name: value for name, value in model.state_dict().items()}


def assert_same(first, second, exact=False):
    assert list(first) == list(second) and all(value.isfinite().all() for value in first.values()), list(first)
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=0 if exact else 1e-5, atol=0 if exact else 1e-6, msg=name)


def error_of(kind, words, body):
    try:
        body()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"no error that says {words}")
