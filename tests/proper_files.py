"""Tokenizers that are trained here, with what the published ones of other families have."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

from tokenizers import Tokenizer, models, normalizers, trainers

from proper_sequences import tokenizer_json
from proper_tokens.tokenizer import SPACE, byte_characters

LETTERS = f"{SPACE}abeinostwx12.\n<>0\u65e5\u00fc\U0001f600"
"""The characters that have a token."""
OTHERS = "cAq3\t\u672c\u65e6\u00e9\u0301\U0001f601"
"""Some that have none, among them neighbours of those that do."""
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
METASPACE = {"type": "Metaspace", "replacement": SPACE}
IDLE = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False
}  # fmt: skip

# By name: as in Gemma's file, as in Llama 2's, as in Mistral's newer ones, and with pieces.
KINDS: dict[str, dict[str, Any]] = {
    "replace": {"normalizer": REPLACE, "pre_tokenizer": IDLE},
    "prepend": {"normalizer": {"type": "Sequence", "normalizers": [PREPEND, REPLACE]}},
    "metaspace": {"pre_tokenizer": {**METASPACE, "prepend_scheme": "first", "split": False}},
    "pieces": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{**METASPACE, "prepend_scheme": "always", "split": True}],
        }
    },
}


@cache
def trained() -> str:
    """The `tokenizer.json` of a model that was trained across spaces, with neither of both."""
    rng = random.Random(5)
    words = ["so", "it", "is", "and", "was", "ab", "ba", "12", "1", "x\ny", "...", "<s>"]
    words += ["\u65e5", "\u65e5\u65e5\u672c", "\u00fcb", "\u00e9"]
    texts = [
        "".join(rng.choice(words) + rng.choice(["", " ", "  ", "\n"]) for _ in range(60))
        for _ in range(300)
    ]
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=500,
        special_tokens=["<unk>", "<s>", "</s>", *BYTES],
        initial_alphabet=list(LETTERS),
        limit_alphabet=len(LETTERS),
        max_token_length=12,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    assert set(LETTERS) <= content["model"]["vocab"].keys()
    assert not set(OTHERS) & content["model"]["vocab"].keys()
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] not in BYTES
    ]
    content["normalizer"] = None
    content["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    }
    return json.dumps(content)


def file_of(kind: str, **changes: Any) -> str:
    """A `tokenizer.json` as it is published. Half of the kinds have each split as a merge."""
    content = json.loads(trained()) | KINDS[kind]
    if kind in ("prepend", "pieces"):
        vocab = content["model"]["vocab"]
        tokens = sorted(vocab, key=vocab.get)[3 + len(BYTES) :]
        content["model"]["merges"] = [
            [token[:cut], token[cut:]]
            for token in tokens
            for cut in range(1, len(token))
            if token[:cut] in vocab and token[cut:] in vocab
        ]
    return changed(json.dumps(content), **changes)


def changed(text: str, **changes: Any) -> str:
    content = json.loads(text)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = content
        for parent in parents:
            place = place[int(parent) if parent.isdigit() else parent]
        place[int(last) if isinstance(place, list) else last] = value
    return json.dumps(content)


WHOLE = ("aab", "aaba", " ab", "  a", " ba", "...", ".b", "1a", "11", "a\u65e5", " \u65e5\u672c")
WHOLE += (" \u00e9a", "\u00e9", "'ab", "\n\n", "bab", "abab", " abab", "a'", "d\u200d")
# Each of these characters is several tokens.
WHOLE += ("\u8a9e", "a\u8a9e", " \u8a9e\u672c", "\u8a9e\u8a9e", "\u8a9eD")


@cache
def with_whole_tokens(size: int = 2048) -> str:
    """A tokenizer of Llama 3's kind, with whole tokens beside `size` others."""
    content = json.loads(tokenizer_json("llama3", size))
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
