"""Writes the patterns of JSON schemas as EBNF.

XGrammar's own reading of a pattern ignores assertions and anchors, takes `(ab+)?` to match `b`, and
sometimes merges states that differ.
"""

from __future__ import annotations

import re._parser as op  # private; see tests/unit/test_python_regex.py
from typing import Any

from proper_tokens.patterns import LAST, characters_of, complement, tree_of, unreadable

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
