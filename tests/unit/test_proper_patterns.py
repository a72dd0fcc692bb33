"""The patterns of JSON schemas: the texts that XGrammar allows, or a reason."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
import xgrammar

from ebnf import schema_rules
from proper_tokens.language import Language, language_of
from proper_tokens.rules import Rules
from proper_tokens.tokenizer import Unsupported

PIECES = [
    *("a", "b", "1", ".", "-", "/", "é", '"', "]", ",", "(?:)"),
    *("[ab]", "[^a]", "[a-z1]", "[^/]", "[é-ü]", "[.]", '[^"]', "[a-]"),
    *(r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", r"[\s\S]", r"[^\d]", r"[\w-]", r"[\\a]"),
    *(r"\.", r"\/", r"\-", r"\n", r"\t", r"\u0061", r"\x62", r"\u{62}", r"\cA", r"\0", r"\z"),
    *(r"[\^a]", r"[\u005e]", r"[^\^]", r"[\u00c0-\u00ffa]", r"[\x00-\x1fa-b]", r"[^\x00-\x1f1]"),
    *(
        r"[\w-z]",
        r"[\w-.]",
        r"[\s-]",
        r"[\u{e9}1]",
        r"[\b/]",
        r"[(?<]",
        r"[{1}]",
        r"[[-]",
        r"[a-b]",
    ),
]
REPEATS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0}", "{2,}", "{1,2}?", "{,2}"]
TEXTS = [
    "".join(letters)
    for size in range(4)
    for letters in itertools.product('ab1 "\\é\n/-.', repeat=size)
]
COMPILER = xgrammar.GrammarCompiler(
    xgrammar.TokenizerInfo([bytes([i]) for i in range(1, 256)] + [b"</s>"], stop_token_ids=[255]),
    max_threads=1,
    cache_enabled=False,
)


class Allowed:
    """The texts that our engine allows."""

    def __init__(self, schema: Any) -> None:
        self._language: Language | None = None
        try:
            self._language = language_of(Rules(schema_rules(schema)))
        except Unsupported as error:
            if str(error) != "it allows no text":
                raise

    def __contains__(self, text: str) -> bool:
        if self._language is None:
            return False
        state = 0
        for character in text:
            state = self._language.table[state, self._language.classes[ord(character)]]
            if state < 0:
                return False
        return bool(self._language.accepts[state])


class AllowedByXGrammar:
    """The texts that XGrammar allows."""

    def __init__(self, schema: Any) -> None:
        self._matcher = xgrammar.GrammarMatcher(COMPILER.compile_json_schema(json.dumps(schema)))

    def __contains__(self, text: str) -> bool:
        self._matcher.reset()
        accepts = self._matcher.accept_token
        return all(accepts(byte - 1) for byte in text.encode()) and bool(accepts(255))


def pattern(rng: random.Random, depth: int = 3) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.35:
        return rng.choice(PIECES)
    if kind < 0.6:
        return pattern(rng, depth - 1) + pattern(rng, depth - 1)
    first = rng.choice(["(", "(?:"]) + pattern(rng, depth - 1)
    if kind < 0.75:
        return f"{first}|{pattern(rng, depth - 1)})"
    return f"{first}){rng.choice(REPEATS)}"


@pytest.mark.parametrize("seed", range(6))
def test_exactly_the_matches_are_allowed(seed: int) -> None:
    """The whole string must match, and none of its characters may need an escape."""
    rng = random.Random(seed)
    served = allowed = 0
    while served < 20:
        regex = pattern(rng)
        schema = {"type": "string", "pattern": rng.choice([regex, f"^{regex}$"])}
        try:
            rules = xgrammar.Grammar.from_json_schema(json.dumps(schema))
        except RuntimeError:  # XGrammar itself cannot read it
            continue
        if "Regex(" not in str(rules):  # XGrammar makes rules of it
            continue
        served += 1
        ours, theirs = Allowed(schema), AllowedByXGrammar(schema)
        has_error = re.search(r"\)(\?|\*|\+\?|\{0|\{1,2\}|\{,)", regex)  # see the next test
        for text in TEXTS:
            is_allowed = f'"{text}"' in ours
            is_theirs = f'"{text}"' in theirs
            assert is_theirs or not is_allowed, (schema, text)
            assert is_allowed or not is_theirs or has_error, (schema, text)
            allowed += is_allowed
    assert allowed > 100


def test_an_optional_group_is_all_or_nothing() -> None:
    """XGrammar allows "b" here."""
    allowed = Allowed({"type": "string", "pattern": "^(b*a)?$"})
    assert all(f'"{text}"' in allowed for text in ("", "a", "bba"))
    assert not any(f'"{text}"' in allowed for text in ("b", "bb", "ab"))


def test_patterns_of_properties() -> None:
    keys = ["", "a", "x-", "x-y", "ab", 'x"', "ä"]
    texts = ["{}", *(f'{{"{key}": {value}}}' for key in keys for value in ("1", '"b"', "null"))]
    for schema in (
        {
            "type": "object",
            "patternProperties": {"^x-$": {"type": "integer"}, "a": {"type": "null"}},
        },
        {
            "type": "object",
            "propertyNames": {"pattern": "^[^b]b?$"},
            "additionalProperties": {"type": "string", "pattern": "^(?<n>[ab])$"},
        },
    ):
        ours, theirs = Allowed(schema), AllowedByXGrammar(schema)
        found = [text for text in texts if text in ours]
        assert found == [text for text in texts if text in theirs]
        assert len(found) > 1


def test_a_pattern_may_occur_twice() -> None:
    part = {"type": "string", "pattern": "^[ab]{1,2}$"}
    schema = {
        "type": "object",
        "properties": {"p": part, "q": part},
        "required": ["p", "q"],
        "additionalProperties": False,
    }
    allowed = Allowed(schema)
    found = [
        (a, b)
        for a in ("a", "ab", "")
        for b in ("b", "ba", "c")
        if f'{{"p": "{a}", "q": "{b}"}}' in allowed
    ]
    assert found == [("a", "b"), ("a", "ba"), ("ab", "b"), ("ab", "ba")]


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("^(?=a)b$", "its pattern has assert, which is not covered"),
        ("^(?!a)b$", "its pattern has assert_not"),
        ("(?i)ab", "its pattern .* cannot be read: flags are not covered"),
        ("a++", "its pattern has possessive_repeat"),
        ("a**", "its pattern .* cannot be read: multiple repeat"),
        ("a{2, 3}", "its pattern .* cannot be read: a brace is no repetition"),
        ("(" * 5000 + "a" + ")" * 5000, "nested too deeply"),
        ("(?:){1000000000}", "it needs more than"),
        ("([ab]{0,100}){0,300}", "it needs more than"),
    ],
    ids=lambda value: value if len(value) < 40 else "deep",
)
def test_patterns_that_are_refused(regex: str, reason: str) -> None:
    """XGrammar serves these."""
    with pytest.raises(Unsupported, match=reason):
        language_of(Rules(schema_rules({"type": "string", "pattern": regex})))
