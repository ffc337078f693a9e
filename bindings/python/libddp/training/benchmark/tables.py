"""The benchmark's tables as upstream prints them, and the same as CSV, as JSON and as bars."""

from __future__ import annotations

import csv
import dataclasses
import importlib
import importlib.util
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._statistics import Statistics

COLUMNS = ("name", "min", "max", "mean", "variance", "stdev")
_WIDE = ("p95", "slowest_rank")
_PLOTS = (".svg", ".png")
Table = tuple[str, Mapping[str, Statistics]]
"""What it is for ("trainer=0", "all server"), and its rows."""


def rows(table: Mapping[str, Statistics], wide: bool) -> list[list[str]]:
    """Cells of a table, sorted by name."""
    fields = COLUMNS[1:] + (_WIDE if wide else ())
    return [[name, *(_cell(getattr(table[name], field)) for field in fields)] for name in sorted(table)]


def _cell(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.6g}"


def grid(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """With lines around each cell."""
    widths = [max(len(row[column]) for row in (header, *cells)) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) if place == 0 else cell.rjust(width)
                                 for place, (cell, width) in enumerate(zip(row, widths))) + " |"

    def rule(sign: str) -> str:
        return "+" + "+".join(sign * (width + 2) for width in widths) + "+"
    parts = [rule("-"), line(header), rule("=")]
    for row in cells:
        parts += [line(row), rule("-")]
    return "\n".join(parts)


def printed(tables: Sequence[Table], wide: bool) -> str:
    """"metrics for trainer=0", and so on, each with its grid."""
    header = COLUMNS + (_WIDE if wide else ())
    return "\n".join(f"metrics for {name}\n{grid(header, rows(table, wide))}" for name, table in tables if table)


def compared(means: Mapping[str, Mapping[str, Statistics]]) -> str:
    """By experiment: the trainers' metrics that all have, and the ratios of means to the first experiment's."""
    first, *_ = means
    shared = [name for name in sorted(means[first]) if all(name in each for each in means.values())]
    cells = [[name, title, _cell(table[name].mean), _cell(table[name].stdev), f"{table[name].mean / means[first][name].mean:.3f}"]
             for name in shared for title, table in means.items()]
    return f"ratios to {first}\n{grid(('name', 'experiment', 'mean', 'stdev', 'ratio'), cells)}"


def write_csv(path: str, experiments: Mapping[str, Sequence[Table]]) -> None:
    """Upstream's columns after the experiment and what the table is for."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("experiment", "metrics_for", *COLUMNS))
        for title, tables in experiments.items():
            for name, table in tables:
                for metric in sorted(table):
                    writer.writerow((title, name, metric, *(repr(getattr(table[metric], field)) for field in COLUMNS[1:])))


def write_json(path: str, experiments: Mapping[str, Sequence[Table]]) -> None:
    """All statistics; what is not a number is null."""
    def plain(statistics: Statistics) -> dict[str, float | int | None]:
        return {name: None if isinstance(value, float) and math.isnan(value) else value
                for name, value in dataclasses.asdict(statistics).items()}
    content = {title: {name: {metric: plain(table[metric]) for metric in sorted(table)} for name, table in tables}
               for title, tables in experiments.items()}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")


def plot_problem(path: str) -> str | None:
    """Why no plot can be written there, without loading matplotlib."""
    if Path(path).suffix.lower() not in _PLOTS:
        return f"--plot {path}: give a name that ends in {' or '.join(_PLOTS)}"
    if importlib.util.find_spec("matplotlib") is None:
        return f"--plot {path}: matplotlib is not installed; pip install matplotlib"
    return None


def write_plot(path: str, means: Mapping[str, Mapping[str, Statistics]]) -> None:
    """A chart for each of the trainers' metrics, a bar for each experiment: means in ms, with lines of one standard
    deviation to both sides. means: by experiment, metrics of all trainers."""
    matplotlib: Any = importlib.import_module("matplotlib")
    Figure: Any = importlib.import_module("matplotlib.figure").Figure
    names = sorted({name for table in means.values() for name in table})
    with matplotlib.rc_context({"svg.fonttype": "none", "savefig.dpi": 150}):  # text that can be found and copied
        figure = Figure(figsize=(8, 0.6 + len(names) * (0.7 + 0.35 * len(means))), layout="constrained")
        axes = figure.subplots(len(names), 1, squeeze=False)[:, 0]
        for name, chart in zip(names, axes):
            titles = [title for title, table in means.items() if name in table]
            found = [means[title][name] for title in titles]
            spread = [each.stdev * 1e3 if each.count > 1 else 0.0 for each in found]
            chart.barh(titles, [each.mean * 1e3 for each in found], xerr=spread, capsize=3)
            chart.invert_yaxis()
            chart.set_xlim(left=0)
            chart.set_title(name, loc="left", fontsize=10)
        axes[-1].set_xlabel("ms, mean and standard deviation, of all trainers")
        figure.savefig(path)
