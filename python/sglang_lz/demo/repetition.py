"""The detector of a degenerate repetition.

The paper calls an output degenerate when some substring repeats at least 20 times in a row. Settled
here:

- The sequence is the output's TOKEN IDS, not its text. Tokens are what the penalty and the sampler
  see, and text has innocent runs of one character (a ruled line, an indentation) that are a single
  token each.
- The unit may have any length from one token on. A unit that is itself a repetition needs no care:
  the shorter unit then repeats more often, so it decides.
- A repeat counts only where it is complete and contiguous. The unfinished copy at a run's end does
  not count.

Worked example: in `5 1 2 1 2 1 2 1`, the unit `1 2` stands 3 times in a row, and so does `2 1`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DEGENERATE_REPEATS = 20


@dataclass(frozen=True)
class Repetition:
    """`repeats` contiguous copies of the `period` tokens that stand at `start`."""

    start: int
    period: int
    repeats: int


def longest_repetition(tokens: Sequence[int]) -> Repetition:
    """Return the repetition with the most repeats, of those the smallest period, then start.

    For a period p, a run of r consecutive positions i with tokens[i] == tokens[i - p] is floor(r /
    p) + 1 contiguous copies. That is one pass a period, and a period beyond n / repeats cannot beat
    the best one so far, so the cost is O(n * n / best), and O(n) where a token repeats often. An
    empty sequence gives `Repetition(0, 0, 0)`.
    """
    n = len(tokens)
    if n == 0:
        return Repetition(0, 0, 0)
    best = Repetition(0, n, 1)
    period = 1
    while period * (best.repeats + 1) <= n:
        run = 0
        for i in range(period, n):
            run = run + 1 if tokens[i] == tokens[i - period] else 0
            if run // period + 1 > best.repeats:
                best = Repetition(i - run - period + 1, period, run // period + 1)
        period += 1
    return Repetition(0, 1, 1) if best.repeats == 1 else best


def is_degenerate(tokens: Sequence[int], repeats: int = DEGENERATE_REPEATS) -> bool:
    """Return whether some unit of `tokens` stands at least `repeats` (>= 1) times in a row."""
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, not {repeats}")
    return longest_repetition(tokens).repeats >= repeats
