"""A state of the product in one integer, without the state of NFC and the last token.

From the highest bits down, it holds the state of the language, the state of the pre-tokenizer, the
unfinished character (a node of the decoder), the flag of its first byte, and the unfinished added
token.
"""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int
from proper_tokens.compiled import compiled

PRETOKEN_BITS, NODE_BITS, FLAG_BITS, ADDED_BITS = 14, 11, 3, 14
TORN = 4
"""Added to the flag of an unfinished character if there is a token boundary within it."""
SPREAD, OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd numbers that spread keys over hash tables."""


@compiled
def pack(language: Int, pretoken: Int, node: Int, flag: Int, added: Int) -> Int:
    """Pack a state into one integer."""
    packed = (np.int64(language) << PRETOKEN_BITS) | pretoken
    packed = (((packed << NODE_BITS) | node) << FLAG_BITS) | flag
    return (packed << ADDED_BITS) | added


@compiled
def unpack(packed: Int) -> tuple[Int, Int, Int, Int, Int]:
    """The parts of a packed state: the states of language and pre-tokenizer, the node of the
    decoder, its flag, and the added token."""
    added = packed & ((1 << ADDED_BITS) - 1)
    packed >>= ADDED_BITS
    flag = packed & ((1 << FLAG_BITS) - 1)
    packed >>= FLAG_BITS
    node = packed & ((1 << NODE_BITS) - 1)
    packed >>= NODE_BITS
    return packed >> PRETOKEN_BITS, packed & ((1 << PRETOKEN_BITS) - 1), node, flag, added


def without_added(packed: int) -> int:
    """The same packed state without the unfinished added token."""
    return packed >> ADDED_BITS << ADDED_BITS


@compiled
def mixed(first: Int, second: Int) -> Int:
    """A hash of two numbers, whose high bits are the best."""
    return np.uint64(first) * SPREAD + np.uint64(second) * OTHER
