"""Tokenizers made of ranks, against the definition of what ranks do."""

from __future__ import annotations

import io
import itertools
import json
import random
from collections.abc import Mapping

import sentencepiece
from tokenizers import Tokenizer

from bench.published import byte_fallback, byte_level


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


def test_a_model_of_sentencepiece_is_read() -> None:
    """What SentencePiece trained encodes as SentencePiece does it."""
    rng = random.Random(3)
    words = ["so", "was", "it", "\u65e5\u672c", "12", "...", "\u65e5"]
    lines = [" ".join(rng.choices(words, k=20)) for _ in range(300)]
    data = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=data,
        vocab_size=300,
        model_type="bpe",
        byte_fallback=True,
        character_coverage=1.0,
        split_by_whitespace=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=False,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=data.getvalue())
    content = byte_fallback(data.getvalue())
    tokenizer = Tokenizer.from_str(json.dumps(content))
    assert content["model"]["merges"]
    bytes_seen = 0
    for _ in range(300):
        text = "".join(rng.choices("soitwa12 \u65e5\u672c\t\u00e9.", k=rng.randint(1, 20)))
        assert tokenizer.encode(text).ids == model.encode(text)
        assert tokenizer.decode(model.encode(text)) == text
        bytes_seen += any(map(model.is_byte, model.encode(text)))
    assert bytes_seen
