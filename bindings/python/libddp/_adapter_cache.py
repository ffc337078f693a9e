"""The folder that keeps the compiled adapter. What lies there is loaded, so no other user but root may have put it there.

Folder and files are opened once, and judged by what was opened. No other user may rename a folder on the way, as for sshd's
StrictModes: each is the user's or root's, and others may not write to it, unless it is sticky.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

_DIGEST = hashlib.sha256
_MARK = b"libddp adapter sha256 "  # behind the library, where the loader does not look; then the digest of what is before
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Unusable(Exception):
    """Why, and what to do."""

    def __init__(self, cause: str, hint: str) -> None:
        super().__init__(cause, hint)
        self.cause, self.hint = cause, hint


def place() -> Path:
    """$DDP_TORCH_CACHE, else libddp in $XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("DDP_TORCH_CACHE"):
        return Path(named).absolute()
    if os.path.isabs(caches := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(caches) / "libddp"
    if not os.path.isabs(home := os.path.expanduser("~")):
        raise Unusable("there is no home folder: HOME is not set, and the user database has none",
                       "name a folder in DDP_TORCH_CACHE")
    return Path(home) / ".cache" / "libddp"


def _strangers_in_namespace() -> int | None:
    """In a user namespace (containers without privileges): the uid that root, who is not in it, seems to have."""
    try:
        if Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]:
            return None
        return int(Path("/proc/sys/kernel/overflowuid").read_text())
    except (OSError, ValueError):
        return None


def _open_trusted(path: Path) -> int:
    """A descriptor of the folder, which is made if it is missing. Links are followed first; what they lead to is judged."""
    real = Path(os.path.realpath(path))
    own, above = {os.geteuid(), 0}, {os.geteuid(), 0, _strangers_in_namespace()}
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    here = Path("/")
    try:
        for name in ("", *real.parts[1:]):
            here = here / name
            last = here == real
            flags = (os.O_RDONLY if last else os.O_PATH) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            if name:
                try:
                    below = os.open(name, flags, dir_fd=at)
                except FileNotFoundError:
                    try:
                        os.mkdir(name, 0o700, dir_fd=at)
                    except FileExistsError:  # another rank has made it
                        pass
                    below = os.open(name, flags, dir_fd=at)
                os.close(at)
                at = below
            facts = os.fstat(at)
            sticky = not last and facts.st_mode & stat.S_ISVTX
            if facts.st_uid in (own if last else above) and (sticky or not facts.st_mode & _OTHERS):
                continue
            whose = "others may write to" if facts.st_uid in above else f"uid {facts.st_uid} owns"
            if last:
                raise Unusable(f"{whose} its folder {path}", "remove what is in it, then take their right away (chmod go-w); or name a folder "
                               "of your own in DDP_TORCH_CACHE")
            raise Unusable(f"{whose} {here}, so that its folder {path} may be exchanged",
                           "name a folder in DDP_TORCH_CACHE that only you can rename; or remove what is in this one, and "
                           f"take their right to {here} away")
        return os.dup(at)
    finally:
        os.close(at)


class AdapterCache:
    """An open folder that only this user or root can write to. Raises Unusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._folder = _open_trusted(path)
        except PermissionError as problem:
            what = "read" if path.is_dir() else "made"
            raise Unusable(f"its folder {path} cannot be {what} ({problem.strerror})",
                           "name one of your own in DDP_TORCH_CACHE") from None
        except OSError as problem:
            raise Unusable(f"its folder {path} cannot be made ({problem.strerror})",
                           "name one that you may write to in DDP_TORCH_CACHE") from None
        if os.fstatvfs(self._folder).f_flag & os.ST_NOEXEC:
            os.close(self._folder)
            raise Unusable(f"its folder {path} is on a file system from which no library can be loaded (mounted noexec)",
                           "name a folder on another one in DDP_TORCH_CACHE")

    def close(self) -> None:
        os.close(self._folder)

    def writable(self) -> bool:
        return os.access(".", os.W_OK, dir_fd=self._folder, effective_ids=True)

    def open_lock(self, name: str) -> int:
        return os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._folder)

    def open_library(self, name: str) -> int | None:
        """A descriptor of the library. None: it is missing, or not whole, as after a power failure."""
        try:
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=self._folder)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise self._not_ours(name, f"cannot be opened ({problem.strerror})") from None
        try:
            self._judge(name, os.fstat(file))
            if _is_whole(file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        return None

    def _judge(self, name: str, facts: os.stat_result) -> None:
        if not stat.S_ISREG(facts.st_mode):
            raise self._not_ours(name, "is not a regular file")
        if facts.st_uid not in (os.geteuid(), 0):
            raise self._not_ours(name, f"belongs to uid {facts.st_uid}")
        if facts.st_mode & _OTHERS:
            raise self._not_ours(name, "can be written by others")
        if facts.st_nlink != 1:
            raise self._not_ours(name, f"has {facts.st_nlink} names")

    def _not_ours(self, name: str, why: str) -> Unusable:
        return Unusable(f"{self.path / name} {why}, so it is not loaded",
                        f"remove what is in {self.path}: then it is compiled again")

    def keep(self, made: Path, name: str) -> None:
        """Moves a compiled library here, whole or not at all."""
        with open(made, "r+b") as file:
            digest = _DIGEST(file.read())
            file.write(_MARK + digest.digest())
            file.flush()
            os.fchmod(file.fileno(), 0o755)  # root may have made it for all
            os.fsync(file.fileno())
        os.rename(made, name, dst_dir_fd=self._folder)
        os.fsync(self._folder)


def _is_whole(file: int) -> bool:
    tail = len(_MARK) + _DIGEST().digest_size
    with open(file, "rb", closefd=False) as whole:
        content = whole.read()
    return (content[-tail:-tail + len(_MARK)] == _MARK
            and _DIGEST(content[:-tail]).digest() == content[-tail + len(_MARK):])
