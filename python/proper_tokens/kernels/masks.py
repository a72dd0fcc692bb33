"""Finds the tokens after which the text can end, and makes masks of them."""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int, Int32s, Int64s, UInt32s
from proper_tokens.compiled import compiled, unlocked
from proper_tokens.kernels.endings import can_end
from proper_tokens.kernels.memo import Memo
from proper_tokens.kernels.packing import NODE_BITS, mixed, unpack
from proper_tokens.kernels.plain_walk import Cuts, placed, walk_language
from proper_tokens.kernels.results import ALIVE, ALWAYS, NEVER
from proper_tokens.kernels.tables import Tables
from proper_tokens.kernels.token_search import outcome_of
from proper_tokens.kernels.walk import run_added, walk_trie


@unlocked
def live_tokens(tables: Tables, memo: Memo, trie: Int32s, packed: Int, nfc: Int) -> Int64s:
    """The tokens of a trie after which the text can end.

    Returns:
        Each token times four, plus 1 if it is alive after a cut that the merges make, plus 2 if it
        is alive after a cut that they do not make. A single `FULL` or `SPENT` if the result is not
        known.
    """
    found = walk_trie(tables, trie, packed, nfc)
    live = found[:, 0] * 4
    for i in range(len(found)):
        for kind in range(2):
            after = found[i, 1 + kind]
            if after >= 0:
                lives = outcome_of(tables, memo, after, found[i, 3], found[i, 0])
                if lives < 0:
                    return np.full(1, lives, np.int64)
                live[i] |= (lives in (ALIVE, ALWAYS)) << kind
    return live[live & 3 != 0]


@unlocked
def live_plain(
    tables: Tables,
    memo: Memo,
    cuts: Cuts,
    nfc: Int32s,
    packed: Int,
    apart: UInt32s,
    broken: UInt32s,
) -> Int64s:
    """Add to A and B the plain tokens after which the text can end.

    Args:
        cuts, nfc, packed: as in `walk_plain`.
        apart, broken: [words] uint32.

    Returns:
        Nothing, or a single `FULL` or `SPENT`.
    """
    kinds, behind = cuts
    # Recent results that do not depend on the token. They are read without a call, since nearly all
    # tokens find theirs here.
    keys = np.full((4096, 2), -1, np.int64)
    settled = np.zeros(4096, np.int64)
    taken = walk_language(tables, unpack(packed)[0])
    for i in range(len(taken)):
        token = np.int64(taken[i, 0])
        cut, after_nfc = np.int64(kinds[token]), np.int64(nfc[token])
        key = (((np.int64(taken[i, 1]) << NODE_BITS) | taken[i, 2]) << 32) | cut
        where = _recent(key, after_nfc)
        live = settled[where]
        if keys[where, 0] != key or keys[where, 1] != after_nfc:
            live = _plain_outcome(
                tables, memo, taken[i, 1], taken[i, 2], behind[cut], after_nfc, token
            )
            if live < 0:
                return np.full(1, live, np.int64)
            if live < 4:
                keys[where, 0], keys[where, 1], settled[where] = key, after_nfc, live
        bit = np.uint32(token & 31)
        apart[token >> 5] |= np.uint32(live & 1) << bit
        broken[token >> 5] |= np.uint32(live >> 1 & 1) << bit
    return np.empty(0, np.int64)


@compiled
def _plain_outcome(
    tables: Tables, memo: Memo, language: Int, node: Int, cuts: Int32s, nfc: Int, token: Int
) -> Int:
    """Whether the text can end after a plain token: 1 if it can after a cut that the merges make,
    plus 2 if it can after one that they do not make, plus 4 if it depends on the token and not only
    on the state that it leads to. `FULL` or `SPENT` if that is not known.

    Args:
        language, node: the state of the language after the token, and the unfinished character.
        cuts: what `cuts_behind` returns for the kind of the token.
        nfc: the state of NFC after the token.
        token: the token.
    """
    live = np.int64(0)
    for kind in range(2):
        after = placed(language, cuts[kind], node)
        if after >= 0:
            lives = outcome_of(tables, memo, after, nfc, token)
            if lives < 0:
                return np.int64(lives)
            live |= np.int64(lives in (ALIVE, ALWAYS)) << kind
            live |= 0 if lives in (ALWAYS, NEVER) else 4
    return live


@compiled
def _recent(key: Int, nfc: Int) -> Int:
    """The place of a result among 4096 recent ones."""
    return mixed(key, nfc) >> np.uint64(52)


@unlocked
def live_added(tables: Tables, memo: Memo, packed: Int, nfc: Int) -> Int64s:
    """The added tokens after which the text can end, in the format of `live_tokens`."""
    live = np.empty(len(tables.added), np.int64)
    n = 0
    for token in tables.added:
        after, after_nfc = run_added(tables, packed, nfc, token)
        if after < 0:
            continue
        lives = can_end(tables, memo, after, after_nfc)
        if lives < 0:
            return np.full(1, lives, np.int64)
        if lives == ALIVE:
            live[n] = 4 * token + 3
            n += 1
    return live[:n].copy()


@unlocked
def states_behind(found: Int64s, allowed: UInt32s) -> Int64s:
    """The states that the tokens in a mask lead to.

    Args:
        found: the result of `walk.walk_trie`.
        allowed: the mask, [words] uint32.

    Returns:
        [n, 2] int64: packed state and state of NFC. Most of those that are equal are left out.
    """
    behind = np.empty((2 * len(found), 2), np.int64)
    recent = np.full(4096, -1, np.int64)  # a cache, because most tokens lead to few states
    n = 0
    for i in range(len(found)):
        token, nfc = found[i, 0], found[i, 3]
        if not allowed[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
            continue
        for kind in range(2):
            after = found[i, 1 + kind]
            at = _recent(after, nfc)
            is_known = recent[at] >= 0 and (
                behind[recent[at], 0] == after and behind[recent[at], 1] == nfc
            )
            if after >= 0 and not is_known:
                recent[at] = n
                behind[n, 0], behind[n, 1] = after, nfc
                n += 1
    return behind[:n].copy()


@compiled
def set_bits(mask: UInt32s, live: Int64s, kinds: Int) -> None:
    """Add to a mask the tokens that are alive after one of the given kinds of cuts."""
    for i in range(len(live)):
        if live[i] & kinds:
            token = live[i] >> 2
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@compiled
def combine(mask: UInt32s, apart: UInt32s, broken: UInt32s, row: UInt32s, odd: Int64s) -> None:
    """Set a mask to the tokens of A and B that may follow a last token."""
    for i in range(len(mask)):
        mask[i] = (apart[i] & row[i]) | (broken[i] & ~row[i])
    for i in range(len(odd)):
        token = odd[i] >> 2
        kinds = odd[i] & 3
        if kinds == 3 or kinds & (1 if row[token >> 5] >> np.uint32(token & 31) & 1 else 2):
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
