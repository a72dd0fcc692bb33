"""JSON schemas: nothing that XGrammar allows for them is invalid, or they are refused by name."""

from __future__ import annotations

import contextlib
import enum
import json
import random
import re
from collections import Counter
from functools import cache
from typing import Any, Literal, Optional

import jsonschema
import pydantic
import pytest
import xgrammar
from xgrammar.testing import _is_grammar_accept_string as accepts

from bench.constraints.cases import ANY_JSON, schema_cases
from bench.harm import archives
from sglang_lz.constraints.patterns import as_ebnf
from sglang_lz.constraints.schemas import SchemaCompiler, json_grammar

LETTERS = [*map(chr, range(1, 128)), "é", "\u2028", "\xa0", "</s>"]
END = len(LETTERS) - 1


def grammar(schema: Any, any_whitespace: bool = True) -> xgrammar.Grammar:
    return json_grammar(json.loads(json.dumps(schema)), any_whitespace, None)


# By file of the suite: valid instances that are not written. They are members that a schema does
# not list, instances of another type than the schema's keywords are about, spaces in a `const` or
# `enum`, their members in another order, and integers written as 1.0.
NOT_WRITTEN = {
    "additionalProperties.json": 2,
    "anyOf.json": 1,
    "const.json": 9,
    "enum.json": 5,
    "items.json": 2,
    "prefixItems.json": 3,
    "properties.json": 5,
    "ref.json": 3,
    "required.json": 3,
    "type.json": 1,
    "unevaluatedItems.json": 6,
    "unevaluatedProperties.json": 6,
}


def test_the_json_schema_test_suite() -> None:
    not_written: Counter[str] = Counter()
    served = 0
    for path, content in archives.files("jsonschema").items():
        if not re.fullmatch(r"json/tests/draft2020-12/[^/]*\.json", path):
            continue
        for group in json.loads(content):
            try:
                found = grammar(group["schema"])
            except RuntimeError:
                continue
            served += 1
            for case in group["tests"]:
                is_written = accepts(found, json.dumps(case["data"], ensure_ascii=False))
                assert case["valid"] or not is_written, (group["schema"], case)
                not_written[path.rpartition("/")[2]] += case["valid"] > is_written
    assert served == 113
    assert {name: count for name, count in not_written.items() if count} == NOT_WRITTEN


@pytest.mark.parametrize(
    ("schema", "name", "place"),
    [
        ({"anyOf": [{}], "properties": {}}, "anyOf", "#"),
        ({"type": "integer", "minimum": 5, "anyOf": [{"maximum": 7}]}, "maximum", "#/anyOf/0"),
        ({"allOf": [{"type": "integer"}, {"type": "integer", "minimum": 1}]}, "allOf", "#"),
        ({"$ref": "https://example.com/a"}, "$ref", "#"),
        ({"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, "$ref", "#"),
        ({"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": {"type": "integer"}}}, "$ref", "#"),
        ({"enum": [1, "a"], "type": "string"}, "enum", "#"),
        ({"enum": ["a", "abc"], "minLength": 2}, "enum", "#"),
        ({"const": 1, "type": "string"}, "const", "#"),
        ({"const": 10**30}, "const", "#"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "#"),
        ({"oneOf": [{"type": "null"}, {"items": True}]}, "oneOf", "#"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "required", "#"),
        ({"type": "array", "prefixItems": [{}], "additionalItems": False}, "additionalItems", "#"),
        ({"type": "array", "items": [{}]}, "schema", "#/items"),
        ({"properties": {"a/b": {"minLength": 1}}}, "minLength", "#/properties/a~1b"),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "patternProperties", "#"),
        ({"properties": {"a": {}}, "propertyNames": {"maxLength": 1}}, "propertyNames", "#"),
        ({"type": "object", "propertyNames": {"enum": [1]}}, "propertyNames", "#"),
        ({"type": "object", "additionalProperties": {}, "minProperties": 2}, "minProperties", "#"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern", "#"),
        ({"type": "string", "pattern": "a^b"}, "pattern", "#"),
        ({"type": "string", "pattern": r"a\nb"}, "pattern", "#"),
        ({"type": "string", "format": "json-pointer"}, "format", "#"),
        ({"type": "string", "maxLength": -1}, "maxLength", "#"),
        ({"type": "integer", "minimum": 1.5}, "minimum", "#"),
        ({"type": "number", "minimum": 2**53 + 1}, "minimum", "#"),
        ({"type": "number", "minimum": 1e-9}, "minimum", "#"),
        ({"type": "array", "items": {"$id": "b", "$ref": "#"}}, "$id", "#/items"),
        ({"type": "object", "dependencies": {"a": ["b"]}}, "dependencies", "#"),
        ({"items": {"type": "array", "uniqueItems": True}}, "uniqueItems", "#/items"),
        ({"properties": {"a": False}}, "false", "#/properties/a"),
        ({"type": []}, "type", "#"),
        ({"enum": 5, "type": "object"}, "enum", "#"),
    ],
)
def test_unenforced_keywords_are_refused_by_name(schema: Any, name: str, place: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(name)) as caught:
        grammar(schema)
    assert f"{place}" in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        # XGrammar took the second `title` for the first.
        (
            {"items": {"anyOf": [{"properties": {"title": {"const": n}}} for n in (1, 2)]}},
            ['[{"title": 1}, {"title": 2}]'],
            ['[{"title": 3}]'],
        ),
        ({"type": "string", "maxLength": 1}, ['"a"'], ['"\t"']),
        ({"type": "string", "pattern": r"^[^\s]$"}, ['"a"'], ['"\u00a0"', '"\u3000"']),
        ({"type": "string", "pattern": r"^[A-Z]+(-\d+)?$"}, ['"A-1"'], ['"A1"']),
        ({"type": "string", "format": "email"}, ['"a.b@c.de"'], [r'"\"\q\"@c"']),
        (
            {"properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
            ['{"a": 1, "b": 2}'],
            [r'{"\u0061": 2}', '{"a": 2}'],
        ),
        ({"enum": ["a", None], "type": ["string", "null"]}, ['"a"', "null"], ["1"]),
        ({"type": "object", "anyOf": [{"properties": {}}]}, ["{}"], ["[]"]),
        ({"$ref": "#/$defs/a", "description": "b", "$defs": {"a": {"const": 1}}}, ["1"], ["2"]),
        ({"allOf": [{"type": "null"}], "title": "a"}, ["null"], ["1"]),
        ({"type": "array", "maxItems": 1}, ["[1]", "[]"], ["[1, 2]"]),
        ({"type": "object", "minProperties": 1}, ['{"a": 1}'], ["{}"]),
        ({}, ["1", "[]"], []),
        (True, ["1", "[]"], []),
    ],
)
def test_served_schemas_allow_only_valid_texts(
    schema: Any, valid: list[str], invalid: list[str]
) -> None:
    found = grammar(schema)
    assert all(accepts(found, text) for text in valid)
    assert not any(accepts(found, text) for text in invalid)


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int = pydantic.Field(9, ge=0, le=9)


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    name: Optional[str] = pydantic.Field(None, description="its name", max_length=10)  # noqa: UP045
    parents: list[Dog] = []


class Order(pydantic.BaseModel):
    title: str = pydantic.Field(min_length=1)
    pet: Cat | Dog = pydantic.Field(discriminator="kind")
    colour: Colour = pydantic.Field(description="of the pet")
    counts: dict[str, int]
    share: float = pydantic.Field(gt=0, lt=1)
    pair: tuple[int, str]


@pytest.mark.parametrize("schema", [model.model_json_schema() for model in (Cat, Dog, Order)])
def test_models_of_pydantic_are_served(schema: Any) -> None:
    grammar(schema)


@pytest.mark.parametrize("name", sorted(schema_cases().keys() - {ANY_JSON}))
def test_schemas_of_applications_are_served(name: str) -> None:
    grammar(json.loads(schema_cases()[name][1]))


@cache
def compiler() -> xgrammar.GrammarCompiler:
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(LETTERS, stop_token_ids=[END]))


@pytest.mark.parametrize(
    "text", [b"\xc0\x80", b"\xc0\xa2", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\xa2"]
)
def test_invalid_utf8_is_not_a_string(text: bytes) -> None:
    """They would be shown as several replacement characters, more than `maxLength` allows."""
    bytewise = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(bytewise, vocab_size=256, stop_token_ids=[0])
    bounded: Any = {"type": "string", "maxLength": 3}
    for schema in (bounded, {"type": "string", "pattern": "^.*$"}):
        compiled = xgrammar.GrammarCompiler(info).compile_grammar(grammar(dict(schema)))
        for inner, is_read in ((text, False), ("\u00e9\u4e16".encode(), True)):
            matcher = xgrammar.GrammarMatcher(compiled)
            assert all(map(matcher.accept_token, b'"' + inner + b'"')) is is_read


def written(found: xgrammar.Grammar, rng: random.Random) -> str | None:
    """A random text that a grammar allows; None if it does not end."""
    matcher = xgrammar.GrammarMatcher(compiler().compile_grammar(found))
    mask = xgrammar.allocate_token_bitmask(1, len(LETTERS))
    text = ""
    for step in range(400):
        matcher.fill_next_token_bitmask(mask)
        words = mask[0].tolist()
        allowed = [t for t in range(len(LETTERS)) if words[t // 32] >> t % 32 & 1]
        if END in allowed and rng.random() < 0.5:
            return text
        allowed = [token for token in allowed if token != END]
        closing = [token for token in allowed if LETTERS[token] in '"]},:']
        if not allowed:
            return text if matcher.is_completed() else None
        is_closing = closing and rng.random() < (0.3 if step < 150 else 0.95)
        token = rng.choice(closing if is_closing else allowed)
        matcher.accept_token(token)
        text += LETTERS[token]
    return None


NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "integer": NUMBERS,
    "number": NUMBERS,
    "object": (
        *("properties", "properties", "required", "additionalProperties", "minProperties"),
        *("maxProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
    ),
    "array": ("items", "prefixItems", "minItems", "maxItems", "unevaluatedItems"),
}
OTHERS = ("anyOf", "oneOf", "allOf", "$ref", "enum", "const", "type")
NAMES = ("a", "b", "title", "default", "é")
VALUES = (None, True, 0, 1, -3, 2.5, "", "a", "ab", [], {}, [1], {"a": 1}, {"title": "x"})


def random_schema(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([True, {}, False, *({"type": kind} for kind in OF_TYPE)])
    kinds = rng.choice([*([kind] for kind in OF_TYPE), ["object"], ["string", "null"]])
    own = [keyword for kind in kinds for keyword in OF_TYPE.get(kind, ())]
    schema: dict[str, Any] = {"type": kinds if len(kinds) > 1 else kinds[0]}
    if rng.random() < 0.3:
        schema, own = {}, [*OTHERS]
    for _ in range(rng.randint(1, 3)):
        keyword = rng.choice([*own, *(OTHERS if rng.random() < 0.2 else ())])
        schema[keyword] = random_value(rng, keyword, schema, depth)
    return schema


def random_value(rng: random.Random, keyword: str, schema: Any, depth: int) -> Any:
    def inner() -> Any:
        return random_schema(rng, depth - 1)

    if re.match("m(in|ax)[A-Z]", keyword):
        return rng.randint(0, 3)
    if keyword in NUMBERS:
        return rng.choice([0, 1, 5, -3, 100, 2.5, -0.5, 1e20, 0.1, 123456.789, -7])
    listed = {
        "type": lambda: rng.choice(["string", "integer", ["object", "array"]]),
        "pattern": lambda: rng.choice(["^a", "(a|b)*", r"^\d{2}(-\d+)?$", "[^a]", "^(a*b)?$"]),
        "format": lambda: rng.choice(["date", "email", "uuid", "ipv4", "time"]),
        "enum": lambda: rng.choices(VALUES, k=rng.randint(1, 4)),
        "const": lambda: rng.choice(VALUES),
        "$ref": lambda: rng.choice(["#", "#/$defs/A", "#/$defs/A/properties/a"]),
        "required": lambda: rng.sample([*schema.get("properties", {})] or NAMES, 1),
        "properties": lambda: {name: inner() for name in rng.sample(NAMES, rng.randint(0, 3))},
        "propertyNames": lambda: rng.choice([{"maxLength": 2}, {"pattern": "^[ab]+$"}, inner()]),
        "patternProperties": lambda: {name: inner() for name in rng.sample(["^a", "b+", "."], 1)},
        "prefixItems": lambda: [inner() for _ in range(rng.randint(0, 2))],
        "anyOf": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "oneOf": lambda: [inner() for _ in range(rng.randint(1, 3))],
        "allOf": lambda: [inner() for _ in range(rng.choice([1, 1, 2]))],
    }
    return listed.get(keyword, inner)()


@pytest.mark.parametrize("seed", range(4))
def test_every_text_that_is_written_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    served = 0
    for _ in range(1500):
        schema = random_schema(rng, 3)
        if isinstance(schema, dict):
            schema["$defs"] = {"A": random_schema(rng, 2)}
        try:
            found = grammar(schema, any_whitespace=False)
        except RuntimeError:
            continue
        served += 1
        validator = jsonschema.Draft202012Validator(schema)
        for _ in range(4):
            text = written(found, rng)
            with contextlib.suppress(RecursionError):  # it refers to itself without end
                assert text is None or validator.is_valid(json.loads(text)), (schema, text)
    assert served > 300


@pytest.mark.parametrize("seed", range(2))
def test_patterns_match_as_in_other_engines(seed: int) -> None:
    rng = random.Random(seed)

    def pattern(depth: int) -> str:
        kind = rng.random()
        if depth == 0 or kind < 0.3:
            return rng.choice(["a", "b", "[ab]", "[^a]", r"\d", "."])
        if kind < 0.6:
            return pattern(depth - 1) + pattern(depth - 1)
        if kind < 0.7:
            return f"({pattern(depth - 1)}|{pattern(depth - 1)})"
        repeat = rng.choice(["?", "*", "+", "{2}", "{1,2}", "{0,2}", "{2,}", "??", "*?"])
        return f"({pattern(depth - 1)}){repeat}"

    for _ in range(300):
        regex = pattern(4)
        found = xgrammar.Grammar.from_ebnf(f"root ::= {as_ebnf(regex)}")
        for _ in range(20):
            text = "".join(rng.choices("ab1", k=rng.randint(0, 4)))
            assert accepts(found, text) == bool(re.fullmatch(regex, text)), (regex, text)


class Rules:
    """In the place of XGrammar's compiler: the grammar alone."""

    def compile_structural_tag(self, tag: str) -> xgrammar.Grammar:
        return xgrammar.Grammar.from_structural_tag(tag)


def tagged(schema: Any, style: str = "json", **whitespace: Any) -> xgrammar.Grammar:
    content = {"type": "json_schema", "json_schema": schema, "style": style}
    tag = {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}
    wrapped = {"type": "structural_tag", "format": {"type": "sequence", "elements": [tag]}}
    options = {"any_whitespace": True, "max_whitespace_cnt": None, **whitespace}
    found = SchemaCompiler(Rules(), **options).compile_structural_tag(json.dumps(wrapped))
    assert isinstance(found, xgrammar.Grammar)
    return found


def test_whitespace_options_reach_structural_tags() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = ['<t>{"a": 1}</t>', '<t>{"a":1}</t>', '<t>{ "a"  :   1}</t>']
    for options, allowed in (
        ({}, [True, True, True]),
        ({"any_whitespace": False}, [True, False, False]),
        ({"max_whitespace_cnt": 1}, [True, True, False]),
    ):
        found = tagged(json.loads(json.dumps(schema)), **options)
        assert [accepts(found, text) for text in texts] == allowed


@pytest.mark.parametrize("style", ["json", "qwen_xml"])
def test_schemas_in_structural_tags_are_checked(style: str) -> None:
    value = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    with pytest.raises(RuntimeError, match="uniqueItems"):
        tagged({"type": "object", "properties": {"v": value}}, style)
