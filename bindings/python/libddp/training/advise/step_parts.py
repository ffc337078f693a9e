"""Where a rank's training step spends its time: the parts of each step, by hooks of PyTorch's and by what the engines measure."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader

from libddp._data_parallel import DistributedDataParallel

PARTS = ("data", "forward", "buffers", "backward", "optimizer", "other")
"""The parts that a step's time is divided into: buffers are those that rank 0 sends before a forward pass; backward includes what
it waits for in the exchange."""


def replaced(owner: Any, name: str, around: Callable[[Any], Any]) -> None:
    """owner.name becomes around(owner.name), as long as the process lives."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(around(original)))


class StepClock:
    """Divides the time of this thread's steps into PARTS. Not thread-safe: one training loop."""

    def __init__(self) -> None:
        self.synchronize: Callable[[], None] = lambda: None  # waits for the device, whose work would count for a later part
        self._part, self._since = "other", time.perf_counter()
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._exposed = 0.0

    def switch(self, part: str) -> str:
        """Time counts for this part from now on. The part before."""
        self.synchronize()
        now = time.perf_counter()
        self._spent[self._part] += now - self._since
        before, self._part, self._since = self._part, part, now
        return before

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def pause(self) -> None:
        """What came since the last switch() counts nowhere."""
        self._since = time.perf_counter()

    def add_exposed(self, seconds: float) -> None:
        """A share of this step's backward part: the exchange that continued after the last gradient."""
        self._exposed += seconds

    def end_step(self) -> list[float]:
        """Seconds of each of PARTS in the step that ends now, then what of backward is exposed exchange."""
        self.switch("other")
        row = [*self._spent.values(), self._exposed]
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._exposed = 0.0
        return row


class Instruments:
    """Hooks that turn a StepClock, in the whole process. on_backward: called after each backward pass, outside the clock.
    on_step: called after each step of any optimizer, with it."""

    def __init__(self, clock: StepClock, on_backward: Callable[[], None], on_step: Callable[[Any], None]) -> None:
        self._clock = clock
        self._depth = 0  # of backward passes: a checkpoint's is within another
        self.loads_data = False
        self._on_backward, self._on_step = on_backward, on_step
        replaced(dataloader._BaseDataLoaderIter, "__next__", self._around_next)
        replaced(torch.autograd, "backward", self._around_backward)
        replaced(DistributedDataParallel, "_sync_buffers", self._around_buffers)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    def _before_step(self, *_: Any) -> None:
        self._clock.switch("optimizer")

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self._clock.switch("other")
        self._on_step(optimizer)

    def _around_next(self, original: Any) -> Any:
        def timed(iterator: Any) -> Any:
            self.loads_data = True
            with self._clock.during("data"):
                return original(iterator)
        return timed

    def _around_buffers(self, original: Any) -> Any:
        def timed(model: Any) -> None:
            with self._clock.during("buffers"):
                original(model)
        return timed

    def _around_backward(self, original: Any) -> Any:
        def backward(*arguments: Any, **named: Any) -> Any:
            if self._depth:
                return original(*arguments, **named)
            self._depth += 1
            self._clock.switch("backward")
            try:
                return original(*arguments, **named)
            finally:
                self._depth -= 1
                self._clock.switch("other")
                self._on_backward()
                self._clock.pause()
        return backward

    def follow(self, module: torch.nn.Module) -> None:
        """Its forward passes with gradients, and what comes between one and its backward pass, count as forward."""
        module.register_forward_pre_hook(lambda *_: self._begin_forward())

    def _begin_forward(self) -> None:
        if torch.is_grad_enabled() and not self._depth:
            self._clock.switch("forward")

    def follow_module_of(self, parameters: list[torch.Tensor], found: Callable[[torch.nn.Module], None]) -> None:
        """The same for the first module that is called and has one of these parameters; `found` gets it."""
        wanted = set(map(id, parameters))

        def look(module: torch.nn.Module, _: Any) -> None:
            if wanted.isdisjoint(map(id, module.parameters())):
                return
            handle.remove()
            found(module)
            self.follow(module)
            self._begin_forward()

        handle = torch.nn.modules.module.register_module_forward_pre_hook(look)
