"""The kinds of values that a request field accepts, with their checks and descriptions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_MOST_TEXTS = 1024
"""The most strings in a list of texts."""


@dataclass(frozen=True)
class Kind:
    """Which values a field accepts.

    Attributes:
        takes: whether a value has the right type and is in range. Its second argument is the upper
            limit if `bound` names one.
        allowed: the valid values, as an error message lists them after "must be". "{largest}"
            in it is replaced by the upper limit.
        schema: the JSON schema of a value.
        text: type and range, in Markdown.
        convert: a valid value as its field holds it.
        bound: the request field or server argument that holds the upper limit; None if the limit
            is fixed.
    """

    takes: Callable[[Any, Any], bool]
    allowed: str
    schema: dict[str, Any]
    text: str
    convert: Callable[[Any], Any] = lambda value: value
    bound: str | None = None


def number(smallest: float, largest: float) -> Kind:
    """A finite number within an inclusive range. A boolean is not a number."""
    return Kind(
        takes=lambda value, _: _is_finite(value) and smallest <= value <= largest,
        allowed=f"a finite number in [{smallest:g}, {largest:g}]",
        schema={"type": "number", "minimum": smallest, "maximum": largest},
        text=f"number, {smallest:g} to {largest:g}",
        convert=float,
    )


def integer(smallest: int, largest: int | str) -> Kind:
    """An integer within an inclusive range. 1.0 counts as one, as in JSON, a boolean does not.

    Args:
        smallest: the lower limit.
        largest: the upper limit, or the request field or server argument that holds it.
    """
    schema = {"type": "integer", "minimum": smallest}
    if isinstance(largest, int):
        return Kind(
            takes=lambda value, _: _is_integral(value) and smallest <= value <= largest,
            allowed=f"an integer in [{smallest}, {largest}]",
            schema=schema | {"maximum": largest},
            text=f"integer, {smallest} to {largest}",
            convert=int,
        )
    owner = "the server's " if largest.startswith("--") else ""
    return Kind(
        takes=lambda value, upper: _is_integral(value) and smallest <= value <= upper,
        allowed=f"an integer in [{smallest}, {{largest}}], the upper end being {owner}{largest}",
        schema=schema,
        text=f"integer, {smallest} to {owner}`{largest}`",
        convert=int,
        bound=largest,
    )


def boolean() -> Kind:
    """True or false. Neither 0 nor 1 counts as a boolean."""
    return Kind(
        takes=lambda value, _: isinstance(value, bool),
        allowed="true or false",
        schema={"type": "boolean"},
        text="boolean",
    )


def choice(*names: str) -> Kind:
    """One of a few strings."""
    return Kind(
        takes=lambda value, _: isinstance(value, str) and value in names,
        allowed=" or ".join(f'"{name}"' for name in names),
        schema={"type": "string", "enum": list(names)},
        text=" or ".join(f'`"{name}"`' for name in names),
    )


def token_ids(most: int) -> Kind:
    """A list of token ids."""
    return Kind(
        takes=lambda value, _: (
            isinstance(value, list | tuple)
            and len(value) <= most
            and all(_is_integral(one) and 0 <= one < 2**31 for one in value)
        ),
        allowed=f"a list of at most {most} token ids",
        schema={"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": most},
        text=f"list of token ids, at most {most}",
        convert=lambda value: tuple(map(int, value)),
    )


def texts(most: int, longest: int) -> Kind:
    """A list of texts, none of them empty.

    Args:
        most: the most characters of all texts together, not counting the first of each.
        longest: the most bytes of each text, in UTF-8.
    """
    return Kind(
        takes=lambda value, _: (
            isinstance(value, list | tuple)
            and all(isinstance(one, str) and 0 < _bytes(one) <= longest for one in value)
            and len(value) <= _MOST_TEXTS
            and sum(len(one) - 1 for one in value) <= most
        ),
        allowed=(
            f"a list of at most {_MOST_TEXTS} strings of 1 to {longest} bytes in UTF-8, with at "
            f"most {most} characters in all beyond their first ones"
        ),
        schema={"type": "array", "items": {"type": "string", "minLength": 1}},
        text=f"list of at most {_MOST_TEXTS} strings of 1 to {longest} bytes, with at most {most} "
        "characters in all beyond the first of each",
        convert=tuple,
    )


def _bytes(text: str) -> int:
    """The number of bytes in UTF-8; 0 if the text cannot be encoded."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def is_integer(value: object) -> bool:
    """Whether a value is an integer; booleans do not count."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_integral(value: object) -> bool:
    """Whether a value is an integer, or a float that is one."""
    return is_integer(value) or (isinstance(value, float) and value.is_integer())


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False
