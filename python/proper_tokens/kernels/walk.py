"""Walks tokens through all automata at once, byte by byte."""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Bools, Int, Int32s, Int64s, UInt64s
from proper_tokens.compiled import compiled, unlocked
from proper_tokens.kernels.packing import TORN, pack, unpack
from proper_tokens.kernels.pushdown import explored, language_after
from proper_tokens.kernels.tables import (
    COMBINING,
    IN_LANGUAGE,
    IN_ONE,
    IN_PRETOKENIZER,
    LENGTH,
    MARK,
    SPELT,
    STARTER,
    UNEXPLORED,
    Tables,
)
from proper_tokens.kernels.tries import BYTE, DEPTH, LONGEST, SKIP, TOKEN
from proper_tokens.merges import stay_apart
from proper_tokens.nfc import STARTS
from proper_tokens.pretokenizer import APART, BROKEN, WITHIN


@compiled
def may_end(accepts: Bools, ends: Bools, packed: Int) -> bool:
    """Whether the text may end in a state, given `Tables.accepts` and `Tables.may_end`."""
    language, pretoken, node, _, _ = unpack(packed)
    return node == 0 and accepts[language] and ends[pretoken]


@compiled
def step(tables: Tables, packed: Int, nfc: Int, last: Int, token: Int) -> tuple[Int, Int]:
    """The packed state and the state of NFC after a token, as `run_token` returns them."""
    for added in tables.added:
        if added == token:
            return run_added(tables, packed, nfc, token)
    if not tables.relation.reachable[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
        return np.int64(-1), np.int64(0)
    cut = APART if last < 0 or stay_apart(tables.relation, last, token) else BROKEN
    return run_token(tables, packed, nfc, token, cut)


@unlocked
def walk_trie(tables: Tables, trie: Int32s, packed: Int, nfc: Int) -> Int64s:
    """Walk all tokens of a trie from a state.

    Returns:
        [found, 4] int64: the token, the packed state after it if the merges cut before it, the
        packed state if they do not (negative if the token is not allowed then), and the state of
        NFC.
    """
    goto, decoder, can, reach = tables.goto, tables.decoder, tables.can, tables.reach
    states, characters, changes = tables.language, tables.characters, tables.changes
    pretokens, torn, takes = tables.pretokens, tables.torn, tables.takes
    found = np.empty((256, 4), np.int64)
    n = 0
    # By depth: language, node, added token, NFC; pre-tokenizer and flag after each kind of cut.
    path = np.empty((LONGEST + 1, 8), np.int64)
    path[0, 0], path[0, 4], path[0, 1], path[0, 5], path[0, 2] = unpack(packed)
    path[0, 3], path[0, 6], path[0, 7] = nfc, path[0, 4], path[0, 5]
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        node = path[d - 1, 1]
        language, after, added, after_nfc, c = _read_byte(
            tables, goto, decoder, can, reach, states, characters, changes,
            path[d - 1, 0], node, path[d - 1, 2], path[d - 1, 3], trie[i, BYTE],
        )  # fmt: skip
        if language < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1], path[d, 2], path[d, 3] = language, after, added, after_nfc
        for kind in range(2):
            pretoken, flag = path[d - 1, 4 + 2 * kind], path[d - 1, 5 + 2 * kind]
            if pretoken >= 0:
                cut = WITHIN if d > 1 else APART + kind
                pretoken, flag = pretoken_after(
                    pretokens, torn, takes, reach, characters, pretoken, node, flag, cut, after, c
                )
            path[d, 4 + 2 * kind], path[d, 5 + 2 * kind] = pretoken, flag
        if path[d, 4] < 0 and path[d, 6] < 0:
            i = trie[i, SKIP]
            continue
        if trie[i, TOKEN] >= 0:
            if n == len(found):
                more = np.empty((4 * n, 4), np.int64)
                more[:n] = found
                found = more
            found[n, 0], found[n, 3] = trie[i, TOKEN], after_nfc
            for kind in range(2):
                pretoken, flag = path[d, 4 + 2 * kind], path[d, 5 + 2 * kind]
                found[n, 1 + kind] = (
                    pack(language, pretoken, after, flag, added) if pretoken >= 0 else -1
                )
            n += 1
        i += 1
    return found[:n]


@compiled
def run_token(tables: Tables, packed: Int, nfc: Int, token: Int, cut: Int) -> tuple[Int, Int]:
    """The packed state and the state of NFC after a cut and then a token.

    A negative packed state means that the token is not allowed.
    """
    goto, decoder, can, reach = tables.goto, tables.decoder, tables.can, tables.reach
    states, characters, changes = tables.language, tables.characters, tables.changes
    pretokens, torn, takes = tables.pretokens, tables.torn, tables.takes
    content = tables.content
    language, pretoken, node, flag, added = unpack(packed)
    for i in range(tables.begin[token], tables.begin[token + 1]):
        language, after, added, nfc, c = _read_byte(
            tables, goto, decoder, can, reach, states, characters, changes,
            language, node, added, nfc, content[i],
        )  # fmt: skip
        if language < 0:
            return np.int64(-1), np.int64(0)
        pretoken, flag = pretoken_after(
            pretokens, torn, takes, reach, characters, pretoken, node, flag, cut, after, c
        )
        if pretoken < 0:
            return np.int64(-1), np.int64(0)
        node, cut = after, WITHIN
    return pack(language, pretoken, node, flag, added), np.int64(nfc)


@compiled
def run_added(tables: Tables, packed: Int, nfc: Int, token: Int) -> tuple[Int, Int]:
    """The packed state and the state of NFC after an added token, as `run_token` returns them."""
    goto, decoder, content = tables.goto, tables.decoder, tables.content
    characters, changes = tables.characters, tables.changes
    language, pretoken, node, _, added = unpack(packed)
    if node or not tables.may_end[pretoken]:
        return np.int64(-1), np.int64(0)
    is_raw = tables.is_raw[token]
    nfc = np.int64(0) if is_raw else np.int64(nfc)
    first = tables.begin[token]
    for i in range(first, tables.begin[token + 1]):
        entry = decoder[node, content[i]]
        added = goto[added, content[i]]
        if goto[added, LENGTH] > i - first + 1:  # another added token began before it
            return np.int64(-1), np.int64(0)
        if entry >= 0:
            node = entry
            continue
        if not is_raw:
            nfc = compose(characters, changes, nfc, -2 - entry)
        language = np.int64(language_after(tables, language, characters[-2 - entry, IN_LANGUAGE]))
        if nfc < 0 or language < 0:
            return np.int64(-1), np.int64(0)
        node = 0
    return pack(language, 0, 0, WITHIN, added), nfc


@compiled
def _read_byte(
    tables: Tables,
    goto: Int32s,
    decoder: Int32s,
    can: UInt64s,
    reach: UInt64s,
    states: Int32s,
    characters: Int32s,
    changes: Bools,
    language: Int,
    node: Int,
    added: Int,
    nfc: Int,
    byte: Int,
) -> tuple[Int, Int, Int, Int, Int]:
    """The parts of the state after a byte that do not depend on cuts.

    Also returns the class of the character that the byte completes, or -1. A negative state of the
    language means that the byte is not allowed.
    """
    added = goto[added, byte]
    if goto[added, LENGTH] > 0:
        return -1, 0, 0, 0, -1
    entry = decoder[node, byte]
    if entry >= 0:
        for w in range(can.shape[1]):
            if can[language, w] & reach[entry, w]:
                return language, entry, added, nfc, -1
        return -1, 0, 0, 0, -1
    if entry == -1:
        return -1, 0, 0, 0, -1
    c = -2 - entry
    nfc = compose(characters, changes, nfc, c)
    if nfc < 0:
        return -1, 0, added, nfc, c
    k = characters[c, IN_LANGUAGE]
    after = states[language, k]
    if after == UNEXPLORED:
        after = explored(tables, language, k)
    return after, 0, added, nfc, c


@compiled
def compose(characters: Int32s, changes: Bools, nfc: Int, c: Int) -> Int:
    """The state of NFC after a character; -1 if NFC would change the text."""
    combining, mark = characters[c, COMBINING], characters[c, MARK]
    starter, before = nfc // STARTS, nfc % STARTS
    if combining == 0:
        if mark and before == 0 and changes[starter, mark]:
            return np.int64(-1)
        return np.int64(characters[c, STARTER]) * STARTS
    if combining < 0 or before > combining:
        return np.int64(-1)
    if before < combining and mark and changes[starter, mark]:
        return np.int64(-1)
    return np.int64(starter) * STARTS + combining


@compiled
def pretoken_after(
    pretokens: Int32s,
    torn: Int32s,
    takes: UInt64s,
    reach: UInt64s,
    characters: Int32s,
    pretoken: Int,
    node: Int,
    flag: Int,
    cut: Int,
    after: Int,
    c: Int,
) -> tuple[Int, Int]:
    """The state of the pre-tokenizer and the flag after a byte; a negative state means none.

    Args:
        node, after: the unfinished character before and after the byte.
        cut: the flag of the cut before the byte.
        c: the class of the character that the byte completes, or -1.
    """
    if node:
        if cut == BROKEN:  # the pre-tokenizer does not cut within a character
            return -1, 0
        if cut == APART:
            if c >= 0 and characters[c, SPELT] == IN_ONE:  # a byte's token ends it
                return -1, 0
            flag |= TORN
    else:
        flag = cut
    if c >= 0:
        behind = np.int64(pretokens[pretoken, characters[c, IN_PRETOKENIZER], flag & ~TORN])
        return (np.int64(torn[behind]) if flag & TORN and behind >= 0 else behind), 0
    for w in range(takes.shape[2]):
        if takes[pretoken, flag & ~TORN, w] & reach[after, w]:
            return pretoken, flag
    return -1, 0
