"""The set N of docs/SPEC.md section 9: the tokens that are numbers."""

from __future__ import annotations

import functools
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)


def is_number(text: str) -> bool:
    """Whether a token's text is one or more decimal digits (Unicode category Nd), apart from white
    space before and after it."""
    return text.strip().isdecimal()


@functools.lru_cache(1)
def number_tokens(tokenizer: Any, vocab_size: int) -> NDArray[np.uint8]:
    """The tokens that are numbers.

    Args:
        tokenizer: one of Hugging Face's; None without one, or any other that has `decode`.
        vocab_size: V; tokens beyond it are left out.

    Returns:
        1 for each of them, uint8 [V]; not to be changed, because a process computes it once.
    """
    found = np.zeros(vocab_size, dtype=np.uint8)
    if tokenizer is None:
        logger.info("LZ penalty: without a tokenizer, no token counts as a number")
        return found
    known, last = 0, None
    for token in range(vocab_size):
        try:
            found[token] = is_number(tokenizer.decode([token]))
            known += 1
        except Exception as error:  # an id without a text, of which some tokenizers have many
            last = error
    if not known:
        logger.warning("LZ penalty: no token counts as a number, as none has a text (%r)", last)
    logger.info("LZ penalty: %d tokens count as numbers", found.sum())
    return found
