"""Gradients to a parameter server and averages back by sends and receives of a libddp group: its rank 0 serves, the others train.

After a header: a dense gradient, or indices and values of a sparse one. Answers have tags of their bucket, so that the trainer posts the
receive of a dense average with its gradient.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

import libddp
from libddp import _errors
from libddp._errors import problem

from .group_messages import ANSWER_TAG, DTYPES, HEADER, OWN, Connection, Serving
from .key_value_group import KeyValueServing
from .key_value_server import KeyValueParameterServer
from .parameter_server import AverageParameterServer

_DENSE, _SPARSE = OWN, OWN + 1
_MOST_DIMENSIONS = 8
_CALLS = ("get_metrics", "clear_metrics", "reset")


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


class GroupServer(Connection):
    """A trainer's connection to the server that is rank 0 of `group`.

    group: a libddp.ProcessGroup of this purpose, of the server and its trainers. timeout: that of the server, in seconds; this side waits
    somewhat longer, so that the server can say which trainer is late.

    A dense CPU gradient is averaged in place, others go through the CPU's memory. A failure ends the group: it is the result of
    all later futures, and libddp.Error from the other calls. Not thread-safe, but for futures.
    """

    def __init__(self, group: libddp.ProcessGroup, timeout: float = 600.0) -> None:
        super().__init__(group, timeout, _CALLS)
        self._answers: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._deliver, daemon=True, name="libddp parameter server")
        self._thread.start()

    def average_gradient(self, batch: int, bucket: int, gradient: torch.Tensor) -> torch.futures.Future[Any]:
        """As Server's."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[gradient.device] if gradient.is_cuda else None)
        if gradient.dtype not in DTYPES or gradient.dim() > _MOST_DIMENSIONS:
            raise problem("invalid_argument", f"sending bucket {bucket} to the parameter server",
                          f"{gradient.dtype} with {gradient.dim()} dimensions cannot be sent")
        kind, send = (_SPARSE, self._send_sparse) if gradient.is_sparse else (_DENSE, self._send_dense)
        try:
            taken = send([kind, batch, bucket, DTYPES.index(gradient.dtype), gradient.dim(), *gradient.shape], bucket,
                         gradient)
        except _errors.Error as error:
            future.set_result(error)
        else:
            self._answers.put(lambda: _settle(future, taken))
        return future

    def _send_dense(self, header: list[int], bucket: int, gradient: torch.Tensor) -> Callable[[], torch.Tensor]:
        memory = gradient.detach().to("cpu").contiguous()
        # the average comes when the server has all of the gradient, so it may have the same memory
        work = self._receive(memory, _tag(bucket, 1)) if memory.numel() else None
        self._send(header, memory)

        def taken() -> torch.Tensor:
            if work is not None:
                work.wait()
            return gradient.copy_(memory) if memory.data_ptr() != gradient.data_ptr() else gradient
        return taken

    def _send_sparse(self, header: list[int], bucket: int, gradient: torch.Tensor) -> Callable[[], torch.Tensor]:
        whole = gradient.detach().coalesce().to("cpu")
        indices, values = whole.indices().contiguous(), whole.values().contiguous()
        header += [0] * (HEADER - 2 - len(header)) + [indices.shape[0], indices.shape[1]]
        size = torch.zeros(1, dtype=torch.int64)
        work = self._receive(size, _tag(bucket, 0))
        self._send(header, indices, values)

        def taken() -> torch.Tensor:
            work.wait()
            count = int(size)
            mixed = torch.empty((indices.shape[0], count), dtype=torch.int64), values.new_empty((count, *values.shape[1:]))
            works = [self._receive(each, _tag(bucket, 2 + place))
                     for place, each in enumerate(mixed) if each.numel()]
            for each in works:
                each.wait()
            return torch.sparse_coo_tensor(*mixed, whole.shape, is_coalesced=True, check_invariants=False).to(gradient.device)
        return taken

    def _deliver(self) -> None:
        while (next_ := self._answers.get()) is not None:
            next_()

    def get_metrics(self) -> dict[str, list[float]]:
        """As Server's."""
        return dict(self._call("get_metrics"))

    def reset(self) -> None:
        """As Server's."""
        self._call("reset")

    def close(self) -> None:
        """As Server's."""
        if self._thread.is_alive():
            self._answers.put(None)
            self._thread.join(self._patience)
            self._leave()


def _tag(bucket: int, part: int) -> int:
    return ANSWER_TAG + 4 * bucket + part


def _settle(future: torch.futures.Future[Any], take: Callable[[], Any]) -> None:
    try:
        result = take()
    except _errors.Error as error:
        result = error
    except Exception as error:  # torch's, of memory
        result = problem("system", "taking an average of the parameter server", str(error))
    future.set_result(result)


# The server


def serve(server: AverageParameterServer | KeyValueParameterServer, group: libddp.ProcessGroup) -> None:
    """Serves the trainers until all have closed. They are the other ranks of `group`; the servers are the first: one, or as many as a
    KeyValueParameterServer says.

    What fails ends the group on all ranks with the same libddp.Error, and is raised here, too.
    """
    if isinstance(server, KeyValueParameterServer):
        KeyValueServing(server, group).run()
    else:
        _Serving(server, group).run()


class _Memory:
    """A gradient's memory, which the next batches use again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.held = tensor, True
        self.works: list[libddp.Work] = []

    def free(self) -> bool:
        return not self.held and all(work.done() for work in self.works)


class _Serving(Serving):
    def __init__(self, server: AverageParameterServer, group: libddp.ProcessGroup) -> None:
        super().__init__(group, server.timeout, _CALLS)
        self._server = server
        self._memories: dict[tuple[int, torch.dtype], list[_Memory]] = {}
        self._of_buckets: dict[tuple[int, int], list[_Memory]] = {}

    def _called(self, trainer: int, name: str) -> Any:
        return getattr(self._server, name)()

    def _own(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        return self._dense(trainer, words) if words[0] == _DENSE else self._sparse(trainer, words)

    def _dense(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        _, batch, bucket, dtype, dimensions, *shape = words
        shape = shape[:dimensions]
        memory = self._take(torch.Size(shape).numel(), DTYPES[dtype])
        self._of_buckets.setdefault((batch, bucket), []).append(memory)
        yield from self._receive(memory.tensor, trainer)
        self._contribute(trainer, batch, bucket, memory.tensor.view(shape))

    def _sparse(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        _, batch, bucket, dtype, dimensions, *shape = words
        shape, (sparse, count) = shape[:dimensions], words[-2:]
        indices = torch.empty((sparse, count), dtype=torch.int64)
        values = torch.empty((count, *shape[sparse:]), dtype=DTYPES[dtype])
        yield from self._receive(indices, trainer)
        yield from self._receive(values, trainer)
        self._contribute(trainer, batch, bucket, torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True))

    def _contribute(self, trainer: int, batch: int, bucket: int, gradient: torch.Tensor) -> None:
        def answer(averaged: torch.Tensor | _errors.Error) -> None:
            if isinstance(averaged, _errors.Error):
                self._end(averaged)
            elif averaged.is_sparse:
                whole = averaged.coalesce()
                self._send(torch.tensor([whole.indices().shape[1]]), self._rank_of(trainer), _tag(bucket, 0))
                self._send(whole.indices().contiguous(), self._rank_of(trainer), _tag(bucket, 2))
                self._send(whole.values().contiguous(), self._rank_of(trainer), _tag(bucket, 3))
            else:
                works = self._send(averaged.contiguous(), self._rank_of(trainer), _tag(bucket, 1))
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
