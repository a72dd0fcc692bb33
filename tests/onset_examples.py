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

NUMBERS = frozenset(range(8, 16))
WORDS = [1, 2, 3, 4, 5, 6, 7]


def blocks(count: int) -> list[int]:
    """Lines that differ by their number."""
    return [token for i in range(1, count + 1) for token in (*WORDS, 7 + i)]


NUMBER_EXAMPLES: dict[str, tuple[list[int], dict[int, float]]] = {
    "three lines": (blocks(3), {}),
    "almost four lines": ([*blocks(3), *WORDS], {}),
    "four lines": (blocks(4), {1: 1.0}),
    "four lines and a beginning": ([*blocks(4), 1, 2, 3], {4: 4.755}),
    "five lines": (blocks(5), {1: 2.0}),
    "almost six lines": (
        [*blocks(5), *WORDS],
        {8: 5.311, 9: 5.955, 10: 6.785, 11: 7.955, 12: 9.955},
    ),
    "a return of six lines, with memory": ([*blocks(6), 7, 1, 2], {3: 9.134}),
    "too many numbers": ([token for i in range(8) for token in (1, 2, 3, 4, 5, 8 + i)], {}),
}
"""The same for N = `NUMBERS`; above, N is empty."""

FADING = [*LINE * 10, *range(100, 650)]
"""The memory is on up to `LAST_STEP` tokens; V is 2048."""
LAST_STEP = 575
