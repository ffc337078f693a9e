"""Ends of operations for callbacks and event loops: delivered in Python's own threads, never in one of libddp's."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Iterable

import libddp

from ._core import CompletionQueue, Work

_Callback = Callable[[Work], object]
_numbers = itertools.count(1)


def _call(function: _Callback, work: Work) -> None:
    try:
        function(work)
    except Exception:  # as concurrent.futures does: the caller of wait() is not to blame
        logging.getLogger("libddp").exception("a callback of %r failed", work)


class _Callbacks:
    """What is to be called, by numbers, and the queue that says which."""

    def __init__(self) -> None:
        self.queue = CompletionQueue()
        self.process = os.getpid()
        self.waiting: dict[int, tuple[Work, _Callback]] = {}
        self.ended: dict[int, None] = {}  # those of waiting that the queue has told

    def add(self, work: Work, function: _Callback) -> int:
        number = next(_numbers)
        self.waiting[number] = work, function
        self.queue.watch(work, number)
        return number

    def take(self) -> None:
        """The queue does not grow in programs that never poll. Other threads may deliver meanwhile."""
        for number in self.queue.take():
            self.ended[number] = None
            if number not in self.waiting:
                self.ended.pop(number, None)

    def deliver(self, numbers: Iterable[int]) -> None:
        failure: BaseException | None = None
        for number in numbers:
            work_and_function = self.waiting.pop(number, None)
            self.ended.pop(number, None)
            if work_and_function is not None:
                try:
                    _call(work_and_function[1], work_and_function[0])
                except BaseException as error:  # Ctrl-C, sys.exit(): once the others have been called
                    failure = failure or error
        try:
            if failure is not None:
                raise failure
        finally:
            failure = None  # whose traceback has this frame

    def deliver_ended(self) -> None:
        self.take()
        self.deliver(list(self.ended))


class _LoopCallbacks(_Callbacks):
    """Those of an event loop, which watches the queue while something is waiting."""

    def add(self, work: Work, function: _Callback) -> int:
        if not self.waiting:
            asyncio.get_running_loop().add_reader(self.queue.fileno(), self.deliver_ended)
        return super().add(work, function)

    def deliver_ended(self) -> None:
        try:
            super().deliver_ended()
        finally:
            if not self.waiting:
                asyncio.get_running_loop().remove_reader(self.queue.fileno())

    def forget(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        if self.waiting.pop(number, None) is not None and not self.waiting and not loop.is_closed():
            loop.remove_reader(self.queue.fileno())


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
    if _by_poll is not None and _by_poll.process == os.getpid():
        _by_poll.take()
        _by_poll.deliver(numbers)


def poll() -> None:
    if _by_poll is not None and _by_poll.process == os.getpid():
        _by_poll.deliver_ended()


async def end_of(work: Work) -> None:
    """Returns when the operation has ended; raises its error. Cancelled, it leaves the operation running."""
    if not work.done():
        if libddp._process != os.getpid():
            work.wait()  # says that it is the parent's
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def note(_: Work) -> None:
            if not ended.done():  # cancelled
                ended.set_result(None)

        callbacks = _of_loop(loop)
        number = callbacks.add(work, note)
        try:
            await ended
        finally:  # what is cancelled would keep the loop
            callbacks.forget(number, loop)
    work.wait()
