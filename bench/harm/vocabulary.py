"""A published tokenizer and the size of its models' logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.published import SOURCES, tokenizer_json
from lz_penalty.numbers import is_number
from proper_tokens.tokenizer import byte_characters


class Vocabulary:
    """A tokenizer and the size of its models' logits.

    Attributes:
        name: that of its source.
        size: V.
    """

    def __init__(self, name: str) -> None:
        """Load a tokenizer of `SOURCES`."""
        self.name, self.size = name, SOURCES[name].size
        self._tokenizer = Tokenizer.from_str(tokenizer_json(name))

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the token ids of a text, int64 [tokens]."""
        return np.array(self._tokenizer.encode(text).ids, dtype=np.int64)

    def numbers(self) -> NDArray[np.uint8]:
        """Return 1 for each token that is a number (docs/SPEC.md section 9), uint8 [V]."""
        found = np.zeros(self.size, dtype=np.uint8)
        for token in range(self._tokenizer.get_vocab_size()):
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            found[token] = is_number(text)
        return found

    def holding(self, strings: Sequence[str]) -> NDArray[np.bool_]:
        """Return which tokens hold one of some ASCII strings, bool [V]."""
        byte_of = byte_characters()
        found = np.zeros(self.size, dtype=bool)
        for token, number in self._tokenizer.get_vocab().items():
            text = "".join(chr(byte_of[c]) if c in byte_of else c for c in token)
            found[number] = any(string in text for string in strings)
        return found
