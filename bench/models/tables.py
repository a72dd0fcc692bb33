"""Tables of runs in Markdown; `scripts/format` writes those of the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common import RESULTS
from bench.models.scores import SHARES

Cell = dict[str, Any]

IN_README = ("none", "lz 0.15, onset 3", "lz 0.15", "repetition 1.1", "frequency 0.1")


COLUMNS = {
    "degenerate": "degenerate",
    "final_loop": "ends in a loop",
    "near_copies": "near-copies",
    "template": "template",
    "cut_off": "cut off",
    "unchanged": "unchanged",
    "accuracy": "accuracy",
    "change": "against none",
    "rep_4_gram": "distinct 4-grams",
    "compression_ratio": "compressed to",
    "tokens": "tokens",
    "rep_3": "rep-3",
    "rep_line": "rep-line",
    "sim_line": "sim-line",
}
INTERVALS = (*SHARES, "unchanged", "change")


def of_runs(found: Sequence[Cell]) -> Iterator[str]:
    """A table for each task: models, penalties and temperatures; shares in percent."""
    for task in dict.fromkeys(cell["task"] for cell in found):
        rows = [(cell, _scores(cell)) for cell in found if cell["task"] == task]
        shown = [name for name in COLUMNS if any(scores[name] for _, scores in rows)]
        head = ["model", "penalty", "T", "outputs", *(COLUMNS[name] for name in shown)]
        lines = [
            [
                *(
                    cell.get("model", "-"),
                    cell["variant"],
                    f"{cell['temperature']:g}",
                    str(cell["samples"]),
                ),
                *(scores[name] or "-" for name in shown),
            ]
            for cell, scores in rows
        ]
        yield f"{task}\n\n{_table(head, lines)}"


def _scores(cell: Cell) -> dict[str, str]:
    """What a row shows of each column, "" for a score that it has not."""
    against = cell["against_none"] or {}
    found = {**cell, "unchanged": against.get("unchanged"), "change": against.get("accuracy")}
    return {name: _shown(name, found.get(name)) for name in COLUMNS}


def _shown(name: str, score: object) -> str:
    if not isinstance(score, dict):
        return ""
    mean, (low, high) = score["mean"], score["ci"]
    if name == "tokens":
        return f"{mean:.0f}"
    if name == "rep_4_gram":
        return f"{100 * (1 - mean):.0f}"
    if name in INTERVALS:
        sign = "+" if name == "change" else ""
        return f"{100 * mean:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"
    return f"{100 * mean:.1f}"


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
