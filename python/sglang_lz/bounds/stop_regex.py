"""`stop_regex` in time linear in the length of the text.

Upstream searches with Python's `re`, which backtracks, after every token and on the scheduler's
thread: `(a|a)+b` on a line of forty "a" blocks all requests for hours. Here the engine is Rust's
crate `regex`, which comes with pydantic and never backtracks. It reads some patterns otherwise than
Python (`\\<`, `a{1, 2}`), so it gets what Python's parser made of a pattern, written anew. It does
not support look-around, backreferences or atomic groups, so patterns with these are rejected. What
counts as a word character, and as the same letter in another case, is the crate's.
"""

from __future__ import annotations

import re
import re._parser as op  # private; see tests/unit/test_python_regex.py
import warnings
from collections.abc import Iterable
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from lz_penalty.fields.table import FieldError, shown

FIELD = "stop_regex"
MOST = 32
LARGEST = 256
"""The largest total weight of a request's patterns: the weight bounds their memory and time."""
_WEIGHTS = MappingProxyType({op.CATEGORY_WORD: 16, op.CATEGORY_NOT_WORD: 16})
"""Weights of classes with hundreds of character ranges; other characters and classes weigh 1."""
_WRITTEN = MappingProxyType(
    {
        **{"CATEGORY_DIGIT": r"\d", "CATEGORY_NOT_DIGIT": r"\D"},
        # Python's spaces have four more characters.
        **{"CATEGORY_SPACE": r"\s\x1c-\x1f", "CATEGORY_NOT_SPACE": r"[^\s\x1c-\x1f]"},
        **{"CATEGORY_WORD": r"\w", "CATEGORY_NOT_WORD": r"\W"},
        **{"AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_END": "$"},
        **{"AT_BOUNDARY": r"\b", "AT_NON_BOUNDARY": r"\B"},
    }
)
_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))
MOST_TOKENS = 4096
"""How many of the newest tokens are searched for a pattern whose matches have no maximum length."""


def check(patterns: object) -> None:
    """Reject patterns that cannot be searched for, or not quickly.

    Args:
        patterns: the field's value: a string, or a list of strings. Upstream rejects other types.

    Raises:
        FieldError: a pattern is invalid, or the patterns are too many or too large in total.
    """
    listed = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(listed, list | tuple):
        return
    listed = [pattern for pattern in listed if isinstance(pattern, str)]
    if len(listed) > MOST or sum(map(len, listed)) > LARGEST:
        weight = LARGEST + 1
    else:
        weight = sum(map(_checked, listed))
    if weight > LARGEST:
        raise FieldError(
            FIELD,
            f"{FIELD} must be at most {MOST} patterns of at most {LARGEST} characters in all, "
            f"their counted repeats written out and \\w counted as 16, got {shown(patterns)}.",
        )


@lru_cache(maxsize=1024)
def _checked(pattern: str) -> int:
    """The weight of a pattern; FieldError if it is invalid."""
    try:
        with warnings.catch_warnings():
            # Rust interprets some sets differently, such as "[a&&b]"; Python warns about those.
            warnings.simplefilter("error", FutureWarning)
            weight = _weight(op.parse(pattern))
            if weight <= LARGEST:
                _compile(pattern)
    except (re.error, OverflowError, RecursionError, FutureWarning) as error:
        raise _wrong(pattern, str(error)) from None
    except SchemaError as error:
        raise _wrong(pattern, str(error).rpartition("error: ")[2].strip()) from None
    return weight


def found(request: Any, pattern: str, text: str) -> bool:
    """Whether a pattern of a request matches somewhere in a text (upstream's hook).

    Args:
        request: upstream's `Req`, which caches the compiled patterns for its lifetime.
        pattern: one that `check` accepted.
        text: the newest text of the output.
    """
    matchers: dict[str, SchemaValidator] = vars(request).setdefault("stop_matchers", {})
    if pattern not in matchers:
        matchers[pattern] = _compile(pattern)
    # Python's "$" also matches before a trailing newline.
    texts = (text, text[:-1]) if text.endswith("\n") else (text,)
    return any(map(matchers[pattern].isinstance_python, texts))


@lru_cache(maxsize=64)
def _compile(pattern: str) -> SchemaValidator:
    parsed = op.parse(pattern)
    written = _written(parsed, parsed.state.flags, 0)
    return SchemaValidator(core_schema.str_schema(pattern=written, regex_engine="rust-regex"))


def _written(parts: Iterable[tuple[Any, Any]], on: int, off: int) -> str:
    """A parsed pattern as Rust's crate reads it, with flags turned on and off in it."""
    if (on | off) & (re.ASCII | re.LOCALE):
        raise re.error("the flags a and L are not supported")
    flags, without = ("".join(name for bit, name in _FLAGS if bit & of) for of in (on, off))
    flags += without and f"-{without}"
    return f"(?{flags}:{''.join(_part(kind, value) for kind, value in parts)})"


def _part(kind: Any, value: Any) -> str:
    if kind is op.LITERAL:
        return rf"\x{{{value:x}}}"
    if kind is op.NOT_LITERAL:
        return rf"[^\x{{{value:x}}}]"
    if kind is op.RANGE:
        return "-".join(_part(op.LITERAL, end) for end in value)
    if kind is op.ANY:
        return "."
    if kind is op.NEGATE:
        return "^"
    if kind is op.IN:
        return f"[{''.join(_part(*one) for one in value)}]"
    if kind in (op.AT, op.CATEGORY) and repr(value) in _WRITTEN:
        return _WRITTEN[repr(value)]
    if kind is op.BRANCH:
        return f"(?:{'|'.join(_written(one, 0, 0) for one in value[1])})"
    if kind is op.SUBPATTERN:
        return _written(value[3], value[1], value[2])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        least, most, repeated = value
        return f"{_written(repeated, 0, 0)}{{{least},{'' if most is op.MAXREPEAT else most}}}"
    raise re.error("look-around, backreferences, possessive repeats and the like are not supported")


def _weight(parts: Iterable[tuple[Any, Any]]) -> int:
    """The weight of a parsed pattern: its number of characters with all repeats expanded."""
    total = 0
    for kind, value in parts:
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, repeated = value
            total += (max(least, 1) if most is op.MAXREPEAT else most) * _weight(repeated)
        elif kind is op.BRANCH:
            total += sum(map(_weight, value[1]))
        elif kind is op.SUBPATTERN:
            total += _weight(value[3])
        elif kind is op.IN:
            total += max(_WEIGHTS.get(one, 1) for _, one in value)
        else:
            total += 1
    return total


def _wrong(pattern: str, why: str) -> FieldError:
    return FieldError(
        FIELD,
        f"{FIELD} must be a regular expression of both Python and Rust's crate regex (no "
        f"look-around, no backreferences), got {shown(pattern)}: {why}.",
    )
