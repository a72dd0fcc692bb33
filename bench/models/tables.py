"""Tables of runs in Markdown; `scripts/format` writes those of the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common import RESULTS
from bench.models.scores import SHARES

Cell = dict[str, Any]

REAL = RESULTS / "models" / "smollm2-135m" / "result.json"
IN_README = ("degenerate", "near_copies", "cut_off", "unchanged")

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
        of_task = [cell for cell in found if cell["task"] == task]
        head, *rows = _of_cells(of_task)
        lines = [
            [
                cell.get("model", "-"),
                row[0],
                f"{cell['temperature']:g}",
                str(cell["samples"]),
                *row[1:],
            ]
            for cell, row in zip(of_task, rows, strict=True)
        ]
        head = ["model", head[0], "T", "outputs", *head[1:]]
        yield f"{task}\n\n{_table(head, lines)}"


def real() -> str:
    """All scores of the real model's outputs."""
    head, *rows = _of_cells(json.loads(REAL.read_text())["cells"])
    return _table(head, rows)


def readme() -> str:
    """The scores of the real model's outputs that README shows, without intervals."""
    found = json.loads(REAL.read_text())["cells"]
    rows = [[cell["variant"], *(_scores(cell)[name] for name in IN_README)] for cell in found]
    brief = [[name, *(share.partition(" (")[0] or "-" for share in rest)] for name, *rest in rows]
    return _table(["penalty", *(f"{COLUMNS[name]}, %" for name in IN_README)], brief)


def _of_cells(found: Sequence[Cell]) -> list[list[str]]:
    """The head and the rows of a table: penalties, and the scores that any of them has."""
    scores = [_scores(cell) for cell in found]
    shown = [name for name in COLUMNS if any(row[name] for row in scores)]
    rows = (
        [cell["variant"], *(row[name] or "-" for name in shown)]
        for cell, row in zip(found, scores, strict=True)
    )
    return [["penalty", *(COLUMNS[name] for name in shown)], *rows]


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


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"
