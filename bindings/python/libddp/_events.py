"""Ends of operations for callbacks and event loops: delivered in Python's own threads, never in one of libddp's."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterable

from ._core import CompletionQueue, Work

_Callback = Callable[[Work], object]
_numbers = itertools.count(1)


def _call(function: _Callback, work: Work) -> None:
    try:
        function(work)
    except Exception:  # as concurrent.futures does: the caller of wait() is not to blame
        logging.getLogger("libddp").exception("a callback of %r failed", work)


class _Callbacks:
    """What is to be called, by numbers, and the queue that tells which."""

    def __init__(self) -> None:
        self.queue = CompletionQueue()
        self.process = os.getpid()
        self.waiting: dict[int, tuple[Work, _Callback]] = {}
        self.ended: list[int] = []  # taken from the queue, but not yet delivered

    def add(self, work: Work, function: _Callback) -> int:
        number = next(_numbers)
        self.waiting[number] = work, function
        self.queue.watch(work, number)
        return number

    def deliver(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            work_and_function = self.waiting.pop(number, None)
            if work_and_function is not None:
                _call(work_and_function[1], work_and_function[0])

    def deliver_waited(self, numbers: Iterable[int]) -> None:
        """Only these; the queue does not grow in programs that never poll."""
        self.deliver(numbers)
        self.ended = [number for number in self.ended + self.queue.take() if number in self.waiting]

    def deliver_ended(self) -> None:
        ended, self.ended = self.ended, []
        self.deliver(ended + self.queue.take())


class _LoopCallbacks(_Callbacks):
    """Those of an event loop, which watches the queue while something is waiting."""

    def add(self, work: Work, function: _Callback) -> int:
        if not self.waiting:
            asyncio.get_running_loop().add_reader(self.queue.fileno(), self.deliver_ended)
        return super().add(work, function)

    def deliver_ended(self) -> None:
        super().deliver_ended()
        if not self.waiting:
            asyncio.get_running_loop().remove_reader(self.queue.fileno())


_by_poll: _Callbacks | None = None
_by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopCallbacks] = weakref.WeakKeyDictionary()


def _of_loop(loop: asyncio.AbstractEventLoop) -> _LoopCallbacks:
    callbacks = _by_loop.get(loop)
    if callbacks is None:
        callbacks = _by_loop[loop] = _LoopCallbacks()
    return callbacks


def call_at_end(work: Work, function: _Callback) -> int | None:
    """Sees to it that function(work) is called. A number for deliver(), unless an event loop does it."""
    global _by_poll
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        if _by_poll is None or _by_poll.process != os.getpid():  # a child has operations of its own
            _by_poll = _Callbacks()
        return _by_poll.add(work, function)
    _of_loop(loop).add(work, function)
    return None


def deliver(numbers: Iterable[int]) -> None:
    if _by_poll is not None:
        _by_poll.deliver_waited(numbers)


def poll() -> None:
    if _by_poll is not None:
        _by_poll.deliver_ended()


async def end_of(work: Work) -> None:
    """Returns when the operation has ended; raises its error. Cancelled, it leaves the operation running."""
    if not work.done():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def note(_: Work) -> None:
            if not ended.done():  # cancelled
                ended.set_result(None)

        _of_loop(loop).add(work, note)
        await ended
    work.wait()
