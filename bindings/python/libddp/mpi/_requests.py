"""Status, and requests of calls that do not block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from libddp.mpi._buffers import Datatype


class Status:
    def __init__(self) -> None:
        self.source, self.tag, self.bytes, self.error = -1, -1, 0, 0

    def _set(self, source: int, tag: int, size: int) -> None:
        self.source, self.tag, self.bytes = source, tag, size

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def Get_count(self, datatype: Datatype | None = None) -> int:
        return self.bytes // (datatype.size if datatype is not None else 1)


class Request:
    """test: whether it is complete. finish: its result, called once. wait: blocks until it is complete."""

    def __init__(self, test: Callable[[], bool], finish: Callable[[Status | None], Any],
                 wait: Callable[[], None] | None = None, cancel: Callable[[], bool] | None = None) -> None:
        self._test, self._finish, self._block, self._cancel = test, finish, wait, cancel
        self._done, self._result, self._cancelled = False, None, False

    def _complete(self, status: Status | None) -> Any:
        if not self._done:
            self._result, self._done = (None if self._cancelled else self._finish(status)), True
        return self._result

    def wait(self, status: Status | None = None) -> Any:
        """The object, of irecv; else None."""
        if not self._done and not self._cancelled:
            if self._block is not None:
                self._block()
            pause = 0.0
            while not self._test():
                time.sleep(pause)
                pause = min(pause + 20e-6, 1e-3)
        return self._complete(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        if self._done or self._cancelled or self._test():
            return True, self._complete(status)
        return False, None

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    def Cancel(self) -> None:
        """A receive that nothing has come for yet is taken back."""
        if self._cancel is not None and not self._done:
            self._cancelled = self._cancel()

    cancel = Cancel

    def Free(self) -> None:
        """There is nothing to free."""

    @staticmethod
    def waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> list[Any]:
        listed = list(requests)
        if statuses is not None:
            statuses.extend(Status() for _ in range(len(listed) - len(statuses)))
        return [each.wait(statuses[place] if statuses is not None else None) for place, each in enumerate(listed)]

    @staticmethod
    def Waitall(requests: Iterable[Request], statuses: list[Status] | None = None) -> bool:
        Request.waitall(requests, statuses)
        return True

    @staticmethod
    def testall(requests: Iterable[Request], statuses: list[Status] | None = None) -> tuple[bool, list[Any] | None]:
        listed = list(requests)
        ready = [each.test()[0] for each in listed]
        return (True, Request.waitall(listed, statuses)) if all(ready) else (False, None)

    @staticmethod
    def Testall(requests: Iterable[Request], statuses: list[Status] | None = None) -> bool:
        return Request.testall(requests, statuses)[0]

    @staticmethod
    def waitany(requests: Iterable[Request], status: Status | None = None) -> tuple[int, Any]:
        listed = [(place, each) for place, each in enumerate(requests) if not each._done]
        pause = 0.0
        while listed:
            for place, each in listed:
                done, result = each.test(status)
                if done:
                    return place, result
            time.sleep(pause)
            pause = min(pause + 20e-6, 1e-3)
        return -1, None

    @staticmethod
    def Waitany(requests: Iterable[Request], status: Status | None = None) -> int:
        return Request.waitany(requests, status)[0]
