"""Tries of tokens in depth-first order: [nodes, 4] int32, with the columns below.

They are the byte that leads to a node, its depth (from 1), the next node that is not below it, and
the token that ends there, or -1.
"""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int32s, Int64s, UInt8s
from proper_tokens.compiled import compiled

BYTE, DEPTH, SKIP, TOKEN = 0, 1, 2, 3
LONGEST = 512
"""Bytes of the longest token."""


@compiled
def trie_array(content: UInt8s, ends: Int64s, ids: Int64s) -> Int32s:
    """A trie in the format of `Tables.plain`, of tokens that are sorted by their bytes."""
    trie = np.empty((len(content), 4), np.int32)
    n = 0
    for k in range(len(ids)):
        begin, size = ends[k], ends[k + 1] - ends[k]
        common = 0
        if k:
            before, length = ends[k - 1], ends[k] - ends[k - 1]
            while (
                common < min(size, length) and content[before + common] == content[begin + common]
            ):
                common += 1
        for j in range(common, size):
            trie[n, BYTE] = content[begin + j]
            trie[n, DEPTH] = j + 1
            trie[n, TOKEN] = -1
            n += 1
        trie[n - 1, TOKEN] = ids[k]
    trie = trie[:n].copy()
    trie[:, SKIP] = n
    open_at = np.zeros(LONGEST + 1, np.int64)
    deepest = 0
    for i in range(n):
        for d in range(trie[i, DEPTH], deepest + 1):
            trie[open_at[d], SKIP] = i
        deepest = trie[i, DEPTH]
        open_at[deepest] = i
    return trie
