"""The tokens allowed under `proper_tokens`, from the tokenizer's own encodings.

There is no automaton: the tokenizer is asked for the encodings of all texts of a finite language.
What may follow some tokens is what follows them in an encoding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from server.client import Json, Rows
from server.model import tokenizer

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


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


def decode(tokens: Sequence[int]) -> str:
    return tokenizer().decode(tokens, clean_up_tokenization_spaces=False)


class Encodings:
    """Proper tokens with a regex of `FINITE`, by the encodings of all its texts."""

    def __init__(self, regex: str) -> None:
        self.fields: Json = {"regex": regex, "proper_tokens": True}
        self.after: dict[tuple[int, ...], set[int]] = {}
        for text in FINITE[regex]:
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

    def __reduce__(self) -> Any:
        return encodings, (self.fields["regex"],)


@cache
def encodings(regex: str) -> Encodings:
    return Encodings(regex)
