"""What the plots show of a task: its cells, its main variants and its heat maps.

Which variants get a line: a chart with the forty variants of two sweeps is unreadable, so of those
measured at the most temperatures, each family (a penalty without its strength) shows the strength
with the most samples; of equals the most accurate, or without accuracy the least degenerate. This
choice is made on the same data that the chart shows, which flatters each penalty alike. The heat
maps hold every variant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Cell = Mapping[str, Any]
"""A task, variant and temperature of the result; an entry of its "cells"."""

NONE = "none"
MOST_LINES = 8

MEASURES = {"accuracy": "Accuracy", "degenerate": "Degenerate outputs"}


@dataclass(frozen=True)
class HeatMap:
    """Shares over strength and temperature.

    Attributes:
        title: what the rows are strengths of.
        columns: label of each temperature.
        rows: label of each row.
        values: for each measure of `MEASURES` that there is, [rows][columns] of shares, 0 to 1, or
            None where nothing was measured.
    """

    title: str
    columns: list[str]
    rows: list[str]
    values: dict[str, list[list[float | None]]]


class Task:
    """The cells of one task, and what the plots show of them."""

    def __init__(self, name: str, result: Mapping[str, Any]) -> None:
        self.name = name
        self.cells: list[Cell] = [cell for cell in result["cells"] if cell["task"] == name]
        self.at = {(cell["variant"], cell["temperature"]): cell for cell in self.cells}
        self.variants = list(dict.fromkeys(cell["variant"] for cell in self.cells))
        self.temperatures = sorted({cell["temperature"] for cell in self.cells})
        self.measures = [m for m in MEASURES if any(cell[m] for cell in self.cells)]
        self.main = self._main_variants()

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
        return HeatMap(title, columns, list(rows), values)


def _mean(scores: Mapping[str, Any] | None, measure: str) -> float | None:
    return scores[measure]["mean"] if scores and scores.get(measure) else None


def short(share: float | None) -> str:
    """A share for a small cell: a whole number of percent, which never rounds to all or nothing."""
    if share is None:
        return ""
    if 0 < share < 0.005:
        return "<1"
    if 0.995 < share < 1:
        return ">99"
    return f"{100 * share:.0f}"
