"""The report of a run of bench/repetition.py: plots and one page that needs nothing but itself.

Everything is drawn from the run's result.json. The same result gives the same bytes.

Which variants get a line: a chart with the forty variants of two sweeps is unreadable, so of those
measured at the most temperatures, each family (a penalty without its strength) shows the strength
with the most samples; of equals the most accurate, or without accuracy the least degenerate. That
choice is made on the data that the chart shows, which flatters each penalty alike; the page says
so. The table and the heat maps hold every variant.
"""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import markupsafe
import numpy as np

from common import ROOT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
"""A task, variant and temperature of the result; an entry of its "cells"."""

NONE = "none"
MOST_LINES = 8
MOST_EXAMPLES = 8
LEAST_RANGE = 0.2
LOOP_CHARACTERS = 500
"""About how much of an example's loop is shown."""

PANEL = 4.6
"""Inches; what is drawn so wide is readable at the width of a phone."""
LEGEND_CHARACTERS = 68
"""A panel's width, about."""

MEASURES = {"accuracy": "Accuracy", "degenerate": "Degenerate outputs"}

# (light, dark), each at least 3:1 against the page; the hues are those of Okabe and Ito and of Tol,
# chosen there to be told apart with any colour vision. Markers say the same again.
INK = ("#1f2328", "#e8eaed")
GRID = ("#d5d9df", "#3b414b")
HEAT = {"accuracy": ("#6aa9e3", "#1f66b0"), "degenerate": ("#f2955c", "#a8471a")}
FAMILIES = {
    NONE: ("#57606a", "#b8c0cc"),
    "lz": ("#0072b2", "#4ba3f0"),
    "lz rate": ("#00916a", "#35c796"),
    "repetition": ("#d55e00", "#ff8b3d"),
    "frequency": ("#aa4499", "#e08fd3"),
    "presence": ("#8a7000", "#dcc14a"),
}
OTHERS = (
    ("#882255", "#f58fb0"),
    ("#4b4fa8", "#a9adff"),
    ("#117788", "#5fd0e0"),
    ("#6b5b4d", "#cdb9a6"),
)
MARKERS = "os^DvPX*"

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "sglang-lz",  # ids that are the same each time
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "grid.color": GRID[0],
    "axes.edgecolor": GRID[0],
    "xtick.color": GRID[0],
    "ytick.color": GRID[0],
    "text.color": INK[0],
    **{f"{what}.labelcolor": INK[0] for what in ("axes", "xtick", "ytick")},
}


@dataclass(frozen=True)
class Line:
    """How a variant looks in every chart: `key` names its colour in the page's style."""

    variant: str
    key: str
    colours: tuple[str, str]
    marker: str


@dataclass(frozen=True)
class HeatMap:
    """Shares over two settings.

    Attributes:
        title: what the rows are.
        corner: what the columns are.
        columns: their labels.
        rows: label of each row.
        values: for each measure of `MEASURES` that there is, [rows][columns] of shares, 0 to 1, or
            None where nothing was measured.
    """

    title: str
    corner: str
    columns: list[str]
    rows: list[str]
    values: dict[str, list[list[float | None]]]


class Task:
    """The cells of one task, and what the page shows of them."""

    def __init__(self, name: str, result: Mapping[str, Any]) -> None:
        self.name = name
        self.cells: list[Cell] = [cell for cell in result["cells"] if cell["task"] == name]
        self.at = {(cell["variant"], cell["temperature"]): cell for cell in self.cells}
        self.variants = list(dict.fromkeys(cell["variant"] for cell in self.cells))
        self.temperatures = sorted({cell["temperature"] for cell in self.cells})
        self.measures = [m for m in MEASURES if any(cell[m] for cell in self.cells)]
        self.main = self._main_variants()
        self.examples = [
            _example(worst)
            for worst in result.get("worst", [])
            if worst["item"].startswith(f"{name}/")
        ][:MOST_EXAMPLES]

    def of(self, variant: str) -> list[Cell]:
        """The cells of a variant, by temperature."""
        keys = ((variant, temperature) for temperature in self.temperatures)
        return [self.at[key] for key in keys if key in self.at]

    def _main_variants(self) -> list[str]:
        most = max((len(self.of(variant)) for variant in self.variants), default=0)
        families: dict[str, list[str]] = {}
        for variant in self.variants:
            if len(self.of(variant)) == most:
                families.setdefault(self.of(variant)[0]["family"] or variant, []).append(variant)
        return [max(family, key=self._merit) for family in families.values()][:MOST_LINES]

    def _merit(self, variant: str) -> tuple[int, float]:
        cells = self.of(variant)
        scores = [
            cell["accuracy"]["mean"] if cell["accuracy"] else -cell["degenerate"]["mean"]
            for cell in cells
        ]
        return sum(cell["samples"] for cell in cells), sum(scores) / len(scores)

    def sweeps(self) -> list[HeatMap]:
        """Strength by temperature, for each family with several strengths."""
        strengths: dict[str, dict[float, str]] = {}
        for cell in self.cells:
            if cell["family"] and cell["strength"] is not None:
                strengths.setdefault(cell["family"], {})[cell["strength"]] = cell["variant"]
        maps = []
        for family, by_strength in strengths.items():
            if len(by_strength) > 1:
                rows = {f"{strength:g}": by_strength[strength] for strength in sorted(by_strength)}
                if NONE in self.variants:
                    rows = {NONE: NONE} | rows
                maps.append(self._map(family, rows))
        return maps

    def _map(self, title: str, rows: Mapping[str, str]) -> HeatMap:
        values = {
            measure: [
                [_mean(self.at.get((variant, t)), measure) for t in self.temperatures]
                for variant in rows.values()
            ]
            for measure in self.measures
        }
        columns = [f"{t:g}" for t in self.temperatures]
        return HeatMap(title, "temperature", columns, list(rows), values)

    def parts(self, kind: str) -> list[HeatMap]:
        """Main variant by "groups" or "levels", a map for each temperature; [] if undivided."""
        names = {name for cell in self.cells for name in cell.get(kind) or {}}
        if len(names) < 2:
            return []
        ordered = sorted(names, key=_natural)
        maps = []
        for temperature in self.temperatures:
            cells = [self.at.get((variant, temperature)) for variant in self.main]
            found = [(cell[kind] if cell else {}) for cell in cells]
            values = {
                measure: [[_mean(part.get(name), measure) for name in ordered] for part in found]
                for measure in self.measures
            }
            title = f"temperature {temperature:g}"
            columns = [name or "(none)" for name in ordered]
            maps.append(HeatMap(title, kind.removesuffix("s"), columns, self.main, values))
        return maps

    def judged(self) -> list[Cell]:
        """The cells that a judge has seen too."""
        return [cell for cell in self.cells if cell.get("judge") and cell.get("agreement")]

    def agreement(self) -> float:
        """The share of judged samples on which judge and detector say the same."""
        counts = [cell["agreement"] for cell in self.judged()]
        same = sum(count["both"] + count["neither"] for count in counts)
        return same / sum(sum(count.values()) for count in counts)

    def headlines(self) -> list[str]:
        """What the intervals allow to say, at the lowest temperature of `none`."""
        if not (base := next(iter(self.of(NONE)), None)):
            return []
        temperature = base["temperature"]
        others = [self.at.get((v, temperature)) for v in self.main if v != NONE]
        compared = [cell for cell in others if cell and cell.get("against_none")]
        sentences = []
        for measure, is_what in (("degenerate", "degenerate"), ("accuracy", "right")):
            if base[measure]:
                sentences.append(
                    f"At temperature {temperature:g}, {_share(base[measure])} of the outputs "
                    f"without a penalty are {is_what}. {_comparison(compared, measure)}".strip()
                )
        scored = [cell for cell in self.cells if cell["accuracy"]]
        plain = [cell for cell in scored if cell["variant"] == NONE]
        if plain and len(scored) > len(plain):
            sentences.append(_best(scored, plain))
        return sentences


def _mean(scores: Mapping[str, Any] | None, measure: str) -> float | None:
    return scores[measure]["mean"] if scores and scores.get(measure) else None


def _comparison(cells: Iterable[Cell], measure: str) -> str:
    """The cells in three lists: their paired interval is above zero, below it, or contains it."""
    lists: dict[str, list[str]] = {"fewer": [], "more": [], "no clear difference": []}
    for cell in cells:
        if difference := cell["against_none"].get(measure):
            low, high = difference["ci"]
            name = "fewer" if high < 0 else "more" if low > 0 else "no clear difference"
            lists[name].append(f"{cell['variant']} ({percent(cell[measure]['mean'])})")
    named = [
        f"{'clearly ' if name in ('fewer', 'more') else ''}{name} with {', '.join(variants)}"
        for name, variants in lists.items()
        if variants
    ]
    text = "; ".join(named)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _best(cells: Sequence[Cell], plain_cells: Sequence[Cell]) -> str:
    """Where the highest accuracy is, and where without a penalty."""
    best, plain = (
        max(some, key=lambda cell: cell["accuracy"]["mean"]) for some in (cells, plain_cells)
    )
    what = "without a penalty" if best is plain else f"with {best['variant']}"
    text = (
        f"The highest of all {len(cells)} accuracies is {what} at temperature "
        f"{best['temperature']:g}: {_share(best['accuracy'])}."
    )
    if best is plain:
        return text
    apart = best["accuracy"]["ci"][0] > plain["accuracy"]["ci"][1]
    return (
        f"{text} The highest without a penalty, at temperature {plain['temperature']:g}, is "
        f"{_share(plain['accuracy'])}; the intervals {'do not overlap' if apart else 'overlap'}."
    )


def percent(share: float) -> str:
    """A share, 0 to 1, in percent with one digit."""
    return f"{100 * share:.1f}\u00a0%"


def short(share: float | None) -> str:
    """A share for a small cell: a whole number of percent, which never rounds to all or nothing."""
    if share is None:
        return ""
    if 0 < share < 0.005:
        return "<1"
    if 0.995 < share < 1:
        return ">99"
    return f"{100 * share:.0f}"


def interval(ci: Sequence[float], factor: float = 100, sign: bool = False, digits: int = 1) -> str:
    """The two ends, times `factor`, in brackets."""
    low, high = (number(factor * end, digits, sign) for end in ci)
    return f"[{low}, {high}]"


def number(value: float, digits: int = 1, sign: bool = False) -> str:
    """A number with a real minus sign."""
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", "−")  # noqa: RUF001


def _share(scores: Mapping[str, Any]) -> str:
    return f"{percent(scores['mean'])} {interval(scores['ci'])}"


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts numbers inside names by their value."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def _example(worst: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of the result's "worst", its text split around the longest run of `unit_text`.

    Adds "before", "copies" (how many to show), "more" (whether there are others) and "after". A
    text without two copies in a row has no copies and is all "before".
    """
    text, unit = worst["text"], worst["unit_text"]
    runs = re.finditer(f"(?:{re.escape(unit)}){{2,}}", text) if unit else iter(())
    run = max(runs, key=lambda found: len(found[0]), default=None)
    if run is None:
        return {**worst, "before": text, "copies": 0, "more": False, "after": ""}
    copies = len(run[0]) // len(unit)
    shown = min(copies, max(2, LOOP_CHARACTERS // len(unit)))
    after = text[run.end() :]
    cut = unit.startswith(after)  # the text ends inside the loop
    return {
        **worst,
        "before": text[: run.start()],
        "copies": shown,
        "more": cut or shown < copies,
        "after": "" if cut else after,
    }


def _lines(tasks: Sequence[Task]) -> dict[str, Line]:
    """A look for each variant that has a line in any chart."""
    others: Iterator[tuple[str, str]] = itertools.cycle(OTHERS)
    lines: dict[str, Line] = {}
    for variant in dict.fromkeys(variant for task in tasks for variant in task.main):
        family = next(t.of(variant)[0]["family"] for t in tasks if variant in t.main) or variant
        index = len(lines)
        colours = FAMILIES[family] if family in FAMILIES else next(others)
        lines[variant] = Line(variant, f"line-{index}", colours, MARKERS[index % len(MARKERS)])
    return lines


def _draw_lines(axes: Axes, task: Task, measure: str, lines: Mapping[str, Line]) -> None:
    """A measure over temperature, a line and its band for each main variant."""
    drawn = [lines[variant] for variant in task.main]
    single = len(task.temperatures) == 1
    for position, line in enumerate(drawn):
        cells = [cell for cell in task.of(line.variant) if cell[measure]]
        x = np.array([position if single else cell["temperature"] for cell in cells], dtype=float)
        mean = np.array([cell[measure]["mean"] for cell in cells], dtype=float)
        low, high = np.array([cell[measure]["ci"] for cell in cells], dtype=float).reshape(-1, 2).T
        colour = line.colours[0]
        # A marker on the axis stays whole.
        look: dict[str, Any] = {
            "color": colour,
            "marker": line.marker,
            "label": line.variant,
            "clip_on": False,
        }
        if single:
            off = np.maximum([mean - low, high - mean], 0)
            axes.errorbar(x, mean, off, capsize=4, linestyle="", **look)
        else:
            axes.plot(x, mean, "--" if line.variant == NONE else "-", lw=2, **look)
            axes.fill_between(x, low, high, color=colour, alpha=0.11, linewidth=0)
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

    colours = LinearSegmentedColormap.from_list(measure, ["#ffffff", HEAT[measure][0]])
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
    axes.set_xlabel(heat.corner)
    axes.set_ylabel(f"{heat.title}: strength")
    axes.set_title(f"{MEASURES[measure]}, %")


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def _overview(task: Task, measures: Sequence[str], lines: Mapping[str, Line]) -> Figure:
    """The line charts of some measures side by side, with one legend."""
    figure = _new_figure(PANEL * len(measures), 3.5)
    for i, measure in enumerate(measures):
        axes = figure.add_subplot(1, len(measures), i + 1)
        _draw_lines(axes, task, measure, lines)
    columns = len(measures) * LEGEND_CHARACTERS // (max(map(len, task.main)) + 8)
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


def _save(figure: Figure, path: Path) -> None:
    """Write PATH.png and PATH.svg."""
    figure.savefig(path.with_suffix(".png"), dpi=100)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _inline(figure: Figure, label: str, variables: Mapping[str, str]) -> str:
    """The figure as an SVG element whose colours are the page's and change with its mode.

    `variables` maps the colours drawn to names of CSS variables. Text stays text, in its font.
    """
    import matplotlib as mpl

    out = io.StringIO()
    # A salt for each figure: the ids that clips and markers refer to are the whole page's.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: ([^;\"]*?)(?:'[^;\"]*|sans-serif)", r"font: \1var(--font)", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    opening = f'<svg {box[0]} role="img" aria-label="{markupsafe.escape(label)}">'
    svg = opening + svg[svg.index(">") + 1 :]
    for colour, name in variables.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _facts(result: Mapping[str, Any], tasks: Sequence[Task]) -> dict[str, str]:
    """What was run, in a few words each."""
    run = result["run"]
    return {
        "Tasks": ", ".join(f"{task.name} ({task.cells[0]['items']} items)" for task in tasks),
        "Samples": f"{sum(cell['samples'] for cell in result['cells']):,}",
        "Longest output": f"{run['max_tokens']:,} tokens",
        "Date": run["date"],
        "Machine": f"{run['cpu']}, {run['cores']} cores",
        "Commit": re.sub(r"(?<=[0-9a-f]{12})[0-9a-f]+", "", run["commit"] or "unknown"),
    }


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        pins = (ROOT / "scripts" / "requirements-test.txt").read_text()
        pin = next(line for line in pins.splitlines() if line.startswith("matplotlib=="))
        raise SystemExit(
            f"the report needs matplotlib: {sys.executable} -m pip install {pin}"
        ) from None


def write_report(directory: Path) -> None:
    """Draw the result of a run.

    Reads `directory`/result.json and writes beside it report.html, overview.png and .svg (accuracy
    and degenerate share over temperature) and, where a family has several strengths, sweeps.png and
    .svg. With several tasks, the task is part of the plots' names.

    Raises:
        SystemExit: matplotlib is missing; the message says how to install it.
    """
    _require_matplotlib()
    import matplotlib as mpl

    result = json.loads((directory / "result.json").read_text())
    names = dict.fromkeys(cell["task"] for cell in result["cells"])
    tasks = [Task(name, result) for name in names]
    lines = _lines(tasks)
    variables = {line.colours[0]: line.key for line in lines.values()}
    variables |= {INK[0]: "ink", GRID[0]: "grid"}
    charts = {}
    with mpl.rc_context(SETTINGS):
        for task in tasks:
            suffix = f"-{re.sub(r'[^A-Za-z0-9]+', '-', task.name)}" if len(tasks) > 1 else ""
            _save(_overview(task, task.measures, lines), directory / f"overview{suffix}")
            if sweeps := task.sweeps():
                _save(_heat_maps(sweeps), directory / f"sweeps{suffix}")
            charts[task.name] = [
                _inline(
                    _overview(task, [measure], lines),
                    f"{MEASURES[measure]} over temperature, task {task.name}",
                    variables,
                )
                for measure in task.measures
            ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "percent": percent,
        "short": short,
        "interval": interval,
        "number": number,
    }
    page = environment.get_template("report.html.j2").render(
        result=result,
        run=result["run"],
        facts=_facts(result, tasks),
        tasks=tasks,
        charts=charts,
        lines=lines,
        ink=INK,
        grid=GRID,
        heat=HEAT,
        measures=MEASURES,
        ends=ends,
    )
    (directory / "report.html").write_text(page)
