"""The plots of a run: accuracy and loops over temperature, and strength by temperature."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.repetition.run_directory import RESULT
from bench.repetition.view import MEASURES, NONE, HeatMap, Task, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_RANGE = 0.2

PANEL = 4.6
"""Inches."""
LEGEND_CHARACTERS = 68
"""A panel's width, about."""

# Each has at least 3:1 against white. The hues are those of Okabe and Ito and of Tol, chosen there
# to be told apart with any colour vision. Markers say the same again.
INK = "#1f2328"
GRID = "#d5d9df"
HEAT = {"accuracy": "#6aa9e3", "degenerate": "#f2955c"}
FAMILIES = {
    NONE: "#57606a",
    "lz": "#0072b2",
    "lz rate": "#00916a",
    "repetition": "#d55e00",
    "frequency": "#aa4499",
    "presence": "#8a7000",
}
OTHERS = ("#882255", "#4b4fa8", "#117788", "#6b5b4d")
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


@dataclass(frozen=True)
class Line:
    """How a variant looks in every plot."""

    variant: str
    colour: str
    marker: str


def lines(tasks: Sequence[Task]) -> dict[str, Line]:
    """A look for each variant that has a line in any plot."""
    others: Iterator[str] = itertools.cycle(OTHERS)
    found: dict[str, Line] = {}
    for variant in dict.fromkeys(variant for task in tasks for variant in task.main):
        family = next(t.of(variant)[0]["family"] for t in tasks if variant in t.main) or variant
        index = len(found)
        colour = FAMILIES[family] if family in FAMILIES else next(others)
        found[variant] = Line(variant, colour, MARKERS[index % len(MARKERS)])
    return found


def _draw_lines(axes: Axes, task: Task, measure: str, lines: Mapping[str, Line]) -> None:
    """A measure over temperature, a line and its band for each main variant."""
    drawn = [lines[variant] for variant in task.main]
    single = len(task.temperatures) == 1
    for position, line in enumerate(drawn):
        cells = [cell for cell in task.of(line.variant) if cell[measure]]
        x = np.array([position if single else cell["temperature"] for cell in cells], dtype=float)
        mean = np.array([cell[measure]["mean"] for cell in cells], dtype=float)
        low, high = np.array([cell[measure]["ci"] for cell in cells], dtype=float).reshape(-1, 2).T
        # A marker on the axis stays whole.
        look: dict[str, Any] = {
            "color": line.colour,
            "marker": line.marker,
            "label": line.variant,
            "clip_on": False,
        }
        if single:
            off = np.maximum([mean - low, high - mean], 0)
            axes.errorbar(x, mean, off, capsize=4, linestyle="", **look)
        else:
            axes.plot(x, mean, "--" if line.variant == NONE else "-", lw=2, **look)
            axes.fill_between(x, low, high, color=line.colour, alpha=0.11, linewidth=0)
    if single:
        axes.set_xticks([])
        axes.set_xlim(-0.7, len(drawn) - 0.3)
        axes.set_xlabel(f"temperature {task.temperatures[0]:g}")
    else:
        axes.set_xticks(task.temperatures, [f"{t:g}" for t in task.temperatures])
        axes.set_xlabel("temperature")
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, 0) if measure == "accuracy" else 0, min(max(top, 0.02), 1.02))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g} %")
    axes.tick_params(length=0, pad=7)
    axes.grid(visible=False, axis="x")
    axes.set_title(MEASURES[measure])


def _draw_heat(axes: Axes, heat: HeatMap, measure: str, ends: tuple[float, float]) -> None:
    """A measure of a heat map, its number in each cell."""
    from matplotlib.colors import LinearSegmentedColormap

    colours = LinearSegmentedColormap.from_list(measure, ["#ffffff", HEAT[measure]])
    values = heat.values[measure]
    shown = np.array(values, dtype=float)
    axes.pcolormesh(
        shown, cmap=colours, vmin=ends[0], vmax=ends[1], edgecolors="white", linewidth=1.5
    )
    for row, column in np.ndindex(shown.shape):
        axes.text(
            column + 0.5, row + 0.5, short(values[row][column]), ha="center", va="center", size=9
        )
    axes.set_xticks(np.arange(len(heat.columns)) + 0.5, heat.columns)
    axes.set_yticks(np.arange(len(heat.rows)) + 0.5, heat.rows)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("temperature")
    axes.set_ylabel(f"{heat.title}: strength")
    axes.set_title(f"{MEASURES[measure]}, %")


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _overview(task: Task, lines: Mapping[str, Line]) -> Figure:
    """The line charts of the measures side by side, with one legend."""
    count = len(task.measures)
    figure = _new_figure(PANEL * count, 3.5)
    for i, measure in enumerate(task.measures):
        axes = figure.add_subplot(1, count, i + 1)
        _draw_lines(axes, task, measure, lines)
    columns = count * LEGEND_CHARACTERS // (max(map(len, task.main)) + 8)
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(),
        loc="outside upper left",
        ncols=max(columns, 1),
        handlelength=2.6,
    )
    return figure


def _heat_maps(maps: Sequence[HeatMap]) -> Figure:
    """Heat maps, one below the other, their measures side by side."""
    columns = len(maps[0].values)
    heights = [len(heat.rows) + 2.5 for heat in maps]
    figure = _new_figure(PANEL * columns, 0.3 * sum(heights))
    grid = figure.add_gridspec(len(maps), columns, height_ratios=heights)
    for row, heat in enumerate(maps):
        for column, measure in enumerate(heat.values):
            axes = figure.add_subplot(grid[row, column])
            _draw_heat(axes, heat, measure, ends(maps, measure))
    return figure


def ends(maps: Iterable[HeatMap], measure: str) -> tuple[float, float]:
    """The shares with the lightest and the darkest colour in all of `maps`.

    At least `LEAST_RANGE` apart, so that noise does not look like a pattern.
    """
    values = [v for heat in maps for row in heat.values[measure] for v in row if v is not None]
    highest = max(LEAST_RANGE, *values)
    return min(highest - LEAST_RANGE, *values), highest


def draw(directory: Path) -> list[Path]:
    """Draw the result of a run; return the plots.

    Reads `directory`/result.json and writes overview.png beside it (accuracy and degenerate share
    over temperature) and, where a family has several strengths, sweeps.png. With several tasks, the
    task is part of the plots' names.

    Raises:
        ModuleNotFoundError: matplotlib is missing.
    """
    import matplotlib as mpl

    result = json.loads((directory / RESULT).read_text())
    tasks = [Task(name, result) for name in dict.fromkeys(c["task"] for c in result["cells"])]
    looks = lines(tasks)
    written = []
    with mpl.rc_context(SETTINGS):
        for task in tasks:
            suffix = f"-{re.sub(r'[^A-Za-z0-9]+', '-', task.name)}" if len(tasks) > 1 else ""
            figures = {"overview": _overview(task, looks)}
            if sweeps := task.sweeps():
                figures["sweeps"] = _heat_maps(sweeps)
            for name, figure in figures.items():
                written.append(directory / f"{name}{suffix}.png")
                figure.savefig(written[-1], dpi=100)
    return written
