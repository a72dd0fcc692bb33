"""DirectMerge: decides which two tokens may be adjacent within a pre-token.

BPE repeatedly applies the merge with the lowest rank, and the leftmost one first. Let p and t be
tokens that BPE produces from their own bytes by merges of rising rank. On the concatenated bytes of
p and t, BPE performs the same merges inside each token until a merge fits across the boundary. At
any time, the part of p that touches the boundary is a node on p's right spine, and the part of t
that touches it is a node on t's left spine. So p and t stay apart iff there is no merge (x, y) with
x on the right spine of p and y on the left spine of t that can happen while both exist. Such a
merge can happen from the rank `since` on, which is the highest of its own rank and the ranks at
which x and y are made. It must happen before x is used up, and no later than y is used up, because
BPE applies the leftmost merge first at equal ranks. A token sequence within a pre-token is proper
iff each token is the BPE of its own bytes and all neighbours stay apart, because the first merge
across any boundary would be one between two neighbours.

Consider the forest in which the parent of a token is its left part and children are ordered by
rank. The tokens that have y on their left spine and use it up at a given rank or later form an
interval of its postorder. So a row of the relation is all ones, with one interval cleared for each
merge whose left part is on p's right spine.

Source: Tran-Thien, "Fast, High-Fidelity LLM Decoding with Regex Constraints" (DirectMerge).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_lz.compiled import compiled
from sglang_lz.proper.tokenizer import TokenizerFile, Unsupported

NEVER = np.int64(1 << 40)
BYTE, UNREACHABLE = -1, -2
"""Values of `MergeRelation.made` that are not ranks."""


class MergeRelation(NamedTuple):
    """The relation of a tokenizer with V tokens and M merges.

    Attributes:
        made: [V] int64: the rank of the last merge when BPE is applied to a token's own bytes, or
            `BYTE` or `UNREACHABLE`.
        parts: [M, 2] int64: left and right part of each merge.
        first: [V + 1] int64: where the merges of each left part begin in `pairs`.
        pairs: [M, 2] int64: right part and rank, sorted by left and right part.
        begin: [V + 1] int64: where the merges of each left part begin in `cleared`.
        cleared: [M, 3] int64: the rank from which a merge can happen, and the interval of `order`
            that it clears, sorted by left part and that rank.
        order: [reachable tokens] int32: tokens in postorder.
        reachable: [ceil(V / 32)] uint32: a bit for each token that BPE produces from its own bytes.
    """

    made: npt.NDArray[np.int64]
    parts: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    pairs: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    cleared: npt.NDArray[np.int64]
    order: npt.NDArray[np.int32]
    reachable: npt.NDArray[np.uint32]


def relation_of(file: TokenizerFile) -> MergeRelation:
    """The merge relation of a tokenizer.

    Raises:
        Unsupported: some token is not made by merges of rising rank, or bypasses the merges.
    """
    left, right, result = (np.ascontiguousarray(column) for column in file.merges.T)
    tokens = file.tokens
    size = len(tokens)
    by_pair = np.lexsort((right, left))
    first = np.searchsorted(left[by_pair], np.arange(size + 1))
    pairs = np.stack((right[by_pair], by_pair), axis=1)
    if len(pairs) and (np.diff(file.merges[by_pair, :2], axis=0) == 0).all(axis=1).any():
        raise Unsupported("its model has a merge twice")
    text = np.frombuffer(b"".join(token or b"" for token in tokens), np.uint8)
    ends = np.cumsum([0, *(len(token or b"") for token in tokens)])
    byte_ids = np.zeros(256, np.int64)
    for token, content in enumerate(tokens):
        if content is not None and len(content) == 1:
            byte_ids[content[0]] = token
    made, is_rising = _derive(text, ends, byte_ids, first, pairs, result)
    if not is_rising:
        raise Unsupported("its model makes a token by merges of falling ranks")
    missing = [token for token in np.flatnonzero(made == UNREACHABLE) if tokens[token] is not None]
    if file.ignore_merges and missing:
        raise Unsupported(
            f"it has ignore_merges, and no merges make its token {tokens[missing[0]]!r}"
        )
    begin, cleared, order = _intervals(made, left, right)
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[:size] = made != UNREACHABLE
    return MergeRelation(
        made=made,
        parts=np.ascontiguousarray(file.merges[:, :2]),
        first=first,
        pairs=pairs,
        begin=begin,
        cleared=cleared,
        order=order,
        reachable=np.packbits(bits, bitorder="little").view(np.uint32),
    )


def _intervals(
    made: npt.NDArray[np.int64], left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[Any], ...]:
    """`begin`, `cleared` and `order`."""
    size = len(made)
    parent = np.where(made >= 0, left[np.maximum(made, 0)], -1)
    kids = np.lexsort((made, parent))
    kids = kids[parent[kids] >= 0]
    ends = np.searchsorted(parent[kids], np.arange(size + 1))
    start, last, order = _postorder(made, parent, kids, ends)
    since = np.maximum(np.arange(len(left)), np.maximum(made[left], made[right]))
    low, high = _cleared(made, left, right, since, kids, ends, start, last)
    by_since = np.lexsort((since, left))
    begin = np.searchsorted(left[by_since], np.arange(size + 1))
    return begin, np.stack((since, low, high), axis=1)[by_since], order


@compiled
def merge_rank(first, pairs, x, y):
    """The rank of the merge (x, y); -1 if there is none."""
    low, high = first[x], first[x + 1]
    end = high
    while low < high:
        middle = (low + high) >> 1
        if pairs[middle, 0] < y:
            low = middle + 1
        else:
            high = middle
    return pairs[low, 1] if low < end and pairs[low, 0] == y else np.int64(-1)


# Loops use arrays that were taken out of their tuple beforehand, because numba updates a reference
# count each time a field of a tuple is accessed.


@compiled
def stay_apart(relation, p, t):
    """Whether BPE leaves the tokens p and t unchanged if t follows p in a pre-token."""
    made, parts, first, pairs = relation.made, relation.parts, relation.first, relation.pairs
    x, x_until = p, NEVER
    while True:
        y, y_until = t, NEVER
        while True:
            rank = merge_rank(first, pairs, x, y)
            if rank >= 0:
                since = max(rank, made[x], made[y])
                if since < x_until and since <= y_until:
                    return False
            if made[y] < 0:
                break
            y_until = made[y]
            y = parts[y_until, 0]
        if made[x] < 0:
            return True
        x_until = made[x]
        x = parts[x_until, 1]


@compiled
def fill_row(relation, p, out):
    """Set in `out` ([ceil(V / 32)] uint32) the bits of the tokens that may follow p."""
    made, parts, begin = relation.made, relation.parts, relation.begin
    cleared, order = relation.cleared, relation.order
    out[:] = relation.reachable
    x, until = p, NEVER
    while True:
        for j in range(begin[x], begin[x + 1]):
            if cleared[j, 0] >= until:
                break
            for i in range(cleared[j, 1], cleared[j, 2]):
                t = order[i]
                out[t >> 5] &= ~(np.uint32(1) << np.uint32(t & 31))
        if made[x] < 0:
            return
        until = made[x]
        x = parts[until, 1]


@compiled
def _derive(text, ends, byte_ids, first, pairs, result):
    """The last merge when BPE is applied to each token's bytes, and whether all ranks rise."""
    size = len(ends) - 1
    made = np.full(size, UNREACHABLE, np.int64)
    is_rising = True
    for token in range(size):
        length = ends[token + 1] - ends[token]
        if length == 0:
            continue
        parts = np.empty(length, np.int64)
        for i in range(length):
            parts[i] = byte_ids[text[ends[token] + i]]
        last = np.int64(BYTE)
        rises = True
        while length > 1:
            best = NEVER
            where = 0
            for i in range(length - 1):
                rank = merge_rank(first, pairs, parts[i], parts[i + 1])
                if 0 <= rank < best:
                    best, where = rank, i
            if best == NEVER:
                break
            if best < last:
                rises = False
            last = best
            parts[where] = result[best]
            for i in range(where + 1, length - 1):
                parts[i] = parts[i + 1]
            length -= 1
        if length == 1 and parts[0] == token:
            made[token] = last
            is_rising = is_rising and bool(rises)
    return made, is_rising


@compiled
def _postorder(made, parent, kids, ends):
    """The interval of each token's subtree, which ends with the token, and the postorder."""
    size = len(made)
    sizes = np.zeros(size, np.int64)
    by_rank = np.argsort(made)
    for token in by_rank[::-1]:
        if made[token] == UNREACHABLE:
            continue
        sizes[token] += 1
        if parent[token] >= 0:
            sizes[parent[token]] += sizes[token]
    start = np.zeros(size, np.int64)
    last = np.full(size, -1, np.int64)
    n = 0
    for token in by_rank:
        if made[token] == UNREACHABLE:
            continue
        if parent[token] < 0:
            start[token] = n
            n += sizes[token]
        last[token] = start[token] + sizes[token] - 1
        at = start[token]
        for i in range(ends[token], ends[token + 1]):
            start[kids[i]] = at
            at += sizes[kids[i]]
    order = np.empty(n, np.int32)
    for token in range(size):
        if last[token] >= 0:
            order[last[token]] = token
    return start, last, order


@compiled
def _cleared(made, left, right, since, kids, ends, start, last):
    """For each merge, the interval of tokens whose left spine has its right part in time."""
    low = np.zeros(len(left), np.int64)
    high = np.zeros(len(left), np.int64)
    for k in range(len(left)):
        x, y = left[k], right[k]
        if last[x] < 0 or last[y] < 0:
            continue
        at, end = ends[y], ends[y + 1]
        while at < end:
            middle = (at + end) >> 1
            if made[kids[middle]] < since[k]:
                at = middle + 1
            else:
                end = middle
        low[k] = start[kids[at]] if at < ends[y + 1] else last[y]
        high[k] = last[y] + 1
    return low, high
