"""The tokens allowed under `proper_tokens`, from the tokenizer's own encodings.

There is no automaton: the tokenizer is asked for the encodings of all texts of a finite language.
What may follow some tokens is what follows them in an encoding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from transformers import AutoTokenizer

from server.client import Rows
from server.launch import model_path

NAMES = ["William McKinley", "William", "Theodore Roosevelt", "Theodore", "the  theatre", "tests"]
FINITE = {
    r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])": [
        f"{year}-{month:02}" for year in range(1900, 2100) for month in range(1, 13)
    ],
    r"[ \na]{1,5}": [
        "".join(text) for size in range(1, 6) for text in itertools.product(" \na", repeat=size)
    ],
    "|".join(NAMES): NAMES,
    "x\u00e9?[e\u0301]{0,3}": [  # not all are in NFC
        f"x{first}{''.join(rest)}"
        for first in ("", "\u00e9")
        for size in range(4)
        for rest in itertools.product("e\u0301", repeat=size)
    ],
}


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_path())


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def decode(tokens: Sequence[int]) -> str:
    return tokenizer().decode(tokens, clean_up_tokenization_spaces=False)


class Encodings:
    """The tokens allowed after some others, by the encodings of all texts of a language."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.after: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            tokens = encode(text)
            if decode(tokens) != text:
                continue  # the tokenizer changes it
            for i, token in enumerate([*tokens, tokenizer().eos_token_id]):
                self.after.setdefault(tuple(tokens[:i]), set()).add(token)

    def transform(self, logits: Rows, before: Sequence[int]) -> Rows:
        """The row with minus infinity for what may not follow."""
        allowed = list(self.after[tuple(before)])
        masked = logits * 0 - math.inf
        masked[allowed] = logits[allowed]
        return masked


@cache
def encodings(regex: str) -> Encodings:
    return Encodings(FINITE[regex])
