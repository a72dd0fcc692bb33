"""The looping models' tables: `python -m bench.looping tables`."""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS

NAMES = ("looping-prose", "looping-code", "looping-prose-sampled", "looping-code-sampled")
GROUPS = ("plain", "paragraph", "template", "json", "regex")
OVERALL = (
    "| temperature | penalty | degenerate | cut off in a loop | most copies | distinct 4-grams | "
    "compressed to |\n|---|---|---|---|---|---|---|"
)
BY_GROUP = f"| penalty | {' | '.join(GROUPS)} |\n|---{'|---' * len(GROUPS)}|"


def overall(result: dict[str, Any]) -> str:
    """Every cell of a result, in Markdown."""
    return "\n".join([OVERALL, *map(_row, result["cells"])])


def by_group(result: dict[str, Any]) -> str:
    """The greedy outputs of each group that are degenerate or cut off in a loop, in Markdown."""
    rows = [BY_GROUP]
    for cell in result["cells"]:
        if cell["temperature"] == 0:
            parts = [cell["groups"][name] for name in GROUPS]
            shares = [
                f"{round(part['items'] * part['degenerate']['mean'])}, {part['loops']['cut_off']} "
                f"of {part['items']}"
                for part in parts
            ]
            rows.append(f"| {cell['variant']} | {' | '.join(shares)} |")
    return "\n".join(rows)


def read(name: str) -> dict[str, Any]:
    """A committed result, one of `NAMES`."""
    found: dict[str, Any] = json.loads((RESULTS / name / "result.json").read_text())
    return found


def main() -> None:
    """Print all tables."""
    for name in NAMES:
        result = read(name)
        print(f"{name}\n\n{overall(result)}\n\n{by_group(result)}\n")


def _row(cell: dict[str, Any]) -> str:
    loops = cell["loops"]
    shown = (
        f"{cell['temperature']:g}",
        cell["variant"],
        f"{cell['degenerate']['mean']:.3f}",
        f"{loops['cut_off'] / cell['samples']:.3f}",
        f"{loops['most_copies']} of {loops['period']}",
        f"{1 - cell['rep_4_gram']['mean']:.2f}",
        f"{cell['compression_ratio']['mean']:.2f}",
    )
    return f"| {' | '.join(shown)} |"
