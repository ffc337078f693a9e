"""Whether the exchange of a compiled model's gradients begins within its backward pass: by the order of events, not by times."""

import threading

import torch

_started = threading.Event()
_within: list[bool] = []  # for each backward pass
_LIMIT = 20  # seconds, where it does not begin


@torch.library.custom_op("libddp_test::passes", mutates_args=())
def passes(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@torch.library.custom_op("libddp_test::waits", mutates_args=())
def waits(x: torch.Tensor) -> torch.Tensor:
    """The backward pass continues when a bucket has been handed to the hook: the gradients of what follows are there, those of what
    precedes are not."""
    _within.append(_started.wait(_LIMIT))
    return x.clone()


passes.register_fake(torch.empty_like)
waits.register_fake(torch.empty_like)
passes.register_autograd(lambda _, gradient: waits(gradient))


class Model(torch.nn.Module):
    """Its last layer fills a bucket of 1 MiB."""

    def __init__(self):
        super().__init__()
        self.first, self.middle, self.last = (torch.nn.Linear(512, 512) for _ in range(3))

    def forward(self, x):
        return self.last(self.middle(passes(self.first(x)).relu()).relu())


def hook(state, bucket):
    _started.set()
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def check(fast, before=lambda: None, after=lambda: None):
    """fast: compiled, of a Model whose gradients go by hook()."""
    _within.clear()
    for _ in range(3):
        before()
        _started.clear()
        fast(torch.ones(1, 512)).sum().backward()
        after()
    assert _within == [True] * 3, "no bucket was exchanged before the backward pass ended"
