"""Training state that survives errors: Horovod's elastic interface, for a fixed set of ranks.

run() restores the last commit and continues after an error from which all ranks are alive. Ranks cannot leave or come yet: after a
death the error says so.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Sampler

from libddp.horovod import _job, functions
from libddp.horovod.exceptions import HorovodInternalError, HostsUpdatedInterrupt

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "run"]


class State:
    """What commit() keeps, restore() brings back, and sync() makes equal on all ranks."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None) -> None:
        self._reset_callbacks: list[Callable[[], None]] = []
        self._host_messages: list[bool] = []

    def register_reset_callbacks(self, callbacks: list[Callable[[], None]]) -> None:
        """Called after each restart, in this order."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        self._host_messages.clear()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """By a source of such events, of which there is none yet. update_res 1: hosts were added only."""
        self._host_messages.append(update_res == 1)

    def commit(self) -> None:
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks once one has learned that hosts have changed. Collective."""
        own = list(self._host_messages)  # another thread may add to them
        told = [each for messages in functions.allgather_object(own, "elastic.hosts") for each in messages]
        if told:
            del self._host_messages[:len(own)]
            raise HostsUpdatedInterrupt(all(told))

    def save(self) -> None:
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def sync(self) -> None:
        raise NotImplementedError

    def reset(self) -> None:
        """For subclasses: the ranks are connected again."""


class ObjectState(State):
    """Attributes by keyword, of any type that pickles."""

    def __init__(self, bcast_object: Any = None, get_rank: Any = None, **kwargs: Any) -> None:
        super().__init__()
        self._names = list(kwargs)
        self._saved: dict[str, Any] = kwargs
        self._put(kwargs)

    def _put(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def save(self) -> None:
        self._saved = {name: copy.deepcopy(getattr(self, name)) for name in self._names}

    def restore(self) -> None:
        self._put(copy.deepcopy(self._saved))

    def sync(self) -> None:
        if self._names:
            self._saved = functions.broadcast_object({name: getattr(self, name) for name in self._names}, 0, "elastic.state")
            self.restore()


class _Handler:
    """Keeps a value that has a state_dict."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self.saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self.saved))

    def sync(self) -> None:
        raise NotImplementedError


class ModelStateHandler(_Handler):
    def sync(self) -> None:
        functions.broadcast_parameters(self.value.state_dict(), 0)
        self.save()


class OptimizerStateHandler(_Handler):
    def sync(self) -> None:
        functions.broadcast_optimizer_state(self.value, 0)
        self.save()


class SamplerStateHandler(_Handler):
    def sync(self) -> None:
        """What any rank has processed is done."""
        everyone = functions.allgather_object(self.value.state_dict(), "elastic.sampler")
        merged = {**everyone[0], "processed_num": max(each["processed_num"] for each in everyone)}
        self.value.load_state_dict(merged)
        self.save()


_HANDLERS: list[tuple[Callable[[Any], bool], type[_Handler]]] = []


def get_handler_registry() -> list[tuple[Callable[[Any], bool], type[_Handler]]]:
    """Pairs of a test and a handler; the first that fits takes a value of TorchState. Programs may add to it."""
    return _HANDLERS


class TorchState(ObjectState):
    """A model, an optimizer, and what else is given by keyword: modules, optimizers and samplers by their state_dict."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        if model is not None:
            kwargs["model"] = model
        if optimizer is not None:
            kwargs["optimizer"] = optimizer
        handlers: dict[str, _Handler] = {}
        for name, value in list(kwargs.items()):
            kind = next((handler for fits, handler in _HANDLERS if fits(value)), None)
            if kind is not None:
                handlers[name] = kind(kwargs.pop(name))
        super().__init__(**kwargs)
        self._handlers = handlers
        for name, handler in handlers.items():
            setattr(self, name, handler.value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if hasattr(handler.value, "reset"):
                handler.value.reset()


class ElasticSampler(Sampler[int]):
    """The samples of an epoch that are not processed yet, spread over the ranks. Equally many for each: the first of what is left
    come twice where they do not divide."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """At the end of an epoch: nothing of the next one is processed."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """A batch of each rank has been processed."""
        self.processed_num += min(batch_size, max(self.num_samples - batch_idx * batch_size, 0)) * self.num_replicas

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def reset(self) -> None:
        """Spreads what is left over the ranks that there are now."""
        self.num_replicas, self.rank = _job.size(), _job.rank()
        indices = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(indices)
        self.remaining_indices = indices[self.processed_num:]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        padded = [left[each % len(left)] for each in range(self.total_size)]
        return iter(padded[self.rank:self.total_size:self.num_replicas])

    def __len__(self) -> int:
        return self.num_samples


_HANDLERS += [(lambda value: isinstance(value, torch.nn.Module), ModelStateHandler),
              (lambda value: isinstance(value, torch.optim.Optimizer), OptimizerStateHandler),
              (lambda value: isinstance(value, ElasticSampler), SamplerStateHandler)]


def _meet_again(error: HorovodInternalError | None) -> None:
    """All ranks of the job, which must be alive."""
    if error is not None and error.code in ("peer_lost", "aborted"):
        raise HorovodInternalError.of(error) from error
    _job.restart()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of func(state, ...): calls it with an equal state on all ranks, again from the last commit after an error that all
    ranks have survived, as a mismatch or a stalled operation. The death of a rank ends the job: nodes cannot leave yet."""

    @functools.wraps(func)
    def wrapper(state: State, *args: Any, **kwargs: Any) -> Any:
        skip_sync = False
        while True:
            if not skip_sync:
                state.sync()
            try:
                return func(state, *args, **kwargs)
            except HorovodInternalError as error:
                state.restore()
                skip_sync = False
                _meet_again(error)
            except HostsUpdatedInterrupt as interrupt:
                skip_sync = interrupt.skip_sync
                _meet_again(None)
            state.on_reset()

    return wrapper
