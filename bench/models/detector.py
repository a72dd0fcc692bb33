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

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Repetition:
    """`repeats` contiguous copies of the `period` tokens that stand at `start`."""

    start: int
    period: int
    repeats: int


def longest_repetition(tokens: Sequence[int] | str) -> Repetition:
    """Return the repetition with the most repeats, of those the smallest period, then start.

    `tokens` are token ids, or the characters of a str. For a period p, a run of r consecutive
    positions i with tokens[i] == tokens[i - p] is floor(r / p) + 1 contiguous copies. A run that
    makes 2 copies covers a multiple of p, so it is enough to extend a match from each multiple to
    both sides (Main & Lorentz 1984): n / p extensions for a period, O(n log n) in all, each in
    O(log n) steps. A period beyond n / repeats cannot beat the best one so far and is left out.
    Exact: nothing is hashed. Memory: O(n log n). An empty sequence gives `Repetition(0, 0, 0)`.
    """
    n = len(tokens)
    if n == 0:
        return Repetition(0, 0, 0)
    names = _names(tokens)
    best = Repetition(0, 1, 1)
    low = 1
    # Periods from `low` to twice that have at most n extensions together, which bounds the memory.
    while (high := min(2 * low, n // (best.repeats + 1) + 1)) > low:
        best = max(best, _best_of_periods(names, low, high), key=lambda found: found.repeats)
        low = high
    return best


def final_loop(tokens: Sequence[int] | str) -> Repetition | None:
    """Return the loop that `tokens` end in, as SPEC section 9 sees one; None if they end in none.

    That is the smallest period p of which the last run_p >= 16 tokens each equal the one p before,
    and make three copies (run_p >= 2 p). It starts with its first copy.
    """
    symbols = [ord(symbol) for symbol in tokens] if isinstance(tokens, str) else tokens
    newest = np.asarray(symbols, np.int64)[::-1]
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


def _names(tokens: Sequence[int] | str) -> list[Indices]:
    """Name the substrings of 1, 2, 4, ... tokens: names[k][i] is that of the 2**k tokens from i.

    Two substrings of a length have the same name if and only if they are equal (Karp, Miller &
    Rosenberg 1972). The list ends before a length of which no two substrings are equal.
    """
    symbols = [ord(symbol) for symbol in tokens] if isinstance(tokens, str) else tokens
    pairs = np.asarray(symbols, np.int64)
    names: list[Indices] = []
    while pairs.size:
        distinct, found = np.unique(pairs, return_inverse=True)
        if distinct.size == pairs.size:
            break
        names.append(found)
        size = 1 << (len(names) - 1)
        pairs = found[:-size] * distinct.size + found[size:]
    return names


def _best_of_periods(names: list[Indices], low: int, high: int) -> Repetition:
    """Return the best repetition with a period of [low, high), as `longest_repetition` does."""
    if not names:
        return Repetition(0, 1, 1)
    n = len(names[0])
    of_period = [np.arange(period, n, period) for period in range(low, high)]
    later = np.concatenate(of_period)
    period = np.repeat(np.arange(low, high), [len(anchors) for anchors in of_period])
    equal = names[0][later] == names[0][later - period]
    later, period = later[equal], period[equal]
    if not later.size:
        return Repetition(0, 1, 1)
    before = _extension(names, later - period, later, forward=False)
    run = before + _extension(names, later - period, later, forward=True)
    repeats = run // period + 1
    start = later - before - period
    first = np.lexsort((start, period, -repeats))[0]
    return Repetition(int(start[first]), int(period[first]), int(repeats[first]))


def _extension(names: list[Indices], left: Indices, right: Indices, forward: bool) -> Indices:
    """Return how many tokens from `left` and from `right` > `left` on, or before them, are equal.

    `left`, `right` and the result are int64 [pairs].
    """
    n = len(names[0])
    length = np.zeros_like(left)
    for k in reversed(range(len(names))):
        size = 1 << k
        if forward:
            at, fits = left + length, right + length + size <= n
        else:
            at, fits = left - length - size, left - length - size >= 0
        at = np.where(fits, at, 0)
        other = np.where(fits, at + right - left, 0)
        length += size * (fits & (names[k][at] == names[k][other]))
    return length
