"""The sequence breakers of DRY, as tables of tokens.

A breaker is a text, and a token may hold it whole, or begin it at its own end; then those tokens
must follow that the rest of the text is made of. This is llama.cpp's rule, on the bytes of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sglang_lz.history import LONGEST_TAIL, MOST_TAILS


def tables_of(
    breakers: Sequence[str],
    vocab: Sequence[bytes],
    encode: Callable[[str], Sequence[int]],
    vocab_size: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The tables of one list of breakers.

    The rest of a text that begins within a character has no tokens of its own, so a breaker whose
    characters are cut apart by tokens is not seen there.

    Args:
        breakers: texts, as `HistoryParams.dry_sequence_breakers` has them.
        vocab: the bytes of each token.
        encode: turns a text into tokens, without any that only begin a text.
        vocab_size: V; tokens that `vocab` lacks break nothing.

    Returns:
        A row of `BreakerTables.mask`, int64 [V], and one of `BreakerTables.tails`, int32
        [MOST_TAILS, 1 + LONGEST_TAIL].
    """
    mask = np.zeros(vocab_size, dtype=np.int64)
    tails = np.zeros((MOST_TAILS, 1 + LONGEST_TAIL), dtype=np.int32)
    number: dict[tuple[int, ...], int] = {}
    words = vocab[:vocab_size]
    for breaker in breakers:
        text = breaker.encode()
        alone = [text in word for word in words]
        mask[: len(words)][alone] |= 1
        for size in range(1, len(text)):
            try:
                rest = text[size:].decode()
            except UnicodeDecodeError:
                continue
            tail = tuple(encode(rest))[:LONGEST_TAIL]
            heads = [
                word.endswith(text[:size]) and not whole
                for word, whole in zip(words, alone, strict=True)
            ]
            if not tail or not any(heads):
                continue
            s = number.setdefault(tail, len(number))
            tails[s, : 1 + len(tail)] = len(tail), *tail
            mask[: len(words)][heads] |= np.int64(1 << (1 + s))
    return mask, tails
