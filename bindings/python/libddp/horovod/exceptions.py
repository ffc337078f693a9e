"""Horovod's exceptions, as horovod.common.exceptions has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import libddp
from libddp import _errors


class HorovodInternalError(libddp.Error):
    """An operation failed, on all ranks of its process set; str() says why. Also a libddp.Error: code, ranks, hint."""

    @classmethod
    def of(cls, error: libddp.Error) -> HorovodInternalError:
        made = cls(str(error))
        made.code, made.attempted, made.cause, made.native = error.code, error.attempted, error.cause, error.native
        made.ranks, made.hint = error.ranks, error.hint
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return _restored, (_errors.make(self.code, str(self), self.attempted, self.cause, self.native, self.ranks, self.hint),)


def _restored(error: libddp.Error) -> HorovodInternalError:
    return HorovodInternalError.of(error)


def translated(call: Callable[..., Any], *arguments: Any) -> Any:
    """What the call returns. Failures that end all operations are HorovodInternalError, wrong arguments ValueError."""
    try:
        return call(*arguments)
    except libddp.InvalidArgument:
        raise
    except libddp.Error as error:
        raise HorovodInternalError.of(error) from None


class HostsUpdatedInterrupt(RuntimeError):
    """Hosts were added or removed; skip_sync: the state of this rank is the newest."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
