"""The result file, and its tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.common import RESULTS
from bench.harm.corpora import Piece
from bench.harm.penalties import Outcome, Penalty

ROW_COLUMNS = [
    "tokenizer",
    "longest",
    "kind",
    "penalty",
    "texts",
    "tokens",
    "lowered per 1000",
    "nats a token",
    "texts touched",
    "onsets reached",
]
COUNTED = ("repetition", "frequency", "presence")
"""Penalties that lower every token that stood in the output, at any strength: at the same
positions."""
COUNTING = "repetition 1.1"
REACHED_COLUMNS = ["tokenizer", "longest", "penalty", "kind", "text", "tokens", "at", "period"]
REACHED_COLUMNS += ["lowered"]


def rows(pieces: Sequence[Piece], outcomes: Sequence[Outcome], penalty: Penalty) -> list[list[Any]]:
    """Return a row for each kind, without the tokenizer and the length, as ROW_COLUMNS go on.

    Positions without a token before them count too: nothing can be lowered there.
    """
    found = []
    for kind in dict.fromkeys(piece.kind for piece in pieces):
        own = [outcome for p, outcome in zip(pieces, outcomes, strict=True) if p.kind == kind]
        lowered = np.concatenate([outcome.lowered for outcome in own])
        nats = round(float(lowered.mean(dtype=np.float64)), 4) if penalty.has_nats else None
        touched = sum(bool(outcome.lowered.any()) for outcome in own)
        reached = sum(outcome.onset is not None for outcome in own)
        per_1000 = round(1000 * float((lowered > 0).mean()), 3)
        found.append([kind, penalty.name, len(own), len(lowered), per_1000, nats, touched, reached])
    return found


def reached(
    pieces: Sequence[Piece], outcomes: Sequence[Outcome], penalty: Penalty
) -> list[list[Any]]:
    """Return a row for each text whose onset was reached, the most lowered first."""
    found = [
        [
            penalty.name,
            piece.kind,
            piece.name,
            len(piece.tokens),
            outcome.onset.position,
            outcome.onset.period,
            int((outcome.lowered > 0).sum()),
        ]
        for piece, outcome in zip(pieces, outcomes, strict=True)
        if outcome.onset is not None
    ]
    return sorted(found, key=lambda row: (-row[-1], row[2]))


def lowered() -> str:
    """The table of the committed result: positions lowered in 1,000, in Markdown."""
    result = json.loads((RESULTS / "harm.json").read_text())
    return markdown(result).split("\n\n")[0] + "\n"


def cells(
    result: dict[str, Any], tokenizer: str, longest: int
) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of a tokenizer and a length as dictionaries, by kind and penalty."""
    every = (dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"])
    return {
        (row["kind"], row["penalty"]): row
        for row in every
        if (row["tokenizer"], row["longest"]) == (tokenizer, longest)
    }


def markdown(result: dict[str, Any]) -> str:
    """Return two tables in Markdown: positions lowered in 1,000, then nats a token."""
    longest = max(result["settings"]["longest"])
    both = [cells(result, tokenizer, longest) for tokenizer in result["vocabularies"]]
    kinds = list(dict.fromkeys(kind for kind, _ in both[0]))
    lowered = {
        "count penalties": COUNTING,
        **{name: name for _, name in both[0] if not name.startswith(COUNTED)},
    }
    nats = {name: name for (_, name), cell in both[0].items() if cell["nats a token"] is not None}
    return "\n\n".join(
        _table(kinds, columns, both, measure, digits)
        for columns, measure, digits in (
            (lowered, "lowered per 1000", 1),
            (nats, "nats a token", 3),
        )
    )


def _table(
    kinds: Sequence[str],
    columns: dict[str, str],
    both: Sequence[dict[tuple[str, str], dict[str, Any]]],
    measure: str,
    digits: int,
) -> str:
    """A table of one measure: kinds by penalties, the values of the tokenizers in each cell."""
    lines = [f"| {measure} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for kind in kinds:
        values = (
            " / ".join(_shown(own[kind, name][measure], digits) for own in both)
            for name in columns.values()
        )
        lines.append(f"| {kind} | {' | '.join(values)} |")
    return "\n".join(lines)


def _shown(value: float, digits: int) -> str:
    """A number; only what is exactly 0 is shown as 0."""
    if value == 0:
        return "0"
    smallest = 10**-digits
    return f"< {smallest:g}" if value < smallest else f"{value:.{0 if value >= 100 else digits}f}"
