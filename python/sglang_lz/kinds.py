"""The kinds of values that a request field takes: how each is checked, and how it is described."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What values a field takes.

    Attributes:
        takes: whether a value has the right type and is in its range. Its second argument is the
            upper end of the range where `bound` names it.
        allowed: the right values, as an error message names them after "must be". "{largest}" in it
            stands for the upper end.
        schema: the JSON schema of a value.
        text: type and range, in Markdown.
        argument: what argparse must know to read a value from a command line.
        bound: the request field or server argument whose value is the upper end; None if it is
            always the same.
    """

    takes: Callable[[Any, Any], bool]
    allowed: str
    schema: dict[str, Any]
    text: str
    argument: dict[str, Any]
    bound: str | None = None


def number(smallest: float, largest: float) -> Kind:
    """A finite number, both ends of its range included. A boolean is not a number."""
    return Kind(
        takes=lambda value, _: _is_finite(value) and smallest <= value <= largest,
        allowed=f"a finite number in [{smallest:g}, {largest:g}]",
        schema={"type": "number", "minimum": smallest, "maximum": largest},
        text=f"number, {smallest:g} to {largest:g}",
        argument={"type": float},
    )


def integer(smallest: int, largest: int | str) -> Kind:
    """An integer, both ends of its range included. Neither a boolean nor 1.0 is an integer.

    Args:
        smallest: the lower end.
        largest: the upper end, or the request field or server argument that holds it.
    """
    argument = {"type": int}
    schema = {"type": "integer", "minimum": smallest}
    if isinstance(largest, int):
        return Kind(
            takes=lambda value, _: is_integer(value) and smallest <= value <= largest,
            allowed=f"an integer in [{smallest}, {largest}]",
            schema=schema | {"maximum": largest},
            text=f"integer, {smallest} to {largest}",
            argument=argument,
        )
    owner = "the server's " if largest.startswith("--") else ""
    return Kind(
        takes=lambda value, upper: is_integer(value) and smallest <= value <= upper,
        allowed=f"an integer in [{smallest}, {{largest}}], the upper end being {owner}{largest}",
        schema=schema,
        text=f"integer, {smallest} to {owner}`{largest}`",
        argument=argument,
        bound=largest,
    )


def boolean() -> Kind:
    """True or false. Neither 0 nor 1 is a boolean."""
    return Kind(
        takes=lambda value, _: isinstance(value, bool),
        allowed="true or false",
        schema={"type": "boolean"},
        text="boolean",
        argument={"action": "store_true", "default": None},
    )


def choice(*names: str) -> Kind:
    """One of a few strings."""
    return Kind(
        takes=lambda value, _: isinstance(value, str) and value in names,
        allowed=" or ".join(f'"{name}"' for name in names),
        schema={"type": "string", "enum": list(names)},
        text=" or ".join(f'`"{name}"`' for name in names),
        argument={},
    )


def token_ids(most: int) -> Kind:
    """A list of token ids."""
    return Kind(
        takes=lambda value, _: (
            isinstance(value, list | tuple)
            and len(value) <= most
            and all(is_integer(one) and 0 <= one < 2**31 for one in value)
        ),
        allowed=f"a list of at most {most} token ids",
        schema={
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "maxItems": most,
        },
        text=f"list of token ids, at most {most}",
        argument={},
    )


def texts(most: int, longest: int) -> Kind:
    """A list of texts that are not empty.

    Args:
        most: how many characters all of them have at most beyond their first ones.
        longest: the most bytes of each, in UTF-8.
    """
    return Kind(
        takes=lambda value, _: (
            isinstance(value, list | tuple)
            and all(isinstance(one, str) and 0 < _bytes(one) <= longest for one in value)
            and len(value) <= 1024
            and sum(len(one) - 1 for one in value) <= most
        ),
        allowed=(
            f"a list of strings of 1 to {longest} bytes in UTF-8, with at most {most} characters "
            "in all beyond their first ones"
        ),
        schema={"type": "array", "items": {"type": "string", "minLength": 1}},
        text=f"list of strings of 1 to {longest} bytes",
        argument={},
    )


def _bytes(text: str) -> int:
    """Bytes in UTF-8; 0 of what cannot be written so."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def is_integer(value: object) -> bool:
    """Whether a value is an integer; a boolean is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False
