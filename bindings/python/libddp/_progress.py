"""One progress bar for a job: rank 0's, in lines where there is no terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Generic, TextIO, TypeVar

from . import _errors

Item = TypeVar("Item")


def own_rank() -> tuple[int, int]:
    """This process's rank and how many there are: of libddp's World, else of torch.distributed."""
    import libddp
    if libddp.initialized():
        world = libddp.world()
        return world.rank, world.world_size
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    raise _errors.problem("unavailable", "asking for this process's rank",
                          "neither libddp nor torch.distributed is initialized",
                          hint="call libddp.init() or init_process_group() first, or give rank=")


def describe_log(log: Any) -> list[str]:
    """What a Reducer's log (or torch's DDP logging data) says of communication, in words for a bar."""
    def field(name: str) -> Any:
        return log.get(name) if isinstance(log, dict) else getattr(log, name, None)

    words = []
    taken, share = field("avg_backward_comm_time") or 0, field("hidden_communication_share")
    if taken > 0:
        if share is None:  # torch's
            share = (field("avg_backward_compute_comm_overlap_time") or 0) / taken
        words.append(f"{min(share, 1.0):.0%} of communication hidden")
    slowest = field("straggler_rank")
    if slowest is not None and slowest >= 0:
        words.append(f"slowest rank {slowest} (+{(field('straggler_delay') or 0) / 1e6:.1f} ms)")
    return words


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"


class Progress(Generic[Item]):
    """What libddp.progress() gives: iterate over it once."""

    def __init__(self, items: Iterable[Item], *, samples: int | Callable[[Item], int] | None, total: int | None,
                 text: str, log: Callable[[], Any] | None, interval: float | None, file: TextIO | None,
                 rank: int | None, clock: Callable[[], float]) -> None:
        self._items, self._samples, self._text, self._log = items, samples, text, log
        if total is None and isinstance(items, Sized):
            try:
                total = len(items)
            except TypeError:  # a DataLoader of an endless data set
                pass
        self._total = total
        found = (rank, 1) if rank is not None else own_rank()
        self._shown, self._ranks = found[0] == 0, found[1]
        self._file = file if file is not None else sys.stderr
        self._terminal = self._file.isatty()
        self._interval = interval if interval is not None else 0.2 if self._terminal else 30.0
        self._clock = clock
        self._values: dict[str, object] = {}
        self._longest = 0
        self.steps = 0
        """Items of this rank so far."""
        self.samples = 0
        """Samples of this rank so far; 0 if they are not counted."""

    def set(self, **values: object) -> None:
        """Numbers to show after the bar: set(loss=0.31). Rank 0's."""
        self._values.update(values)

    def __len__(self) -> int:
        if self._total is None:
            raise TypeError("the number of items is not known; give total=")
        return self._total

    def __iter__(self) -> Iterator[Item]:
        if not self._shown:
            for item in self._items:
                yield item
                self._count(item)
            return
        self._begun = shown = self._clock()
        try:
            for item in self._items:
                yield item
                self._count(item)
                now = self._clock()
                if now - shown >= self._interval:
                    shown = now
                    self._show(now, end=False)
        finally:
            self._show(self._clock(), end=True)

    def _count(self, item: Item) -> None:
        self.steps += 1
        if self._samples is not None:
            self.samples += self._samples(item) if callable(self._samples) else self._samples

    def line(self, now: float) -> str:
        """What is shown."""
        passed = max(now - self._begun, 1e-9)
        words = [f"{self.steps}/{self._total}" if self._total is not None else f"{self.steps} steps", _duration(passed)]
        if self._total and 0 < self.steps < self._total:
            words[-1] += f"<{_duration(passed / self.steps * (self._total - self.steps))}"
        if self._samples is not None:
            words.append(f"{self.samples * self._ranks / passed:,.0f} samples/s")
        else:
            words.append(f"{self.steps / passed:,.2f} steps/s")
        words += [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                  for name, value in self._values.items()]
        if self._log is not None:
            words += describe_log(self._log())
        bar = ""
        if self._total:
            part = min(self.steps / self._total, 1.0)
            full = round(20 * part)
            bar = f"{part:4.0%} [{'#' * full}{'.' * (20 - full)}] "
        return (f"{self._text}: " if self._text else "") + bar + ", ".join(words)

    def _show(self, now: float, end: bool) -> None:
        line = self.line(now)
        if self._terminal:
            try:
                line = line[:os.get_terminal_size(self._file.fileno()).columns - 1]
            except OSError:
                pass
            self._file.write("\r" + line.ljust(self._longest) + ("\n" if end else ""))
            self._longest = len(line)
        else:
            self._file.write(line + "\n")  # one write: lines of other ranks come between
        self._file.flush()


def progress(items: Iterable[Item], *, samples: int | Callable[[Item], int] | None = None, total: int | None = None,
             text: str = "", log: Callable[[], Any] | None = None, interval: float | None = None,
             file: TextIO | None = None, rank: int | None = None,
             clock: Callable[[], float] = time.monotonic) -> Progress[Item]:
    """One bar for the job: rank 0 shows it, the others only iterate. Nothing is exchanged.

    samples: in an item, a number or a function of the item (lambda batch: len(batch[0])); samples per second are rank 0's
        times the number of ranks, right where all have batches of one size.
    total: how many items there are; default: len(items), if it has one.
    text: what comes first in the line.
    log: a function that gives a Reducer's log, or torch's: ddp_model._get_ddp_logging_data. Adds how much communication was
        hidden behind computation and, where the log has it (find_straggler), the slowest rank.
    interval: seconds between two lines; default: 0.2 on a terminal, which shows one line in place, else 30.
    file: default: standard error.
    rank: this process's; default: of libddp.world(), else of torch.distributed. Given, the job counts as one rank.

    Raises Unavailable where neither is initialized.
    """
    return Progress(items, samples=samples, total=total, text=text, log=log, interval=interval, file=file, rank=rank,
                    clock=clock)
