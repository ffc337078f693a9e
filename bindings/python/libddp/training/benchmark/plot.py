"""The benchmark's tables as bars: a chart for each of the trainers' metrics, a bar for each experiment."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._statistics import Statistics

SUFFIXES = (".svg", ".png")


def problem_of(path: str) -> str | None:
    """Why no plot can be written there, without loading matplotlib."""
    if Path(path).suffix.lower() not in SUFFIXES:
        return f"--plot {path}: give a name that ends in {' or '.join(SUFFIXES)}"
    if importlib.util.find_spec("matplotlib") is None:
        return f"--plot {path}: matplotlib is not installed; pip install matplotlib"
    return None


def write(path: str, means: Mapping[str, Mapping[str, Statistics]]) -> None:
    """means: by experiment, metrics of all trainers. Bars are means in ms, lines reach one standard deviation to both sides."""
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
