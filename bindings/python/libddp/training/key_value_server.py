"""A server that keeps parameters by name and updates them with an optimizer. Transport-free: key_value_group.py brings it messages.

Source of the bounds: Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014, 3.5: sequential, bounded
delay, eventual.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from libddp._errors import problem

from . import exact_sums
from .metrics import MetricsLogger, method_metric
from .parameter_server import ParameterServerBase, added, check_finite_values, describe_layout, divided, layout_of

Unit = tuple[int, int]
"""What is applied at once: a batch of all trainers (batch, -1), or in asynchronous mode of one: (batch, trainer)."""
Pulled = Callable[[int, "list[torch.Tensor]"], None]
_ALL = -1
_STRAGGLER, _BATCH = ParameterServerBase.PARAMETER_SERVER_STRAGGLER_METRIC, ParameterServerBase.PARAMETER_SERVER_BATCH_METRIC
_SKIPPED = "push no keys of a batch that a GradScaler skips"
_SAME_NAMES = "all ranks need the same names: make the servers with the trainers' model"


def shard_of(key: str, servers: int) -> int:
    """The number of the server that keeps a key: equal on all ranks, in all runs."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % servers


class _Update:
    """Gradients by trainer and key, until they are applied."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.gradients: dict[int, dict[str, torch.Tensor]] = {}
        self.confirmed: set[int] = set()  # other servers that have all of it
        self.sums: dict[str, torch.Tensor] = {}  # an exact server's, of all trainers, instead of gradients
        self.terms = 0  # micro-batches in them


class KeyValueParameterServer:
    """Keeps parameters by name, and updates them by gradients that trainers push. serve() serves it, KeyValueConnection uses it.

    rank: this process's, for metrics. parameters: (name, tensor) pairs, as module.named_parameters() of the trainers' model gives them; the server copies
    those whose names hash to it. optimizer(parameters): makes its optimizer; not called without parameters. trainer_count: how
    many trainers push each batch. number, servers: which of several servers this is; they keep different keys.
    device: where it computes; default: the CPU. timeout: seconds from a batch's first gradients to its last.
    check_finite: whether a gradient with NaN or infinity is an error, as a step with it would spoil the parameters of all.

    staleness: how many batches the values that a trainer computes with may lack.
    0: synchronous. Each batch is one step of the optimizer, with the average over all trainers, added in their order: the bits of
    DistributedDataParallel for two trainers. k: the same steps in the same order, but a trainer may be k batches ahead.
    None: asynchronous. Each trainer's gradients are a step of their own when they come, and no trainer waits.

    exact: the average is over all micro-batches of all trainers, and its bits do not depend on the number of trainers either: those of
    libddp.torch.exact_average_hook. With staleness 0 and dense gradients; a value of 2^23 or more counts as not finite.

    A key that a trainer does not push counts as zeros; one that no trainer pushes gets no step. Sparse gradients (COO) need an optimizer
    that takes them.

    A batch is applied when all servers have all of it from all trainers, so that a trainer that dies changes nothing by what it has
    sent of a batch. What contradicts the protocol is a libddp.Error with the offending ranks: NotFound for a key that the server does not
    keep, Mismatch for another shape, type or layout, InvalidArgument for an earlier or later batch than the next, values that are older than the bound, or
    gradients that are not finite; Timeout for a late trainer or server. Not thread-safe.
    """

    def __init__(self, rank: int, parameters: Iterable[tuple[str, torch.Tensor]], optimizer: Callable[[list[torch.Tensor]], torch.optim.Optimizer],
                 trainer_count: int, *, number: int = 0, servers: int = 1, staleness: int | None = 0, device: Any = None,
                 timeout: float = 600.0, check_finite: bool = True, exact: bool = False) -> None:
        if trainer_count < 1 or not 0 <= number < servers or (staleness is not None and staleness < 0):
            raise problem("invalid_argument", "making a key-value server", f"there is no server {number} of {servers} with "
                          f"{trainer_count} trainers and a staleness of {staleness}")
        self.rank, self.trainer_count, self.number, self.servers = rank, trainer_count, number, servers
        if exact and staleness != 0:
            raise problem("invalid_argument", "making a key-value server", f"its averages cannot be exact with a staleness of {staleness}", (),
                          "staleness=0: otherwise gradients depend on which trainer is ahead")
        self.staleness, self.timeout, self.check_finite, self.exact = staleness, timeout, check_finite, exact
        self.device = torch.device("cpu" if device is None else device)
        """Where it keeps and updates its parameters."""
        self.parameters: dict[str, torch.Tensor] = {
            name: tensor.detach().to(self.device, copy=True).requires_grad_() for name, tensor in parameters
            if shard_of(name, servers) == number}
        """What it keeps. Changes while it serves."""
        self.optimizer = optimizer(list(self.parameters.values())) if self.parameters else None
        """Steps its parameters; None without any."""
        self.on_update: Callable[[int], object] | None = None
        """Called with the version after each update, as for a scheduler of the learning rate."""
        self.metrics = MetricsLogger(rank, self.device)
        """Times of stragglers, batches and updates."""
        self.version = 0
        """How many updates it has applied."""
        self.delays: collections.Counter[int] = collections.Counter()
        """How many pushes were computed with values that lacked so many updates."""
        self.announce: Callable[[Unit], None] = lambda unit: None
        """The transport's: informs other servers that this one has all of a unit."""
        self._broken = False
        self._updates: dict[Unit, _Update] = {}
        self.begin(range(servers + trainer_count), 0)

    def begin(self, ranks: Sequence[int], version: int) -> None:
        """Starts with no trainer's batch under way. ranks: of the servers, then the trainers, for messages. version: the largest of
        all servers; one that has not applied the last update does so now, as it has all of it."""
        self._ranks = list(ranks)
        last = self._updates.get((version, _ALL))
        if version == self.version + 1 and last is not None and len(last.gradients) == self.trainer_count:
            self._apply((version, _ALL), last)
        if self.staleness is not None and version != self.version:
            raise problem("mismatch", "starting key-value servers", f"that of rank {self.rank} has applied {self.version} updates, another {version}",
                          self._ranks[:self.servers], "load the same checkpoint on all servers")
        self._updates.clear()
        self.metrics.clear_metrics()
        start = 0 if self.staleness is None else self.version
        self._pushed = [start] * self.trainer_count
        self._known = [0 if self.version == 0 else -1] * self.trainer_count  # the version of the values that a trainer computes with
        self._pulls: list[tuple[int, list[str], int | None, Pulled]] = []

    # What trainers send

    def table(self, trainer: int) -> dict[str, Any]:
        """What a trainer needs to know first."""
        return {"keys": {key: (tuple(value.shape), value.dtype) for key, value in self.parameters.items()},
                "servers": self.servers, "batch": self._pushed[trainer], "exact": self.exact}

    def pull(self, trainer: int, keys: Sequence[str], answer: Pulled, latest: bool = False) -> None:
        """Calls answer(version, values) once, when the values have all updates that they need; latest: all of the trainer's own. They are
        the server's own tensors."""
        self._check_whole("giving away")
        self._check_keys(f"pulling for trainer {trainer} from the server of rank {self.rank}", trainer, keys)
        self._pulls.append((trainer, list(keys), 0 if latest else self.staleness, answer))
        self._advance()

    def push(self, trainer: int, batch: int, gradients: Mapping[str, torch.Tensor], micro_batches: int = 1) -> None:
        """Takes a trainer's gradients of a batch, which are the server's from here on. On any device. micro_batches: beyond one, for an
        exact server, the gradients are sums of exact_sums over so many."""
        self._check_push(trainer, batch, gradients, micro_batches)
        taken = dict(gradients) if not self.exact else self._as_sums(trainer, batch, gradients, micro_batches)
        unit = batch, _ALL if self.staleness is not None else trainer
        update = self._updates.get(unit)
        if update is None or not update.gradients:
            update = self._update(unit)
            update.limit = time.monotonic() + self.timeout
            self.metrics.record_start(_STRAGGLER, unit, ParameterServerBase.PARAM_INDEX_STRAGGLER)
            self.metrics.record_start(_BATCH, unit, ParameterServerBase.PARAM_INDEX_BATCH)
        self.delays[(batch - 1 if self.staleness is not None else self.version) - self._known[trainer]] += 1
        update.gradients[trainer] = taken if not self.exact else {}
        if self.exact:
            update.terms += micro_batches
            for key, words in taken.items():
                update.sums[key] = words if key not in update.sums else update.sums[key].add_(words)
        self._pushed[trainer] = batch
        if self._whole(update):
            self.metrics.record_end(_STRAGGLER, unit)
            self.announce(unit)
            self._advance()

    def confirm(self, server: int, unit: Unit) -> None:
        """Another server has all of a unit."""
        self._update(unit).confirmed.add(server)
        self._advance()

    def _update(self, unit: Unit) -> _Update:
        return self._updates.setdefault(unit, _Update(time.monotonic() + self.timeout))

    def _check_keys(self, attempted: str, trainer: int, keys: Iterable[str]) -> None:
        for key in keys:
            if key not in self.parameters:
                raise problem("not_found", attempted, f"no server keeps '{key}'", [self._rank_of(trainer)], _SAME_NAMES)

    def _rank_of(self, trainer: int) -> int:
        return self._ranks[self.servers + trainer]

    def _describe(self, trainer: int, batch: int) -> str:
        return f"pushing batch {batch} of trainer {trainer} to the server of rank {self.rank}"

    def _check_push(self, trainer: int, batch: int, gradients: Mapping[str, torch.Tensor], micro_batches: int) -> None:
        attempted = self._describe(trainer, batch)
        blamed = [self._rank_of(trainer)]
        last, known = self._pushed[trainer], self._known[trainer]
        if batch != last + 1:
            raise problem("invalid_argument", attempted, f"its last batch was {last}", blamed, "trainers push each batch once, in order")
        if known < 0 or self.staleness is not None and batch - 1 - known > self.staleness:
            raise problem("invalid_argument", attempted, f"its values have {max(known, 0)} updates, the staleness is {self.staleness}", blamed,
                          "pull() before each batch")
        self._check_keys(attempted, trainer, gradients)
        others = self._updates.get((batch, _ALL))
        room = exact_sums.MOST_TERMS - (others.terms if others else 0) if self.exact else 1
        if not 1 <= micro_batches <= room:
            raise problem("invalid_argument", attempted, f"{micro_batches} micro-batches are not 1 to {room}", blamed,
                          "servers with exact=True take several")
        for key, gradient in gradients.items():
            kept = self.parameters[key]
            expected = next((layout_of(each[key]) for each in (others.gradients.values() if others else ()) if key in each), None)
            found = layout_of(gradient)
            if micro_batches > 1:  # their sums
                expected = ((2 * kept.numel() + 1,), torch.int64, torch.strided, 0)
            elif self.exact:
                expected = layout_of(kept)
            if expected not in (None, found) or micro_batches == 1 and found[:2] != (tuple(kept.shape), kept.dtype):
                raise problem("mismatch", attempted, f"the gradient of '{key}' is {describe_layout(found)}, not "
                              f"{describe_layout(expected or layout_of(kept))}", blamed, "all trainers need the same model")
            if self.check_finite and micro_batches == 1:
                check_finite_values(f"{attempted}, key '{key}'", gradient, blamed, _SKIPPED)

    def _as_sums(self, trainer: int, batch: int, gradients: Mapping[str, torch.Tensor], micro_batches: int) -> dict[str, torch.Tensor]:
        """By key; each has all its values, unless those need not be finite."""
        found = {}
        for key, gradient in gradients.items():
            words = found[key] = gradient.to(self.device)
            if micro_batches == 1:
                words = found[key] = exact_sums.zeros(gradient.numel(), self.device)
                exact_sums.add_term(words, gradient.to(self.device))
            if self.check_finite and bool(words[-1]):
                raise problem("invalid_argument", f"{self._describe(trainer, batch)}, key '{key}'", f"{int(words[-1])} values are not finite, or 2^23 "
                              "or more", [self._rank_of(trainer)], f"look for the first loss that is NaN there, or {_SKIPPED}")
        return found

    # Updates

    def _whole(self, update: _Update) -> bool:
        return len(update.gradients) == (self.trainer_count if self.staleness is not None else 1)

    def _ready(self) -> Unit | None:
        return next((unit for unit, update in self._updates.items()
                     if self._whole(update) and len(update.confirmed) == self.servers - 1
                     and (self.staleness is None or unit[0] == self.version + 1)), None)

    def _advance(self) -> None:
        """Applies what all servers have, and answers the pulls that have waited for it."""
        while (unit := self._ready()) is not None:
            self._apply(unit, self._updates.pop(unit))
        waiting, self._pulls = self._pulls, []
        for trainer, keys, bound, answer in waiting:
            under_way = sum(trainer in update.gradients for update in self._updates.values())
            if bound is not None and under_way > bound:
                self._pulls.append((trainer, keys, bound, answer))
            else:
                self._known[trainer] = self.version
                answer(self.version, [self.parameters[key].detach() for key in keys])

    @method_metric(name="update")
    def _apply(self, unit: Unit, update: _Update) -> None:
        with self._all_or_broken():
            for key, parameter in self.parameters.items():
                parameter.grad = self._average(update, key, parameter)
            if self.optimizer is not None:
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)
        self.version += 1
        self.metrics.record_end(_BATCH, unit)
        if self.on_update is not None:
            self.on_update(self.version)

    def _average(self, update: _Update, key: str, parameter: torch.Tensor) -> torch.Tensor | None:
        if self.exact:
            words = update.sums.pop(key, None)
            return None if words is None else exact_sums.mean_of(words, update.terms, parameter.dtype).reshape(parameter.shape)
        total: torch.Tensor | None = None
        for trainer in sorted(update.gradients):
            if key in update.gradients[trainer]:
                total = added(total, update.gradients[trainer].pop(key).to(self.device))
        count = self.trainer_count if self.staleness is not None else 1
        return None if total is None else divided(total, count).to(parameter.dtype)

    @contextlib.contextmanager
    def _all_or_broken(self) -> Iterator[None]:
        self._check_whole("updating")
        self._broken = True
        yield
        self._broken = False

    def _check_whole(self, attempted: str) -> None:
        if self._broken:
            raise problem("unavailable", f"{attempted} the parameters of the server of rank {self.rank}",
                          f"the optimizer failed in update {self.version + 1}, which may have changed some of them", [self.rank],
                          "load a checkpoint")

    def expire(self) -> None:
        """Raises Timeout if a batch has waited for longer than the timeout."""
        now = time.monotonic()
        for (batch, trainer), update in self._updates.items():
            if now < update.limit:
                continue
            wanted = range(self.trainer_count) if trainer == _ALL else [trainer]
            late = [other for other in wanted if other not in update.gradients]
            attempted = f"updating the server of rank {self.rank} by batch {batch}"
            if late:
                raise problem("timeout", attempted, f"no gradients of trainers {', '.join(map(str, late))} within {self.timeout:g} s",
                              [self._rank_of(other) for other in late])
            silent = sorted(set(range(self.servers)) - update.confirmed - {self.number})
            if silent:
                raise problem("timeout", attempted, f"servers {', '.join(map(str, silent))} did not get it within {self.timeout:g} s",
                              [self._ranks[other] for other in silent])

    # What programs ask

    def get_metrics(self) -> dict[str, list[float]]:
        """Seconds by "type,name"."""
        return self.metrics.get_processed_metrics()

    def clear_metrics(self) -> None:
        """Forgets what was measured."""
        self.metrics.clear_metrics()

    def state_dict(self) -> dict[str, Any]:
        """Copies of the version, the parameters and the optimizer's state. While it does not serve. Unavailable after an optimizer that failed."""
        self._check_whole("saving")
        return {"version": self.version, "parameters": {key: value.detach().clone() for key, value in self.parameters.items()},
                "optimizer": copy.deepcopy(self.optimizer.state_dict()) if self.optimizer is not None else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what state_dict() gave. While it does not serve. InvalidArgument if it is of other keys or shapes."""
        layouts = [{key: tuple(value.shape) for key, value in each.items()} for each in (state["parameters"], self.parameters)]
        if layouts[0] != layouts[1]:
            raise problem("invalid_argument", f"loading parameters into the server of rank {self.rank}", "they have other keys or shapes", [],
                          _SAME_NAMES + ", and the same number of servers")
        with torch.no_grad():
            for key, value in state["parameters"].items():
                self.parameters[key].copy_(value)
        if self.optimizer is not None:
            self.optimizer.load_state_dict(state["optimizer"])
        self.version, self._broken = state["version"], False
        self._updates.clear()
