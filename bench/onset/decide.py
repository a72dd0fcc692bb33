"""The table that decides: `python -m bench.onset decide FOLDER`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HARM = "harm.json"
LOOPS = (
    *("reasoner", "reasoner-sampled", "model", "prose"),
    *("code", "code-floors", "code-strengths", "code-sampled"),
)
"""The files of outputs, without their suffix."""
GROUPS = {
    "prose, docs, logs": ("prose", "documentation", "logs"),
    "JSON": ("JSON",),
    "code": ("Python", "C headers"),
    "markup": ("Markdown", "reST", "HTML"),
    "CSV": ("CSV",),
    "tables": ("tables",),
    "numbers": ("numbers",),
    "diagrams": ("diagrams",),
}
"""Kinds of right text; of several kinds the table has the worst."""


def tables(folder: Path) -> str:
    """Return both sides of every setting, as Markdown: right text, then each model's outputs."""
    found = [_harm(json.loads((folder / HARM).read_text()))]
    for name in LOOPS:
        path = folder / f"{name}.json"
        if path.exists():
            result = json.loads(path.read_text())
            found += [
                f"`{result['model']}`, {result['items']} prompts, temperature {temperature}:\n\n"
                + _loops(rows)
                for temperature, rows in result["temperatures"].items()
            ]
    return "\n\n".join(found)


def _harm(result: dict[str, Any]) -> str:
    rows = []
    for row in result["rows"]:
        kinds = row["kinds"]
        lowered = [max(kinds[kind][0] for kind in group) for group in GROUPS.values()]
        rows.append([row["setting"], *(f"{value:.1f}" for value in lowered)])
    return _markdown(["setting", *GROUPS], rows)


def _loops(rows: list[dict[str, Any]]) -> str:
    columns = {
        "degenerate": "degenerate",
        "most_copies": "most copies",
        "distinct_4_grams": "distinct 4-grams",
        "compressed": "compressed",
        "first_change": "first change",
        "unchanged": "unchanged",
        "accuracy": "accuracy",
    }
    if rows[0]["accuracy"] is None:
        del columns["accuracy"]
    return _markdown(
        ["setting", *columns.values()],
        [
            [row["setting"], *("-" if row[key] is None else f"{row[key]:.4g}" for key in columns)]
            for row in rows
        ],
    )


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in [header, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
