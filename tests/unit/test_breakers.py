"""What the texts of tokens say: DRY's sequence breakers as tables, and which are numbers."""

from __future__ import annotations

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lz_penalty import breakers
from lz_penalty.breakers import Vocabulary, tables_of
from lz_penalty.fields.histories import MOST_TAILS
from lz_penalty.history import LONGEST_TAIL
from lz_penalty.numbers import number_tokens

# Texts of one alphabet, so that they overlap; tokens may be any bytes, half of characters too.
texts = st.text("ab:é漢", min_size=1, max_size=8)
tokens = st.one_of(texts.map(str.encode), st.binary(max_size=3))


def encode(text: str) -> list[int]:
    """Several texts may have the same tokens, and long ones have more than are kept."""
    return [ord(character) % 7 for character in text] * 4


def defined(given_breakers: list[str], words: list[bytes], vocab_size: int):
    """The tables, token by token (docs/PENALTIES.md)."""
    mask = np.zeros(vocab_size, dtype=np.int64)
    tails: list[list[int]] = []
    for breaker in dict.fromkeys(given_breakers):
        for size in range(1, len(breaker)):
            heads = [
                token
                for token, word in enumerate(words)
                if word.endswith(breaker[:size].encode()) and breaker.encode() not in word
            ]
            if heads:
                tail = encode(breaker[size:])[:LONGEST_TAIL]
                if tail not in tails:
                    tails.append(tail)
                mask[heads] |= np.int64(2 << tails.index(tail))
        mask[[token for token, word in enumerate(words) if breaker.encode() in word]] |= 1
    table = np.zeros((MOST_TAILS, 1 + LONGEST_TAIL), dtype=np.int32)
    for s, tail in enumerate(tails):
        table[s, : 1 + len(tail)] = len(tail), *tail
    return mask, table


@settings(max_examples=200, deadline=None)
@given(given_breakers=st.lists(texts, max_size=8), words=st.lists(tokens, max_size=30))
def test_tables_are_as_defined(given_breakers: list[str], words: list[bytes]) -> None:
    got = tables_of(given_breakers, Vocabulary(words), encode, 40)
    for table, expected in zip(got, defined(given_breakers, words, 40), strict=True):
        np.testing.assert_array_equal(table, expected)


def test_many_breakers_visit_each_place_once() -> None:
    """The places that are looked at are no more than the texts have bytes, however many breakers
    there are: 1,024 of them took a search of all texts each."""
    rng = random.Random(0)
    letters = [chr(code) for code in range(0x4E00, 0x4E00 + 2000)]
    words = ["".join(rng.choices(letters, k=rng.randint(1, 4))).encode() for _ in range(5000)]
    vocabulary = Vocabulary(words)
    found: list[int] = []
    find = Vocabulary._find

    def watched(self: Vocabulary, text: bytes):
        places = find(self, text)
        found.append(len(places))
        return places

    with mock.patch.object(breakers.Vocabulary, "_find", watched):
        tables_of(letters[:1024], vocabulary, encode, len(words))
    assert len(found) == 1024
    assert sum(found) <= sum(map(len, words))


def test_numbers_are_decimal_digits_between_white_space(caplog: pytest.LogCaptureFixture) -> None:
    texts = ["7", " 12\n", "\uff11\uff12", "\u0663", "1a", "1,5", "\u00b2", "\u2167", "-1", "", " "]
    tokenizer = mock.Mock(decode=lambda ids: texts[ids[0]])  # the other ids have no text
    assert number_tokens(tokenizer, 4096).nonzero()[0].tolist() == [0, 1, 2, 3]
    assert not number_tokens(object(), 4).any()
    assert "no token counts as a number" in caplog.text
    assert not number_tokens(None, 4).any()
