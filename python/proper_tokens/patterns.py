r"""Reads the patterns of JSON schemas.

XGrammar keeps a pattern (`pattern`, `patternProperties`, `propertyNames`) as a regex, which only it
can make an automaton of. The rules that it makes of a regex would do, but they misread several sets
of characters, such as `[\^a]`. So the pattern, which is in the dialect of JavaScript, is translated
to Python's dialect and parsed by Python.
"""

from __future__ import annotations

import re
import re._parser as op  # private; see tests/unit/test_python_regex.py
import warnings
from collections.abc import Iterable
from typing import Any, TypeAlias

LAST = 0x10FFFF
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of code points as inclusive ranges."""


class Unreadable(ValueError):
    """A pattern that is invalid or not covered; the message says why."""


_DIGIT = ((48, 57),)
_SPACE = ((9, 13), (32, 32))
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All code points except those in some ranges."""
    found, first = [], 0
    for begin, end in sorted(ranges):
        if first < begin:
            found.append((first, begin - 1))
        first = max(first, end + 1)
    if first <= LAST:
        found.append((first, LAST))
    return tuple(found)


_CATEGORIES = {
    op.CATEGORY_DIGIT: _DIGIT,
    op.CATEGORY_NOT_DIGIT: complement(_DIGIT),
    op.CATEGORY_SPACE: _SPACE,
    op.CATEGORY_NOT_SPACE: complement(_SPACE),
    op.CATEGORY_WORD: _WORD,
    op.CATEGORY_NOT_WORD: complement(_WORD),
}
_PART = re.compile(
    r"""
    \\ (?: u\{ (?P<code> [0-9A-Fa-f]{1,6} ) \}
         | (?P<same> u[0-9A-Fa-f]{4} | x[0-9A-Fa-f]{2} | [nrtvfBkpP1-9] )
         | (?P<kind> [dDwWsS] ) (?P<minus> -(?!\]) )?
         | c (?P<control> [A-Za-z] )
         | (?P<letter> . ) )
    | (?P<name> \(\? < (?![=!]) [^>]* > )
    | (?P<repeat> \{ [0-9]+ (?: , [0-9]* )? \} )
    | (?P<open> \[ \^? )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


def tree_of(pattern: str) -> Any:
    """Python's tree of a pattern.

    Raises:
        Unreadable: it cannot be read, or has flags.
        RecursionError: it is nested too deeply.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets of sets, which later versions may read
            tree = op.parse(_in_python(pattern), re.ASCII)
    except (re.error, OverflowError) as error:
        raise unreadable(pattern, str(error)) from error
    if tree.state.flags != re.ASCII:
        raise unreadable(pattern, "flags are not covered")
    return tree


def _in_python(pattern: str) -> str:
    """A pattern in Python's dialect.

    Raises:
        Unreadable: it has a brace that is no repetition.
    """
    parts = []
    is_in_set = False
    at = 0
    while at < len(pattern):
        part = _PART.match(pattern, at)
        assert part is not None
        found = part.group()
        if is_in_set and (part["name"] or part["repeat"] or part["open"]):
            found = found[0]
        at += len(found)
        if part["code"]:
            code = int(part["code"], 16)
            if code > LAST:
                raise unreadable(pattern, f"no character is {found}")
            found = re.escape(chr(code))
        elif part["kind"] and part["minus"] and is_in_set:
            found = f"\\{part['kind']}\\-"  # beside such a class, a minus is itself
        elif part["control"]:
            found = re.escape(chr(ord(part["control"]) & 31))
        elif part["letter"] and (part["letter"] != "b" or is_in_set):
            letter = part["letter"]
            found = re.escape({"b": "\b", "0": "\0"}.get(letter, letter))
        elif is_in_set:
            is_in_set = found != "]"
        elif part["name"]:
            found = "("
        elif part["open"]:
            is_in_set = True
        elif found == "{":
            raise unreadable(pattern, "a brace is no repetition")
        parts.append(found)
    return "".join(parts)


def characters_of(kind: Any, value: Any) -> Ranges | None:
    """The characters of a part of a tree; None if it is not a set of characters."""
    if kind is op.ANY:
        return ((0, LAST),)
    if kind is op.LITERAL:
        return ((value, value),)
    if kind is op.NOT_LITERAL:
        return complement(((value, value),))
    if kind is not op.IN:
        return None
    found: list[tuple[int, int]] = []
    for item, content in value:
        if item is op.LITERAL:
            found.append((content, content))
        elif item is op.RANGE:
            found.append(content)
        elif item is op.CATEGORY:
            found += _CATEGORIES[content]
    outside = complement(found)
    return outside if value[0][0] is op.NEGATE else complement(outside)


def unreadable(pattern: str, why: str) -> Unreadable:
    """The error for a pattern that cannot be read."""
    return Unreadable(f"its pattern {pattern[:60]!r} cannot be read: {why}")
