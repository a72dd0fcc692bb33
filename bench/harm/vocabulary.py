"""Published tokenizers of large models, read from the packages that carry them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from bench.harm import archives


@dataclass(frozen=True)
class Source:
    """Where a tokenizer is published.

    Attributes:
        package: the package of `requirements.txt` that has it.
        path: the file of ranks in it: a token's bytes in base64 and its rank, a line each.
        digits: how many digits a token has at most.
        size: V, the columns of the logits of a model that uses it.
        models: those models.
    """

    package: str
    path: str
    digits: int
    size: int
    models: str


SOURCES = {
    "qwen": Source(
        "dashscope",
        "dashscope/resources/qwen.tiktoken",
        1,
        151_936,
        "Qwen2.5 of up to 3B parameters",
    ),
    "cl100k": Source(
        "litellm",
        "litellm/litellm_core_utils/tokenizers/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        3,
        100_277,
        "GPT-4",
    ),
}


class Vocabulary:
    """A tokenizer and the size of its models' logits.

    Attributes:
        name: that of its source.
        size: V.
    """

    def __init__(self, name: str) -> None:
        """Load a tokenizer of `SOURCES`."""
        source = SOURCES[name]
        self.name, self.size = name, source.size
        self._tokenizer = byte_level(archives.files(source.package)[source.path], source.digits)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Return the token ids of a text, int64 [tokens]."""
        return np.array(self._tokenizer.encode(text).ids, dtype=np.int64)

    def decode(self, tokens: Sequence[int] | NDArray[np.int64]) -> str:
        """Return the text of token ids; bytes that are no UTF-8 are replaced."""
        return self._tokenizer.decode(list(tokens))

    def holding(self, strings: Sequence[str]) -> NDArray[np.bool_]:
        """Return which tokens hold one of some ASCII strings, bool [V]."""
        found = np.zeros(self.size, dtype=bool)
        for token, number in self._tokenizer.get_vocab().items():
            text = "".join(_CHARACTER_OF.get(letter, letter) for letter in token)
            found[number] = any(string in text for string in strings)
        return found


def byte_level(ranks: bytes, digits: int) -> Tokenizer:
    """Make a byte-level BPE of a file of ranks, where two tokens merge if their join is one.

    Args:
        ranks: a token's bytes in base64 and its rank, a line each; the lowest rank merges first.
        digits: how many digits a token has at most.
    """
    lines = (line.split() for line in ranks.splitlines())
    rank = {base64.b64decode(token): int(number) for token, number in lines}
    merges = []
    for token, number in rank.items():
        parts = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(rank[left], rank[right]) for left, right in parts if {left, right} <= rank.keys()]
        merges += [(number, *pair) for pair in sorted(known)]
    names = {number: "".join(_LETTER[byte] for byte in token) for token, number in rank.items()}
    model = models.BPE(
        vocab={name: number for number, name in names.items()},
        merges=[(names[left], names[right]) for _, left, right in sorted(merges)],
        ignore_merges=True,
    )
    tokenizer = Tokenizer(model)
    # The two tokenizers cut text into words alike but for the length of a run of digits.
    words = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,"
        rf"{digits}"
        r"}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level BPE: itself where it can be seen."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in seen]
    letters = {byte: chr(byte) for byte in seen}
    return letters | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


_LETTER = _letters()
_CHARACTER_OF = {letter: chr(byte) for byte, letter in _LETTER.items()}
