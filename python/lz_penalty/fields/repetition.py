"""The request field `repetition_detection`: which repeated patterns count as a loop.

The field's names and meaning are vLLM's, except for `action` and `ignore_numbers`, which are ours.
An output is a loop when its newest tokens are `min_count` consecutive copies of one pattern of
`min_pattern_size` to `max_pattern_size` tokens. With `ignore_numbers`, the copies may differ in
their numbers if at most 15 in 100 tokens of the pattern are numbers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lz_penalty.fields.kinds import Kind, boolean, choice, integer
from lz_penalty.fields.table import FieldError, field, register_names, shown

FIELD = "repetition_detection"
LARGEST_PATTERN_SIZE = 8192
LARGEST_COUNT = 32767

STOP = "stop"
END_THINKING = "end_thinking"


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """One request's `repetition_detection`, validated. Each attribute is one of its keys."""

    max_pattern_size: int = field(
        0, integer(0, LARGEST_PATTERN_SIZE), "the longest pattern, in tokens; 0 turns detection off"
    )
    min_pattern_size: int = field(
        0, integer(0, f"{FIELD}.max_pattern_size"), "the shortest pattern, in tokens; 0 means 1"
    )
    min_count: int = field(
        0, integer(2, LARGEST_COUNT), "how many consecutive copies make a loop, the first included"
    )
    action: str = field(
        STOP,
        choice(STOP, END_THINKING),
        "`stop` ends the output; `end_thinking` ends the thinking section once, so that the model "
        "then answers",
    )
    ignore_numbers: bool = field(
        False,
        boolean(),
        "whether copies may differ in tokens that are numbers, at most 15 in 100 of their tokens",
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
                FIELD, f"{FIELD} must hold {', '.join(_ENTRIES)} only, got {shown(unknown[0])}."
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
        if not largest and given and "max_pattern_size" not in given:
            key = next(iter(given))
            raise FieldError(
                FIELD,
                f"{FIELD}.{key} needs max_pattern_size > 0, got {shown(given[key])} without it: "
                "it has no effect alone.",
            )
        given = {name: _ENTRIES[name].metadata["kind"].convert(one) for name, one in given.items()}
        return cls(**given) if largest else None

    @property
    def shortest(self) -> int:
        """The size of the shortest pattern, in tokens."""
        return max(self.min_pattern_size, 1)


_ENTRIES = {entry.name: entry for entry in dataclasses.fields(RepetitionDetection)}
KEYS = ("max_pattern_size", "min_pattern_size", "min_count", "ignore_numbers")
"""The keys that no other field's name is."""
register_names((FIELD,))

RECOMMENDED_FIELD: Mapping[str, Any] = MappingProxyType({"max_pattern_size": 512, "min_count": 20})
"""The recommended setting (docs/PENALTIES.md), as in a request."""
RECOMMENDED = RepetitionDetection(**RECOMMENDED_FIELD)


def description() -> str:
    """Meaning, keys, ranges and defaults of the field, in Markdown."""
    keys = "; ".join(
        f"`{name}`: {entry.metadata['meaning']} ({entry.metadata['kind'].text}, default "
        f"`{json.dumps(entry.default)}`)"
        for name, entry in _ENTRIES.items()
    )
    return (
        "Stops an output, or its thinking section, once it ends in enough copies of one pattern. "
        f"{keys}."
    )


def json_schema() -> dict[str, Any]:
    """The OpenAPI schema of the field."""
    properties = {
        name: {"anyOf": [entry.metadata["kind"].schema, {"type": "null"}]}
        for name, entry in _ENTRIES.items()
    }
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"anyOf": [schema, {"type": "null"}], "description": description()}
