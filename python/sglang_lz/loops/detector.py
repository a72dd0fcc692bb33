"""`repetition_detection`: when an output counts as a loop, and the first token at which it does.

The field's names and meaning are vLLM's, except for `action`, which is ours. An output is a loop
when its newest tokens are `min_count` consecutive copies of one pattern of `min_pattern_size` to
`max_pattern_size` tokens.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sglang_lz.compiled import compiled
from sglang_lz.fields.kinds import Kind, choice, integer
from sglang_lz.fields.lz import FieldError, shown

FIELD = "repetition_detection"
LARGEST_PATTERN_SIZE = 8192
LARGEST_COUNT = 32767

FINISH_REASON = "repetition"

STOP = "stop"
END_THINKING = "end_thinking"


def _field(default: object, kind: Kind, meaning: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """One request's `repetition_detection`, validated. Each attribute is one of its keys."""

    max_pattern_size: int = _field(
        0,
        integer(0, LARGEST_PATTERN_SIZE),
        "the longest pattern, in tokens; 0 turns detection off",
    )
    min_pattern_size: int = _field(
        0,
        integer(0, f"{FIELD}.max_pattern_size"),
        "the shortest pattern, in tokens; 0 means 1",
    )
    min_count: int = _field(
        0,
        integer(2, LARGEST_COUNT),
        "how many consecutive copies make a loop, the first included",
    )
    action: str = _field(
        STOP,
        choice(STOP, END_THINKING),
        "`stop` ends the output; `end_thinking` ends the thinking section once, so that the model "
        "goes on to answer",
    )

    @classmethod
    def parse(cls, value: Any) -> RepetitionDetection | None:
        """Read the field of a request; None if it is missing, null or off.

        Raises:
            FieldError: it is not an object, a key is unknown, or a value has the wrong type or is
                out of range.
        """
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise FieldError(FIELD, f"{FIELD} must be an object, got {shown(value)}.")
        if unknown := [key for key in value if key not in _ENTRIES]:
            raise FieldError(
                FIELD,
                f"{FIELD} must hold {', '.join(_ENTRIES)} only, got {shown(unknown[0])}.",
            )
        given = {name: value[name] for name in _ENTRIES if value.get(name) is not None}
        largest = given.get("max_pattern_size", 0)
        for name, entry in _ENTRIES.items():
            kind: Kind = entry.metadata["kind"]
            if name == "min_count" and largest == 0 and name not in given:
                continue
            if not kind.takes(given.get(name, entry.default), largest):
                allowed = kind.allowed.format(largest=largest)
                got = shown(given[name]) if name in given else "nothing"
                raise FieldError(FIELD, f"{FIELD}.{name} must be {allowed}, got {got}.")
        return cls(**given) if largest else None

    @property
    def shortest(self) -> int:
        """The size of the shortest pattern, in tokens."""
        return max(self.min_pattern_size, 1)


_ENTRIES = {entry.name: entry for entry in dataclasses.fields(RepetitionDetection)}

RECOMMENDED = RepetitionDetection(max_pattern_size=512, min_count=20)
"""What the documentation recommends (docs/GUARD.md)."""


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
    token k before them. Each look computes how many more of these the closest pattern needs. Until
    the output has grown by that much, no loop can be complete.

    Attributes:
        next_look: the smallest output length at which a loop can be complete.
    """

    __slots__ = ("_detection", "_first_look", "_looked", "next_look")

    def __init__(self, detection: RepetitionDetection, first_look: int = 1) -> None:
        """Begin at an output of `first_look` tokens."""
        self._detection = detection
        self._first_look = self.next_look = max(first_look, 1)
        self._looked = 0

    def skip(self, length: int) -> None:
        """Stop looking at outputs of `length` tokens or fewer."""
        self.next_look = max(self.next_look, length + 1)

    def rollback(self, length: int) -> None:
        """Return to an output of `length` tokens, which may now continue differently."""
        if length < self._looked:
            self.next_look = max(self._first_look, min(self.next_look, length + 1))
            self._looked = length

    def copy(self) -> Detector:
        """A detector in the same state."""
        return copy.copy(self)

    def find(self, output: array[int]) -> Loop | None:
        """The first loop in an output, given that earlier looks found none.

        Args:
            output: token ids, as array("q").
        """
        if len(output) < self.next_look:
            return None
        detection = self._detection
        self._looked = len(output)
        tokens = np.frombuffer(output, np.int64)
        self.next_look, size, begin = first_loop(
            tokens,
            self.next_look,
            detection.shortest,
            detection.max_pattern_size,
            detection.min_count,
        )
        return Loop(size, begin, self.next_look) if size else None


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


def description() -> str:
    """Meaning, keys, ranges and defaults of the field, in Markdown."""
    keys = "; ".join(
        f"`{name}`: {entry.metadata['meaning']} ({entry.metadata['kind'].text}, default "
        f"`{json.dumps(entry.default)}`)"
        for name, entry in _ENTRIES.items()
    )
    return f"Acts when the output ends in a repeated pattern. {keys}."


def json_schema() -> dict[str, Any]:
    """The OpenAPI schema of the field."""
    properties = {
        name: {"anyOf": [entry.metadata["kind"].schema, {"type": "null"}]}
        for name, entry in _ENTRIES.items()
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [schema, {"type": "null"}], "description": description()}
