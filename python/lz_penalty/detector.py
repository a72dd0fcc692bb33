"""Finds the loops of an output, and the first token at which it has one.

`fields.repetition` defines when an output counts as a loop.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lz_penalty.compiled import compiled
from lz_penalty.fields.repetition import RepetitionDetection
from lz_penalty.window import NUMBERS_TIMES, PERIOD_TIMES

FINISH_REASON = "repetition"
NO_NUMBERS = np.zeros(0, dtype=np.uint8)
ANY_RUN = 1, 1
"""The least runs that count, for patterns of one token and for longer ones: all."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop in an output.

    Attributes:
        pattern_size: the length of its shortest pattern that counts, in tokens.
        begin: the index of its first token, from 0.
        end: the index just past its last token.
    """

    pattern_size: int
    begin: int
    end: int

    @property
    def count(self) -> int:
        """Complete copies of the pattern, including the first."""
        return (self.end - self.begin) // self.pattern_size

    @property
    def repeated(self) -> int:
        """Tokens after the first copy."""
        return self.end - self.begin - self.pattern_size


class Detector:
    """Looks for a loop in a growing output; most tokens cost a single comparison.

    A pattern of k tokens occurs n times in a row once k(n - 1) consecutive tokens each equal the
    token k before them. Each check computes how many more of these the closest pattern needs. Until
    the output has grown by that much, no loop can be complete.

    With `ignore_numbers`, two numbers count as equal in a pattern with few numbers. Every k tokens
    of a loop up to numbers hold the same number of them. So if the newest k hold too many, no such
    loop can be complete before they have left it, k(n - 1) tokens later.

    Attributes:
        next_check: the smallest output length at which a loop can be complete.
    """

    __slots__ = ("_checked", "_detection", "_first_check", "next_check")

    def __init__(self, detection: RepetitionDetection, first_check: int = 1) -> None:
        """Begin at an output of `first_check` tokens."""
        self._detection = detection
        self._first_check = self.next_check = max(first_check, 1)
        self._checked = 0

    def skip(self, length: int) -> None:
        """Stop looking at outputs of `length` tokens or fewer."""
        self.next_check = max(self.next_check, length + 1)

    def rollback(self, length: int) -> None:
        """Return to an output of `length` tokens, which may now continue differently."""
        if length < self._checked:
            self.next_check = max(self._first_check, min(self.next_check, length + 1))
            self._checked = length

    def copy(self) -> Detector:
        """A detector in the same state."""
        return copy.copy(self)

    def find(
        self,
        output: array[int],
        numbers: NDArray[np.uint8] = NO_NUMBERS,
        least_runs: tuple[int, int] = ANY_RUN,
    ) -> Loop | None:
        """The first loop in an output, given that earlier checks found none.

        Args:
            output: token ids, as array("q").
            numbers: 1 for each token that is a number, uint8 [V]; only used with `ignore_numbers`.
            least_runs: the fewest tokens after the first copy, for one-token patterns and others.
        """
        if len(output) < self.next_check:
            return None
        detection = self._detection
        self._checked = len(output)
        tokens = np.frombuffer(output, np.int64)
        self.next_check, size, begin = first_loop(
            tokens,
            self.next_check,
            (detection.shortest, detection.max_pattern_size),
            detection.min_count,
            numbers if detection.ignore_numbers else NO_NUMBERS,
            least_runs,
        )
        return Loop(size, begin, self.next_check) if size else None


def loops(
    output: array[int],
    detection: RepetitionDetection,
    numbers: NDArray[np.uint8] = NO_NUMBERS,
    least_runs: tuple[int, int] = ANY_RUN,
) -> Iterator[Loop]:
    """All loops of a finished output, in order, each up to where its repetition ends.

    Args:
        output: token ids, as array("q").
        detection: the definition of a loop.
        numbers, least_runs: as in `Detector.find`.
    """
    detector = Detector(detection)
    ignored = numbers if detection.ignore_numbers else NO_NUMBERS
    while (found := detector.find(output, numbers, least_runs)) is not None:
        tokens, size = np.frombuffer(output, np.int64), found.pattern_size
        end = _end(tokens, found.end, size, ignored)
        yield Loop(size, found.begin, end)
        detector.skip(end)


@compiled
def _is_number(token: int, numbers: NDArray[np.uint8]) -> bool:
    return 0 <= token < len(numbers) and numbers[token] != 0


@compiled
def _may_differ(found: int, size: int) -> bool:
    """Whether numbers may differ in a pattern of `size` tokens with `found` numbers: not if these
    are too many (docs/SPEC.md section 9)."""
    return NUMBERS_TIMES * found <= PERIOD_TIMES * size


@compiled
def _is_alike(tokens: NDArray[np.int64], one: int, other: int, ignored: NDArray[np.uint8]) -> bool:
    """Whether two positions have the same token, or numbers that may differ."""
    if tokens[one] == tokens[other]:
        return True
    return _is_number(tokens[one], ignored) and _is_number(tokens[other], ignored)


@compiled
def _runs(
    tokens: NDArray[np.int64], end: int, longest: int, ignored: NDArray[np.uint8]
) -> NDArray[np.int64]:
    """How many of the newest tokens in a row are each like the token k before them, by k.

    This is the Z-function of the reversed tokens. It compares at most `end` + `longest` tokens,
    whatever they are; a comparison for each k could be made to take seconds.
    """
    runs = np.zeros(longest + 1, np.int64)
    # The run of the pattern `best` reaches back further than any other: `reach` tokens.
    best = reach = 0
    for size in range(1, longest + 1):
        run = min(reach - size, runs[size - best]) if size < reach else 0
        while size + run < end and _is_alike(tokens, end - 1 - run, end - 1 - run - size, ignored):
            run += 1
        if size + run > reach:
            best, reach = size, size + run
        runs[size] = run
    return runs


@compiled
def _end(tokens: NDArray[np.int64], end: int, size: int, numbers: NDArray[np.uint8]) -> int:
    """Where the repetition ends that is a loop at `end`."""
    found = 0
    for position in range(end - size, end):
        found += _is_number(tokens[position], numbers)
    ignored = numbers if _may_differ(found, size) else numbers[:0]
    while end < len(tokens) and _is_alike(tokens, end, end - size, ignored):
        end += 1
    return end


@compiled
def first_loop(
    tokens: NDArray[np.int64],
    end: int,
    sizes: tuple[int, int],
    count: int,
    numbers: NDArray[np.uint8],
    least_runs: tuple[int, int] = ANY_RUN,
) -> tuple[int, int, int]:
    """The length at which tokens first end in a loop, its pattern's size and where it began.

    If there is none, the first length beyond that of `tokens` at which there can be one, and 0, 0.

    Args:
        tokens: int64 [length].
        end: the first length to check.
        sizes: those of the shortest and the longest pattern, in tokens.
        count: the number of consecutive copies, including the first.
        numbers: 1 for each token that may differ from another of them, uint8 [V].
        least_runs: as in `Detector.find`; the second is not below the first.
    """
    shortest, longest = sizes
    while end <= len(tokens):
        lacking = max((count - 1) * shortest, least_runs[int(shortest > 1)])
        # A run holds at most end - size tokens. No longer pattern can be complete any sooner.
        most = min(longest, end - 1, (end + lacking - 1) // count)
        exact = _runs(tokens, end, most, numbers[:0])
        alike = _runs(tokens, end, most, numbers) if len(numbers) > 0 else exact
        found = counted = 0  # numbers among the newest `counted` tokens
        for size in range(shortest, most + 1):
            while len(numbers) > 0 and counted < size:
                counted += 1
                found += _is_number(tokens[end - counted], numbers)
            run = alike[size] if _may_differ(found, size) else exact[size]
            needed = max((count - 1) * size, least_runs[int(size > 1)])
            if run >= needed:
                return end, size, end - size - run
            lacking = min(lacking, needed - run)
        end += lacking
    return end, 0, 0
