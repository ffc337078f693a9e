"""Where metrics go: CSV files, TensorBoard by any installed writer of its format, and the page of --metrics-port for Prometheus."""

from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Mapping
from typing import Any

from . import _errors
from ._progress import own_rank

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .training._statistics import Statistics

# Of training_metrics.hpp, whose reader refuses more.
_MEMORY = "ddp-training-metrics"
_MOST_SERIES, _LONGEST_NAME = 100, 128
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL, from Linux 6.3 on


def _problem(code: str, attempted: str, cause: str, hint: str) -> _errors.Error:
    return _errors.problem(code, attempted, cause, hint=hint)


class CsvWriter(contextlib.AbstractContextManager["CsvWriter"]):
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

    def __exit__(self, *_: object) -> None:
        self.close()


class TensorBoardWriter(contextlib.AbstractContextManager["TensorBoardWriter"]):
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

    def __exit__(self, *_: object) -> None:
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


class PrometheusWriter(contextlib.AbstractContextManager["PrometheusWriter"]):
    """A rank's times on the metrics page of its node (`ddprun --metrics-port`, `srun --ddp --ddp-metrics`), as
    ddp_training_seconds. Every rank writes its own; without such a page they are not read.

    The values are in memory of this process: they are gone with it. Make one in each process.
    """

    def __init__(self) -> None:
        self._file = -1

    def write(self, statistics: Mapping[str, Statistics]) -> None:
        """Replaces what this wrote before. statistics: by "type,name", as MetricsLogger.statistics() gives them.

        Raises InvalidArgument for more than 100, or for a type or name that is empty or longer than 128 bytes.
        """
        attempted = "writing metrics for Prometheus"
        if len(statistics) > _MOST_SERIES:
            raise _problem("invalid_argument", attempted, f"there are {len(statistics)}, at most {_MOST_SERIES} fit", "write fewer")
        series = []
        for key, each in statistics.items():
            type, _, name = key.partition(",")
            if not all(0 < len(part.encode()) <= _LONGEST_NAME for part in (type, name)):
                raise _problem("invalid_argument", attempted, f"'{key}' is not a type, a comma and a name of 1 to {_LONGEST_NAME} bytes each",
                               "give them shorter names")
            series.append([type, name, each.count, each.count * each.mean, each.p50, each.p95, each.p99])
        # A new memory each time, which can no longer change once it is in the old one's place: readers find either, complete.
        made = self._memory(json.dumps({"series": series}).encode())
        if self._file < 0:
            self._file = made
        else:
            os.dup2(made, self._file, inheritable=False)
            os.close(made)

    @staticmethod
    def _memory(content: bytes) -> int:
        import fcntl
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            file = os.memfd_create(_MEMORY, flags | _NOEXEC_SEAL)
        except OSError:
            try:
                file = os.memfd_create(_MEMORY, flags)
            except OSError as problem:
                raise _problem("unavailable", "writing metrics for Prometheus", f"memfd_create: {problem.strerror}",
                               "see which limit or seccomp filter refuses it, or use another writer") from None
        try:
            with os.fdopen(os.dup(file), "wb") as stream:
                stream.write(content)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
        except BaseException:  # no memory, no descriptor: what was written before stays
            os.close(file)
            raise
        return file

    def close(self) -> None:
        """Takes the values off the page. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __exit__(self, *_: object) -> None:
        self.close()
