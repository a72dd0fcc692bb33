"""The detector of a degenerate repetition.

The paper calls an output degenerate when some substring repeats at least 20 times in a row. In
detail:

- The sequence is the output's token ids, not its text, if the server returns them. Tokens are what
  the penalty and the sampler see, and a harmless run of one character in text (a ruled line, an
  indentation) is often a single token.
- The unit may have any length from one token on. A unit that is itself a repetition needs no
  special case, because the shorter unit repeats more often.
- Only complete, contiguous copies count, not an unfinished one at the end of a run.

Worked example: in `5 1 2 1 2 1 2 1`, the unit `1 2` stands 3 times in a row, and so does `2 1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DEGENERATE_REPEATS = 20
LOOP_RUN = 16


@dataclass(frozen=True)
class Repetition:
    """`repeats` contiguous copies of the `period` tokens that stand at `start`."""

    start: int
    period: int
    repeats: int


def longest_repetition(tokens: Sequence[int] | str) -> Repetition:
    """Return the repetition with the most repeats, of those the smallest period, then start.

    `tokens` are token ids, or the characters of a str. For a period p, a run of r consecutive
    positions i with tokens[i] == tokens[i + p] is floor(r / p) + 1 contiguous copies. A period
    that leaves no room for one copy more than the best is left out, so n**2 / 2 comparisons at
    most. An empty sequence gives `Repetition(0, 0, 0)`.
    """
    symbols = _symbols(tokens)
    n = len(symbols)
    best = Repetition(0, min(n, 1), min(n, 1))
    period = 1
    while period * (best.repeats + 1) <= n:
        differ = np.flatnonzero(symbols[period:] != symbols[:-period])
        edges = np.concatenate(([-1], differ, [n - period]))
        repeats = (np.diff(edges) - 1) // period + 1
        most = int(repeats.argmax())
        if repeats[most] > best.repeats:
            best = Repetition(int(edges[most]) + 1, period, int(repeats[most]))
        period += 1
    return best


def final_loop(tokens: Sequence[int] | str) -> Repetition | None:
    """Return the loop that `tokens` end in, as SPEC section 9 sees one; None if they end in none.

    That is the smallest period p of which the last run_p >= 16 tokens each equal the one p before,
    and make three copies (run_p >= 2 p). It starts with its first copy.
    """
    newest = _symbols(tokens)[::-1]
    n = len(newest)
    for period in range(1, n // 3 + 1):
        need = max(2 * period, LOOP_RUN)
        if need + period > n or not np.array_equal(newest[:LOOP_RUN], newest[period:][:LOOP_RUN]):
            continue
        same = newest[:-period] == newest[period:]
        run = n - period if same.all() else int(same.argmin())
        if run >= need:
            return Repetition(n - run - period, period, run // period + 1)
    return None


def is_degenerate(tokens: Sequence[int] | str, repeats: int = DEGENERATE_REPEATS) -> bool:
    """Return whether some unit of `tokens` stands at least `repeats` (>= 1) times in a row."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    return longest_repetition(tokens).repeats >= repeats


def _symbols(tokens: Sequence[int] | str) -> NDArray[np.int64]:
    symbols = [ord(symbol) for symbol in tokens] if isinstance(tokens, str) else tokens
    return np.asarray(symbols, np.int64)
