"""`stop_regex`: what is found, in which time, and what is refused."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty.fields.table import FieldError
from sglang_lz.bounds import stop_regex

PATTERNS = (
    "a",
    "ab*",
    "(a|aa)+b",
    r"a$",
    r"^a",
    r"[ab]{2,3}c",
    r"\bb\b",
    r"(?i)A",
    r"\s",
    r"a.b",
    "",
    # What Rust's crate reads otherwise.
    r"\<a",
    r"a\>",
    "a{1, 2}",
    r"(?x) a b",
    r"[\[a]b",
    r"(?i:A)b(?-i:c)",
    r"(?si)A.b",
    "(?m)^b$",
    r"[^\sa]",
    r"\S\D\W",
    "(a{0,2}|b+?){2}c",
)


@settings(max_examples=1000, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("abcAB \n\x1d<>{1,2}[", max_size=12))
def test_stop_regex_equals_re(pattern: str, text: str) -> None:
    stop_regex.check(pattern)
    assert stop_regex.found(SimpleNamespace(), pattern, text) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    "patterns",
    [[""] * 33, ["a" * 257], [r"\w{9}", r"\W{8}"], [""] * 10**6, "a" * 10**7],
    ids=["33", "257 characters", "classes", "a million", "ten megabytes"],
)
def test_many_and_large_patterns(patterns: object) -> None:
    with pytest.raises(FieldError, match=r"^stop_regex must be at most 32 patterns"):
        stop_regex.check(patterns)


def test_stop_regex_does_not_backtrack() -> None:
    """Python's `re` would need longer than the universe is old."""
    request = SimpleNamespace()
    for pattern in ("(a|a)+b", "(a*)*b", "(.*)*b", "(a|aa)+$"):
        assert not stop_regex.found(request, pattern, "a" * 20_000 + "c")
    assert len(request.stop_matchers) == 4


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", "a{99999999999}", "(?=a)", r"(a)\1", "(?>a)", "a++", "[a&&b]", r"\w{17}"),
        *("(?a)b", r"a\Z", "\ud800"),
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(FieldError, match=r"^stop_regex must be"):
        stop_regex.check(pattern)
