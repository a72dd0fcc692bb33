"""Tokenizers that are trained here, and what their products accept: helpers of tests."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from tokenizers import Tokenizer

from bench.constraints.vocabularies import SPECIAL, train
from ebnf import rules_json
from proper_tokens import prepared
from proper_tokens.language import language_of
from proper_tokens.product import START, Product
from proper_tokens.rules import Rules
from sglang_lz.demo import MODEL_PATH

ALPHABET = "abcdeéABC 019 \n\t\r.,'\"-s日本ت\u0301\u0323한각가क\u093e\u200d🏴'"


@cache
def texts() -> list[str]:
    """Text of several scripts, with much of what pre-tokenizers tell apart."""
    rng = random.Random(7)
    corpus = json.loads((MODEL_PATH / "tokenizer.json").read_text())["model"]["vocab"]
    words = [word.replace("\u0120", " ") for word in corpus if word.isascii()]
    return [
        "".join(
            rng.choice(words) if rng.random() < 0.7 else rng.choice(ALPHABET) * rng.randint(1, 3)
            for _ in range(200)
        )
        for _ in range(400)
    ]


@cache
def tokenizer_json(name: str, size: int = 2048) -> str:
    """A tokenizer trained here with a published pre-tokenizer."""
    return train(name, size, iter(texts()))


@cache
def prepared_of(name: str) -> prepared.Prepared:
    return prepared.Prepared(prepared.prepared_arrays(tokenizer_json(name)))


def product_of(name: str, rules: str) -> Product:
    return Product(prepared_of(name), language_of(Rules(rules_json(rules))))


def allowed(product: Product, state: Any) -> list[int]:
    return product.allowed(state).tolist()


def encodings(tokenizer: Tokenizer, strings: list[str]) -> set[tuple[int, ...]]:
    """The sequences that the tokenizer makes of strings and that spell them."""
    found = tokenizer.encode_batch(strings, add_special_tokens=False)
    decoded = tokenizer.decode_batch([one.ids for one in found], skip_special_tokens=False)
    return {
        tuple(one.ids)
        for one, text, string in zip(found, decoded, strings, strict=True)
        if text == string and not any(special in string for special in SPECIAL)
    }


def accepts(product: Product, tokens: list[int]) -> bool:
    state = START
    for token in tokens:
        is_in_mask = token in allowed(product, state)
        after = product.next(state, token)
        if after is None:
            assert not is_in_mask
            return False
        if not is_in_mask:
            return False
        state = after
    return product.may_end(state)


def assert_accepted_iff_proper(
    product: Product,
    tokenizer: Tokenizer,
    strings: list[str],
    change: Callable[[list[int], list[list[int]]], None],
    special: frozenset[int] = frozenset(),
) -> None:
    """Encodings of texts, and sequences near them, are accepted iff the tokenizer makes them.

    Args:
        product: of the language of all texts.
        tokenizer: the oracle.
        strings: the texts.
        change: makes an encoding another sequence, in place; also gets all encodings.
        special: tokens that no text has.
    """
    right = [one.ids for one in tokenizer.encode_batch(strings, add_special_tokens=False)]
    checked = []
    for tokens in right:
        near = list(tokens)
        change(near, right)
        checked += [tokens, near]
    decoded = tokenizer.decode_batch(checked, skip_special_tokens=False)
    again = tokenizer.encode_batch(decoded, add_special_tokens=False)
    proper = 0
    for tokens, text, one in zip(checked, decoded, again, strict=True):
        is_proper = one.ids == tokens and "\ufffd" not in text and special.isdisjoint(tokens)
        assert accepts(product, tokens) == is_proper, (tokens, text)
        proper += is_proper
    assert len(checked) // 3 < proper < len(checked) * 9 // 10


def sequences(product: Product) -> Iterator[tuple[int, ...]]:
    """All that a product of a finite language accepts; no walk may end dead."""
    stack: list[tuple[Any, tuple[int, ...]]] = [(START, ())]
    while stack:
        state, before = stack.pop()
        tokens = allowed(product, state)
        assert tokens or product.may_end(state), f"dead end behind {before}"
        if product.may_end(state):
            yield before
        for token in tokens:
            after = product.next(state, token)
            assert after is not None
            stack.append((after, (*before, token)))


def some(characters: str, most: int) -> list[str]:
    return [
        "".join(text) for n in range(most + 1) for text in itertools.product(characters, repeat=n)
    ]


def assert_walks_end(
    product: Product,
    tokenizer: Tokenizer,
    encode: Callable[[list[str]], set[tuple[int, ...]]],
    ends: list[str],
    rng: random.Random,
) -> None:
    """Walk at random; each walk must be the beginning of an encoding of the product's language.

    Args:
        product: of a language that is walked.
        tokenizer: decodes the walks.
        encode: the proper sequences of some texts.
        ends: texts, one of which ends each walk.
        rng: chooses the tokens.
    """
    for _ in range(30):
        walked: list[int] = []
        state, text = START, "\ufffd"
        while len(walked) < 4 or "\ufffd" in text:
            tokens = allowed(product, state)
            if not tokens:
                break
            walked.append(rng.choice(tokens))
            after = product.next(state, walked[-1])
            assert after is not None
            state, text = after, tokenizer.decode(walked, skip_special_tokens=False)
        further = [""] if product.may_end(state) else ends
        goes_on = encode([text + one for one in further])
        assert any(list(one[: len(walked)]) == walked for one in goes_on), walked
