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

from sglang_lz.compiled import compiled
from sglang_lz.fields.repetition import RepetitionDetection

FINISH_REASON = "repetition"


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

    def find(self, output: array[int]) -> Loop | None:
        """The first loop in an output, given that earlier checks found none.

        Args:
            output: token ids, as array("q").
        """
        if len(output) < self.next_check:
            return None
        detection = self._detection
        self._checked = len(output)
        tokens = np.frombuffer(output, np.int64)
        self.next_check, size, begin = first_loop(
            tokens,
            self.next_check,
            detection.shortest,
            detection.max_pattern_size,
            detection.min_count,
        )
        return Loop(size, begin, self.next_check) if size else None


def loops(output: array[int], detection: RepetitionDetection) -> Iterator[Loop]:
    """All loops of a finished output, in order, each up to where its repetition ends.

    Args:
        output: token ids, as array("q").
        detection: the definition of a loop.
    """
    detector = Detector(detection)
    while (found := detector.find(output)) is not None:
        end, size = found.end, found.pattern_size
        while end < len(output) and output[end] == output[end - size]:
            end += 1
        yield Loop(size, found.begin, end)
        detector.skip(end)


@compiled
def _run(tokens: NDArray[np.int64], end: int, size: int, most: int) -> int:
    """How many of the newest tokens in a row each equal the token `size` before them."""
    run = 0
    while run < most and run + size < end and tokens[end - 1 - run] == tokens[end - 1 - run - size]:
        run += 1
    return run


@compiled
def first_loop(
    tokens: NDArray[np.int64], end: int, shortest: int, longest: int, count: int
) -> tuple[int, int, int]:
    """The length at which tokens first end in a loop, its pattern's size and where it began.

    If there is none, the first length beyond that of `tokens` at which there can be one, and 0, 0.

    Args:
        tokens: int64 [length].
        end: the first length to check.
        shortest: the shortest pattern, in tokens.
        longest: the longest pattern, in tokens.
        count: the number of consecutive copies, including the first.
    """
    while end <= len(tokens):
        newest = tokens[end - 1]
        lacking = (count - 1) * shortest
        for size in range(shortest, min(longest, end - 1) + 1):
            if tokens[end - 1 - size] != newest:
                continue
            needed = (count - 1) * size
            run = _run(tokens, end, size, needed)
            if run == needed:
                return end, size, end - size - _run(tokens, end, size, end)
            lacking = min(lacking, needed - run)
        end += lacking
    return end, 0, 0
