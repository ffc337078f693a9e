"""The exceptions of libddp. They say what was attempted, why it failed, which ranks it concerns, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class Error(RuntimeError):
    """What every function of libddp raises. str() is one line for people."""

    code: str
    """For programs: "peer_lost", "timeout", ..."""
    attempted: str
    """What was being done, as a phrase: "connecting to the PMIx server"."""
    cause: str
    """What went wrong: "connection refused"."""
    native: str
    """The native code by name and number, "PMIX_ERR_UNREACH (-25)"; or ""."""
    ranks: tuple[int, ...]
    """World ranks concerned, ascending."""
    hint: str
    """What to do, or ""."""

    def __reduce__(self) -> tuple[object, ...]:
        return make, (self.code, str(self), self.attempted, self.cause, self.native, self.ranks, self.hint)


class InvalidArgument(Error, ValueError):
    """The caller or the user gave something that cannot be used."""


class Conflict(Error):
    """Two sources of the same fact disagree."""


class Timeout(Error, TimeoutError):
    """A limit passed; ranks are those that were waited for."""


class PeerLost(Error, ConnectionError):
    """Ranks died, left or no longer answer. All survivors of a process group get the same ranks."""


class Mismatch(Error):
    """Ranks called the same operation with different arguments."""


class Unavailable(Error):
    """A service, library or device that is needed is missing, or unusable in this process."""


class NotFound(Error, LookupError):
    """A key or file does not exist."""


class Protocol(Error):
    """A peer sent something malformed or unexpected."""


class SystemFailure(Error):
    """A call of the operating system failed."""


class Aborted(Error):
    """The operation was given up because its group was shut down."""


def problem(code: str, attempted: str, cause: str, ranks: Sequence[int] = (), hint: str = "",
            native: str = "") -> Error:
    """An error with its line."""
    named = f" [ranks {', '.join(map(str, ranks))}]" if ranks else ""
    text = f"{attempted}: {cause}{named}" + (f"; {hint}" if hint else "")
    return make(code, text, attempted, cause, native, tuple(ranks), hint)


_CLASSES: dict[str, type[Error]] = {
    "invalid_argument": InvalidArgument, "conflict": Conflict, "timeout": Timeout, "peer_lost": PeerLost,
    "mismatch": Mismatch, "unavailable": Unavailable, "not_found": NotFound, "protocol": Protocol,
    "system": SystemFailure, "aborted": Aborted}


for _class in (Error, *_CLASSES.values()):
    _class.__module__ = "libddp"  # where programs have it from


def make(code: str, text: str, attempted: str, cause: str, native: str, ranks: tuple[int, ...], hint: str) -> Error:
    error = _CLASSES.get(code, Error)(text)
    error.code, error.attempted, error.cause, error.native = code, attempted, cause, native
    error.ranks, error.hint = ranks, hint
    return error
