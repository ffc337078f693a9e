"""Metrics in files: CSV, and TensorBoard by any installed writer of its format."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from . import _errors
from ._progress import own_rank


def _problem(code: str, attempted: str, cause: str, hint: str) -> _errors.Error:
    return _errors.make(code, f"{attempted}: {cause}; {hint}", attempted, cause, "", (), hint)


class CsvWriter:
    """Metrics of steps as lines of a file: rank 0 writes, on the others every call does nothing.

    path: is made, or continued if its header is that of the first metrics. Each line is on the disk's cache when write()
        returns.
    rank: this process's; default: of libddp.world(), else of torch.distributed.

    Raises Unavailable without a rank, InvalidArgument for other names than before, OSError of the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, rank: int | None = None) -> None:
        self._path = os.fspath(path)
        self._active = (own_rank()[0] if rank is None else rank) == 0
        self._names: list[str] | None = None
        self._file = open(self._path, "a+", newline="", encoding="utf-8") if self._active else None

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """values: by name, the same names in every step, in any order; None is left empty. MetricSet.reduce() gives such."""
        if not self._active:
            return
        if self._file is None:
            raise _problem("unavailable", f"writing to '{self._path}'", "it is closed", "make another CsvWriter")
        if self._names is None:
            self._names = self._begin(["step", *values])
        if set(values) != set(self._names[1:]) or len(values) != len(self._names) - 1:
            raise _problem("invalid_argument", f"writing step {step} to '{self._path}'",
                           f"its columns are {', '.join(self._names[1:])}, the metrics {', '.join(values)}",
                           "give the same metrics in every step, or another file")
        cells = [values[name] for name in self._names[1:]]
        csv.writer(self._file, lineterminator="\n").writerow([step, *("" if cell is None else repr(float(cell)) for cell in cells)])
        self._file.flush()

    def _begin(self, names: list[str]) -> list[str]:
        assert self._file is not None
        self._file.seek(0)
        header = next(csv.reader(self._file), None)
        self._file.seek(0, os.SEEK_END)
        if header is None:
            csv.writer(self._file, lineterminator="\n").writerow(names)
            return names
        with open(self._path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line that a crash has cut off
                self._file.write("\n")
        return header

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> CsvWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class TensorBoardWriter:
    """The same for TensorBoard, by torch.utils.tensorboard or tensorboardX, whichever is installed.

    folder: for event files.
    rank: as CsvWriter's.

    Raises Unavailable, on rank 0, if neither is installed.
    """

    def __init__(self, folder: str | os.PathLike[str], *, rank: int | None = None) -> None:
        self._writer: Any = None
        if (own_rank()[0] if rank is None else rank) == 0:
            self._writer = _summary_writer()(os.fspath(folder))

    def write(self, step: int, values: Mapping[str, float | None]) -> None:
        """values: scalars by name; None is left out."""
        if self._writer is not None:
            for name, value in values.items():
                if value is not None:
                    self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Idempotent."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _summary_writer() -> Any:
    reasons = []
    for module in ("torch.utils.tensorboard", "tensorboardX"):
        try:
            return getattr(__import__(module, fromlist=["SummaryWriter"]), "SummaryWriter")
        except ImportError as error:
            reasons.append(f"{module}: {error}")
    raise _problem("unavailable", "making a TensorBoardWriter", "; ".join(reasons),
                   "pip install tensorboard (with PyTorch) or tensorboardX")
