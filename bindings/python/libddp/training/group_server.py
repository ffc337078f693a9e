"""Gradients to a parameter server and averages back by sends and receives of a libddp group: its rank 0 serves, the others train.

Messages of a trainer, in order: a header of 16 int64, then a dense gradient, or indices and values of a sparse one, or the name of a call.
Answers have tags of their bucket, so that the trainer posts the receive of a dense average with its gradient.
"""

from __future__ import annotations

import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

import libddp
from libddp import _errors

from .parameter_server import AverageParameterServer, problem

_HEADER = 16
_DENSE, _SPARSE, _CALL, _END = range(1, 5)
_HEADER_TAG, _PAYLOAD_TAG, _ANSWER_TAG = 0, 1, 16
_CALL_TAG = 2
_MOST_DIMENSIONS = 8
_FOREVER = 10 * 365 * 24 * 3600.0  # a trainer may compute as long as it likes before its first gradient of a batch
_SLACK = 2.0  # seconds, beside a quarter of the timeout, by which a trainer waits longer than the server, which knows the late trainer
# Between two looks at operations, in seconds: of large messages each look moves a part; then, if nothing moves, up to the longest.
_SHORTEST, _LONGEST, _GROWTH, _PATIENCE = 30e-6, 2e-3, 1.05, 0.25
_CALLS = ("get_metrics", "clear_metrics", "reset")
_DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8,
           torch.complex64, torch.complex128)


class Server(Protocol):
    """What a trainer knows of its server, by either transport."""

    def average_gradient(self, batch: int, bucket: int, gradient: torch.Tensor) -> torch.futures.Future[Any]:
        """Sends a gradient. The future holds the average, or a libddp.Error."""

    def get_metrics(self) -> dict[str, list[float]]:
        """The server's, in seconds by "type,name"."""

    def reset(self) -> None:
        """Makes it forget batches and metrics. One trainer calls it, between runs."""

    def close(self) -> None:
        """The last call of each trainer: the server ends after those of all."""


# The trainer


class GroupServer:
    """A trainer's connection to the server that is rank 0 of `group`.

    group: a libddp.ProcessGroup of this purpose, of the server and its trainers. timeout: that of the server, in seconds; this side waits
    somewhat longer, so that the server can say which trainer is late.

    A dense CPU gradient is averaged in place, others go through the CPU's memory. A failure ends the group: it is the result of
    all later futures, and libddp.Error from the other calls. Not thread-safe, but for futures.
    """

    def __init__(self, group: libddp.ProcessGroup, timeout: float = 600.0) -> None:
        self._group, self._patience = group, timeout * 1.25 + _SLACK
        self._kept: list[Any] = []  # memory of sends under way
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True, name="libddp parameter server")
        self._thread.start()

    def average_gradient(self, batch: int, bucket: int, gradient: torch.Tensor) -> torch.futures.Future[Any]:
        """As Server's."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[gradient.device] if gradient.is_cuda else None)
        if gradient.dtype not in _DTYPES or gradient.dim() > _MOST_DIMENSIONS:
            raise problem("invalid_argument", f"sending bucket {bucket} to the parameter server",
                          f"{gradient.dtype} with {gradient.dim()} dimensions cannot be sent")
        if gradient.is_sparse:
            self._send_sparse(batch, bucket, gradient, future)
        else:
            self._send_dense(batch, bucket, gradient, future)
        return future

    def _send(self, header: Sequence[int], *payload: torch.Tensor, tag: int = _PAYLOAD_TAG) -> None:
        words = torch.zeros(_HEADER, dtype=torch.int64)
        words[:len(header)] = torch.tensor(header)
        self._kept = [(work, memory) for work, memory in self._kept if not work.done()]
        for each, number in ((words, _HEADER_TAG), *((each, tag) for each in payload)):
            if each.numel():
                self._kept.append((self._group.send(each, 0, number, timeout=self._patience), each))

    def _send_dense(self, batch: int, bucket: int, gradient: torch.Tensor, future: torch.futures.Future[Any]) -> None:
        memory = gradient.detach().to("cpu").contiguous()
        header = [_DENSE, batch, bucket, _DTYPES.index(gradient.dtype), gradient.dim(), *gradient.shape]
        work = None
        try:
            if memory.numel():
                # the average comes when the server has all of the gradient, so it may have the same memory
                work = self._group.recv(memory, 0, _tag(bucket, 1), timeout=self._patience)
            self._send(header, memory)
        except _errors.Error as error:
            future.set_result(error)
            return

        def finish() -> torch.Tensor:
            if work is not None:
                _end(work)
            return gradient.copy_(memory) if memory.data_ptr() != gradient.data_ptr() else gradient
        self._answers.put(lambda: _settle(future, finish))

    def _send_sparse(self, batch: int, bucket: int, gradient: torch.Tensor, future: torch.futures.Future[Any]) -> None:
        whole = gradient.detach().coalesce().to("cpu")
        indices, values = whole.indices().contiguous(), whole.values().contiguous()
        header = [_SPARSE, batch, bucket, _DTYPES.index(gradient.dtype), gradient.dim(), *gradient.shape]
        header += [0] * (_HEADER - 2 - len(header)) + [indices.shape[0], indices.shape[1]]
        size = torch.zeros(1, dtype=torch.int64)
        try:
            work = self._group.recv(size, 0, _tag(bucket, 0), timeout=self._patience)
            self._send(header, indices, values)
        except _errors.Error as error:
            future.set_result(error)
            return

        def finish() -> torch.Tensor:
            _end(work)
            count = int(size)
            mixed = torch.empty((indices.shape[0], count), dtype=torch.int64), values.new_empty((count, *values.shape[1:]))
            works = [self._group.recv(each, 0, _tag(bucket, 2 + place), timeout=self._patience)
                     for place, each in enumerate(mixed) if each.numel()]
            for each in works:
                _end(each)
            return torch.sparse_coo_tensor(*mixed, whole.shape, is_coalesced=True, check_invariants=False).to(gradient.device)
        self._answers.put(lambda: _settle(future, finish))

    def _deliver(self) -> None:
        while (next_ := self._answers.get()) is not None:
            next_()

    def _call(self, name: str) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        work = self._group.recv(size, 0, _CALL_TAG, timeout=self._patience)
        self._send([_CALL, _CALLS.index(name)])
        work.wait()
        answer = torch.empty(int(size), dtype=torch.uint8)
        self._group.recv(answer, 0, _CALL_TAG, timeout=self._patience).wait()
        return pickle.loads(answer.numpy().tobytes())

    def get_metrics(self) -> dict[str, list[float]]:
        """As Server's."""
        found: dict[str, list[float]] = self._call("get_metrics")
        return found

    def reset(self) -> None:
        """As Server's."""
        self._call("reset")

    def close(self) -> None:
        """As Server's."""
        if self._thread.is_alive():
            self._answers.put(None)
            self._thread.join(self._patience)
            self._send([_END])
            for work, _ in self._kept:
                work.wait()


def _end(work: libddp.Work) -> None:
    """Waits for an operation, and raises its error. Looking at it carries it on; threads that wait otherwise use up their share of a
    busy processor, and are then late for each part of a large message."""
    looks = _Looks()
    while not work.done():
        looks.pause()
    work.wait()


class _Looks:
    """Pauses between looks: short ones while messages may be under way."""

    def __init__(self) -> None:
        self.moved()

    def moved(self) -> None:
        self._pause, self._until = _SHORTEST, time.monotonic() + _PATIENCE

    def pause(self) -> None:
        time.sleep(self._pause)
        if time.monotonic() > self._until:
            self._pause = min(self._pause * _GROWTH, _LONGEST)


def _tag(bucket: int, part: int) -> int:
    return _ANSWER_TAG + 4 * bucket + part


def _settle(future: torch.futures.Future[Any], finish: Callable[[], Any]) -> None:
    try:
        result = finish()
    except _errors.Error as error:
        result = error
    except Exception as error:  # torch's, of memory
        result = problem("system", "taking an average of the parameter server", str(error))
    future.set_result(result)


# The server


def serve(server: AverageParameterServer, group: libddp.ProcessGroup) -> None:
    """Serves the trainers, which are the other ranks of `group`, until all have closed.

    A receive of each trainer's next header is always posted. What fails ends the group on all ranks with the same libddp.Error,
    and is raised here, too.
    """
    _Serving(server, group).run()


class _Memory:
    """A gradient's memory, which the next batches use again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.held = tensor, True
        self.works: list[libddp.Work] = []

    def free(self) -> bool:
        return not self.held and all(work.done() for work in self.works)


class _Serving:
    def __init__(self, server: AverageParameterServer, group: libddp.ProcessGroup) -> None:
        self._server, self._group = server, group
        self._memories: dict[tuple[int, torch.dtype], list[_Memory]] = {}
        self._of_buckets: dict[tuple[int, int], list[_Memory]] = {}
        self._sending: list[tuple[libddp.Work, torch.Tensor]] = []
        self._failed: _errors.Error | None = None
        self._ending = threading.Lock()

    def run(self) -> None:
        try:
            self._serve([self._trainer(number) for number in range(self._group.size - 1)])
            for work, _ in self._sending:
                work.wait()
        except _errors.Error as error:
            self._end(error)
            raise self._failed or error from None
        except Exception as error:  # the trainers' wait ends, too
            self._end(problem("system", "serving trainers", f"{type(error).__name__}: {error}", [self._server.rank]))
            raise

    def _serve(self, trainers: Sequence[Iterator[libddp.Work]]) -> None:
        """Continues each trainer's messages when what it waits for has ended; see _end() for why it looks."""
        waiting = [(trainer, next(trainer)) for trainer in trainers]
        looks = _Looks()
        while waiting:
            moved = False
            for place, (trainer, work) in reversed(list(enumerate(waiting))):
                if not work.done():
                    continue
                moved = True
                work.wait()
                following = next(trainer, None)
                if following is None:
                    del waiting[place]
                else:
                    waiting[place] = trainer, following
            if self._failed is not None:
                raise self._failed
            if moved:
                looks.moved()
            else:
                looks.pause()

    def _end(self, error: _errors.Error) -> None:
        """Ends the group on all ranks, from any thread; the first failure stays. Returns when that is done."""
        with self._ending:
            if self._failed is None:
                self._failed = error
                self._group.abort(error)

    def _receive(self, tensor: torch.Tensor, trainer: int) -> Iterator[libddp.Work]:
        if tensor.numel():
            yield self._group.recv(tensor, trainer + 1, _PAYLOAD_TAG, timeout=self._server.timeout)

    def _send(self, tensor: torch.Tensor, trainer: int, tag: int) -> list[libddp.Work]:
        if not tensor.numel():
            return []
        work = self._group.send(tensor, trainer + 1, tag, timeout=self._server.timeout)
        self._sending = [each for each in self._sending if not each[0].done()]
        self._sending.append((work, tensor))
        return [work]

    def _trainer(self, trainer: int) -> Iterator[libddp.Work]:
        headers = torch.zeros((2, _HEADER), dtype=torch.int64)
        turn = 0
        work = self._group.recv(headers[turn], trainer + 1, _HEADER_TAG, timeout=_FOREVER)
        while True:
            yield work
            words = headers[turn].tolist()
            if words[0] == _END:
                return
            turn = 1 - turn
            work = self._group.recv(headers[turn], trainer + 1, _HEADER_TAG, timeout=_FOREVER)
            if words[0] == _CALL:
                self._call(trainer, words[1])
            elif words[0] == _DENSE:
                yield from self._dense(trainer, words)
            else:
                yield from self._sparse(trainer, words)

    def _call(self, trainer: int, number: int) -> None:
        answer = pickle.dumps(getattr(self._server, _CALLS[number])())
        memory = torch.frombuffer(bytearray(answer), dtype=torch.uint8)
        self._send(torch.tensor([memory.numel()]), trainer, _CALL_TAG)
        self._send(memory, trainer, _CALL_TAG)

    def _dense(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        _, batch, bucket, dtype, dimensions, *shape = words
        shape = shape[:dimensions]
        memory = self._take(torch.Size(shape).numel(), _DTYPES[dtype])
        self._of_buckets.setdefault((batch, bucket), []).append(memory)
        yield from self._receive(memory.tensor, trainer)
        self._contribute(trainer, batch, bucket, memory.tensor.view(shape))

    def _sparse(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        _, batch, bucket, dtype, dimensions, *shape = words
        shape, (sparse, count) = shape[:dimensions], words[-2:]
        indices = torch.empty((sparse, count), dtype=torch.int64)
        values = torch.empty((count, *shape[sparse:]), dtype=_DTYPES[dtype])
        yield from self._receive(indices, trainer)
        yield from self._receive(values, trainer)
        self._contribute(trainer, batch, bucket, torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True))

    def _contribute(self, trainer: int, batch: int, bucket: int, gradient: torch.Tensor) -> None:
        def answer(averaged: torch.Tensor | _errors.Error) -> None:
            if isinstance(averaged, _errors.Error):
                self._end(averaged)
            elif averaged.is_sparse:
                whole = averaged.coalesce()
                self._send(torch.tensor([whole.indices().shape[1]]), trainer, _tag(bucket, 0))
                self._send(whole.indices().contiguous(), trainer, _tag(bucket, 2))
                self._send(whole.values().contiguous(), trainer, _tag(bucket, 3))
            else:
                works = self._send(averaged.contiguous(), trainer, _tag(bucket, 1))
                for memory in self._of_buckets.get((batch, bucket), ()):
                    memory.works += works
        self._server.contribute(trainer, batch, bucket, gradient, answer)
        if self._server.ended(batch, bucket):
            for memory in self._of_buckets.pop((batch, bucket), ()):
                memory.held = False

    def _take(self, elements: int, dtype: torch.dtype) -> _Memory:
        known = self._memories.setdefault((elements, dtype), [])
        for memory in known:
            if memory.free():
                memory.held, memory.works = True, []
                return memory
        known.append(_Memory(torch.empty(elements, dtype=dtype)))
        return known[-1]
