"""What training changes in a program, as it was before trials: trials are steps, some with gradients that are not those of the
program."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .step_parts import replaced


class Stateful:
    """Learning rate schedulers and gradient scalers of the process, from its construction on."""

    def __init__(self) -> None:
        self._alive: weakref.WeakSet[Any] = weakref.WeakSet()
        for kind in (torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler):
            replaced(kind, "__init__", self._around)

    def _around(self, original: Any) -> Any:
        def __init__(made: Any, *arguments: Any, **named: Any) -> None:
            original(made, *arguments, **named)
            self._alive.add(made)
        return __init__

    def __iter__(self) -> Any:
        return iter(list(self._alive))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


class KeptState:
    """Copies of modules' parameters and buffers, optimizers' parameters, state and options, and of schedulers and scalers."""

    def __init__(self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer], others: Iterable[Any]) -> None:
        self._optimizers = list(optimizers)
        tensors = [each for module in modules for each in (*module.parameters(), *module.buffers())]
        tensors += [each for optimizer in self._optimizers for group in optimizer.param_groups for each in group["params"]]
        self._tensors = [(each, _copied(each)) for each in {id(each): each for each in tensors}.values()]
        self._states = [{parameter: {name: _copied(value) for name, value in state.items()}
                         for parameter, state in optimizer.state.items()} for optimizer in self._optimizers]
        self._options = [[{name: _copied(value) for name, value in group.items() if name != "params"}
                          for group in optimizer.param_groups] for optimizer in self._optimizers]
        self._others = [(each, copy.deepcopy(each.state_dict())) for each in others]

    @torch.no_grad()
    def restore(self) -> None:
        """Bit by bit. What was kept stays, for the next time."""
        for tensor, kept in self._tensors:
            tensor.copy_(kept)
        for optimizer, states, options in zip(self._optimizers, self._states, self._options):
            for parameter in [each for each in optimizer.state if each not in states]:
                del optimizer.state[parameter]
            for parameter, state in states.items():
                optimizer.state[parameter] = {name: _copied(value) for name, value in state.items()}
            for group, kept in zip(optimizer.param_groups, options):
                group.update({name: _copied(value) for name, value in kept.items()})
        for each, kept in self._others:
            each.load_state_dict(copy.deepcopy(kept))
