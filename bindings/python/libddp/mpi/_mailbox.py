"""Messages between two ranks, by source and tag. libddp's group matches a receive with one sender; here each message has an
envelope in front, so that receives from any source, of any tag, and probes find what has come."""

from __future__ import annotations

import collections
import contextlib
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy

import libddp

ANY_SOURCE, ANY_TAG = -1, -1
_ENVELOPE = numpy.dtype([("tag", "<i8"), ("bytes", "<i8")])
_FOREVER = 10 * 365 * 24 * 3600.0  # a rank may wait as long as it likes
_LOOK = 0.05


boxes: weakref.WeakSet[Mailbox] = weakref.WeakSet()  # of all communicators


class Message:
    def __init__(self, source: int, tag: int, payload: Any) -> None:
        self.source, self.tag, self.payload = source, tag, payload  # of bytes, as an array


class Receive:
    """A receive that is posted. The oldest that fits gets a message."""

    def __init__(self, source: int, tag: int) -> None:
        self.source, self.tag = source, tag
        self.message: Message | None = None

    def fits(self, message: Message) -> bool:
        return self.source in (ANY_SOURCE, message.source) and self.tag in (ANY_TAG, message.tag)


class Mailbox:
    """A communicator's messages. Thread-safe."""

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self._group, self._rank, self._size = group, rank, size
        self._lock = threading.RLock()
        self._arriving: dict[int, tuple[Any, Any, Any]] = {}  # by source: envelope, payload or None, what is awaited
        self._unexpected: collections.deque[Message] = collections.deque()
        self._posted: list[Receive] = []
        self._sending: list[tuple[Any, Any]] = []
        boxes.add(self)

    def send(self, payload: Any, to: int, tag: int) -> Callable[[], bool]:
        """Sends bytes, which stay untouched until what is returned says so."""
        if to == self._rank:
            with self._lock:
                self._deliver(Message(to, tag, payload.copy()))
            return lambda: True
        envelope = numpy.array([(tag, payload.nbytes)], dtype=_ENVELOPE).view(numpy.uint8)
        with self._lock:
            works = [self._group.send(envelope, to, timeout=_FOREVER)]
            if payload.nbytes:
                works.append(self._group.send(payload, to, timeout=_FOREVER))
            self._sending = [(work, memory) for work, memory in self._sending if not work.done()]
            self._sending.append((works[-1], payload))

        def sent() -> bool:
            with self._lock:
                self._advance()  # the other rank may wait for this one to take what it sends
            for work in works:
                if work.exception() is not None:
                    work.wait()
            return all(work.done() for work in works)

        return sent

    def flush(self, limit: float) -> None:
        """Waits until what was sent is taken."""
        for work, _ in self._sending:
            work.wait(max(limit - time.monotonic(), 0.0))

    def post(self, source: int, tag: int) -> Receive:
        receive = Receive(source, tag)
        with self._lock:
            receive.message = next(filter(receive.fits, self._unexpected), None)
            if receive.message is not None:
                self._unexpected.remove(receive.message)
            else:
                self._posted.append(receive)
                self._advance()
        return receive

    def cancel(self, receive: Receive) -> bool:
        with self._lock:
            if receive in self._posted:
                self._posted.remove(receive)
                return True
        return False

    def arrived(self, receive: Receive) -> bool:
        with self._lock:
            if receive.message is None:
                self._advance()
            return receive.message is not None

    def wait(self, receive: Receive) -> Message:
        self._wait(lambda: self.arrived(receive))
        assert receive.message is not None
        return receive.message

    def find(self, source: int, tag: int) -> Message | None:
        """What a receive would get, without taking it."""
        wanted = Receive(source, tag)
        with self._lock:
            self._await(wanted)
            self._advance()
            return next(filter(wanted.fits, self._unexpected), None)

    def probe(self, source: int, tag: int) -> Message:
        self._wait(lambda: self.find(source, tag) is not None)
        found = self.find(source, tag)
        assert found is not None
        return found

    def _wait(self, ready: Callable[[], bool]) -> None:
        pause = 0.0
        while not ready():
            with self._lock:
                awaited = [each[2] for each in self._arriving.values()]
            if len(awaited) == 1:  # which carries it on meanwhile
                with contextlib.suppress(libddp.Timeout):
                    awaited[0].wait(_LOOK)
            else:
                time.sleep(pause)
                pause = min(pause + 20e-6, 1e-3)

    def _deliver(self, message: Message) -> None:
        for receive in self._posted:
            if receive.fits(message):
                self._posted.remove(receive)
                receive.message = message
                return
        self._unexpected.append(message)

    def _await(self, receive: Receive) -> None:
        """Begins to take from the ranks that it may come from."""
        sources = range(self._size) if receive.source == ANY_SOURCE else (receive.source,)
        for source in sources:
            if source != self._rank and source not in self._arriving:
                envelope = numpy.zeros(1, dtype=_ENVELOPE)
                work = self._group.recv(envelope.view(numpy.uint8), source, timeout=_FOREVER)
                self._arriving[source] = (envelope, None, work)

    def _advance(self) -> None:
        moved = True
        while moved:
            moved = False
            for receive in self._posted:
                self._await(receive)
            for source, (envelope, payload, work) in list(self._arriving.items()):
                if not work.done():
                    continue
                moved = True
                del self._arriving[source]
                work.wait()
                if payload is None and envelope["bytes"][0]:
                    payload = numpy.empty(int(envelope["bytes"][0]), dtype=numpy.uint8)
                    self._arriving[source] = (envelope, payload, self._group.recv(payload, source, timeout=_FOREVER))
                    continue
                if payload is None:
                    payload = numpy.empty(0, dtype=numpy.uint8)
                self._deliver(Message(source, int(envelope["tag"][0]), payload))
