"""Tokens that `ignore_merges` gives to whole pre-tokens only, as Llama 3 has them.

The oracle is the `tokenizers` library, as in `test_proper_tokens`.
"""

from __future__ import annotations

import itertools
import json
import random
from functools import cache

import pytest
from tokenizers import Tokenizer

from ebnf import rules_json
from proper_sequences import (
    ALPHABET,
    accepts,
    encodings,
    sequences,
    tokenizer_json,
)
from sglang_lz.proper import merges
from sglang_lz.proper.language import ANY_TEXT, Rules, language_of
from sglang_lz.proper.prepared import Prepared, prepared_arrays
from sglang_lz.proper.product import Product
from sglang_lz.proper.tokenizer import byte_characters

WHOLE = ("aab", "aaba", " ab", "  a", " ba", "...", ".b", "1a", "11", "a\u65e5", " \u65e5\u672c")
WHOLE += (" \u00e9a", "\u00e9", "'ab", "\n\n", "bab", "abab", " abab", "a'", "d\u200d")
WHOLE += ("\u8a9e", "a\u8a9e", " \u8a9e\u672c", "\u8a9e\u8a9e")  # of several tokens a character


@cache
def text_of_tokenizer() -> str:
    """A tokenizer of Llama 3's kind, with whole tokens."""
    content = json.loads(tokenizer_json("llama3"))
    vocab = content["model"]["vocab"]
    letter = {byte: character for character, byte in byte_characters().items()}
    for text in WHOLE:
        vocab.setdefault("".join(letter[byte] for byte in text.encode()), len(vocab))
    # The library numbers added tokens after the vocabulary.
    behind = [token for token in content["added_tokens"] if token["content"] not in vocab]
    for number, token in enumerate(behind, len(vocab)):
        token["id"] = number
    assert content["model"]["ignore_merges"]
    return json.dumps(content)


@cache
def prepared() -> Prepared:
    return Prepared(prepared_arrays(text_of_tokenizer()))


def test_there_are_such_tokens() -> None:
    made = prepared().tables.relation.made
    assert (made == merges.WHOLE).sum() >= 10


@pytest.mark.parametrize(
    ("characters", "longest"),
    [("ab ", 6), ("ab'.", 5), ("a\u65e5\u672c ", 5), ("1a\n\u00e9 ", 4), ("a\u8a9e\u672c ", 4)],
)
def test_exactly_the_encodings_are_accepted(characters: str, longest: int) -> None:
    """Both ways, on every text of a finite language; no walk ends dead."""
    strings = [
        "".join(text)
        for n in range(longest + 1)
        for text in itertools.product(characters, repeat=n)
    ]
    letters = "".join(f"\\u{ord(letter):04x}" for letter in characters)
    rules = f"root ::= (([{letters}]{{0, {longest}}}))"
    product = Product(prepared(), language_of(Rules(rules_json(rules))))
    wanted = encodings(Tokenizer.from_str(text_of_tokenizer()), strings)
    whole = {i for i, rank in enumerate(prepared().tables.relation.made) if rank == merges.WHOLE}
    assert any(whole & set(encoding) for encoding in wanted)
    assert set(sequences(product)) == wanted


@pytest.mark.parametrize("text", WHOLE)
def test_a_language_of_one_text(text: str) -> None:
    """It has one proper sequence, also where no other token may spell the text."""
    content = "".join(f"\\u{ord(letter):04x}" for letter in text)
    product = Product(prepared(), language_of(Rules(rules_json(f'root ::= (("{content}"))'))))
    tokenizer = Tokenizer.from_str(text_of_tokenizer())
    assert product.can_end()
    assert set(sequences(product)) == encodings(tokenizer, [text])


def test_any_text() -> None:
    """Random texts, and sequences similar to their encodings, are accepted iff they are proper."""
    rng = random.Random("whole tokens")
    tokenizer = Tokenizer.from_str(text_of_tokenizer())
    product = Product(prepared(), language_of(Rules(ANY_TEXT)))
    pieces = (*WHOLE, *WHOLE, *ALPHABET, "a", "b", " ", " a")
    strings = ["".join(rng.choices(pieces, k=rng.randint(1, 6))) for _ in range(3000)]
    right = [one.ids for one in tokenizer.encode_batch(strings, add_special_tokens=False)]
    checked = []
    for tokens in right:
        near = list(tokens)
        at = rng.randrange(len(near))
        spelt = tokenizer.id_to_token(near[at])
        cut = rng.randrange(len(spelt)) if len(spelt) > 1 else 0
        parts = [tokenizer.token_to_id(part) for part in (spelt[:cut], spelt[cut:]) if part]
        if rng.random() < 0.6 and None not in parts:
            near[at : at + 1] = parts
        else:
            near.insert(at, rng.choice(rng.choice(right)))
        checked += [tokens, near]
    decoded = tokenizer.decode_batch(checked, skip_special_tokens=False)
    again = tokenizer.encode_batch(decoded, add_special_tokens=False)
    for tokens, text, one in zip(checked, decoded, again, strict=True):
        assert accepts(product, tokens) == (one.ids == tokens and "\ufffd" not in text), tokens
