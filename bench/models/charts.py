"""The plots of runs: accuracy and loops over temperature, figures 2 to 4 of the paper.

`python -m bench.models.charts` draws the one of docs/RESULTS.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.common import RESULTS
from bench.models.tables import GREEDY, plotted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
"""A task, variant and temperature of the result; an entry of its "cells"."""

MEASURES = {
    "accuracy": "Accuracy",
    "degenerate": "Degenerate outputs",
    "near_copies": "Outputs that end in near-copies",
}

PANEL = 4.6
"""Inches."""
LEGEND_CHARACTERS = 68
"""A panel's width, about."""

# Each has at least 3:1 against white. The hues are those of Okabe and Ito and of Tol, chosen there
# to be told apart with any colour vision. Markers say the same again.
INK = "#1f2328"
GRID = "#d5d9df"
COLOURS = ("#57606a", "#0072b2", "#d55e00", "#aa4499", "#00916a", "#8a7000", "#882255", "#4b4fa8")
MARKERS = "os^DvPX*"

SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "grid.color": GRID,
    "axes.edgecolor": GRID,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "text.color": INK,
    **{f"{what}.labelcolor": INK for what in ("axes", "xtick", "ytick")},
}


def draw(directory: Path, cells: Sequence[Cell]) -> list[Path]:
    """Draw cells into a directory; return the plots: overview.png, or one for each of the tasks.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    import matplotlib as mpl

    tasks = list(dict.fromkeys(cell["task"] for cell in cells))
    written = []
    with mpl.rc_context(SETTINGS):
        for task in tasks:
            suffix = f"-{re.sub(r'[^A-Za-z0-9]+', '-', task)}" if len(tasks) > 1 else ""
            written.append(directory / f"overview{suffix}.png")
            _overview([c for c in cells if c["task"] == task]).savefig(written[-1], dpi=100)
    return written


def _overview(cells: Sequence[Cell]) -> Figure:
    """A row of charts for each model, a column for each measure, and one legend."""
    from matplotlib.figure import Figure

    measures = [m for m in MEASURES if any(cell.get(m) for cell in cells)]
    variants = list(dict.fromkeys(cell["variant"] for cell in cells))
    models = list(dict.fromkeys(cell.get("model") for cell in cells))
    count = len(measures)
    figure = Figure(
        figsize=(PANEL * count, 3.5 * len(models)), layout="constrained", facecolor="white"
    )
    for row, model in enumerate(models):
        own = [cell for cell in cells if cell.get("model") == model]
        for column, measure in enumerate(measures):
            axes = figure.add_subplot(len(models), count, row * count + column + 1)
            _draw_lines(axes, own, variants, measure)
            title = MEASURES[measure]
            axes.set_title(f"{title}, {model}" if len(models) > 1 else title)
    columns = count * LEGEND_CHARACTERS // (max(map(len, variants)) + 8)
    lines: dict[str, Any] = {}
    for axes in figure.axes:
        lines |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        list(lines.values()),
        list(lines),
        loc="outside upper left",
        ncols=max(columns, 1),
        handlelength=2.6,
    )
    return figure


def _draw_lines(axes: Axes, cells: Sequence[Cell], variants: Sequence[str], measure: str) -> None:
    """A measure over temperature, a line and its band for each variant."""
    temperatures = sorted({cell["temperature"] for cell in cells})
    single = len(temperatures) == 1
    for position, variant in enumerate(variants):
        own = [cell for cell in cells if cell["variant"] == variant and cell.get(measure)]
        own.sort(key=lambda cell: float(cell["temperature"]))
        x = np.array([position if single else cell["temperature"] for cell in own], dtype=float)
        mean = np.array([cell[measure]["mean"] for cell in own], dtype=float)
        low, high = np.array([cell[measure]["ci"] for cell in own], dtype=float).reshape(-1, 2).T
        look: dict[str, Any] = {
            "color": COLOURS[position % len(COLOURS)],
            "marker": MARKERS[position % len(MARKERS)],
            "label": variant,
            "clip_on": False,  # a marker on the axis stays whole
        }
        if single:
            off = np.maximum([mean - low, high - mean], 0)
            axes.errorbar(x, mean, off, capsize=4, linestyle="", **look)
        else:
            axes.plot(x, mean, "--" if variant == "none" else "-", lw=2, **look)
            axes.fill_between(x, low, high, color=look["color"], alpha=0.11, linewidth=0)
    if single:
        axes.set_xticks([])
        axes.set_xlim(-0.7, len(variants) - 0.3)
        axes.set_xlabel(f"temperature {temperatures[0]:g}")
    else:
        axes.set_xticks(temperatures, [f"{t:g}" for t in temperatures])
        axes.set_xlabel("temperature")
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, 0) if measure == "accuracy" else 0, min(max(top, 0.02), 1.02))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.tick_params(length=0, pad=7)
    axes.grid(visible=False, axis="x")


if __name__ == "__main__":
    draw(RESULTS / "models" / GREEDY[0], plotted())
