"""How long parts of a training step take: records of a start and an end, on the processor's clock or in a CUDA stream."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from ._statistics import LIMIT, Series, Statistics, Summary

Arguments = ParamSpec("Arguments")
Returned = TypeVar("Returned")
Own = TypeVar("Own", bound="Measured")
_FOLDED = 2000  # new values of a metric that are taken into its statistics at once
_EXCHANGED = 1000  # values of a metric that a rank sends for percentiles
_AHEAD = 512  # CUDA metrics that end before their events are read
_AT_ONCE = 64  # CUDA metrics that are read together, after one query: a query costs as much as a record
_EPOCH_NS = time.time_ns() - time.perf_counter_ns()  # of the monotonic clock, as a Reducer's trace has it
_now = time.perf_counter_ns


class _Cuda(Protocol):
    """What is used of torch.cuda: _RealCuda, or a double."""

    def Event(self, *, enable_timing: bool) -> Any: ...

    def current_stream(self) -> Any:
        """The logger's device's."""

    def handle(self) -> Hashable:
        """That stream's, without making an object for it."""


class _RealCuda:
    def __init__(self, device: Any) -> None:
        import torch
        self._device = torch.device(device)
        index = torch.cuda.current_stream(self._device).device_index  # initializes CUDA, too
        self.Event = torch.cuda.Event
        raw: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # 0.2 us; torch.cuda.current_stream() takes 5
        self.handle: Callable[[], Hashable] = functools.partial(raw, index) if raw else lambda: self.current_stream().cuda_stream

    def current_stream(self) -> Any:
        import torch
        return torch.cuda.current_stream(self._device)


class Record:
    """One metric: seconds is None until its end is known."""

    __slots__ = "name", "began", "ended", "events"
    name: str
    """What was measured."""
    began: int
    """When, in nanoseconds of the monotonic clock."""
    ended: int
    """The same; 0 before the end."""
    events: tuple[Any, Any] | None
    """A CUDA metric's events, until the device has reached them."""

    def __init__(self, name: str, began: int, ended: int, events: tuple[Any, Any] | None = None) -> None:
        self.name, self.began, self.ended, self.events = name, began, ended, events  # monotonic nanoseconds; 0: not yet

    @property
    def seconds(self) -> float | None:
        """On the processor; of a CUDA metric, once the device has reached its end."""
        return (self.ended - self.began) / 1e9 if self.ended and self.events is None else None


class _Kind:
    """The metrics of a type, by key. Dictionaries for each type, as a tuple of type and key for each record would cost 0.4 us."""

    __slots__ = "open", "ended", "earlier", "series", "fresh"

    def __init__(self) -> None:
        # name, begin in nanoseconds, events
        self.open: dict[Hashable, tuple[str, int, tuple[Any, Any] | None]] = {}
        # name, begin and end; or a CUDA record. Two generations of at most LIMIT
        self.ended: dict[Hashable, tuple[str, int, int] | Record] = {}
        self.earlier: dict[Hashable, tuple[str, int, int] | Record] = {}
        self.series: dict[str, Series] = {}
        self.fresh: dict[str, list[float]] = {}  # of each series


class MetricsLogger:
    """Metrics of one rank: the API of PyTorch's parameter server benchmark, with times always in seconds.

    rank: in the names of traces and in reduce(). device: a torch.device or its name; on a CUDA device metrics are measured by
    events in its current stream unless record_start() is given cuda=False.

    A metric has a type, a key that no other running or recent metric of its type has (any hashable object) and a name. Its memory is
    bounded: of each "type,name" 10,000 values, then a uniform sample beside running moments; of each type the 10,000 or more newest
    records for duplicates and the trace, and 10,000 metrics that have not ended, of which the oldest are dropped. Thread-safe.
    """

    def __init__(self, rank: int | None = None, device: Any = None, *, _cuda: _Cuda | None = None) -> None:
        self.rank, self.device = rank, device
        self._on_cuda = device is not None and str(device).startswith("cuda")
        self._cuda = _cuda
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self.clear_metrics()

    def clear_metrics(self) -> None:
        """Forgets everything, also what runs."""
        with self._lock:
            self._kinds: dict[str, _Kind] = {}
            self._pending: collections.deque[tuple[str, Record]] = collections.deque()  # whose events the device has not reached
            self._free: list[tuple[Any, Any]] = []
            self._streams: dict[Hashable, Any] = {}
            self._next_read = _AHEAD  # when so many are pending
            self._dropped = 0
            self._told = False

    def record_start(self, type: str, key: Hashable, name: str, cuda: bool | None = None) -> None:
        """Begins a metric.

        type: of a group of metrics. key: unique within it. name: of what is measured. cuda: None: as the logger's device is.

        RuntimeError if the key was started and has not ended, or ended recently, or for CUDA metrics without a CUDA device.
        """
        try:
            kind = self._kinds[type]
        except KeyError:
            kind = self._add_kind(type)
        if key in kind.open or key in kind.ended or key in kind.earlier:
            raise RuntimeError(f"metric_type={type} with key={key} already exists")
        events = self._begin_events() if (self._on_cuda if cuda is None else cuda) else None
        kind.open[key] = name, _now(), events
        if len(kind.open) > LIMIT:
            self._drop_oldest(kind)

    def record_end(self, type: str, key: Hashable) -> None:
        """Ends a metric. RuntimeError if it was not started, or has ended."""
        now = _now()
        try:
            kind = self._kinds[type]
            name, began, events = kind.open.pop(key)
        except KeyError:
            raise self._not_open(type, key) from None
        if events is not None:
            kind.ended[key] = self._end_events(type, Record(name, began, 0, events))
            self._rotate(kind)
            return
        kind.ended[key] = name, began, now
        try:
            fresh = kind.fresh[name]
        except KeyError:
            fresh = self._add_series(type, name).fresh
        fresh.append((now - began) / 1e9)
        if len(fresh) >= _FOLDED:
            self._fold()

    def _not_open(self, type: str, key: Hashable) -> RuntimeError:
        kind = self._kinds.get(type) or _Kind()
        return RuntimeError(f"end for metric_type={type} with key={key} already exists" if key in kind.ended or key in kind.earlier else
                            f"metric_type={type} with key={key} not found")

    def _rotate(self, kind: _Kind) -> None:
        if len(kind.ended) >= LIMIT:
            with self._lock:
                if len(kind.ended) >= LIMIT:
                    kind.earlier, kind.ended = kind.ended, {}

    def _drop_oldest(self, kind: _Kind) -> None:
        with self._lock:
            for key in list(itertools.islice(kind.open, LIMIT // 10)):
                if kind.open.pop(key, None) is not None:
                    self._dropped += 1

    def _add_kind(self, type: str) -> _Kind:
        with self._lock:
            return self._kinds.setdefault(type, _Kind())

    def _add_series(self, type: str, name: str) -> Series:
        kind = self._add_kind(type)
        with self._lock:
            series = kind.series.setdefault(name, Series())
            kind.fresh[name] = series.fresh
            return series

    def _all_series(self) -> list[tuple[str, Series]]:
        """By "type,name"."""
        return [(f"{type},{name}", series) for type, kind in list(self._kinds.items()) for name, series in list(kind.series.items())]

    def _fold(self) -> None:
        with self._lock:
            for _, series in self._all_series():
                series.fold()
            for kind in list(self._kinds.values()):
                self._rotate(kind)

    def measure(self, name: str, type: str = "method_metric", key: Hashable = None, cuda: bool | None = None) -> Measure:
        """Measures the body of a with statement, or each call of a function that it decorates, also if it raises. key: by
        default a new one each time."""
        return Measure(self, type, name, key, cuda)

    def _unused_key(self) -> Hashable:
        return "measure", next(self._numbers)

    # CUDA: events are used again, and read once the device has reached them.

    def _begin_events(self) -> tuple[Any, Any]:
        if not self._on_cuda:
            raise RuntimeError("device is required for cuda; MetricsLogger(rank, device='cuda:0')")
        try:
            pair = self._free.pop()
        except IndexError:
            cuda = self._cuda = self._cuda or _RealCuda(self.device)
            pair = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        pair[0].record(self._stream())
        return pair

    def _stream(self) -> Any:
        assert self._cuda is not None
        handle = self._cuda.handle()
        try:
            return self._streams[handle]
        except KeyError:
            return self._streams.setdefault(handle, self._cuda.current_stream())

    def _end_events(self, type: str, record: Record) -> Record:
        assert record.events is not None
        record.events[1].record(self._stream())
        self._pending.append((type, record))
        if len(self._pending) >= self._next_read:
            with self._lock:
                if len(self._pending) > LIMIT:
                    self._resolve(wait=True)
                while len(self._pending) >= _AHEAD and self._read_some():
                    pass
                self._next_read = max(_AHEAD, len(self._pending) + _AT_ONCE)
        return record

    def _read_some(self) -> bool:
        """Reads the oldest events; whether the device has reached all. It has, if they are of one stream and it has the last."""
        events = self._pending[_AT_ONCE - 1][1].events
        if events is None or not events[1].query():
            return False
        for _ in range(_AT_ONCE):
            record = self._pending[0][1]
            assert record.events is not None
            begin, end = record.events
            try:
                took = begin.elapsed_time(end)
            except RuntimeError:
                if begin.query() and end.query():
                    raise
                return False  # they are of another stream, which is behind
            self._take(took)
        return True

    def _resolve(self, wait: bool) -> None:
        """Reads all events from the oldest on; waits for what the host has recorded, not for the device's later work."""
        while self._pending:
            record = self._pending[0][1]
            assert record.events is not None
            begin, end = record.events
            if not (end.query() and begin.query()):
                if not wait:
                    return
                begin.synchronize()
                end.synchronize()
            self._take(begin.elapsed_time(end))

    def _take(self, took: float) -> None:
        """The oldest metric's milliseconds."""
        type, record = self._pending.popleft()
        assert record.events is not None
        self._free.append(record.events)
        nanoseconds = round(took * 1e6)
        record.ended = record.began + max(nanoseconds, 1)
        record.events = None
        series = self._kinds[type].series.get(record.name) or self._add_series(type, record.name)
        series.fresh.append(nanoseconds / 1e9)
        if len(series.fresh) >= _FOLDED:
            series.fold()

    # What was measured

    def _settle(self) -> None:
        with self._lock:
            self._resolve(wait=True)
            self._fold()
            left = [(type, key, found[0]) for type, kind in list(self._kinds.items()) for key, found in list(kind.open.items())]
            if (left or self._dropped) and not self._told:
                self._told = True
                first = f"; the first: metric_type={left[0][0]} with key={left[0][1]}, '{left[0][2]}'" if left else ""
                warnings.warn(f"{len(left) + self._dropped} metrics have not ended and are left out{first}", RuntimeWarning, stacklevel=3)

    def get_metrics(self) -> dict[str, dict[Hashable, Record]]:
        """The newest records by type and key, those that have not ended included."""
        with self._lock:
            self._resolve(wait=False)
            found: dict[str, dict[Hashable, Record]] = {}
            for type, kind in list(self._kinds.items()):
                found[type] = {key: record for key, record in _records(kind)}
                found[type].update({key: Record(name, began, 0) for key, (name, began, _) in list(kind.open.items())})
            return found

    def get_processed_metrics(self) -> dict[str, list[float]]:
        """Seconds by "type,name"; of more than 10,000 a uniform sample. A RuntimeWarning says what has not ended."""
        self._settle()
        return {name: series.values() for name, series in self._all_series()}

    def statistics(self) -> dict[str, Statistics]:
        """This rank's, by "type,name"."""
        return {name: summary.statistics() for name, summary in self.summaries().items()}

    def summaries(self) -> dict[str, Summary]:
        """What statistics() are made of: merged() joins those of several ranks."""
        self._settle()
        with self._lock:
            return {name: series.summary(self.rank) for name, series in self._all_series()}

    def reduce(self, group: Any = None) -> dict[str, Statistics]:
        """The statistics of all ranks, the same on each, in one exchange. Collective over group.

        group: a libddp.ProcessGroup, or one of torch.distributed; default: its default group. Ranks may have different
        metrics. Percentiles come of at most 1,000 values a rank.
        """
        own = {name: summary.thinned(_EXCHANGED) for name, summary in self.summaries().items()}
        return merged(_all_of(group, own))

    def trace_json(self) -> str:
        """The newest records for chrome://tracing and Perfetto: a thread for each "type,name". `ddp-info trace` merges the files of
        several ranks."""
        with self._lock:
            self._resolve(wait=True)
            records = [(type, record) for type, kind in list(self._kinds.items()) for _, record in _records(kind)]
        records.sort(key=lambda each: each[1].began)
        rank = self.rank or 0
        events: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}}]
        threads: dict[str, int] = {}
        counts: collections.Counter[str] = collections.Counter()
        for type, record in records:
            name = f"{type},{record.name}"
            thread = threads.setdefault(name, len(threads))
            events.append({"name": name, "cat": "metric", "ph": "X", "pid": rank, "tid": thread, "ts": (record.began + _EPOCH_NS) / 1e3,
                           "dur": (record.ended - record.began) / 1e3, "args": {"step": counts[name]}})
            counts[name] += 1
        return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _records(kind: _Kind) -> list[tuple[Hashable, Record]]:
    """Those that have ended, oldest first."""
    return [(key, record if isinstance(record, Record) else Record(*record))
            for each in (kind.earlier, kind.ended) for key, record in list(each.items())]


class Measure(contextlib.ContextDecorator):
    """What MetricsLogger.measure() gives."""

    def __init__(self, logger: MetricsLogger, type: str, name: str, key: Hashable, cuda: bool | None) -> None:
        self._logger, self._type, self._name, self._key, self._cuda = logger, type, name, key, cuda
        self._used: Hashable = None

    def _recreate_cm(self) -> Measure:  # for each call of a function: recursive ones, and those of several threads
        return Measure(self._logger, self._type, self._name, self._key, self._cuda)

    def __enter__(self) -> None:
        self._used = self._logger._unused_key() if self._key is None else self._key
        self._logger.record_start(self._type, self._used, self._name, self._cuda)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._logger.record_end(self._type, self._used)


class Recording:
    """What has a logger, by upstream's names."""

    metrics: MetricsLogger
    """Where its methods are measured."""

    def record_start(self, type: str, key: Hashable, name: str, cuda: bool | None = None) -> None:
        """As MetricsLogger.record_start()."""
        self.metrics.record_start(type, key, name, cuda)

    def record_end(self, type: str, key: Hashable) -> None:
        """As MetricsLogger.record_end()."""
        self.metrics.record_end(type, key)

    def get_metrics(self) -> dict[str, list[float]]:
        """Seconds by "type,name"."""
        return self.metrics.get_processed_metrics()

    def clear_metrics(self) -> None:
        """Forgets what was measured."""
        self.metrics.clear_metrics()


class Measured(Protocol):
    """An object with a logger: what method_metric() decorates the methods of."""

    @property
    def metrics(self) -> MetricsLogger:
        """Where its methods are measured."""


def method_metric(name: str, type: str = "method_metric", cuda: bool | None = None) -> Callable[
        [Callable[Concatenate[Own, Arguments], Returned]], Callable[Concatenate[Own, Arguments], Returned]]:
    """Decorates a method of an object that has `metrics`: each call is a metric, which ends also if the method raises."""
    def decorator(method: Callable[Concatenate[Own, Arguments], Returned]) -> Callable[Concatenate[Own, Arguments], Returned]:
        @functools.wraps(method)
        def measured(self: Own, /, *given: Arguments.args, **named: Arguments.kwargs) -> Returned:
            with self.metrics.measure(name, type, cuda=cuda):
                return method(self, *given, **named)
        return measured
    return decorator


def _all_of(group: Any, own: Any) -> list[Any]:
    if hasattr(group, "all_gather_object"):
        return list(group.all_gather_object(own))
    import torch.distributed as dist
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group=group)
    return gathered


def merged(ranks: Iterable[Mapping[str, Summary]]) -> dict[str, Statistics]:
    """Statistics of several ranks' summaries."""
    together: dict[str, Summary] = {}
    for summaries in ranks:
        for name, summary in summaries.items():
            if name in together:
                together[name].merge(summary)
            else:
                together[name] = summary.copy()
    return {name: summary.statistics() for name, summary in together.items()}


def scalars(reduced: Mapping[str, Statistics]) -> dict[str, float | None]:
    """What CsvWriter and TensorBoardWriter take, of reduce()'s result: "type,name/mean" and so on."""
    return {f"{name}/{field}": getattr(statistics, field) for name, statistics in reduced.items()
            for field in ("count", "min", "max", "mean", "stdev", "p50", "p95", "p99", "slowest_rank")}
