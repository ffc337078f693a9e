"""Messages between trainers and servers over a libddp group: a trainer's connection and a server's loop, whatever they carry.

A message is a header of 16 int64, then what its kind has. All servers know calls by name, and the end of a trainer. The servers are the
first ranks of a group, the trainers the others. A receive of each trainer's next header is always posted.
"""

from __future__ import annotations

import itertools
import pickle
import select
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import libddp
from libddp import _errors
from libddp._core import CompletionQueue
from libddp._errors import problem

HEADER = 16
END, CALL, OWN = range(1, 4)
"""Kinds of messages; those of a server's own begin with the last."""
HEADER_TAG, PAYLOAD_TAG, CALL_TAG, ANSWER_TAG = 0, 1, 2, 16
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8, torch.uint8,
          torch.complex64, torch.complex128)
FOREVER = 10 * 365 * 24 * 3600.0  # a trainer may compute as long as it likes before its first gradient of a batch
_SLACK = 2.0  # seconds, beside a quarter of the timeout, by which a trainer waits longer than the server, which knows the late trainer
_LOOK_MS = 50  # between a server's looks at what does not end with an operation


class Connection:
    """A trainer's side. calls: names of the methods that it may call on its servers. timeout: theirs, in seconds."""

    def __init__(self, group: libddp.ProcessGroup, timeout: float, calls: Sequence[str]) -> None:
        self._group, self._patience, self._calls = group, timeout * 1.25 + _SLACK, calls
        self._kept: list[tuple[libddp.Work, torch.Tensor]] = []  # memory of sends under way

    def _send(self, header: Sequence[int], *payload: torch.Tensor, server: int = 0) -> None:
        words = torch.zeros(HEADER, dtype=torch.int64)
        words[:len(header)] = torch.tensor(header)
        self._kept = [(work, memory) for work, memory in self._kept if not work.done()]
        for each, tag in ((words, HEADER_TAG), *((each, PAYLOAD_TAG) for each in payload)):
            if each.numel():
                self._kept.append((self._group.send(each, server, tag, timeout=self._patience), each))

    def _receive(self, tensor: torch.Tensor, tag: int, server: int = 0) -> libddp.Work:
        return self._group.recv(tensor, server, tag, timeout=self._patience)

    def _call(self, name: str, server: int = 0) -> Any:
        size = torch.zeros(1, dtype=torch.int64)
        work = self._receive(size, CALL_TAG, server)
        self._send([CALL, self._calls.index(name)], server=server)
        work.wait()
        answer = torch.empty(int(size), dtype=torch.uint8)
        self._receive(answer, CALL_TAG, server).wait()
        return pickle.loads(answer.numpy().tobytes())

    def _leave(self, servers: int = 1) -> None:
        """The last messages."""
        for server in range(servers):
            self._send([END], server=server)
        for work, _ in self._kept:
            work.wait()


class Serving:
    """A server's loop. What fails ends the group on all ranks with one libddp.Error, which run() raises, too."""

    def __init__(self, group: libddp.ProcessGroup, timeout: float, calls: Sequence[str], servers: int = 1) -> None:
        self._group, self._timeout, self._calls, self._servers = group, timeout, calls, servers
        self._sending: list[tuple[libddp.Work, torch.Tensor]] = []
        self._failed: _errors.Error | None = None
        self._ending = threading.Lock()

    def run(self) -> None:
        try:
            self._serve([self._trainer(number) for number in range(self._group.size - self._servers)] + self._others())
            for work, _ in self._sending:
                work.wait()
        except _errors.Error as error:
            self._end(error)
            raise self._failed or error from None
        except Exception as error:  # the trainers' wait ends, too
            self._end(problem("system", "serving trainers", f"{type(error).__name__}: {error}",
                              [self._group.global_ranks[self._group.rank]]))
            raise

    def _others(self) -> list[Iterator[libddp.Work]]:
        """Messages from other servers."""
        return []

    def _look(self) -> None:
        """At times: raises what has failed meanwhile."""
        if self._failed is not None:
            raise self._failed

    def _own(self, trainer: int, words: list[int]) -> Iterator[libddp.Work]:
        """Takes what follows a header of the server's own kinds."""
        raise NotImplementedError

    def _called(self, trainer: int, name: str) -> Any:
        """The answer to a call."""
        raise NotImplementedError

    def _serve(self, peers: Sequence[Iterator[libddp.Work]]) -> None:
        """Continues each one's messages when what it waits for has ended. Meanwhile libddp's own thread moves the other peers' messages."""
        ended, numbers = CompletionQueue(), itertools.count()
        poller = select.poll()
        poller.register(ended.fileno(), select.POLLIN)
        waiting: dict[int, tuple[Iterator[libddp.Work], libddp.Work]] = {}

        def follow(peer: Iterator[libddp.Work]) -> None:
            work = next(peer, None)
            if work is not None:
                number = next(numbers)
                waiting[number] = peer, work
                ended.watch(work, number)

        for peer in peers:
            follow(peer)
        while waiting:
            poller.poll(_LOOK_MS)
            for number in ended.take():
                peer, work = waiting.pop(number)
                work.wait()
                follow(peer)
            self._look()

    def _end(self, error: _errors.Error) -> None:
        """Ends the group on all ranks, from any thread; the first failure stays. Returns when that is done."""
        with self._ending:
            if self._failed is None:
                self._failed = error
                self._group.abort(error)

    def _trainer(self, trainer: int) -> Iterator[libddp.Work]:
        peer = self._rank_of(trainer)
        headers = torch.zeros((2, HEADER), dtype=torch.int64)
        turn = 0
        work = self._group.recv(headers[turn], peer, HEADER_TAG, timeout=FOREVER)
        while True:
            yield work
            words = headers[turn].tolist()
            if words[0] == END:
                return self._left()
            turn = 1 - turn
            work = self._group.recv(headers[turn], peer, HEADER_TAG, timeout=FOREVER)
            if words[0] == CALL:
                self._answer_call(trainer, self._calls[words[1]])
            else:
                yield from self._own(trainer, words)

    def _left(self) -> None:
        """A trainer has ended."""

    def _answer_call(self, trainer: int, name: str) -> None:
        memory = torch.frombuffer(bytearray(pickle.dumps(self._called(trainer, name))), dtype=torch.uint8)
        self._send(torch.tensor([memory.numel()]), self._rank_of(trainer), CALL_TAG)
        self._send(memory, self._rank_of(trainer), CALL_TAG)

    def _rank_of(self, trainer: int) -> int:
        """In the group."""
        return trainer + self._servers

    def _receive(self, tensor: torch.Tensor, trainer: int) -> Iterator[libddp.Work]:
        if tensor.numel():
            yield self._group.recv(tensor, self._rank_of(trainer), PAYLOAD_TAG, timeout=self._timeout)

    def _send(self, tensor: torch.Tensor, rank: int, tag: int) -> list[libddp.Work]:
        if not tensor.numel():
            return []
        work = self._group.send(tensor, rank, tag, timeout=self._timeout)
        self._sending = [each for each in self._sending if not each[0].done()]
        self._sending.append((work, tensor))
        return [work]
