"""Tokenizers made of ranks, against the definition of what ranks do."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping

from tokenizers import Tokenizer

from bench.published import byte_level


def by_ranks(word: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """A word that is a token stays whole; otherwise the pair of lowest rank merges, repeatedly."""
    if word in ranks:
        return [ranks[word]]
    parts = [bytes([byte]) for byte in word]
    while True:
        joins = [ranks.get(a + b, len(ranks)) for a, b in itertools.pairwise(parts)]
        rank = min(joins, default=len(ranks))
        if rank == len(ranks):
            return [ranks[part] for part in parts]
        i = joins.index(rank)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def some_ranks(rng: random.Random) -> dict[bytes, int]:
    """All bytes, and some words of which merges reach a part."""
    words = sorted({"".join(rng.choices("abcd", k=rng.randint(2, 6))) for _ in range(150)})
    rng.shuffle(words)
    tokens = [*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]
    return {token: rank for rank, token in enumerate(tokens)}


def test_a_tokenizer_from_ranks_encodes_as_the_ranks_do() -> None:
    rng = random.Random(1)
    several = 0
    for _ in range(5):
        ranks = some_ranks(rng)
        tokenizer = Tokenizer.from_str(json.dumps(byte_level(ranks, r"\w+|\W")))
        words = ["".join(rng.choices("abcd", k=rng.randint(1, 12))) for _ in range(400)]
        for word in [*words, *(token.decode() for token in ranks if len(token) > 1)]:
            wanted = by_ranks(word.encode(), ranks)
            several += len(wanted) > 1
            assert tokenizer.encode(word).ids == wanted
            assert tokenizer.decode(wanted) == word
    assert several > 1000
