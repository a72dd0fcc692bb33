r"""Reads the patterns of JSON schemas.

XGrammar keeps a pattern (`pattern`, `patternProperties`, `propertyNames`) as a regex, which only it
can make an automaton of. The rules that it makes of a regex would do, but they misread several sets
of characters, such as `[\^a]`. So the pattern, which is in the dialect of JavaScript, is translated
to Python's dialect and parsed by Python.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any, TypeAlias

from proper_tokens import python_regex as op

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


_UNWRITTEN = ((0, 31), (34, 34), (92, 92), (0xD800, 0xDFFF))
"""What JSON escapes in a string, which XGrammar does not write for a pattern, and no character."""
_BY_BYTES = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, LAST))
"""Characters with as many bytes in UTF-8. XGrammar lets a range over several of these begin with
bytes that are no character."""
_MOST_WRITTEN = 1 << 13
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_SPACES = (*((5760, 5760), (8192, 8202), (8232, 8233), (8239, 8239), (8287, 8287)), (12288, 12288))
_NO_SPACE = ((0, 32), (0x85, 0x85), (160, 160), *_SPACES, (0xFEFF, 0xFEFF))


def as_ebnf(pattern: str) -> str:
    """The strings that a pattern matches from end to end, as an EBNF expression for XGrammar.

    XGrammar's own reading of a pattern ignores assertions and anchors, takes `(ab+)?` to match `b`,
    and sometimes merges states that differ.

    Raises:
        Unreadable: no expression says the same, or a part only matches what JSON escapes.
        RecursionError: it is nested too deeply.
    """

    def written(tree: Any, first: bool, last: bool) -> str:
        parts = [
            one(kind, value, first and i == 0, last and i == len(tree) - 1)
            for i, (kind, value) in enumerate(tree)
        ]
        return " ".join(filter(None, parts)) or '""'

    def one(kind: Any, value: Any, first: bool, last: bool) -> str:
        if (ranges := characters_of(kind, value)) is not None:
            excluded = [*_UNWRITTEN, *(_LINE_ENDS if kind is op.ANY else ())]
            negated = kind is op.IN and value[0][0] is op.NEGATE
            no_space = op.CATEGORY_SPACE if negated else op.CATEGORY_NOT_SPACE
            if kind is op.IN and (op.CATEGORY, no_space) in value:
                excluded += _NO_SPACE
            kept = [
                (max(begin, low), min(end, high))
                for begin, end in complement([*excluded, *complement(ranges)])
                for low, high in _BY_BYTES
                if begin <= high and low <= end
            ]
            if not kept:
                raise unreadable(pattern, "it needs a character that JSON escapes")
            return "[" + "".join(f"\\U{begin:08x}-\\U{end:08x}" for begin, end in kept) + "]"
        if kind is op.AT and (first if value is op.AT_BEGINNING else last and value is op.AT_END):
            return ""
        if kind is op.BRANCH:
            return "(" + "|".join(written(branch, first, last) for branch in value[1]) + ")"
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return f"({written(value[3], first, last)})"
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, part = value
            return repeated(written(part, False, False), least, most)
        raise unreadable(pattern, f"it has {kind}, which is not covered".lower())

    def repeated(part: str, least: int, most: Any) -> str:
        is_set = part.startswith("[") and part.endswith("]") and "[" not in part[1:]
        if is_set and most is not op.MAXREPEAT:  # XGrammar miscounts repeats inside others
            return f"({part}{{{least},{most}}})"
        copies = least + (1 if most is op.MAXREPEAT else most - least)
        if copies * len(part) > _MOST_WRITTEN:
            raise unreadable(pattern, f"it is longer than {_MOST_WRITTEN} with repeats written out")
        end = f" ({part})*" if most is op.MAXREPEAT else ""
        for _ in range(0 if end else most - least):
            end = f" (({part}){end})?"
        return "(" + f"({part}) " * least + (end or '""') + ")"

    return f"({written(tree_of(pattern), True, True)})"


def unreadable(pattern: str, why: str) -> Unreadable:
    """The error for a pattern that cannot be read."""
    return Unreadable(f"its pattern {pattern[:60]!r} cannot be read: {why}")
