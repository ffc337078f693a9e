"""What advise prints: the parts of each rank's step, why it takes so long, and what trials have gained."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from ..benchmark.tables import grid
from .settings import ALONE, CURRENT, SAME, Setting

_COLUMNS = ("rank", "step", "data loading", "forward", "backward", "exposed communication", "waiting for the slowest", "optimizer", "other")
_RANKS = 16  # rows of the table
_NOTABLE = 0.05  # of a step


@dataclasses.dataclass
class RankParts:
    """Mean seconds of a rank's step. backward is without communication and waiting."""

    rank: int
    data: float
    forward: float
    backward: float
    optimizer: float
    other: float
    communication: float | None
    """The exchange of gradients, and of buffers. None: unknown, as on CUDA devices; then forward and backward include it."""
    waiting: float | None

    @property
    def step(self) -> float:
        return self.data + self.forward + self.backward + self.optimizer + self.other + (self.communication or 0) + (self.waiting or 0)


def parts_of(steps: Sequence[Sequence[Sequence[float]]], known: bool) -> list[RankParts]:
    """steps: by rank and step, the rows of StepClock.end_step(). known: whether they have the exposed exchange.

    All ranks' exchanges end together, so the rank that comes last has the shortest: that is communication, and what others
    have more is waiting.
    """
    count = min(map(len, steps))
    shortest = [min(rank[step][-1] for rank in steps) for step in range(count)]
    found = []
    for rank, rows in enumerate(steps):
        data, forward, buffers, backward, optimizer, other, exposed = (sum(row[part] for row in rows[:count]) / count for part in range(7))
        shared = sum(shortest) / count
        found.append(RankParts(rank, data, forward if known else forward + buffers, backward - exposed if known else backward, optimizer, other,
                               shared + buffers if known else None, exposed - shared if known else None))
    return found


def _milliseconds(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds * 1e3:.2f}"


def parts_table(found: Sequence[RankParts], steps: int) -> str:
    shown = found if len(found) <= _RANKS else sorted(found, key=lambda each: each.waiting or 0)[:_RANKS]
    cells = [[str(each.rank), *(_milliseconds(value) for value in (each.step, each.data, each.forward, each.backward, each.communication,
                                                                  each.waiting, each.optimizer, each.other))] for each in shown]
    left = f", of the {_RANKS} ranks that wait least" if len(shown) < len(found) else ""
    return f"parts of a step, mean of {steps} steps, in ms{left}\n{grid(_COLUMNS, cells)}"


def reasons(found: Sequence[RankParts], loads_data: bool) -> list[str]:
    """Sentences on what takes a notable part of a step."""
    step = statistics.mean(each.step for each in found)
    lines = []
    longest = max(each.waiting or 0 for each in found)
    if longest > _NOTABLE * step:
        slowest = min(found, key=lambda each: each.waiting or 0)
        others = [each for each in found if each is not slowest]

        def excess(part: str) -> float:
            return float(getattr(slowest, part)) - statistics.median(float(getattr(each, part)) for each in others)
        part = max(("data", "forward", "backward", "optimizer", "other"), key=excess)
        name = {"data": "data loading"}.get(part, part)
        usual = statistics.median(float(getattr(each, part)) for each in others)
        lines.append(f"rank {slowest.rank} is the slowest: others wait up to {_milliseconds(longest)} ms a step. Its part '{name}' takes "
                     f"{_milliseconds(getattr(slowest, part))} ms, the other ranks' {_milliseconds(usual)} ms")
    shares = {"data loading": min(each.data for each in found), "optimizer": min(each.optimizer for each in found),
              "exposed communication": min(each.communication or 0 for each in found), "other": min(each.other for each in found)}
    advice = {"data loading": "give DataLoader more num_workers, or pin_memory and prefetch_factor", "optimizer": "try foreach=True or fused=True",
              "exposed communication": "see the trials",
              "other": "what is between the parts, such as evaluation, logging and copies" + (
                  "" if loads_data else "; without a DataLoader, loading data, too")}
    lines += [f"{name} takes {100 * share / step:.0f} % of the step on all ranks: {advice[name]}"
              for name, share in shares.items() if share > 2 * _NOTABLE * step]
    return lines


@dataclasses.dataclass
class Trial:
    """windows: by rank, seconds of each window of batches, divided by its batches."""

    setting: Setting
    windows: list[list[float]]

    def batches(self) -> list[float]:
        """Seconds of a batch in each window, of the slowest rank."""
        return [max(each) for each in zip(*self.windows)]


def trials_table(trials: Sequence[Trial], batches: int) -> str:
    """The gains against the program's own settings, which are measured before all others and again after them."""
    own = [value for trial in trials if trial.setting is CURRENT for value in trial.batches()]
    usual = statistics.median(own)
    cells, lines = [], []
    for trial in trials:
        if trial.setting is CURRENT:
            continue
        values = trial.batches()
        median = statistics.median(values)
        clear = median < min(own) or median > max(own)
        gain = f"{100 * (usual / median - 1):+.1f} %" + ("" if clear else " (noise)")
        cells.append([trial.setting.name, _milliseconds(median), f"{_milliseconds(min(values))} .. {_milliseconds(max(values))}", gain,
                      "" if trial.setting is ALONE else trial.setting.result])
        if clear and median < usual and trial.setting is not ALONE:
            lines.append((usual / median, trial.setting))
    cells.insert(0, [CURRENT.name, _milliseconds(usual), f"{_milliseconds(min(own))} .. {_milliseconds(max(own))}", "", SAME])
    text = f"trials, {batches} batches each\n" + grid(("setting", "ms a batch", "spread", "gain", "weights"), cells)
    if not lines:
        return text + "\nno setting gains more than the spread of the current ones"
    lines.sort(key=lambda each: -each[0])
    return text + "\nlines to change, the largest gain first" + "".join(
        f"\n  {setting.name} ({100 * (gain - 1):+.1f} %, weights: {setting.result})" + "".join(f"\n    {line}" for line in setting.lines)
        for gain, setting in lines)
