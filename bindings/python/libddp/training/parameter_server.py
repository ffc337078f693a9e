"""Servers that average the trainers' gradients, bucket by bucket: the classes of PyTorch's parameter server benchmark.

A server is transport-free: group_server.py and rpc_server.py bring it gradients and take its averages away.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch.distributed import rpc

from libddp import _errors
from libddp._errors import problem

from . import exact_sums
from .metrics import MetricsLogger, Recording, method_metric

Answer = Callable[["torch.Tensor | _errors.Error"], None]
_EQUAL_BUCKETS = "all trainers need the same buckets: equal models, and wrappers with equal arguments"
_WATCHED = 0.05  # of the timeout: how late a missing gradient may be reported
_PIECE = 1 << 16  # elements, that stay in a processor's cache


class ParameterServerBase(Recording, ABC):
    """Metrics of a server. Upstream's names; `cuda` in its methods means: measured in the device's current stream."""

    PARAMETER_SERVER_BATCH_METRIC = "parameter_server_batch_metric"
    """Type of the times from a bucket's first gradient to its average."""
    PARAMETER_SERVER_STRAGGLER_METRIC = "parameter_server_straggler_metric"
    """Type of the times from a bucket's first gradient to its last."""
    PARAM_INDEX_STRAGGLER = "param_index_straggler"
    """Name of the straggler metric."""
    PARAM_INDEX_BATCH = "param_index_batch"
    """Name of the batch metric."""

    def __init__(self, rank: int, device: Any = None) -> None:
        """rank: the server's, for messages and metrics. device: where it computes; default: the CPU."""
        self.rank = rank
        self.device = torch.device("cpu" if device is None else device)
        self.metrics = MetricsLogger(rank, self.device)

    @abstractmethod
    def process_gradient(self, gradient: torch.Tensor, param_loc: int, trainer: int) -> None:
        """Takes a trainer's gradient of a bucket. The server owns the tensor, and may change it."""

    @abstractmethod
    def average(self, param_loc: int) -> torch.Tensor:
        """The average of a bucket that all trainers have sent."""

    @staticmethod
    @abstractmethod
    def average_gradient(server_rref: Any, received_batch_number: int, param_loc: int, gradient: Any, trainer: int) -> Any:
        """For RPC: takes a gradient; the future holds the average."""

    @staticmethod
    @abstractmethod
    def reset_state(server_rref: Any) -> None:
        """Forgets batches, failures and metrics."""

    def record_straggler_start(self, key: Hashable, cuda: bool | None = None) -> None:
        """At a bucket's first gradient."""
        self.record_start(self.PARAMETER_SERVER_STRAGGLER_METRIC, key, self.PARAM_INDEX_STRAGGLER, cuda)

    def record_straggler_end(self, key: Hashable) -> None:
        """At its last gradient."""
        self.record_end(self.PARAMETER_SERVER_STRAGGLER_METRIC, key)

    def record_batch_start(self, key: Hashable, cuda: bool | None = None) -> None:
        """At a bucket's first gradient."""
        self.record_start(self.PARAMETER_SERVER_BATCH_METRIC, key, self.PARAM_INDEX_BATCH, cuda)

    def record_batch_end(self, key: Hashable) -> None:
        """When its average is ready."""
        self.record_end(self.PARAMETER_SERVER_BATCH_METRIC, key)

    record_method = staticmethod(method_metric)
    """Decorates a method: each call is a metric."""


class _Bucket:
    """A bucket of the current batch, until all trainers have sent it."""

    def __init__(self, layout: tuple[Any, ...], limit: float) -> None:
        self.layout, self.limit = layout, limit
        self.answers: dict[int, Answer] = {}
        self.ended = False


class AverageParameterServer(ParameterServerBase):
    """Averages each bucket over the trainers, and adds gradients as they come: in the order of trainers, so that the bits do not
    depend on the order of arrival. A gradient that comes before an earlier trainer's is kept until that one is there.

    rank: the server's. trainer_count: how many trainers send each bucket. use_cuda_rpc: whether averages stay on the device;
    otherwise they go to the CPU. device: where it computes. timeout: seconds from a bucket's first gradient to its last.
    trainer_ranks: names of the trainers in messages; default: 0, 1, ... check_finite: whether a gradient with NaN or infinity is an
    error; not for a GradScaler, which needs to see them in the average. exact: sums are exact, as those of
    libddp.torch.exact_average_hook: the bits of averages do not depend on how many trainers there are, either; a value of 2^23 or
    more, or that is not finite, makes its bucket NaN. Dense gradients only; int64 ones are sums of exact_rpc_hook, which get the sum.

    Gradients are dense or sparse (COO), of one layout for each bucket; float16 and bfloat16 are summed in float32. Thread-safe.

    A batch is over when its buckets are averaged. What contradicts that fails the server: waiting trainers and all later
    gradients get the same libddp.Error, with the offending trainer in `ranks`, until reset_state():
    InvalidArgument for an earlier batch than the trainer's last, a bucket sent twice, a trainer number that does not exist, or a
    gradient that is not finite where that is checked;
    Mismatch for another layout, or other numbers of buckets; Timeout; SystemFailure (no memory).
    """

    def __init__(self, rank: int, trainer_count: int, use_cuda_rpc: bool = False, *, device: Any = None, timeout: float = 600.0,
                 trainer_ranks: Sequence[int] | None = None, check_finite: bool = False, exact: bool = False) -> None:
        super().__init__(rank, device)
        self.trainer_count, self.use_cuda_rpc, self.timeout, self.check_finite = trainer_count, use_cuda_rpc, timeout, check_finite
        self.exact = exact
        self.trainer_ranks = list(range(trainer_count) if trainer_ranks is None else trainer_ranks)
        self.lock = threading.RLock()
        self._watch: threading.Thread | None = None
        self._restart()

    def _restart(self) -> None:
        self.batch_number = 0
        self.failure: _errors.Error | None = None
        self._buckets: dict[int, _Bucket] = {}
        self._added: dict[int, int] = {}  # how many trainers' gradients are in a total
        self._totals: dict[int, torch.Tensor] = {}
        self._waiting: dict[int, dict[int, torch.Tensor]] = {}

    def reset(self) -> None:
        """Forgets batches, failures and metrics. Trainers call it between runs, while no bucket is under way."""
        with self.lock:
            self._restart()
            self.clear_metrics()

    @staticmethod
    def reset_state(server_rref: Any) -> None:
        """reset(), by RPC."""
        server_rref.local_value().reset()

    def param_key(self, param_loc: int) -> str:
        """The metrics' key of a bucket: "batch,bucket"."""
        return f"{self.batch_number},{param_loc}"

    # The average

    def process_gradient(self, gradient: torch.Tensor, param_loc: int, trainer: int) -> None:
        """Adds it, and those that waited for it, but the last trainer's; an exact sum takes it at once."""
        if self.exact:
            return self._add_exactly(gradient, param_loc)
        waiting = self._waiting.setdefault(param_loc, {})
        waiting[trainer] = gradient
        while (following := self._added.get(param_loc, 0)) in waiting and following < self.trainer_count - 1:
            self._totals[param_loc] = added(self._totals.get(param_loc), waiting.pop(following))
            self._added[param_loc] = following + 1

    @method_metric(name="average computation")
    def average(self, param_loc: int) -> torch.Tensor:
        """The sum, with the last trainer's gradient, by the number of trainers."""
        if self.exact:
            return self._exact_average(param_loc)
        self._added.pop(param_loc, None)
        return averaged(self._totals.pop(param_loc, None), self._waiting.pop(param_loc)[self.trainer_count - 1], self.trainer_count)

    def _add_exactly(self, gradient: torch.Tensor, param_loc: int) -> None:
        total = self._totals.get(param_loc)
        if gradient.dtype == torch.int64:
            self._totals[param_loc] = gradient if total is None else total.add_(gradient)
            return
        if total is None:
            total = self._totals[param_loc] = exact_sums.zeros(gradient.numel(), gradient.device)
        exact_sums.add_term(total, gradient)

    def _exact_average(self, param_loc: int) -> torch.Tensor:
        total, (shape, dtype, *_) = self._totals.pop(param_loc), self._buckets[param_loc].layout
        return total if dtype == torch.int64 else exact_sums.mean_of(total, self.trainer_count, dtype).reshape(shape)

    # Batches

    def contribute(self, trainer: int, batch: int, bucket: int, gradient: torch.Tensor, answer: Answer) -> None:
        """Takes a trainer's gradient; calls `answer` once with the average, or with what failed, in the thread of the last trainer
        or of the failure. gradient: the server's from here on; on any device.
        """
        with self.lock:
            try:
                self._check(trainer, batch, bucket, gradient)
                self._take(trainer, batch, bucket, gradient, answer)
            except _errors.Error as error:
                self._fail(error)
                answer(error)
            except (RuntimeError, MemoryError) as error:  # torch's, of a device or allocator
                failed = problem("system", self._describe(trainer, batch, bucket), str(error), [self.rank])
                self._fail(failed)
                answer(failed)

    def ended(self, batch: int, bucket: int) -> bool:
        """Whether the bucket was averaged, so that its gradients' memory is free."""
        with self.lock:
            found = self._buckets.get(bucket)
            return batch < self.batch_number or found is not None and found.ended

    def _describe(self, trainer: int, batch: int, bucket: int) -> str:
        return f"averaging bucket {bucket} of batch {batch} of trainer {trainer} on the server of rank {self.rank}"

    def _check(self, trainer: int, batch: int, bucket: int, gradient: torch.Tensor) -> None:
        if self.failure is not None:
            raise self.failure
        attempted = self._describe(trainer, batch, bucket)
        if not 0 <= trainer < self.trainer_count:
            raise problem("invalid_argument", attempted, f"there are {self.trainer_count} trainers, from 0")
        blamed = [self.trainer_ranks[trainer]]
        if batch < self.batch_number:
            ahead = {other for each in self._buckets.values() for other in each.answers} - {trainer}
            if any(trainer in each.answers for each in self._buckets.values()) or not ahead:
                raise problem("invalid_argument", attempted, f"batch {self.batch_number} has begun", blamed,
                              "trainers send batches in order; reset() the server before another run")
            raise problem("mismatch", attempted, f"trainers {', '.join(map(str, sorted(ahead)))} have begun batch {self.batch_number}",
                          sorted(blamed + [self.trainer_ranks[other] for other in ahead]), _EQUAL_BUCKETS)
        found = self._buckets.get(bucket)
        if batch > self.batch_number:
            open_ = {number: each for number, each in self._buckets.items() if not each.ended}
            for number, each in open_.items():
                late = [self.trainer_ranks[other] for other in range(self.trainer_count) if other not in each.answers]
                raise problem("mismatch", attempted, f"bucket {number} of batch {self.batch_number} lacks gradients of trainers", late,
                              _EQUAL_BUCKETS)
        elif found is not None and (found.ended or trainer in found.answers):
            raise problem("invalid_argument", attempted, "the trainer has sent it before", blamed)
        elif found is not None and found.layout != layout_of(gradient):
            raise problem("mismatch", attempted, f"it is {describe_layout(layout_of(gradient))}, another trainer's is "
                          f"{describe_layout(found.layout)}", blamed, "all trainers need the same model")
        real = gradient.dtype.is_floating_point
        if not (real or gradient.dtype == torch.int64) or gradient.is_sparse if self.exact else not (real or gradient.dtype.is_complex):
            raise problem("invalid_argument", attempted, f"{describe_layout(layout_of(gradient))} has no {'exact ' if self.exact else ''}average",
                          blamed, "exact averages are of dense floating-point gradients, and exact_rpc_hook needs a server with exact=True")
        if self.check_finite:
            check_finite_values(attempted, gradient, blamed, "check_finite=False with a GradScaler")

    def _take(self, trainer: int, batch: int, bucket: int, gradient: torch.Tensor, answer: Answer) -> None:
        if batch > self.batch_number:
            self.batch_number = batch
            self._buckets.clear()
        key = self.param_key(bucket)
        found = self._buckets.get(bucket)
        if found is None:
            found = self._buckets[bucket] = _Bucket(layout_of(gradient), time.monotonic() + self.timeout)
            self.record_straggler_start(key)
            self.record_batch_start(key)
            self._begin_watch()
        self.process_gradient(gradient.to(self.device), bucket, trainer)
        found.answers[trainer] = answer
        if len(found.answers) < self.trainer_count:
            return
        self.record_straggler_end(key)
        averaged = self.average(bucket).to(gradient.dtype)
        if not self.use_cuda_rpc:
            averaged = averaged.cpu()
        found.ended = True
        self.record_batch_end(key)
        for each in found.answers.values():
            each(averaged)

    def _fail(self, error: _errors.Error) -> None:
        if self.failure is not None:
            return
        self.failure = error
        waiting = [answer for each in self._buckets.values() if not each.ended for answer in each.answers.values()]
        self._buckets.clear()
        for answer in waiting:
            answer(error)

    # Deadlines

    def _begin_watch(self) -> None:
        if self._watch is None:
            self._watch = threading.Thread(target=_watch, args=(weakref.ref(self), self.timeout * _WATCHED), daemon=True)
            self._watch.start()

    def expire(self) -> None:
        """Fails if a bucket has waited for longer than the timeout."""
        with self.lock:
            now = time.monotonic()
            for number, each in self._buckets.items():
                if each.ended or now < each.limit:
                    continue
                late = [other for other in range(self.trainer_count) if other not in each.answers]
                self._fail(problem("timeout", f"averaging bucket {number} of batch {self.batch_number} on the server of rank {self.rank}",
                                   f"no gradient of trainers {', '.join(map(str, late))} within {self.timeout:g} s",
                                   [self.trainer_ranks[other] for other in late]))
                return

    # RPC

    @staticmethod
    @rpc.functions.async_execution  # type: ignore[untyped-decorator]
    def average_gradient(server_rref: Any, received_batch_number: int, param_loc: int, gradient: Any, trainer: int) -> torch.futures.Future[Any]:
        """For RPC, from RpcServer: gradient is a tensor, or [indices, values, size] of a sparse one; so is what the future holds, or
        it is a libddp.Error."""
        server = server_rref.local_value()
        future: torch.futures.Future[Any] = torch.futures.Future()
        sparse = isinstance(gradient, list)
        whole = torch.sparse_coo_tensor(*gradient, check_invariants=True) if sparse else gradient

        def answer(averaged: torch.Tensor | _errors.Error) -> None:
            future.set_result(rpc_format(averaged) if isinstance(averaged, torch.Tensor) else averaged)
        server.contribute(trainer, received_batch_number, param_loc, whole, answer)
        return future


class AverageBatchParameterServer(AverageParameterServer):
    """The same, but keeps the gradients of a bucket, and adds them when the last one has come: the same bits."""

    def process_gradient(self, gradient: torch.Tensor, param_loc: int, trainer: int) -> None:
        """Keeps it."""
        if self.exact:  # whose bits need no order
            return self._add_exactly(gradient, param_loc)
        self._waiting.setdefault(param_loc, {})[trainer] = gradient

    @method_metric(name="average computation")
    def average(self, param_loc: int) -> torch.Tensor:
        """The sum, in the order of trainers, by their number."""
        if self.exact:
            return self._exact_average(param_loc)
        kept = self._waiting.pop(param_loc)
        total: torch.Tensor | None = None
        for trainer in range(self.trainer_count - 1):
            total = added(total, kept.pop(trainer))
        return averaged(total, kept.pop(self.trainer_count - 1), self.trainer_count)


def _watch(reference: weakref.ref[AverageParameterServer], pause: float) -> None:
    while True:
        time.sleep(pause)
        server = reference()
        if server is None:
            return
        server.expire()
        del server


def check_finite_values(attempted: str, gradient: torch.Tensor, blamed: Sequence[int], otherwise: str) -> None:
    """InvalidArgument for NaN or infinity. otherwise: the rest of the hint."""
    values = gradient._values() if gradient.is_sparse else gradient
    finite = values.isfinite()
    if not bool(finite.all()):
        raise problem("invalid_argument", attempted, f"{int((~finite).sum())} of {values.numel()} values are not finite", blamed,
                      f"look for the first loss that is NaN there; use a smaller learning rate, or {otherwise}")


def layout_of(gradient: torch.Tensor) -> tuple[Any, ...]:
    """What gradients of a bucket have in common."""
    return (tuple(gradient.shape), gradient.dtype, gradient.layout, gradient.sparse_dim() if gradient.is_sparse else 0)


def describe_layout(layout: tuple[Any, ...]) -> str:
    shape, dtype, kind, _ = layout
    return f"{'sparse ' if kind is torch.sparse_coo else ''}{str(dtype).removeprefix('torch.')}{list(shape)}"


def added(total: torch.Tensor | None, gradient: torch.Tensor) -> torch.Tensor:
    """total + gradient, in place if dense; sparse ones are coalesced before, so that each element has one addition."""
    wide = gradient.to(torch.float32) if gradient.dtype in (torch.float16, torch.bfloat16) else gradient
    if wide.is_sparse:
        wide = wide.coalesce()
        return wide if total is None else (total + wide).coalesce()
    return wide if total is None else total.add_(wide)


def divided(total: torch.Tensor, count: int) -> torch.Tensor:
    if total.is_sparse:
        return torch.sparse_coo_tensor(total.indices(), total.values() / count, total.shape, is_coalesced=True, check_invariants=False)
    return total.div_(count) if total.dtype.is_floating_point or total.dtype.is_complex else total / count


def averaged(total: torch.Tensor | None, last: torch.Tensor, count: int) -> torch.Tensor:
    """divided(added(total, last), count), dense ones piece by piece, each of which is read from memory once."""
    dense = total is not None and not total.is_sparse and not total.is_cuda and last.dtype == total.dtype
    if total is None or not dense or not (total.is_contiguous() and last.is_contiguous()):
        return divided(added(total, last), count)
    for piece, other in zip(torch.split(total.view(-1), _PIECE), torch.split(last.view(-1), _PIECE)):
        divided(added(piece, other), count)
    return total


def rpc_format(tensor: torch.Tensor) -> Any:
    """RPC takes no sparse tensors: [indices, values, size]."""
    if not tensor.is_sparse:
        return tensor
    coalesced = tensor.coalesce()
    return [coalesced.indices(), coalesced.values(), list(coalesced.shape)]
