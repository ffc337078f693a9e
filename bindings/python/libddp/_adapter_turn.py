"""One process compiles the adapter while others wait: one on each node asks the shared file system's lock, ever more seldom.

Who waits long says so, once on each node.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator

_SILENCE = 5.0  # seconds before a line says what is waited for
_SHORTEST, _LONGEST = 0.1, 2.0  # seconds between two questions


def _asked(lock: int) -> bool | None:
    """Whether this process has got the lock; None: the file system has no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def wait_for(lock: int, ended: Callable[[], bool], limit: float, longest: float = _LONGEST) -> bool | None:
    """Until this process has the lock, or ended(). None: there are no locks. Raises TimeoutError at `limit` (time.monotonic)."""
    pause = _SHORTEST
    while not ended():
        got = _asked(lock)
        if got is not False:
            return got
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(pause)
        pause = min(1.5 * pause, longest)
    return False


@contextlib.contextmanager
def on_this_node(name: str, limit: float) -> Iterator[None]:
    """This user's processes of this node one after the other; all at once where that cannot be arranged."""
    path = f"/dev/shm/libddp-{os.geteuid()}-{name}"
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        facts = os.fstat(lock)
        if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid():
            wait_for(lock, lambda: False, limit, 0.2)
        yield
    finally:
        with contextlib.suppress(OSError):  # for who waits it is still a lock; who comes now asks beside them
            os.unlink(path)
        os.close(lock)


@contextlib.contextmanager
def told(line: str) -> Iterator[None]:
    """Writes the line to standard error if what is done takes long."""
    def tell() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    timer = threading.Timer(_SILENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
