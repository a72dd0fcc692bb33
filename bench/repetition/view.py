"""What the report shows of a task: its cells, its heat maps and its headlines.

Which variants get a line: a chart with the forty variants of two sweeps is unreadable, so of those
measured at the most temperatures, each family (a penalty without its strength) shows the strength
with the most samples; of equals the most accurate, or without accuracy the least degenerate. This
choice is made on the same data that the chart shows, which flatters each penalty alike, and the
page says so. The table and the heat maps hold every variant.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Cell = Mapping[str, Any]
"""A task, variant and temperature of the result; an entry of its "cells"."""

NONE = "none"
MOST_LINES = 8
MOST_EXAMPLES = 8
LOOP_CHARACTERS = 500
"""About how much of an example's loop is shown."""

MEASURES = {"accuracy": "Accuracy", "degenerate": "Degenerate outputs"}


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
            split_example(worst)
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


def split_example(worst: Mapping[str, Any]) -> dict[str, Any]:
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
