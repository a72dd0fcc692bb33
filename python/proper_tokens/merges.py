"""DirectMerge: decides which two tokens may be adjacent within a pre-token.

BPE begins with the symbols of a text, which are its bytes or its characters
(`TokenizerFile.symbols`). In the following, bytes stand for either. BPE repeatedly applies the
merge with the lowest rank, and the leftmost one first. Let p and t be tokens that BPE produces from
their own bytes. On the concatenated bytes of p and t, BPE performs the same merges inside each
token until a merge fits across the boundary. At any time, the part of p that touches the boundary
is a node on p's right spine, and the part of t that touches it is a node on t's left spine. So p
and t stay apart iff there is no merge (x, y) with x on the right spine of p and y on the left spine
of t that is applied while both exist. A token sequence within a pre-token is proper iff each token
is the BPE of its own bytes and all neighbours stay apart, because the first merge across any
boundary would be one between two neighbours.

The ranks of the merges that make a token need not rise: a merge may enable one of a lower rank,
which BPE then applies at once. So the `time` of a token is the highest rank among its merges. BPE
on both tokens together applies their merges by time, and those of p first at equal times. Merges
of the same time follow each other as a chain, in which each merge uses what the previous one made.

Let made(x) be the time of x (`MergeRelation.time`), and used(x) the time of its parent on the
spine, which uses x up. For p and t themselves, used is infinite. BPE applies the merge (x, y) iff
all of these hold:

1. made(x) <= used(y): y still exists when x is made.
2. made(y) < used(x): x still exists when y is made.
3. rank(x, y) < limit(x): the merge comes before the one that uses x up.
4. rank(x, y) <= limit(y): the merge comes before the one that uses y up. At equal ranks BPE applies
   the leftmost merge first, and (x, y) is to the left of that one.

The limit of x is used(x) if used(x) > made(x): x remains until BPE reaches that time. Otherwise the
next merge of the chain uses x up, and the limit is the rank of that merge. The limit of y is the
same, with one exception: if y is used up together with a part that is also made at used(y), that
part is made after y, by a merge whose rank is used(y), so the limit is used(y).

Consider the forest in which the parent of a token is its left part and children are ordered by the
limit of that part. The tokens that have y on their left spine with at least a given limit form an
interval of its postorder. So a row of the relation is all ones, with one interval cleared for each
merge whose left part is on p's right spine.

A tokenizer with `ignore_merges` may have whole tokens, which no merges make. They stand only where
the pre-tokenizer cuts on both sides (`pretokenizer`), so they stay apart from no token.

Source: Tran-Thien, "Fast, High-Fidelity LLM Decoding with Regex Constraints" (DirectMerge), which
assumes that ranks rise.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from proper_tokens.arrays import AnyArray, Bools, Int, Int32s, Int64s, UInt32s
from proper_tokens.compiled import compiled
from proper_tokens.references import Reference
from proper_tokens.tokenizer import TokenizerFile, Unsupported

NEVER = np.int64(1 << 40)
BYTE, UNREACHABLE, WHOLE = -1, -2, -3
"""Values of `MergeRelation.made` that are not ranks."""


class MergeRelation(NamedTuple):
    """The relation of a tokenizer with V tokens and M merges.

    Attributes:
        made: [V] int64: the rank of the last merge when BPE is applied to a token's own bytes, or
            `BYTE`, `UNREACHABLE` or `WHOLE`.
        time: [V] int64: the highest rank of these merges, or the same values.
        parts: [M, 2] int64: left and right part of each merge.
        first: [V + 1] int64: where the merges of each left part begin in `pairs`.
        pairs: [M, 2] int64: right part and rank, sorted by left and right part.
        begin: [V + 1] int64: where the merges of each left part begin in `cleared`.
        cleared: [M, 4] int64: the time by which a merge can happen if its left part is there, its
            rank, and the interval of `order` that it clears; sorted by left part and that time.
        order: [reachable tokens] int32: tokens in postorder.
        merged: [ceil(V / 32)] uint32: a bit for each token that BPE produces from its own bytes.
        reachable: [ceil(V / 32)] uint32: the same, and the whole tokens.
    """

    made: Int64s
    time: Int64s
    parts: Int64s
    first: Int64s
    pairs: Int64s
    begin: Int64s
    cleared: Int64s
    order: Int32s
    merged: UInt32s
    reachable: UInt32s


class MergeRelationReference(Reference, of=MergeRelation):
    """The `relation` of compiled functions."""


def relation_of(file: TokenizerFile) -> MergeRelation:
    """The merge relation of a tokenizer.

    Raises:
        Unsupported: a merge is listed twice, or there is none.
    """
    left, right, result = (np.ascontiguousarray(column) for column in file.merges.T)
    tokens = file.tokens
    size = len(tokens)
    by_pair = np.lexsort((right, left))
    first = np.searchsorted(left[by_pair], np.arange(size + 1))
    pairs = np.stack((right[by_pair], by_pair), axis=1)
    if not len(pairs):
        raise Unsupported("its model has no merges")
    if (np.diff(file.merges[by_pair, :2], axis=0) == 0).all(axis=1).any():
        raise Unsupported("its model has a merge twice")
    symbols = [file.symbols(token or b"") for token in tokens]
    ends = np.cumsum([0, *map(len, symbols)])
    flat = np.fromiter(itertools.chain.from_iterable(symbols), np.int64, ends[-1])
    made, time = _derive(flat, ends, first, pairs, result)
    while True:
        joined = np.flatnonzero(made >= 0)
        lost = joined[(made[file.merges[made[joined], :2]] == UNREACHABLE).any(axis=1)]
        if not len(lost):
            break
        made[lost] = time[lost] = UNREACHABLE  # an added token is cut out of their text
    begin, cleared, order = _intervals(made, time, np.diff(ends), left, right)
    merged = _bits(made != UNREACHABLE)
    for token, content in enumerate(tokens):
        # A piece consists of characters, so no other bytes are a whole one.
        if file.ignore_merges and made[token] == UNREACHABLE and _is_text(content):
            made[token] = WHOLE
    return MergeRelation(
        made=made,
        time=time,
        parts=np.ascontiguousarray(file.merges[:, :2]),
        first=first,
        pairs=pairs,
        begin=begin,
        cleared=cleared,
        order=order,
        merged=merged,
        reachable=_bits(made != UNREACHABLE),
    )


def _bits(flags: Bools) -> UInt32s:
    """The flags, 32 in a word."""
    padded = np.pad(flags, (0, -len(flags) % 32))
    return np.packbits(padded, bitorder="little").view(np.uint32)


def _is_text(content: bytes | None) -> bool:
    return bool(content and content.decode(errors="ignore").encode() == content)


def _intervals(
    made: Int64s, time: Int64s, lengths: Int64s, left: Int64s, right: Int64s
) -> tuple[AnyArray, ...]:
    """`begin`, `cleared` and `order`."""
    size = len(made)
    is_merged = made >= 0
    by = np.maximum(made, 0)
    parent = np.where(is_merged, left[by], -1)
    is_next = (time == time[parent]) & (time[right[by]] < time)
    until = np.where(is_merged & is_next, made, time)
    kids = np.lexsort((until, parent))
    kids = kids[parent[kids] >= 0]
    ends = np.searchsorted(parent[kids], np.arange(size + 1))
    start, last, order = _postorder(made, lengths, parent, kids, ends)
    rank = np.arange(len(left))
    since = np.where(time[left] > time[right], np.maximum(rank, time[left]), rank)
    low, high = _cleared(until, left, right, since, kids, ends, start, last)
    by_time = np.maximum(rank, time[right])
    order_of_merges = np.lexsort((by_time, left))
    begin = np.searchsorted(left[order_of_merges], np.arange(size + 1))
    return begin, np.stack((by_time, rank, low, high), axis=1)[order_of_merges], order


@compiled
def merge_rank(first: Int64s, pairs: Int64s, x: Int, y: Int) -> Int:
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


@compiled
def merge_once(first: Int64s, pairs: Int64s, made_by: Int64s, ids: Int64s, n: Int) -> Int:
    """Apply the merge that BPE applies first to n tokens, which leaves one less.

    Returns its rank, or `NEVER` if there is none.
    """
    best, where = NEVER, 0
    for i in range(n - 1):
        rank = merge_rank(first, pairs, ids[i], ids[i + 1])
        if 0 <= rank < best:
            best, where = rank, i
    if best != NEVER:
        ids[where] = made_by[best]
        for i in range(where + 1, n - 1):
            ids[i] = ids[i + 1]
    return best


# Loops use arrays that were taken out of their tuple beforehand, because numba updates a reference
# count each time a field of a tuple is accessed.


@compiled
def stay_apart(relation: MergeRelation, p: Int, t: Int) -> bool:
    """Whether BPE leaves the tokens p and t unchanged if t follows p in a pre-token."""
    made, time, parts = relation.made, relation.time, relation.parts
    first, pairs = relation.first, relation.pairs
    if made[p] == WHOLE or made[t] == WHOLE:
        return False
    x, x_time, x_until = p, NEVER, NEVER
    while True:
        y, y_time, y_until = t, NEVER, NEVER
        while True:
            rank = merge_rank(first, pairs, x, y)
            if 0 <= rank < x_until and rank <= y_until and time[x] <= y_time and time[y] < x_time:
                return False
            if made[y] < 0:
                break
            y_time, y_until = time[y], made[y]
            y, other = parts[y_until, 0], parts[y_until, 1]
            if y_time > time[y] or time[other] == y_time:
                y_until = y_time
        if made[x] < 0:
            return True
        x_time, x_until = time[x], made[x]
        x = parts[x_until, 1]
        if x_time > time[x]:
            x_until = x_time


@compiled
def fill_row(relation: MergeRelation, p: Int, out: UInt32s) -> None:
    """Set in `out` ([ceil(V / 32)] uint32) the bits of the tokens that may follow p."""
    made, time, parts, begin = relation.made, relation.time, relation.parts, relation.begin
    cleared, order = relation.cleared, relation.order
    if made[p] == WHOLE:
        out[:] = 0
        return
    out[:] = relation.merged
    x, x_time, x_until = p, NEVER, NEVER
    while True:
        for j in range(begin[x], begin[x + 1]):
            if cleared[j, 0] >= x_time:
                break
            if cleared[j, 1] >= x_until:
                continue
            for i in range(cleared[j, 2], cleared[j, 3]):
                t = order[i]
                out[t >> 5] &= ~(np.uint32(1) << np.uint32(t & 31))
        if made[x] < 0:
            return
        x_time, x_until = time[x], made[x]
        x = parts[x_until, 1]
        if x_time > time[x]:
            x_until = x_time


@compiled
def _derive(
    symbols: Int64s, ends: Int64s, first: Int64s, pairs: Int64s, result: Int64s
) -> tuple[Int64s, Int64s]:
    """The last merge when BPE is applied to each token's symbols, and the highest rank."""
    size = len(ends) - 1
    made = np.full(size, UNREACHABLE, np.int64)
    time = np.full(size, UNREACHABLE, np.int64)
    for token in range(size):
        length = ends[token + 1] - ends[token]
        if length == 0:
            continue
        parts = symbols[ends[token] : ends[token + 1]].copy()
        last = highest = np.int64(BYTE)
        while length > 1:
            rank = merge_once(first, pairs, result, parts, length)
            if rank == NEVER:
                break
            last, highest = rank, max(rank, highest)
            length -= 1
        if length == 1 and parts[0] == token:
            made[token], time[token] = last, highest
    return made, time


@compiled
def _postorder(
    made: Int64s, lengths: Int64s, parent: Int64s, kids: Int64s, ends: Int64s
) -> tuple[Int64s, Int64s, Int32s]:
    """The interval of each token's subtree, which ends with the token, and the postorder."""
    size = len(made)
    sizes = np.zeros(size, np.int64)
    by_length = np.argsort(lengths)
    for token in by_length[::-1]:
        if made[token] == UNREACHABLE:
            continue
        sizes[token] += 1
        if parent[token] >= 0:
            sizes[parent[token]] += sizes[token]
    start = np.zeros(size, np.int64)
    last = np.full(size, -1, np.int64)
    n = 0
    for token in by_length:
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
def _cleared(
    until: Int64s,
    left: Int64s,
    right: Int64s,
    since: Int64s,
    kids: Int64s,
    ends: Int64s,
    start: Int64s,
    last: Int64s,
) -> tuple[Int64s, Int64s]:
    """For each merge, the interval of tokens whose left spine has its right part long enough."""
    low = np.zeros(len(left), np.int64)
    high = np.zeros(len(left), np.int64)
    for k in range(len(left)):
        x, y = left[k], right[k]
        if last[x] < 0 or last[y] < 0:
            continue
        at, end = ends[y], ends[y + 1]
        while at < end:
            middle = (at + end) >> 1
            if until[kids[middle]] < since[k]:
                at = middle + 1
            else:
                end = middle
        low[k] = start[kids[at]] if at < ends[y + 1] else last[y]
        high[k] = last[y] + 1
    return low, high
