"""The worked examples of docs/SPEC.md section 9: V 16, B 32, `marginal`, n 2."""

from __future__ import annotations

LINE = [1, 2, 3, 4]
SEVENS, SIXES, EIGHTS = [7] * 17, [6] * 17, [8] * 17

EXAMPLES: dict[str, tuple[list[int], dict[int, float]]] = {
    "six copies": (LINE * 6, {}),
    "seven copies": (LINE * 7, {1: 26.315}),
    "ten copies": (LINE * 10, {1: 42.220}),
    "no match of two": ([*LINE * 10, 7], {}),
    "a match of two, with memory": ([*LINE * 10, 7, 1, 2], {3: 9.356}),
    "a match of two, without": ([*LINE * 9, 7, 1, 2], {}),
    "sixteen 7s": (SEVENS[1:], {}),
    "seventeen 7s": (SEVENS, {7: 88.688}),
    "34 of 64": ([*SEVENS, 1, 2, 3, 4, 5, *SIXES, 1, 2], {}),
    "51 of 64": ([*SEVENS, 1, 2, 3, 4, 5, *SIXES, 1, 2, 3, *EIGHTS, 1, 2], {3: 8.971}),
}
"""By name: the history, each position a step, and the bits that tokens lose before alpha."""

FADING = [*LINE * 10, *range(100, 650)]
"""The memory is on up to `LAST_STEP` tokens; V is 2048."""
LAST_STEP = 575
