"""What searches have found, and how many steps they may make."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from proper_tokens.arrays import Int, Int8s, Int32s, Int64s
from proper_tokens.compiled import compiled
from proper_tokens.kernels.packing import mixed
from proper_tokens.kernels.results import ALIVE, DEAD, OPEN
from proper_tokens.kernels.tables import Tables
from proper_tokens.merges import stay_apart
from proper_tokens.references import Reference, reference

STEPS, STOP, ALL_STEPS = 0, 1, 2
"""Places in `Memo.work`."""
HINTS, HINTED = 4096, 8
"""How many packed states have hints, and how many hints each of them has."""


class Memo(NamedTuple):
    """The results of searches by packed state, state of NFC and last token: an open-addressing hash
    table.

    Attributes:
        packed, rest: [size] int64: the key; -1 in `packed` marks an empty entry.
        found: [size] int8: the results.
        at: [size] int32: the position of an `OPEN` state in the current search.
        used: [1] int64: the number of entries in use.
        work: [3] int64: `STEPS` holds how many steps searches may still make, which they count
            down; `STOP` is not 0 if they must stop, and any thread may set it; `ALL_STEPS` holds
            how many steps searches have made in all.
        hinted: [HINTS, 2] int64: the packed states that have hints, each with a state of NFC or -1
            for any.
        hints: [HINTS, HINTED] int64: tokens after which the text can end if the merges cut before
            them; -1 for none.
    """

    packed: Int64s
    rest: Int64s
    found: Int8s
    at: Int32s
    used: Int64s
    work: Int64s
    hinted: Int64s
    hints: Int64s


class MemoReference(Reference, of=Memo):
    """The `memo` of compiled functions."""


def new_memo(size: int, work: Int64s) -> Memo:
    """An empty memo of `size` entries, which must be a power of two."""
    return Memo(
        np.full(size, -1, np.int64),
        np.zeros(size, np.int64),
        np.zeros(size, np.int8),
        np.zeros(size, np.int32),
        np.zeros(1, np.int64),
        work,
        np.full((HINTS, 2), -1, np.int64),
        np.full((HINTS, HINTED), -1, np.int64),
    )


def grown(memo: Memo) -> Memo:
    """A memo of twice the size with the same results."""
    larger = new_memo(2 * len(memo.packed), memo.work)._replace(
        hinted=memo.hinted, hints=memo.hints
    )
    _copy(reference(memo), reference(larger))
    return larger


@compiled
def _copy(memo: Memo, larger: Memo) -> None:
    for i in range(len(memo.packed)):
        if memo.packed[i] >= 0 and (memo.found[i] == ALIVE or memo.found[i] == DEAD):
            memo_put(larger, memo.packed[i], memo.rest[i], memo.found[i])


@compiled
def is_spent(work: Int64s, steps: Int) -> bool:
    """Count steps of a search; return whether it must stop."""
    work[STEPS] -= steps
    work[ALL_STEPS] += steps
    return work[STEPS] < 0 or work[STOP] != 0


@compiled
def memo_rest(n_tokens: Int, nfc: Int, last: Int) -> Int:
    """The part of a memo's key besides the packed state."""
    return nfc * np.int64(n_tokens + 1) + last + 1


@compiled
def memo_slot(stored: Int64s, rests: Int64s, packed: Int, rest: Int) -> Int:
    """The slot of a key, or the empty slot where it would go."""
    size = len(stored) - 1
    at = mixed(packed, rest)
    i = np.int64((at ^ (at >> np.uint64(29))) & np.uint64(size))
    while stored[i] >= 0 and (stored[i] != packed or rests[i] != rest):
        i = (i + 1) & size
    return i


@compiled
def memo_result(stored: Int64s, rests: Int64s, found: Int8s, packed: Int, rest: Int) -> Int:
    """The result stored for a key, or -1."""
    i = memo_slot(stored, rests, packed, rest)
    return found[i] if stored[i] >= 0 else np.int8(-1)


@compiled
def memo_put(memo: Memo, packed: Int, rest: Int, found: Int) -> None:
    """Store a result for a key."""
    i = memo_slot(memo.packed, memo.rest, packed, rest)
    if memo.packed[i] < 0:
        memo.packed[i] = packed
        memo.rest[i] = rest
        memo.used[0] += 1
    memo.found[i] = found


@compiled
def memo_open(memo: Memo, packed: Int, rest: Int, at: Int) -> None:
    """Record that a search has started on a state."""
    memo_put(memo, packed, rest, OPEN)
    memo.at[memo_slot(memo.packed, memo.rest, packed, rest)] = at


@compiled
def has_hint(tables: Tables, memo: Memo, packed: Int, nfc: Int, last: Int) -> bool:
    """Whether some hinted token, after which the text can end, stays apart from the last token."""
    hinted, hints, relation = memo.hinted, memo.hints, tables.relation
    for kind in range(2):
        key = nfc if kind else np.int64(-1)
        i = _hint_row(packed, key)
        if hinted[i, 0] == packed and hinted[i, 1] == key:
            for j in range(HINTED):
                if hints[i, j] < 0:
                    break
                if stay_apart(relation, last, hints[i, j]):
                    return True
    return False


@compiled
def add_hint(memo: Memo, packed: Int, nfc: Int, token: Int) -> None:
    """Store a hint for a state; -1 as its state of NFC means any."""
    hinted, hints = memo.hinted, memo.hints
    i = _hint_row(packed, nfc)
    if hinted[i, 0] != packed or hinted[i, 1] != nfc:
        hinted[i, 0], hinted[i, 1] = packed, nfc
        hints[i] = -1
    for j in range(HINTED):
        if hints[i, j] == token:
            return
    for j in range(HINTED - 1, 0, -1):
        hints[i, j] = hints[i, j - 1]
    hints[i, 0] = token


@compiled
def _hint_row(packed: Int, nfc: Int) -> Int:
    """The row of the hints of a state."""
    return np.int64(mixed(packed, nfc + 1) >> np.uint64(52))
