"""Decides whether the text can end after its last token, which may merge with what follows.

Some next token must not merge with it. For each packed state, tokens are cached that are known to
lead to an end (`Memo.hints`), and nearly always one of them does not merge with the last token. If
they all do, this searches over tokens: first the spelling of characters after which any last token
is safe, then the tokens that get closest to an end, then all tokens.
"""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import Int, Int64s
from proper_tokens.compiled import compiled
from proper_tokens.kernels.endings import longer, next_character, whatever_last
from proper_tokens.kernels.memo import (
    Memo,
    add_hint,
    has_hint,
    is_spent,
    memo_open,
    memo_put,
    memo_rest,
    memo_result,
    memo_slot,
)
from proper_tokens.kernels.packing import NODE_BITS, SPREAD, unpack
from proper_tokens.kernels.pushdown import language_after
from proper_tokens.kernels.results import ALIVE, ALWAYS, DEAD, FULL, NEVER, OPEN, SPENT, UNKNOWN
from proper_tokens.kernels.tables import IN_LANGUAGE, Tables
from proper_tokens.kernels.walk import run_token, walk_trie
from proper_tokens.merges import NEVER as NEVER_MERGED
from proper_tokens.merges import merge_once, stay_apart
from proper_tokens.pretokenizer import APART

AHEAD = 16
"""How many characters on the way to an end are spelt at most to find the token to try first."""
FEW = 4
"""How many of the bytes that may continue a character a search tries first."""
NEAREST = 256
"""How many of the tokens that lead closest to an accepting state a search tries first."""
MOST_FOUND = 1 << 20
"""How many rows of tokens, of 24 bytes each, a search may hold at once."""


@compiled
def outcome_of(tables: Tables, memo: Memo, packed: Int, nfc: Int, last: Int) -> Int:
    """Whether the text can end from a state after a token: `DEAD`, `ALIVE`, `NEVER`, `ALWAYS`,
    `FULL` or `SPENT`."""
    if is_spent(memo.work, 1):
        return np.int64(SPENT)
    found = whatever_last(tables, memo, packed, nfc)
    return _search(tables, memo, packed, nfc, last) if found == UNKNOWN else found


@compiled
def _search(tables: Tables, memo: Memo, packed: Int, nfc: Int, last: Int) -> Int:
    """Whether the text can end after its last token: `ALIVE` or `DEAD`, or why that is unknown.

    This is for states for which `whatever_last` returns `UNKNOWN`. A token must follow that stays
    apart from the last one and after which the text can end. The algorithm is that of `can_end`,
    applied to tokens instead of characters.
    """
    relation, n_tokens, work = tables.relation, len(tables.begin), memo.work
    stored, rests, findings = memo.packed, memo.rest, memo.found
    rest = memo_rest(n_tokens, nfc, last)
    known = memo_result(stored, rests, findings, packed, rest)
    if known in (ALIVE, DEAD):
        return np.int64(known)
    if has_hint(tables, memo, packed, nfc, last):
        return np.int64(ALIVE)
    if 4 * (memo.used[0] + 2) > len(stored):
        return np.int64(FULL)
    # Columns: packed state, state of NFC, last token, next token to try, start and end of the
    # tokens to try, index among the open states, the lowest index that it leads to, the token that
    # is being tried, and which tokens were collected: none, those of `_spelled`, the nearest to an
    # end, or all.
    path = np.empty((16, 10), np.int64)
    opened = np.empty((64, 2), np.int64)
    tokens = np.empty((0, 3), np.int64)
    n = n_open = 1
    path[0] = 0
    path[0, 0], path[0, 1], path[0, 2] = packed, nfc, last
    opened[0, 0], opened[0, 1] = packed, rest
    memo_open(memo, packed, rest, 0)
    result = np.int64(DEAD)
    while n:
        top = path[n - 1]
        if top[3] >= top[5] and top[9] < 3:
            if top[9] == 0:
                behind = _spelled(tables, memo, top[0], top[1], top[2])
                top[4], seen = len(tokens), 0
            else:
                behind, seen = _tokens_behind(tables, top[0], top[1], top[9] == 1)
            # In the time of a step, a walk finds two tokens.
            if is_spent(work, 50 + seen // 2) or top[4] + len(behind) > MOST_FOUND:
                result = np.int64(SPENT)
                break
            _put_safe_first(tables, memo, behind, top[2])
            tokens = np.concatenate((tokens[: top[4]], behind))
            top[3], top[5] = top[4], len(tokens)
            top[9] = 3 if top[9] == 1 and len(behind) < NEAREST else top[9] + 1
            continue
        if top[3] >= top[5]:
            lowest = top[7]
            if lowest == top[6]:
                for j in range(lowest, n_open):
                    memo_put(memo, opened[j, 0], opened[j, 1], DEAD)
                n_open = lowest
            tokens = tokens[: top[4]]
            n -= 1
            if n:
                path[n - 1, 7] = min(path[n - 1, 7], lowest)
            continue
        token, after, after_nfc = tokens[top[3], 0], tokens[top[3], 1], tokens[top[3], 2]
        top[3] += 1
        if not stay_apart(relation, top[2], token):
            continue
        top[8] = token
        rest = memo_rest(n_tokens, after_nfc, token)
        known = np.int64(memo_result(stored, rests, findings, after, rest))
        if known == OPEN:
            top[7] = min(top[7], memo.at[memo_slot(stored, rests, after, rest)])
            continue
        if known not in (ALIVE, DEAD):
            known = whatever_last(tables, memo, after, after_nfc)
            if known == UNKNOWN and has_hint(tables, memo, after, after_nfc, token):
                known = np.int64(ALIVE)
        if known in (ALIVE, ALWAYS):
            result = np.int64(ALIVE)
            break
        if known in (DEAD, NEVER):
            continue
        if known in (FULL, SPENT) or 4 * (memo.used[0] + 2) > len(stored):
            result = np.int64(SPENT if known == SPENT else FULL)
            break
        path = longer(path, n)
        opened = longer(opened, n_open)
        path[n] = 0
        path[n, 0], path[n, 1], path[n, 2] = after, after_nfc, token
        path[n, 6], path[n, 7] = n_open, n_open
        opened[n_open, 0], opened[n_open, 1] = after, rest
        memo_open(memo, after, rest, n_open)
        n += 1
        n_open += 1
    for j in range(n_open):
        memo_put(memo, opened[j, 0], opened[j, 1], ALIVE if result == ALIVE else UNKNOWN)
    for j in range(n if result == ALIVE else 0):
        token = path[j, 8]
        is_inert = tables.is_inert[token]
        add_hint(memo, path[j, 0], np.int64(-1) if is_inert else path[j, 1], token)
    return result


@compiled
def _put_safe_first(tables: Tables, memo: Memo, behind: Int64s, last: Int) -> None:
    """Move a token after which the text can end, whatever follows it, to the front, so that it is
    tried before the search looks at what follows the others.

    Args:
        behind: tokens in the format of `_tokens_behind`.
        last: the token before them.
    """
    for i in range(len(behind)):
        token, after, nfc = behind[i]
        if not stay_apart(tables.relation, last, token):
            continue
        found = whatever_last(tables, memo, after, nfc)
        if found == ALWAYS:
            first = behind[0].copy()
            behind[0] = behind[i]
            behind[i] = first
        if found in (ALWAYS, FULL, SPENT):
            return


@compiled
def _spelled(tables: Tables, memo: Memo, packed: Int, nfc: Int, last: Int) -> Int64s:
    """The tokens to try first after a last token, in the format of `_tokens_behind`, if any.

    Between characters, this is the first token in the spelling of characters that lead to an end,
    or to where the text can end whatever the last token is. Within one, these are some bytes that
    may come next and do not merge with the last token.
    """
    found = np.empty((FEW, 3), np.int64)
    n = i = 0
    if unpack(packed)[2]:
        while n < FEW:
            after, after_nfc, i, _ = next_character(tables, packed, nfc, i)
            if after < 0:
                break
            token = tables.byte_ids[0x7F + i]
            if stay_apart(tables.relation, last, token):
                found[n, 0], found[n, 1], found[n, 2] = token, after, after_nfc
                n += 1
        return found[:n].copy()
    samples = tables.samples
    ids = np.empty(4 * AHEAD, np.int64)
    before, ahead, ahead_nfc = np.int64(last), np.int64(packed), np.int64(nfc)
    for _ in range(AHEAD):
        c, is_safe, ahead, ahead_nfc = _best_character(tables, memo, ahead, ahead_nfc, before)
        if c < 0:
            break
        before = np.int64(-1)
        for j in range(samples[c, 0]):
            ids[n] = samples[c, 1 + j]
            n += 1
        if is_safe:
            break
    n = _merged(tables, ids, n)
    if n == 0 or ids[0] < 0:
        return found[:0].copy()
    after, after_nfc = run_token(tables, packed, nfc, ids[0], APART)
    found[0, 0], found[0, 1], found[0, 2] = ids[0], after, after_nfc
    return found[: 1 if after >= 0 else 0].copy()


@compiled
def _best_character(
    tables: Tables, memo: Memo, packed: Int, nfc: Int, last: Int
) -> tuple[Int, bool, Int, Int]:
    """The next character on a way to where the text can end whatever its last token is.

    Characters that lead closer to an end come first, and the others follow only if none of those
    leads to an end. In a recursive language each of the others may add a configuration.

    Args:
        last: the last token, with which a character that reaches that place must not merge; or -1.

    Returns:
        The character, -1 if there is none; whether it reaches that place; and the state after it.
    """
    samples = tables.samples
    ids = np.empty(4, np.int64)
    best, best_after, best_nfc = np.int64(-1), np.int64(packed), np.int64(nfc)
    has_near = False
    i = 0
    while not is_spent(memo.work, 1):
        after, after_nfc, i, c = next_character(tables, packed, nfc, i)
        is_near = i <= len(tables.leading)
        if after < 0 or (has_near and not is_near):
            break
        if c < 0:
            continue
        found = whatever_last(tables, memo, after, after_nfc)
        if found < 0 and found != UNKNOWN:
            break
        n = np.int64(samples[c, 0])
        if found == ALWAYS and n:
            ids[:n] = samples[c, 1 : 1 + n]
            _merged(tables, ids, n)
            if last < 0 or stay_apart(tables.relation, last, ids[0]):
                return c, True, after, after_nfc
        if best < 0 and found != NEVER:
            best, best_after, best_nfc = c, after, after_nfc
            has_near = is_near
    return best, False, best_after, best_nfc


@compiled
def _merged(tables: Tables, ids: Int64s, n: Int) -> Int:
    """Apply all merges to the first `n` of these tokens; returns how many tokens are left."""
    first, pairs, made_by = tables.relation.first, tables.relation.pairs, tables.made_by
    while n > 1 and merge_once(first, pairs, made_by, ids, n) != NEVER_MERGED:
        n -= 1
    return n


@compiled
def _tokens_behind(tables: Tables, packed: Int, nfc: Int, is_short: bool) -> tuple[Int64s, Int]:
    """The states that tokens lead to after a cut that the merges make, those closest to an end
    first.

    If `is_short`, at most `NEAREST` are returned.

    Returns:
        [n, 3] int64: token, packed state, and state of NFC; and how many there are in all.
    """
    parts = (
        walk_trie(tables, tables.odd, packed, nfc),
        walk_trie(tables, tables.plain, packed, nfc),
        walk_trie(tables, tables.marked, packed, nfc),
    )
    n = 0
    for part in parts:
        n += len(part)
    found = np.empty((n, 3), np.int64)
    far = np.empty(n, np.int64)
    recent = np.full((256, 2), -1, np.int64)
    n = 0
    for part in parts:
        for i in range(len(part)):
            if part[i, 1] >= 0:
                found[n, 0], found[n, 1], found[n, 2] = part[i, 0], part[i, 1], part[i, 3]
                far[n] = _remaining(tables, part[i, 1], recent)
                n += 1
    order = np.argsort(far[:n], kind="mergesort")
    if is_short:
        order = order[:NEAREST]
    sorted_ones = np.empty((len(order), 3), np.int64)
    for i in range(len(order)):
        sorted_ones[i] = found[order[i]]
    return sorted_ones, n


@compiled
def _remaining(tables: Tables, packed: Int, recent: Int64s) -> Int:
    """A lower bound on how far a state is from an end, where each character counts four.

    Args:
        tables: the automata.
        packed: a packed state.
        recent: [256, 2] int64: recent results, by state of the language and unfinished character.
    """
    language, _, node, _, _ = unpack(packed)
    distance = tables.distance
    if node == 0:
        return np.int64(4 * distance[language])
    key = (language << NODE_BITS) | node
    at = np.int64(np.uint64(key) * SPREAD >> np.uint64(56))
    if recent[at, 0] == key:
        return recent[at, 1]
    can, reach, characters = tables.can, tables.reach, tables.characters
    nearest = np.int64(distance[language]) + 1
    for c in range(len(characters)):
        w, bit = c >> 6, np.uint64(1) << np.uint64(c & 63)
        if can[language, w] & reach[node, w] & bit:
            after = language_after(tables, language, characters[c, IN_LANGUAGE])
            if after >= 0:
                nearest = min(nearest, np.int64(distance[after]))
    recent[at, 0], recent[at, 1] = key, 4 * nearest + 2
    return recent[at, 1]
