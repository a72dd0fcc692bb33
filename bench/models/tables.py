"""The documents' tables of committed runs, in Markdown; `scripts/format` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bench.common import RESULTS

Cell = dict[str, Any]

IN_README = ("none", "lz 0.15, onset 3", "lz 0.15", "repetition 1.1", "frequency 0.1")


def cells(name: str) -> Iterator[Cell]:
    """The cells of a committed run by temperature: a penalty at a temperature each."""
    found = json.loads((RESULTS / name / "result.json").read_text())["cells"]
    yield from sorted(found, key=lambda cell: float(cell["temperature"]))


def readme() -> str:
    """The greedy answers to the puzzles, a few penalties."""
    found = {cell["variant"]: cell for cell in cells("pocket") if cell["temperature"] == 0}
    rows = []
    for name in IN_README:
        cell = found[name]
        against = cell["against_none"]
        same = f"{100 * against['unchanged'] / cell['samples']:.3g} %" if against else "-"
        shown = (f"{100 * cell[score]['mean']:.3g} %" for score in ("accuracy", "degenerate"))
        rows.append([name, *shown, same])
    return _table(["penalty", "correct answers", "looping answers", "answers unchanged"], rows)


def puzzles() -> str:
    """Accuracy and loops of the greedy answers with their intervals, and the change at 0.6."""
    found = {(cell["variant"], cell["temperature"]): cell for cell in cells("pocket")}
    rows = []
    for variant, temperature in found:
        if temperature == 0:
            cell, sampled = found[variant, 0], found[variant, 0.6]
            right, loops = (_interval(cell[score], ".2f") for score in ("accuracy", "degenerate"))
            changes = (
                _interval(one["against_none"]["accuracy"], "+.2f") if one["against_none"] else "-"
                for one in (cell, sampled)
            )
            rows.append([variant, loops, right, *changes])
    head = ["penalty", "degenerate", "accuracy", "against none", "against none at temperature 0.6"]
    return _table(head, rows)


def _interval(score: Cell, digits: str) -> str:
    low, high = score["ci"]
    return f"{score['mean']:{digits}} ({low:{digits}} to {high:{digits}})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"
