"""The documents' tables of committed runs, in Markdown; `scripts/format` writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from bench.common import RESULTS

Cell = dict[str, Any]

LOOPS = ("degenerate", "most copies", "distinct 4-grams", "compressed")
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
    """Accuracy and loops with their intervals, at temperatures 0 and 0.6."""
    rows = []
    for cell in cells("pocket"):
        if cell["temperature"] in (0, 0.6):
            against = cell["against_none"]
            change = _interval(against["accuracy"], "+.2f") if against else "-"
            right, loops = (_interval(cell[score], ".2f") for score in ("accuracy", "degenerate"))
            rows.append([f"{cell['temperature']:g}", cell["variant"], right, change, loops])
    return _table(["temperature", "penalty", "accuracy", "against none", "degenerate"], rows)


def puzzles_by_kind() -> str:
    """All that is measured of the puzzles, at temperatures 0 and 1."""
    kinds = ("steps", "sort", "walk", "json")
    rows = []
    for cell in cells("pocket"):
        if cell["temperature"] in (0, 1):
            against = cell["against_none"]
            rows.append(
                [
                    f"{cell['temperature']:g}",
                    cell["variant"],
                    f"{cell['accuracy']['mean']:.3f}",
                    *(f"{cell['groups'][kind]['accuracy']['mean']:.2f}" for kind in kinds),
                    *_loops(cell),
                    f"{against['unchanged'] / cell['samples']:.2f}" if against else "-",
                    f"{cell['tokens']['mean']:.0f}",
                ]
            )
    head = ["temperature", "penalty", "accuracy", *kinds, *LOOPS, "unchanged", "tokens"]
    return _table(head, rows)


def prompt() -> str:
    """What searching the prompt as well does to the puzzles."""
    found = {cell["variant"]: cell for cell in cells("pocket-sizes")}
    rows = []
    for name in ("none", "lz 0.15", "lz 0.15, prompt"):
        accuracies = (found[name], found[name]["groups"]["walk"])
        means = (part["accuracy"]["mean"] for part in accuracies)
        rows.append([name, *(f"{mean:.3f}" for mean in means)])
    return _table(["penalty", "accuracy", "accuracy in walks"], rows)


def demo() -> str:
    """How far the demo model's outputs repeat."""
    rows = [[cell["variant"], *_loops(cell)] for cell in cells("demo")]
    return _table(["penalty", *LOOPS], rows)


def _loops(cell: Cell) -> list[str]:
    return [
        f"{cell['degenerate']['mean']:.3f}",
        str(cell["loops"]["most_copies"]),
        f"{1 - cell['rep_4_gram']['mean']:.2f}",
        f"{cell['compression_ratio']['mean']:.2f}",
    ]


def _interval(score: Cell, digits: str) -> str:
    low, high = score["ci"]
    return f"{score['mean']:{digits}} ({low:{digits}} to {high:{digits}})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"
