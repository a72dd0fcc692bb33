"""The sequence breakers of DRY, compiled to tables of tokens.

A breaker is a text. A single token may contain all of it, or a token may end with the beginning of
the breaker, in which case the tokens of the remaining text must follow. This is llama.cpp's rule,
applied to the bytes of tokens.

Each request chooses its own breakers, so the tables must be quick to build. The texts of all tokens
are sorted once, and each breaker is looked up there.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lz_penalty.fields.histories import MOST_TAILS
from lz_penalty.history import LONGEST_TAIL

logger = logging.getLogger(__name__)

_END = b"\xff"
"""Separates the tokens: this byte never occurs in UTF-8."""
_KEY = 4
"""Positions in the texts are sorted by this many bytes."""


class Vocabulary:
    """The texts of all tokens, with an index of every position by its next four bytes.

    It uses 13 bytes of memory for each byte of the tokens' texts.
    """

    def __init__(self, words: Sequence[bytes]) -> None:
        """Index every position in the bytes of the tokens, given in the order of their ids."""
        text = _END.join([*words, b""]) if words else b""
        lengths = np.fromiter(map(len, words), np.int64, len(words)) + len(_END)
        self._text = np.frombuffer(text + bytes(_KEY), np.uint8)
        self._word = np.repeat(np.arange(len(words), dtype=np.int32), lengths)
        keys = np.zeros(len(text), np.uint32)
        for i in range(_KEY):
            keys = keys << np.uint32(8) | self._text[i : i + len(text)]
        self._places = np.argsort(keys, kind="stable").astype(np.int32)
        self._keys = keys[self._places]

    def holding(self, text: bytes) -> NDArray[np.int32]:
        """The ids of the tokens that contain a text in UTF-8; an id may occur several times."""
        return self._word[self._find(text)]

    def ending(self, text: bytes) -> NDArray[np.int32]:
        """The ids of the tokens that end with a text in UTF-8."""
        return self._word[self._find(text + _END)]

    def _find(self, text: bytes) -> NDArray[np.int32]:
        first = int.from_bytes(text[:_KEY].ljust(_KEY, b"\x00"), "big")
        last = int.from_bytes(text[:_KEY].ljust(_KEY, b"\xff"), "big")
        bounds = np.array([first, last], np.uint32)
        start = np.searchsorted(self._keys, bounds[0], "left")
        end = np.searchsorted(self._keys, bounds[1], "right")
        places = self._places[start:end]
        for i in range(_KEY, len(text)):
            places = places[self._text[places + i] == text[i]]
        return places


def tables_of(
    breakers: Sequence[str],
    vocabulary: Vocabulary,
    encode: Callable[[str], Sequence[int]],
    vocab_size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Build the tables for one list of breakers.

    If the rest of a breaker begins in the middle of a character, it has no tokens of its own. A
    breaker whose characters are split across tokens is therefore not recognized there.

    Args:
        breakers: the texts, as in `HistoryParams.dry_sequence_breakers`.
        vocabulary: at most V tokens.
        encode: tokenizes a text without adding special tokens at its beginning.
        vocab_size: V; tokens that `vocabulary` lacks never break a sequence.

    Returns:
        A row of `BreakerTables.mask`, int64 [V], and one of `BreakerTables.tails`, int32
        [MOST_TAILS, 1 + LONGEST_TAIL].
    """
    mask = np.zeros(vocab_size, dtype=np.int64)
    tails = np.zeros((MOST_TAILS, 1 + LONGEST_TAIL), dtype=np.int32)
    number: dict[tuple[int, ...], int] = {}
    # Different texts of the same length never match at the same position, so the breakers of one
    # character have no more matches in total than there are positions.
    for breaker in dict.fromkeys(breakers):
        whole = vocabulary.holding(breaker.encode())
        mask[whole] |= 1
        if len(breaker) > 1:
            is_whole = np.zeros(vocab_size, dtype=bool)
            is_whole[whole] = True
        for size in range(1, len(breaker)):
            tail = tuple(encode(breaker[size:]))[:LONGEST_TAIL]
            heads = vocabulary.ending(breaker[:size].encode())
            heads = heads[~is_whole[heads]]
            if not tail or not len(heads):
                continue
            s = number.setdefault(tail, len(number))
            tails[s, : 1 + len(tail)] = len(tail), *tail
            mask[heads] |= np.int64(1 << (1 + s))
    return mask, tails


@functools.lru_cache(1)
def vocabulary_of(tokenizer: Any, vocab_size: int) -> Vocabulary | None:
    """The texts of every token; None if they cannot be determined.

    Args:
        tokenizer: one of Hugging Face's, or one that has `init_xgrammar`.
        vocab_size: V; tokens beyond it are left out.
    """
    from xgrammar import TokenizerInfo

    try:
        if hasattr(tokenizer, "init_xgrammar"):
            info, _ = tokenizer.init_xgrammar()
        else:
            info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
        words: list[bytes] = info.decoded_vocab
    except Exception as error:  # a user's own tokenizer may raise anything
        logger.warning("no sequence breakers: the texts of tokens cannot be told (%s)", error)
        return None
    return Vocabulary(words[:vocab_size])


def tables_for(
    tokenizer: Any, vocab_size: int, breakers: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The tables of a list of breakers (`tables_of`) with the tokens of a tokenizer."""
    vocabulary = vocabulary_of(tokenizer, vocab_size)
    assert vocabulary is not None, "breakers were admitted without the texts of tokens"
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    return tables_of(breakers, vocabulary, encode, vocab_size)
