"""Decides, character by character, whether the text can end.

Every text that the language accepts, that NFC leaves unchanged and that contains no added token's
text has exactly one proper spelling. So the text so far can end iff some characters lead to an end
and the pre-tokenizer cuts as the tokens so far require. Future cuts are left open (`EITHER`),
because the spelling determines them. Only the last token is uncertain, because it may merge with
what follows. `token_search` handles that, unless the pre-tokenizer cuts after the token or the next
character is spelt `IN_BYTES`, which the flag `BROKEN` between two characters requires.
"""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int, Int64s
from proper_tokens.compiled import compiled
from proper_tokens.kernels.memo import Memo, is_spent, memo_open, memo_put, memo_result, memo_slot
from proper_tokens.kernels.packing import ADDED_BITS, pack, unpack
from proper_tokens.kernels.pushdown import language_after
from proper_tokens.kernels.results import ALIVE, ALWAYS, DEAD, FULL, NEVER, OPEN, SPENT, UNKNOWN
from proper_tokens.kernels.tables import (
    IN_BYTES,
    IN_LANGUAGE,
    IN_PRETOKENIZER,
    LENGTH,
    SPELT,
    Tables,
)
from proper_tokens.kernels.walk import compose, may_end, run_added, run_token
from proper_tokens.pretokenizer import APART, BROKEN, EITHER, WITHIN


@compiled
def whatever_last(tables: Tables, memo: Memo, packed: Int, nfc: Int) -> Int:
    """The result for a state if it does not depend on the last token: `ALWAYS` or `NEVER`;
    otherwise `UNKNOWN`, `FULL` or `SPENT`."""
    _, _, node, _, _ = unpack(packed)
    if not node:
        found = can_end(tables, memo, packed | np.int64(BROKEN << ADDED_BITS), nfc)
        if found != DEAD:
            return np.int64(ALWAYS if found == ALIVE else found)
    found = can_end(tables, memo, packed, nfc)
    if found == DEAD:
        return np.int64(NEVER)
    return np.int64(UNKNOWN if found == ALIVE else found)


@compiled
def can_end(tables: Tables, memo: Memo, packed: Int, nfc: Int) -> Int:
    """Whether the text can end, ignoring its last token: `ALIVE` or `DEAD`, or why that is unknown.

    This is a depth-first search that settles whole strongly connected components (Tarjan), so each
    state is visited once. When it finds an end, every open state can reach it, because each open
    state leads to one on the current path.
    """
    accepts, ends, work = tables.accepts, tables.may_end, memo.work
    stored, rests, findings = memo.packed, memo.rest, memo.found
    if may_end(accepts, ends, packed):
        return np.int64(ALIVE)
    known = memo_result(stored, rests, findings, packed, -1 - nfc)
    if known in (ALIVE, DEAD):
        return np.int64(known)
    if 4 * (memo.used[0] + 2) > len(stored):
        return np.int64(FULL)
    steps = 4 + len(tables.leading)
    # Columns: packed state, state of NFC, next character to try, index among the open states, and
    # the lowest index that it leads to.
    path = np.empty((64, 5), np.int64)
    opened = np.empty((64, 2), np.int64)
    n = n_open = 1
    path[0, 0], path[0, 1], path[0, 2], path[0, 3], path[0, 4] = packed, nfc, 0, 0, 0
    opened[0, 0], opened[0, 1] = packed, nfc
    memo_open(memo, packed, -1 - nfc, 0)
    result = np.int64(DEAD)
    while n:
        top = path[n - 1]
        after, after_nfc, top[2], _ = next_character(tables, top[0], top[1], top[2])
        if after < 0:
            lowest = top[4]
            if lowest == top[3]:
                for j in range(lowest, n_open):
                    memo_put(memo, opened[j, 0], -1 - opened[j, 1], DEAD)
                n_open = lowest
            n -= 1
            if n:
                path[n - 1, 4] = min(path[n - 1, 4], lowest)
            continue
        known = memo_result(stored, rests, findings, after, -1 - after_nfc)
        if known == ALIVE or may_end(accepts, ends, after):
            result = np.int64(ALIVE)
            break
        if known == DEAD:
            continue
        if known == OPEN:
            top[4] = min(top[4], memo.at[memo_slot(stored, rests, after, -1 - after_nfc)])
            continue
        if 4 * (memo.used[0] + 2) > len(stored):
            result = np.int64(FULL)
            break
        if is_spent(work, steps):
            result = np.int64(SPENT)
            break
        path = longer(path, n)
        opened = longer(opened, n_open)
        path[n, 0], path[n, 1], path[n, 2], path[n, 3], path[n, 4] = (
            after, after_nfc, 0, n_open, n_open
        )  # fmt: skip
        opened[n_open, 0], opened[n_open, 1] = after, after_nfc
        memo_open(memo, after, -1 - after_nfc, n_open)
        n += 1
        n_open += 1
    for j in range(n_open):
        memo_put(memo, opened[j, 0], -1 - opened[j, 1], ALIVE if result == ALIVE else UNKNOWN)
    return result


@compiled
def longer(rows: Int64s, n: Int) -> Int64s:
    """The array of rows, enlarged if necessary to hold the n-th."""
    if n < len(rows):
        return rows
    longer = np.empty((2 * n, rows.shape[1]), np.int64)
    longer[:n] = rows
    return longer


@compiled
def next_character(tables: Tables, packed: Int, nfc: Int, i: Int) -> tuple[Int, Int, Int, Int]:
    """The state after the next possible character, trying characters from the i-th on.

    Characters that lead closer to an end come first. Within a character, its next byte is read.

    Returns:
        The packed state and the state of NFC (a negative packed state means that no character is
        left), where to continue, and the character's class, or -1 for a byte or an added token.
    """
    language, pretoken, node, flag, added = unpack(packed)
    if node:
        byte_ids = tables.byte_ids
        while i < 64:
            after, after_nfc = run_token(tables, packed, nfc, byte_ids[0x80 + i], APART)
            i += 1
            if after >= 0:
                return after, after_nfc, i, np.int64(-1)
        return np.int64(-1), np.int64(0), i, np.int64(-1)
    characters, changes, spelling = tables.characters, tables.changes, tables.spelling
    distance, pretokens = tables.distance, tables.pretokens
    goto, tokens, leading = tables.goto, tables.added, tables.leading
    n, n_tokens = len(leading), len(tokens)
    while i < 2 * n + n_tokens:
        is_near = i < n
        k = i if is_near else i - n - n_tokens
        i += 1
        if k < 0:
            after, after_nfc = run_added(tables, packed, nfc, tokens[k + n_tokens])
            if after >= 0:
                return after, after_nfc, i, np.int64(-1)
            continue
        c = leading[k]
        after = language_after(tables, language, characters[c, IN_LANGUAGE])
        if after < 0 or (distance[after] < distance[language]) != is_near:
            continue
        is_broken = flag == BROKEN and characters[c, SPELT] != IN_BYTES
        cut = BROKEN if is_broken else EITHER
        after_pretoken = pretokens[pretoken, characters[c, IN_PRETOKENIZER], cut]
        if after_pretoken < 0:
            continue
        after_nfc = compose(characters, changes, nfc, c)
        if after_nfc < 0:
            continue
        after_added = np.int64(0)
        if spelling[c, 0]:
            after_added = added
            for j in range(spelling[c, 0]):
                after_added = np.int64(goto[after_added, spelling[c, 1 + j]])
            if goto[after_added, LENGTH] > 0:
                continue
        return pack(after, after_pretoken, 0, WITHIN, after_added), after_nfc, i, c
    return np.int64(-1), np.int64(0), i, np.int64(-1)
