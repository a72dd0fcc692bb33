"""What a setting of the constants does to right text: `python -m bench.onset harm`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.harm.corpora import Piece
from bench.onset import rule
from bench.onset.settings import SETTINGS


def measure(pieces: Sequence[Piece], vocab_size: int, names: Sequence[str]) -> dict[str, Any]:
    """Run the settings of these names teacher-forced over the pieces; return a row for each.

    A row has, for each kind of text: positions of 1,000 where the true next token is lowered, by
    how many nats a token, and the share of pieces with such a position.
    """
    kinds = list(dict.fromkeys(piece.kind for piece in pieces))
    rows = []
    for name in names:
        row = rule.table([SETTINGS[name]])[0]
        found = [
            rule.harm(piece.tokens.astype(np.int32), vocab_size, row, rule.new_state(1)[0])
            for piece in pieces
        ]
        of_kind = {}
        for kind in kinds:
            some = [i for i, piece in enumerate(pieces) if piece.kind == kind]
            positions = sum(len(pieces[i].tokens) - 1 for i in some)
            of_kind[kind] = [
                round(1000 * sum(found[i][0] for i in some) / positions, 2),
                round(sum(found[i][1] for i in some) / positions, 4),
                sum(found[i][0] > 0 for i in some),
                _error([1000 * found[i][0] for i in some], [len(pieces[i].tokens) for i in some]),
            ]
        rows.append({"setting": name, "kinds": of_kind})
    return {
        "columns": [
            "positions lowered in 1,000",
            "nats a token",
            "texts touched",
            "SE of the first",
        ],
        "tokens": {
            kind: sum(len(piece.tokens) for piece in pieces if piece.kind == kind) for kind in kinds
        },
        "rows": rows,
    }


def _error(lowered: Sequence[float], positions: Sequence[int]) -> float:
    """The standard error of a ratio of sums over texts, by its linearization."""
    a, b = np.array(lowered, float), np.array(positions, float)
    if len(a) < 2:
        return math.nan
    residual = a - b * a.sum() / b.sum()
    return round(float(np.sqrt(residual.var(ddof=1) * len(a)) / b.sum()), 2)
