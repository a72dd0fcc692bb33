"""Walks the plain tokens (`Tables.plain`) faster than `walk` does.

What the pre-tokenizer and NFC make of them is computed once for all constraints (`cuts_behind`,
`nfc_behind`). A walk through the language alone is left.
"""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int, Int32s, Int64s
from proper_tokens.compiled import compiled, unlocked
from proper_tokens.kernels.packing import FLAG_BITS, mixed, pack, unpack
from proper_tokens.kernels.pushdown import explored, language_after
from proper_tokens.kernels.tables import IN_LANGUAGE, UNEXPLORED, Tables
from proper_tokens.kernels.tries import BYTE, DEPTH, LONGEST, SKIP, TOKEN
from proper_tokens.kernels.walk import compose, pretoken_after
from proper_tokens.pretokenizer import APART, WITHIN

Cuts = tuple[Int32s, Int32s]
"""What `cuts_behind` returns."""


@unlocked
def nfc_behind(tables: Tables) -> Int32s:
    """The state of NFC after each plain token: [V] int32, -1 where NFC would change the token.

    A plain token begins with a character that NFC never changes, so the text before it is
    irrelevant.
    """
    trie, decoder = tables.plain, tables.decoder
    characters, changes = tables.characters, tables.changes
    behind = np.full(len(tables.begin) - 1, -1, np.int32)
    path = np.empty((LONGEST + 1, 2), np.int64)
    path[0, 0], path[0, 1] = 0, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        entry = decoder[path[d - 1, 0], trie[i, BYTE]]
        nfc = path[d - 1, 1]
        if entry < -1:
            nfc = compose(characters, changes, nfc, -2 - entry)
        if entry == -1 or nfc < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1] = max(entry, 0), nfc
        if trie[i, TOKEN] >= 0:
            behind[trie[i, TOKEN]] = nfc
        i += 1
    return behind


@unlocked
def cuts_behind(tables: Tables, nfc: Int32s, pretoken: Int) -> Cuts:
    """The state of the pre-tokenizer after each plain token.

    Args:
        nfc: the result of `nfc_behind`.
        pretoken: the pre-tokenizer's state before the token, between two characters.

    Returns:
        [V] int32: the kind of each token; and [kinds, 2] int32: the pre-tokenizer's state and the
        flag of the unfinished character, packed, after a cut that the merges make and after one
        that they do not make; -1 where tokens of that kind are not allowed.
    """
    trie, decoder, reach = tables.plain, tables.decoder, tables.reach
    pretokens, torn, takes = tables.pretokens, tables.torn, tables.takes
    characters = tables.characters
    kinds = np.zeros(len(nfc), np.int32)
    behind = np.full((len(nfc) + 2, 2), -1, np.int32)  # the first kind is never allowed
    n = 1
    # An open-addressing hash table of the other kinds, of which there may be thousands.
    size = 2
    while size < 2 * len(behind):
        size *= 2
    slots = np.zeros(size, np.int32)
    # By depth: the unfinished character; state and flag after each kind of cut.
    path = np.empty((LONGEST + 1, 5), np.int64)
    path[0, 0], path[0, 1], path[0, 2], path[0, 3], path[0, 4] = 0, pretoken, 0, pretoken, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        token = trie[i, TOKEN]
        node = path[d - 1, 0]
        entry = decoder[node, trie[i, BYTE]]
        if entry == -1:
            i = trie[i, SKIP]
            continue
        path[d, 0] = max(entry, 0)
        for kind in range(2):
            before, flag = path[d - 1, 1 + 2 * kind], path[d - 1, 2 + 2 * kind]
            if before >= 0:
                cut = WITHIN if d > 1 else APART + kind
                c = -2 - entry if entry < -1 else -1
                before, flag = pretoken_after(
                    pretokens, torn, takes, reach, characters,
                    before, node, flag, cut, path[d, 0], c,
                )  # fmt: skip
            path[d, 1 + 2 * kind], path[d, 2 + 2 * kind] = before, flag
        if token >= 0 and nfc[token] >= 0 and (path[d, 1] >= 0 or path[d, 3] >= 0):
            for kind in range(2):
                before, flag = path[d, 1 + 2 * kind], path[d, 2 + 2 * kind]
                behind[n, kind] = (before << FLAG_BITS) | flag if before >= 0 else -1
            at = mixed(behind[n, 0], behind[n, 1])
            slot = np.int64((at ^ (at >> np.uint64(29))) & np.uint64(len(slots) - 1))
            k = np.int64(slots[slot])
            while k and (behind[k, 0] != behind[n, 0] or behind[k, 1] != behind[n, 1]):
                slot = (slot + 1) & (len(slots) - 1)
                k = np.int64(slots[slot])
            if k == 0:
                k = np.int64(n)
                slots[slot] = k
                n += 1
            kinds[token] = k
        i += 1
    return kinds, behind[:n].copy()


@unlocked
def walk_plain(tables: Tables, cuts: Cuts, nfc: Int32s, packed: Int) -> Int64s:
    """The result of `walk.walk_trie` for the plain tokens.

    Args:
        cuts: the result of `cuts_behind` for the state of the pre-tokenizer.
        nfc: the result of `nfc_behind`.
        packed: a packed state without an unfinished character or added token.
    """
    taken = walk_language(tables, unpack(packed)[0])
    kinds, behind = cuts
    found = np.empty((len(taken), 4), np.int64)
    n = 0
    for i in range(len(taken)):
        token = taken[i, 0]
        found[n, 0], found[n, 3] = token, nfc[token]
        for kind in range(2):
            found[n, 1 + kind] = placed(taken[i, 1], behind[kinds[token], kind], taken[i, 2])
        n += found[n, 1] >= 0 or found[n, 2] >= 0
    return found[:n]


@compiled
def walk_language(tables: Tables, language: Int) -> Int32s:
    """The plain tokens that the language accepts in one of its states.

    Returns:
        [found, 3] int32: token, state of the language after it, and the unfinished character.
    """
    trie, decoder, states = tables.plain, tables.decoder, tables.language
    can, reach = tables.can, tables.reach
    classes = tables.characters[:, IN_LANGUAGE].copy()
    ascii = np.empty(128, np.int32)
    for byte in range(128):
        ascii[byte] = classes[-2 - decoder[0, byte]]
    found = np.empty((len(trie), 3), np.int32)
    n = 0
    path = np.empty((LONGEST + 1, 2), np.int32)
    path[0, 0], path[0, 1] = language, 0
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        after = path[d - 1, 0]
        node = np.int32(0)
        if trie[i, BYTE] < 128:  # most bytes are ASCII, and this avoids the decoder
            before, k = after, ascii[trie[i, BYTE]]
            after = states[before, k]
            if after == UNEXPLORED:
                after = explored(tables, before, k)
        else:
            entry = decoder[path[d - 1, 1], trie[i, BYTE]]
            if entry < -1:
                after = language_after(tables, after, classes[-2 - entry])
            else:
                node = entry
                may = False
                if entry >= 0:
                    for w in range(can.shape[1]):
                        may |= can[after, w] & reach[entry, w] != 0
                if not may:
                    after = np.int32(-1)
        if after < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1] = after, node
        found[n, 0], found[n, 1], found[n, 2] = trie[i, TOKEN], after, node
        n += trie[i, TOKEN] >= 0  # branch-free: half of the nodes end a token, unpredictably
        i += 1
    return found[:n]


@compiled
def placed(language: Int, cut: Int, node: Int) -> Int:
    """Pack a state from results of `walk_language` and `cuts_behind`; negative means none."""
    if cut < 0:
        return np.int64(-1)
    return pack(language, cut >> FLAG_BITS, node, cut & ((1 << FLAG_BITS) - 1), 0)
