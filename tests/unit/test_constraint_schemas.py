"""The schemas that are measured: what they allow, and that our engine serves them."""

from __future__ import annotations

import json
from functools import cache

import jsonschema
import pytest
from tokenizers import Tokenizer

from bench.constraints.cases import ANY_JSON, RECURSIVE, schema_cases, schemas, texts
from ebnf import schema_rules
from proper_sequences import accepts, prepared_of, tokenizer_json
from sglang_lz.proper.language import Language, Rules, language_of
from sglang_lz.proper.product import Product

TOKENIZER = "qwen2"


@cache
def language(name: str) -> Language:
    kind, schema = schema_cases()[name]
    assert kind == "json"
    return language_of(Rules(schema_rules(json.loads(schema))))


@pytest.mark.parametrize("name", schemas())
def test_the_examples_are_valid(name: str) -> None:
    content = schemas()[name]
    jsonschema.Draft202012Validator.check_schema(content["schema"])
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(content["schema"], format_checker=checker)
    assert len(content["examples"]) in (2, 3)
    for document in content["examples"]:
        validator.validate(document)


USUAL = {ANY_JSON, RECURSIVE, "chat_request", "geocoding_result"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL else pytest.mark.full)
        for name in schema_cases()
    ],
)
def test_the_texts_are_accepted(name: str) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json(TOKENIZER))
    product = Product(prepared_of(TOKENIZER), language(name))
    for text in texts(name)[:4]:
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        assert accepts(product, tokens), text
        assert not accepts(product, tokens[:-1])
