"""The walks and searches of `product`, compiled for the CPU.

A state of the product, without NFC and the last token, is packed into one integer (`pack`). From
the highest bits down, it holds the state of the language, the state of the pre-tokenizer, the
unfinished character (a node of the decoder), the flag of its first byte, and the unfinished added
token. A state is `ALIVE` if the text can still end from it.

Compiled functions get `Tables` and `Memo` as references (`compiled.reference`). Loops use arrays
that were taken out of them beforehand, because numba updates a reference count each time a field
is accessed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proper_tokens.compiled import compiled, unlocked
from proper_tokens.language import FAR
from proper_tokens.merges import NEVER as UNMERGED
from proper_tokens.merges import MergeRelation, merge_rank, stay_apart
from proper_tokens.nfc import STARTS
from proper_tokens.pretokenizer import APART, BROKEN, EITHER, WITHIN
from proper_tokens.references import Reference, reference, refers_to

DEAD, ALIVE, OPEN, ALWAYS, NEVER, FULL, SPENT = 0, 1, 2, 3, 4, -9, -8
"""Results of a search. `OPEN` means that it is still running, `ALWAYS` and `NEVER` that the state
is alive or dead whatever the last token is, `FULL` that a larger memo is needed, and `SPENT` that
no steps are left or the search was stopped."""
STEPS, STOP, ALL_STEPS = 0, 1, 2
"""Places in `Memo.work`."""
UNKNOWN = -2
AHEAD = 16
"""How many characters on the way to an end are spelt at most to find the token to try first."""
FEW = 4
"""How many of the bytes that may continue a character a search tries first."""
NEAREST = 256
"""How many of the tokens that lead closest to an accepting state a search tries first."""
MOST_FOUND = 1 << 20
"""How many rows of tokens, of 24 bytes each, a search may hold at once."""
HINTS, HINTED = 4096, 8
"""How many packed states have hints, and how many hints each of them has."""
LONGEST = 512
"""Bytes of the longest token."""
MOST_ITEMS = 1024
"""The most items of a configuration."""
MOST_CONFIGURATIONS = 1 << 17
"""The most configurations of a constraint, and the most stacks."""
CONFIGURATION_BYTES = 20 << 20
"""The most memory for the rows of the table of configurations."""
_SPREAD, _OTHER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
LANGUAGE_BITS, PRETOKEN_BITS, NODE_BITS, FLAG_BITS, ADDED_BITS = 18, 14, 11, 3, 14
TORN = 4
"""Added to the flag of an unfinished character if there is a token boundary within it."""
UNEXPLORED = -2
"""The entry in a table for a configuration that was not needed yet."""
STACKS, CONFIGURATIONS, ITEMS, CROWDED = 0, 1, 2, 3
"""Places in `Pushdown.used`."""
BYTE, DEPTH, SKIP, TOKEN = 0, 1, 2, 3
LENGTH = 256
IN_LANGUAGE, IN_PRETOKENIZER, COMBINING, MARK, STARTER, SPELT = 0, 1, 2, 3, 4, 5
IN_ONE, IN_BYTES = 1, 2
"""How BPE with byte fallback spells a character: never in the tokens of its bytes, of which it has
several, because it has a token; or only in those, which never merge."""


class Pushdown(NamedTuple):
    """A pushdown automaton, and its configurations as far as they were needed.

    A configuration is what can be known after some characters: a set of items, each of which is a
    state of `language.Language` and a stack. A stack is a number that stands for the state to
    return to and the stack below; 0 is the empty stack. The configurations are the states of the
    language in `Tables`, whose arrays have room for them. Only searches that hold the product's
    lock add configurations. They write an entry of the table last, so that other threads can read
    it.

    Attributes:
        table, ends, distance: as in `language.Language`; `can`: as in `Tables`, by its states.
        reads: [states] bool: whether a state reads any character.
        call_begin: [states + 1] int32: where each state's calls begin in `calls`; `calls`: [n, 2]
            int32, the rule's initial state, and the state behind the call or -1.
        stacks: [room, 4] int32: return, stack below, depth, and distance to the end.
        stack_slots: [a power of two] int32: an open-addressing hash table of stacks plus one.
        items: [room] int64: the items of each configuration in ascending order, packed; `begin`:
            [room + 1] int64, where those of each configuration begin.
        slots: [a power of two] int32: as `stack_slots`, of configurations.
        depth: [room] int32: the depth of the highest stack of each configuration.
        found: [MOST_ITEMS] int64: room for a configuration under way.
        used: [4] int64: how many stacks, configurations and items there are, and whether there was
            no room for one.
        work: `Memo.work`.
    """

    table: npt.NDArray[np.int32]
    can: npt.NDArray[np.uint64]
    ends: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]
    reads: npt.NDArray[np.bool_]
    call_begin: npt.NDArray[np.int32]
    calls: npt.NDArray[np.int32]
    stacks: npt.NDArray[np.int32]
    stack_slots: npt.NDArray[np.int32]
    items: npt.NDArray[np.int64]
    begin: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    depth: npt.NDArray[np.int32]
    found: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    work: npt.NDArray[np.int64]


class Tables(NamedTuple):
    """All automata of a product.

    Attributes:
        content: the concatenated bytes of all tokens; `begin`: [V + 1] int64, where each begins.
        plain: the tokens that begin with a whole character that NFC never changes, and in which no
            text of an added token can begin. It is a trie in depth-first order: [nodes, 4] int32,
            the byte that leads to a node, its depth (from 1), the next node that is not below it,
            and the token that ends there, or -1.
        marked: a trie of the other tokens that begin with such a character.
        odd: a trie of all other tokens.
        byte_ids: [256] int64: the token of each byte, or of the ASCII character that it is.
        added: [] int64: the added tokens that are text.
        is_raw: [V] bool: whether nothing is normalized across the ends of an added token.
        is_inert: [V] bool: whether a token is in `plain` or `marked`.
        goto: [states, 257] int32: the Aho-Corasick automaton of the added tokens' texts; column
            `LENGTH` holds the number of bytes of the longest such text that ends in a state.
        pretokens, torn, may_end: the pre-tokenizer's table, its state in place of another if there
            is a token boundary within the last character, and whether a text may end in a state.
        changes: `nfc.Normalization.changes`.
        relation: the merge relation.
        decoder: [nodes, 256] int32: decodes UTF-8 into classes of characters.
        reach, can: the classes that the unfinished character may still have, by node, and those
            that the language accepts, by state.
        takes: [states, flags, words] uint64: the classes that the pre-tokenizer accepts.
        language, accepts, distance: the language's automaton; `UNEXPLORED` where a configuration is
            not known yet.
        pushdown: what makes further states of the language.
        characters: [classes, 6] int32: the class in the language, the class in the pre-tokenizer,
            the three properties in `nfc.Normalization`, and `IN_ONE`, `IN_BYTES` or 0.
        spelling: [classes, 5] int32: the number of bytes and the bytes of each character that
            occurs in an added token's text, which has a class of its own; 0 for other classes.
        samples: [classes, 5] int32: the number of tokens that BPE begins with on one character of
            each class, and these tokens.
        leading: [] int64: the classes that suffice to decide whether the text can end. Any other
            class leads only where one of these leads as well, and leaves no more options open.
        made_by: [M] int64: the token that each merge makes.
    """

    content: npt.NDArray[np.uint8]
    begin: npt.NDArray[np.int64]
    plain: npt.NDArray[np.int32]
    marked: npt.NDArray[np.int32]
    odd: npt.NDArray[np.int32]
    byte_ids: npt.NDArray[np.int64]
    added: npt.NDArray[np.int64]
    is_raw: npt.NDArray[np.bool_]
    is_inert: npt.NDArray[np.bool_]
    goto: npt.NDArray[np.int32]
    pretokens: npt.NDArray[np.int32]
    torn: npt.NDArray[np.int32]
    may_end: npt.NDArray[np.bool_]
    changes: npt.NDArray[np.bool_]
    relation: MergeRelation
    decoder: npt.NDArray[np.int32]
    reach: npt.NDArray[np.uint64]
    can: npt.NDArray[np.uint64]
    takes: npt.NDArray[np.uint64]
    language: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]
    characters: npt.NDArray[np.int32]
    spelling: npt.NDArray[np.int32]
    samples: npt.NDArray[np.int32]
    leading: npt.NDArray[np.int64]
    made_by: npt.NDArray[np.int64]
    pushdown: Pushdown


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

    packed: npt.NDArray[np.int64]
    rest: npt.NDArray[np.int64]
    found: npt.NDArray[np.int8]
    at: npt.NDArray[np.int32]
    used: npt.NDArray[np.int64]
    work: npt.NDArray[np.int64]
    hinted: npt.NDArray[np.int64]
    hints: npt.NDArray[np.int64]


@refers_to(Pushdown)
class PushdownReference(Reference):
    """The `pushdown` of compiled functions."""


@refers_to(Tables)
class TablesReference(Reference):
    """The `tables` of compiled functions."""


@refers_to(Memo)
class MemoReference(Reference):
    """The `memo` of compiled functions."""


def new_memo(size: int, work: npt.NDArray[np.int64]) -> Memo:
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


def no_pushdown() -> Pushdown:
    """An empty pushdown automaton, for regular languages."""
    return Pushdown(
        table=np.zeros((1, 1), np.int32),
        can=np.zeros((1, 1), np.uint64),
        ends=np.zeros(1, bool),
        distance=np.zeros(1, np.int32),
        reads=np.zeros(1, bool),
        call_begin=np.zeros(2, np.int32),
        calls=np.zeros((0, 2), np.int32),
        **_room(0, 0, 0, np.zeros(3, np.int64)),
    )


def _room(
    configurations: int, items: int, stacks: int, work: npt.NDArray[np.int64]
) -> dict[str, npt.NDArray[Any]]:
    """The empty arrays of a `Pushdown`. They take no memory before they are written."""
    return {
        "stacks": np.zeros((stacks, 4), np.int32),
        "stack_slots": np.zeros(1 << (2 * stacks).bit_length(), np.int32),
        "items": np.empty(items, np.int64),
        "begin": np.zeros(configurations + 1, np.int64),
        "slots": np.zeros(1 << (2 * configurations).bit_length(), np.int32),
        "depth": np.empty(configurations, np.int32),
        "found": np.zeros(MOST_ITEMS, np.int64),
        "used": np.array([1, 0, 0, 0]),  # the empty stack
        "work": work,
    }


def with_pushdown(
    tables: Tables, calls: npt.NDArray[np.int32], work: npt.NDArray[np.int64]
) -> Tables:
    """Tables whose states of the language are the configurations of a pushdown automaton.

    Args:
        tables: the tables, with the automata of the rules in place of the language's.
        calls: `language.Language.calls`.
        work: `Memo.work`.
    """
    size = len(tables.language)
    row = tables.language[0].nbytes + tables.can[0].nbytes
    room = min(CONFIGURATION_BYTES // row, MOST_CONFIGURATIONS)
    pushdown = Pushdown(
        table=tables.language,
        can=tables.can,
        ends=tables.accepts,
        distance=tables.distance,
        reads=np.any(tables.language >= 0, axis=1, keepdims=True)[:, 0],
        call_begin=np.searchsorted(calls[:, 0], np.arange(size + 1)).astype(np.int32),
        calls=np.ascontiguousarray(calls[:, 1:]),
        **_room(room, 8 * MOST_CONFIGURATIONS, MOST_CONFIGURATIONS, work),
    )
    tables = tables._replace(
        language=np.empty((room, tables.language.shape[1]), np.int32),
        can=np.empty((room, tables.can.shape[1]), np.uint64),
        accepts=np.zeros(room, bool),
        distance=np.empty(room, np.int32),
        pushdown=pushdown,
    )
    begin_pushdown(reference(tables))
    return tables


@compiled
def _is_spent(work, steps):
    """Count steps of a search; return whether it must stop."""
    work[STEPS] -= steps
    work[ALL_STEPS] += steps
    return work[STEPS] < 0 or work[STOP] != 0


@compiled
def trie_array(content, ends, ids):
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


@compiled
def _copy(memo, larger):
    for i in range(len(memo.packed)):
        if memo.packed[i] >= 0 and (memo.found[i] == ALIVE or memo.found[i] == DEAD):
            _put(larger, memo.packed[i], memo.rest[i], memo.found[i])


@compiled
def _slot(stored, rests, packed, rest):
    """The slot of a key, or the empty slot where it would go."""
    size = len(stored) - 1
    at = np.uint64(packed) * _SPREAD + np.uint64(rest) * _OTHER
    i = np.int64((at ^ (at >> np.uint64(29))) & np.uint64(size))
    while stored[i] >= 0 and (stored[i] != packed or rests[i] != rest):
        i = (i + 1) & size
    return i


@compiled
def _get(stored, rests, found, packed, rest):
    """The result stored for a key, or -1."""
    i = _slot(stored, rests, packed, rest)
    return found[i] if stored[i] >= 0 else np.int8(-1)


@compiled
def _put(memo, packed, rest, found):
    i = _slot(memo.packed, memo.rest, packed, rest)
    if memo.packed[i] < 0:
        memo.packed[i] = packed
        memo.rest[i] = rest
        memo.used[0] += 1
    memo.found[i] = found


@compiled
def pack(language, pretoken, node, flag, added):
    """Pack a state into one integer."""
    packed = (np.int64(language) << PRETOKEN_BITS) | pretoken
    packed = (((packed << NODE_BITS) | node) << FLAG_BITS) | flag
    return (packed << ADDED_BITS) | added


@compiled
def unpack(packed):
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
def _pushed(pushdown, back, below):
    """The stack with a state put on another stack; -1 if there is no room for it."""
    stacks, slots, used = pushdown.stacks, pushdown.stack_slots, pushdown.used
    mask = len(slots) - 1
    at = np.uint64(back) * _SPREAD + np.uint64(below) * _OTHER
    i = np.int64((at ^ (at >> np.uint64(31))) & np.uint64(mask))
    while slots[i]:
        k = slots[i] - 1
        if stacks[k, 0] == back and stacks[k, 1] == below:
            return np.int64(k)
        i = (i + 1) & mask
    n = used[STACKS]
    if n == len(stacks):
        used[CROWDED] = 1
        return np.int64(-1)
    stacks[n, 0], stacks[n, 1] = back, below
    stacks[n, 2] = stacks[below, 2] + 1
    stacks[n, 3] = min(stacks[below, 3] + np.int64(pushdown.distance[back]), np.int64(FAR))
    slots[i] = n + 1
    used[STACKS] = n + 1
    return np.int64(n)


@compiled
def _with(found, n, state, stack):
    """Add an item to a set of n items; return its new size, or -1 if there is no room."""
    item = (np.int64(state) << 32) | stack
    for i in range(n):
        if found[i] == item:
            return n
    if n == len(found):
        return -1
    found[n] = item
    return n + 1


@compiled
def _configuration(tables, n):
    """The configuration of the first n items in `found` and of all items that they lead to without
    reading a character.

    Returns its number, or -1 if there is no room for it.
    """
    pushdown = tables.pushdown
    found, used, work = pushdown.found, pushdown.used, pushdown.work
    ends, reads, stacks = pushdown.ends, pushdown.reads, pushdown.stacks
    call_begin, calls = pushdown.call_begin, pushdown.calls
    i = 0
    while 0 <= i < n:
        state, stack = found[i] >> 32, found[i] & 0xFFFFFFFF
        if ends[state] and stack:
            n = _with(found, n, stacks[stack, 0], stacks[stack, 1])
        for j in range(call_begin[state], call_begin[state + 1]):
            above = stack
            if calls[j, 1] >= 0:
                above = _pushed(pushdown, np.int64(calls[j, 1]), stack)
            n = _with(found, n, calls[j, 0], above) if n >= 0 and above >= 0 else -1
        i += 1
    if n < 0:
        used[CROWDED] = 1
        return np.int64(-1)
    _is_spent(work, n + n * n // 64)
    kept = 0
    for i in range(n):
        state, stack = found[i] >> 32, found[i] & 0xFFFFFFFF
        if reads[state] or (ends[state] and stack == 0):
            found[kept] = found[i]
            kept += 1
    # np.sort would be compiled again into each function that comes here.
    for i in range(1, kept):
        item, j = found[i], i
        while j and found[j - 1] > item:
            found[j] = found[j - 1]
            j -= 1
        found[j] = item
    items = found[:kept]
    at = np.uint64(kept)
    for i in range(kept):
        at = (at ^ np.uint64(items[i])) * _SPREAD
        at ^= at >> np.uint64(29)
    slots, begin, pool = pushdown.slots, pushdown.begin, pushdown.items
    mask = len(slots) - 1
    slot = np.int64(at & np.uint64(mask))
    while slots[slot]:
        k = np.int64(slots[slot] - 1)
        if begin[k + 1] - begin[k] == kept:
            is_same = True
            for i in range(kept):
                is_same = is_same and pool[begin[k] + i] == items[i]
            if is_same:
                return k
        slot = (slot + 1) & mask
    k = used[CONFIGURATIONS]
    if k == len(pushdown.depth) or begin[k] + kept > len(pool):
        used[CROWDED] = 1
        return np.int64(-1)
    _describe(tables, k, items)
    begin[k + 1] = begin[k] + kept
    pool[begin[k] : begin[k + 1]] = items
    used[ITEMS] += kept
    used[CONFIGURATIONS] = k + 1
    slots[slot] = k + 1
    return k


@compiled
def _describe(tables, k, items):
    """Fill in what `Tables` holds about a configuration, given its items."""
    pushdown = tables.pushdown
    row, can, stacks = tables.language[k], tables.can[k], pushdown.stacks
    row[:] = -1
    can[:] = 0
    distance, depth, accepts = np.int64(FAR), 0, False
    for i in range(len(items)):
        state, stack = items[i] >> 32, items[i] & 0xFFFFFFFF
        can |= pushdown.can[state]
        for c in range(len(row)):
            if pushdown.table[state, c] >= 0:
                row[c] = UNEXPLORED
        distance = min(distance, np.int64(pushdown.distance[state]) + stacks[stack, 3])
        depth = max(depth, stacks[stack, 2])
        accepts |= pushdown.ends[state] and stack == 0
    tables.distance[k], tables.accepts[k], pushdown.depth[k] = distance, accepts, depth


@compiled
def begin_pushdown(tables):
    """Make the first configuration."""
    pushdown = tables.pushdown
    pushdown.found[0] = 0
    _configuration(tables, 1)


@compiled
def _explored(tables, language, c):
    """The configuration after a class of characters; -1 if there is none, or no room for it."""
    pushdown = tables.pushdown
    found, begin, table, items = pushdown.found, pushdown.begin, pushdown.table, pushdown.items
    if pushdown.used[CROWDED]:
        pushdown.used[CROWDED] = 2
        return np.int32(-1)
    n = 0
    for i in range(begin[language], begin[language + 1]):
        after = table[items[i] >> 32, c]
        if after >= 0 and n >= 0:
            n = _with(found, n, after, items[i] & 0xFFFFFFFF)
    k = _configuration(tables, n)
    if k >= 0:
        tables.language[language, c] = k
    return np.int32(k)


@compiled
def _taken(tables, language, c):
    """The state of the language after a class of characters; -1 if there is none."""
    after = tables.language[language, c]
    return _explored(tables, language, c) if after == UNEXPLORED else after


@compiled
def _ends(accepts, ends, packed):
    language, pretoken, node, _, _ = unpack(packed)
    return node == 0 and accepts[language] and ends[pretoken]


@compiled
def may_end(tables, packed):
    """Whether the text may end in a state."""
    return _ends(tables.accepts, tables.may_end, packed)


@compiled
def _read(
    tables, goto, decoder, can, reach, states, characters, changes, language, node, added, nfc, byte
):
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
    nfc = _compose(characters, changes, nfc, c)
    if nfc < 0:
        return -1, 0, added, nfc, c
    k = characters[c, IN_LANGUAGE]
    after = states[language, k]
    if after == UNEXPLORED:
        after = _explored(tables, language, k)
    return after, 0, added, nfc, c


@compiled
def _compose(characters, changes, nfc, c):
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
def _split(pretokens, torn, takes, reach, characters, pretoken, node, flag, cut, after, c):
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


@compiled
def _run(tables, packed, nfc, token, cut):
    """The packed state and the state of NFC after a cut and then a token.

    A negative packed state means that the token is not allowed.
    """
    goto, decoder, can, reach = tables.goto, tables.decoder, tables.can, tables.reach
    states, characters, changes = tables.language, tables.characters, tables.changes
    pretokens, torn, takes = tables.pretokens, tables.torn, tables.takes
    content = tables.content
    language, pretoken, node, flag, added = unpack(packed)
    for i in range(tables.begin[token], tables.begin[token + 1]):
        language, after, added, nfc, c = _read(
            tables, goto, decoder, can, reach, states, characters, changes,
            language, node, added, nfc, content[i],
        )  # fmt: skip
        if language < 0:
            return np.int64(-1), np.int64(0)
        pretoken, flag = _split(
            pretokens, torn, takes, reach, characters, pretoken, node, flag, cut, after, c
        )
        if pretoken < 0:
            return np.int64(-1), np.int64(0)
        node, cut = after, WITHIN
    return pack(language, pretoken, node, flag, added), np.int64(nfc)


@compiled
def _run_added(tables, packed, nfc, token):
    """The packed state and the state of NFC after an added token, as `_run` returns them."""
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
            nfc = _compose(characters, changes, nfc, -2 - entry)
        language = np.int64(_taken(tables, language, characters[-2 - entry, IN_LANGUAGE]))
        if nfc < 0 or language < 0:
            return np.int64(-1), np.int64(0)
        node = 0
    return pack(language, 0, 0, WITHIN, added), nfc


@compiled
def _cut(relation, last, token):
    """The flag of the cut between two tokens."""
    return APART if last < 0 or stay_apart(relation, last, token) else BROKEN


@compiled
def step(tables, packed, nfc, last, token):
    """The packed state and the state of NFC after a token, as `_run` returns them."""
    for added in tables.added:
        if added == token:
            return _run_added(tables, packed, nfc, token)
    if not tables.relation.reachable[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
        return np.int64(-1), np.int64(0)
    return _run(tables, packed, nfc, token, _cut(tables.relation, last, token))


@compiled
def walk(tables, trie, packed, nfc):
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
        language, after, added, after_nfc, c = _read(
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
                pretoken, flag = _split(
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


@unlocked
def nfc_behind(tables):
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
            nfc = _compose(characters, changes, nfc, -2 - entry)
        if entry == -1 or nfc < 0:
            i = trie[i, SKIP]
            continue
        path[d, 0], path[d, 1] = max(entry, 0), nfc
        if trie[i, TOKEN] >= 0:
            behind[trie[i, TOKEN]] = nfc
        i += 1
    return behind


@unlocked
def cuts_behind(tables, nfc, pretoken):
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
                before, flag = _split(
                    pretokens, torn, takes, reach, characters,
                    before, node, flag, cut, path[d, 0], c,
                )  # fmt: skip
            path[d, 1 + 2 * kind], path[d, 2 + 2 * kind] = before, flag
        if token >= 0 and nfc[token] >= 0 and (path[d, 1] >= 0 or path[d, 3] >= 0):
            for kind in range(2):
                before, flag = path[d, 1 + 2 * kind], path[d, 2 + 2 * kind]
                behind[n, kind] = (before << FLAG_BITS) | flag if before >= 0 else -1
            at = np.uint64(behind[n, 0]) * _SPREAD + np.uint64(behind[n, 1]) * _OTHER
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
def staying(tables, language, classes):
    """Which of the language's classes of characters lead from a state to itself: [n] bool."""
    stays = np.zeros(len(classes), np.bool_)
    for i in range(len(classes)):
        stays[i] = _taken(tables, language, classes[i]) == language
    return stays


@unlocked
def split_plain(tables, stays):
    """Split the plain tokens by whether all their characters are of some classes.

    Args:
        stays: the result of `staying` for all classes.

    Returns:
        A bit mask of those tokens, [words] uint32, and a trie of the others.
    """
    trie, decoder = tables.plain, tables.decoder
    classes = tables.characters[:, IN_LANGUAGE].copy()
    inside = np.zeros_like(tables.relation.reachable)
    is_inside = np.zeros(len(trie), np.bool_)
    path = np.zeros(LONGEST + 1, np.int32)
    i = 0
    while i < len(trie):
        d = trie[i, DEPTH]
        entry = decoder[path[d - 1], trie[i, BYTE]]
        if entry == -1 or (entry < -1 and not stays[classes[-2 - entry]]):
            i = trie[i, SKIP]
            continue
        path[d] = max(entry, 0)
        token = trie[i, TOKEN]
        if entry < -1 and token >= 0:
            is_inside[i] = True
            inside[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
        i += 1
    # A node is needed if another token ends in it or below it. What is below it follows it.
    is_needed = np.zeros(len(trie) + 1, np.bool_)
    below = np.zeros(LONGEST + 2, np.bool_)
    for i in range(len(trie) - 1, -1, -1):
        d = trie[i, DEPTH]
        is_needed[i] = below[d + 1] or (trie[i, TOKEN] >= 0 and not is_inside[i])
        below[d + 1] = False
        below[d] |= is_needed[i]
    number: npt.NDArray[np.int64] = np.cumsum(is_needed) - is_needed
    rest = np.empty((number[-1], 4), np.int32)
    for i in range(len(trie)):
        if is_needed[i]:
            node = rest[number[i]]
            node[:] = trie[i]
            node[SKIP] = number[trie[i, SKIP]]
            if is_inside[i]:
                node[TOKEN] = -1
    return inside, rest


@compiled
def _walk_language(tables, trie, language):
    """The tokens of a trie of plain tokens that the language accepts in one of its states.

    Returns:
        [found, 3] int32: token, state of the language after it, and the unfinished character.
    """
    decoder, states = tables.decoder, tables.language
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
                after = _explored(tables, before, k)
        else:
            entry = decoder[path[d - 1, 1], trie[i, BYTE]]
            if entry < -1:
                after = _taken(tables, after, classes[-2 - entry])
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
def _walk_plain(tables, cuts, nfc, packed):
    """The result of `walk` for the plain tokens, computed faster.

    Args:
        cuts: the result of `cuts_behind` for the state of the pre-tokenizer.
        nfc: the result of `nfc_behind`.
        packed: a packed state without an unfinished character or added token.
    """
    taken = _walk_language(tables, tables.plain, unpack(packed)[0])
    kinds, behind = cuts
    found = np.empty((len(taken), 4), np.int64)
    n = 0
    for i in range(len(taken)):
        token = taken[i, 0]
        found[n, 0], found[n, 3] = token, nfc[token]
        for kind in range(2):
            found[n, 1 + kind] = _placed(taken[i, 1], behind[kinds[token], kind], taken[i, 2])
        n += found[n, 1] >= 0 or found[n, 2] >= 0
    return found[:n]


@compiled
def _placed(language, cut, node):
    """Pack a state from results of `_walk_language` and `cuts_behind`; negative means none."""
    if cut < 0:
        return np.int64(-1)
    return pack(language, cut >> FLAG_BITS, node, cut & ((1 << FLAG_BITS) - 1), 0)


@compiled
def _rest(n_tokens, nfc, last):
    """The part of a memo's key besides the packed state."""
    return nfc * np.int64(n_tokens + 1) + last + 1


# The next functions decide, character by character, whether the text can end. Every text that the
# language accepts, that NFC leaves unchanged and that contains no added token's text has exactly
# one proper spelling. So the text so far can end iff some characters lead to an end and the
# pre-tokenizer cuts as the tokens so far require. Future cuts are left open (`EITHER`), because the
# spelling determines them. Only the last token is uncertain, because it may merge with what
# follows. `_search` handles that, unless the pre-tokenizer cuts after the token or the next
# character is spelt `IN_BYTES`, which the flag `BROKEN` between two characters requires.


@compiled
def _next_character(tables, packed, nfc, i):
    """The state after the next possible character, trying characters from the i-th on.

    Characters that lead closer to an end come first. Within a character, its next byte is read.

    Returns:
        The packed state and the state of NFC (a negative packed state means that no character is
        left), and where to continue.
    """
    language, pretoken, node, flag, added = unpack(packed)
    if node:
        byte_ids = tables.byte_ids
        while i < 64:
            after, after_nfc = _run(tables, packed, nfc, byte_ids[0x80 + i], APART)
            i += 1
            if after >= 0:
                return after, after_nfc, i
        return np.int64(-1), np.int64(0), i
    characters, changes, spelling = tables.characters, tables.changes, tables.spelling
    distance, pretokens = tables.distance, tables.pretokens
    goto, tokens, leading = tables.goto, tables.added, tables.leading
    n, n_tokens = len(leading), len(tokens)
    while i < 2 * n + n_tokens:
        is_near = i < n
        k = i if is_near else i - n - n_tokens
        i += 1
        if k < 0:
            after, after_nfc = _run_added(tables, packed, nfc, tokens[k + n_tokens])
            if after >= 0:
                return after, after_nfc, i
            continue
        c = leading[k]
        after = _taken(tables, language, characters[c, IN_LANGUAGE])
        if after < 0 or (distance[after] < distance[language]) != is_near:
            continue
        is_broken = flag == BROKEN and characters[c, SPELT] != IN_BYTES
        cut = BROKEN if is_broken else EITHER
        after_pretoken = pretokens[pretoken, characters[c, IN_PRETOKENIZER], cut]
        if after_pretoken < 0:
            continue
        after_nfc = _compose(characters, changes, nfc, c)
        if after_nfc < 0:
            continue
        after_added = np.int64(0)
        if spelling[c, 0]:
            after_added = added
            for j in range(spelling[c, 0]):
                after_added = np.int64(goto[after_added, spelling[c, 1 + j]])
            if goto[after_added, LENGTH] > 0:
                continue
        return pack(after, after_pretoken, 0, WITHIN, after_added), after_nfc, i
    return np.int64(-1), np.int64(0), i


@compiled
def _class_before(tables, i):
    """The class of the character after which `_next_character` continues at the i-th; -1 for an
    added token."""
    n = len(tables.leading)
    k = i - 1 if i <= n else i - 1 - n - len(tables.added)
    return np.int64(tables.leading[k] if k >= 0 else -1)


@compiled
def _can_end(tables, memo, packed, nfc):
    """Whether the text can end, ignoring its last token: `ALIVE` or `DEAD`, or why that is unknown.

    This is a depth-first search that settles whole strongly connected components (Tarjan), so each
    state is visited once. When it finds an end, every open state can reach it, because each open
    state leads to one on the current path.
    """
    accepts, ends, work = tables.accepts, tables.may_end, memo.work
    stored, rests, findings = memo.packed, memo.rest, memo.found
    if _ends(accepts, ends, packed):
        return np.int64(ALIVE)
    known = _get(stored, rests, findings, packed, -1 - nfc)
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
    _open(memo, packed, -1 - nfc, 0)
    result = np.int64(DEAD)
    while n:
        top = path[n - 1]
        after, after_nfc, top[2] = _next_character(tables, top[0], top[1], top[2])
        if after < 0:
            lowest = top[4]
            if lowest == top[3]:
                for j in range(lowest, n_open):
                    _put(memo, opened[j, 0], -1 - opened[j, 1], DEAD)
                n_open = lowest
            n -= 1
            if n:
                path[n - 1, 4] = min(path[n - 1, 4], lowest)
            continue
        known = _get(stored, rests, findings, after, -1 - after_nfc)
        if known == ALIVE or _ends(accepts, ends, after):
            result = np.int64(ALIVE)
            break
        if known == DEAD:
            continue
        if known == OPEN:
            top[4] = min(top[4], memo.at[_slot(stored, rests, after, -1 - after_nfc)])
            continue
        if 4 * (memo.used[0] + 2) > len(stored):
            result = np.int64(FULL)
            break
        if _is_spent(work, steps):
            result = np.int64(SPENT)
            break
        path = _longer(path, n)
        opened = _longer(opened, n_open)
        path[n, 0], path[n, 1], path[n, 2], path[n, 3], path[n, 4] = (
            after, after_nfc, 0, n_open, n_open
        )  # fmt: skip
        opened[n_open, 0], opened[n_open, 1] = after, after_nfc
        _open(memo, after, -1 - after_nfc, n_open)
        n += 1
        n_open += 1
    for j in range(n_open):
        _put(memo, opened[j, 0], -1 - opened[j, 1], ALIVE if result == ALIVE else UNKNOWN)
    return result


@compiled
def _longer(rows, n):
    """The array of rows, enlarged if necessary to hold the n-th."""
    if n < len(rows):
        return rows
    longer = np.empty((2 * n, rows.shape[1]), np.int64)
    longer[:n] = rows
    return longer


@compiled
def _open(memo, packed, rest, at):
    """Record that a search has started on a state."""
    _put(memo, packed, rest, OPEN)
    memo.at[_slot(memo.packed, memo.rest, packed, rest)] = at


@compiled
def _whatever_last(tables, memo, packed, nfc):
    """The result for a state if it does not depend on the last token: `ALWAYS` or `NEVER`;
    otherwise `UNKNOWN`, `FULL` or `SPENT`."""
    _, _, node, _, _ = unpack(packed)
    if not node:
        found = _can_end(tables, memo, packed | np.int64(BROKEN << ADDED_BITS), nfc)
        if found != DEAD:
            return np.int64(ALWAYS if found == ALIVE else found)
    found = _can_end(tables, memo, packed, nfc)
    if found == DEAD:
        return np.int64(NEVER)
    return np.int64(UNKNOWN if found == ALIVE else found)


@compiled
def _hinted(packed, nfc):
    """The row of the hints of a state."""
    at = np.uint64(packed) * _SPREAD + np.uint64(nfc + 1) * _OTHER
    return np.int64(at >> np.uint64(52))


@compiled
def _has_hint(tables, memo, packed, nfc, last):
    """Whether some hinted token, after which the text can end, stays apart from the last token."""
    hinted, hints, relation = memo.hinted, memo.hints, tables.relation
    for kind in range(2):
        key = nfc if kind else np.int64(-1)
        i = _hinted(packed, key)
        if hinted[i, 0] == packed and hinted[i, 1] == key:
            for j in range(HINTED):
                if hints[i, j] < 0:
                    break
                if stay_apart(relation, last, hints[i, j]):
                    return True
    return False


@compiled
def _hint(memo, packed, nfc, token):
    """Store a hint for a state; -1 as its state of NFC means any."""
    hinted, hints = memo.hinted, memo.hints
    i = _hinted(packed, nfc)
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
def _remaining(tables, packed, recent):
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
    at = np.int64(np.uint64(key) * _SPREAD >> np.uint64(56))
    if recent[at, 0] == key:
        return recent[at, 1]
    can, reach, characters = tables.can, tables.reach, tables.characters
    nearest = np.int64(distance[language]) + 1
    for c in range(len(characters)):
        w, bit = c >> 6, np.uint64(1) << np.uint64(c & 63)
        if can[language, w] & reach[node, w] & bit:
            after = _taken(tables, language, characters[c, IN_LANGUAGE])
            if after >= 0:
                nearest = min(nearest, np.int64(distance[after]))
    recent[at, 0], recent[at, 1] = key, 4 * nearest + 2
    return recent[at, 1]


@compiled
def _tokens_behind(tables, packed, nfc, is_short):
    """The states that tokens lead to after a cut that the merges make, those closest to an end
    first.

    If `is_short`, at most `NEAREST` are returned.

    Returns:
        [n, 3] int64: token, packed state, and state of NFC; and how many there are in all.
    """
    parts = (
        walk(tables, tables.odd, packed, nfc),
        walk(tables, tables.plain, packed, nfc),
        walk(tables, tables.marked, packed, nfc),
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
def _merged(tables, ids, n):
    """Apply all merges to the first `n` of these tokens; returns how many tokens are left."""
    relation = tables.relation
    while n > 1:
        best, where = UNMERGED, 0
        for i in range(n - 1):
            rank = merge_rank(relation.first, relation.pairs, ids[i], ids[i + 1])
            if 0 <= rank < best:
                best, where = rank, i
        if best == UNMERGED:
            break
        ids[where] = tables.made_by[best]
        for i in range(where + 1, n - 1):
            ids[i] = ids[i + 1]
        n -= 1
    return n


@compiled
def _best_character(tables, memo, packed, nfc, last):
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
    while not _is_spent(memo.work, 1):
        after, after_nfc, i = _next_character(tables, packed, nfc, i)
        is_near = i <= len(tables.leading)
        if after < 0 or (has_near and not is_near):
            break
        c = _class_before(tables, i)
        if c < 0:
            continue
        found = _whatever_last(tables, memo, after, after_nfc)
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
def _spelled(tables, memo, packed, nfc, last):
    """The tokens to try first after a last token, in the format of `_tokens_behind`, if any.

    Between characters, this is the first token in the spelling of characters that lead to an end,
    or to where the text can end whatever the last token is. Within one, these are some bytes that
    may come next and do not merge with the last token.
    """
    relation, samples, byte_ids = tables.relation, tables.samples, tables.byte_ids
    none = np.empty((0, 3), np.int64)
    ids = np.empty(4 * AHEAD, np.int64)
    n = 0
    ahead, ahead_nfc = np.int64(packed), np.int64(nfc)
    node = unpack(packed)[2]
    if node:
        decoder = tables.decoder
        bytes_behind = np.empty((FEW, 3), np.int64)
        for byte in range(0x80, 0xC0):
            token = byte_ids[byte]
            if n == FEW or decoder[node, byte] == -1 or not stay_apart(relation, last, token):
                continue
            after, after_nfc = _run(tables, packed, nfc, token, APART)
            if after >= 0:
                bytes_behind[n, 0], bytes_behind[n, 1], bytes_behind[n, 2] = token, after, after_nfc
                n += 1
        return bytes_behind[:n].copy()
    before = np.int64(last)
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
        return none
    after, after_nfc = _run(tables, packed, nfc, ids[0], APART)
    if after < 0:
        return none
    found = np.empty((1, 3), np.int64)
    found[0, 0], found[0, 1], found[0, 2] = ids[0], after, after_nfc
    return found


@compiled
def _put_safe_first(tables, memo, behind, last):
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
        found = _whatever_last(tables, memo, after, nfc)
        if found == ALWAYS:
            first = behind[0].copy()
            behind[0] = behind[i]
            behind[i] = first
        if found in (ALWAYS, FULL, SPENT):
            return


@compiled
def _search(tables, memo, packed, nfc, last):
    """Whether the text can end after its last token: `ALIVE` or `DEAD`, or why that is unknown.

    This is for states for which `_whatever_last` returns `UNKNOWN`. A token must follow that stays
    apart from the last one and after which the text can end. The algorithm is that of `_can_end`,
    applied to tokens instead of characters.
    """
    relation, n_tokens, work = tables.relation, len(tables.begin), memo.work
    stored, rests, findings = memo.packed, memo.rest, memo.found
    rest = _rest(n_tokens, nfc, last)
    known = _get(stored, rests, findings, packed, rest)
    if known in (ALIVE, DEAD):
        return np.int64(known)
    if _has_hint(tables, memo, packed, nfc, last):
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
    _open(memo, packed, rest, 0)
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
            if _is_spent(work, 50 + seen // 2) or top[4] + len(behind) > MOST_FOUND:
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
                    _put(memo, opened[j, 0], opened[j, 1], DEAD)
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
        rest = _rest(n_tokens, after_nfc, token)
        known = np.int64(_get(stored, rests, findings, after, rest))
        if known == OPEN:
            top[7] = min(top[7], memo.at[_slot(stored, rests, after, rest)])
            continue
        if known not in (ALIVE, DEAD):
            known = _whatever_last(tables, memo, after, after_nfc)
            if known == UNKNOWN and _has_hint(tables, memo, after, after_nfc, token):
                known = np.int64(ALIVE)
        if known in (ALIVE, ALWAYS):
            result = np.int64(ALIVE)
            break
        if known in (DEAD, NEVER):
            continue
        if known in (FULL, SPENT) or 4 * (memo.used[0] + 2) > len(stored):
            result = np.int64(SPENT if known == SPENT else FULL)
            break
        path = _longer(path, n)
        opened = _longer(opened, n_open)
        path[n] = 0
        path[n, 0], path[n, 1], path[n, 2] = after, after_nfc, token
        path[n, 6], path[n, 7] = n_open, n_open
        opened[n_open, 0], opened[n_open, 1] = after, rest
        _open(memo, after, rest, n_open)
        n += 1
        n_open += 1
    for j in range(n_open):
        _put(memo, opened[j, 0], opened[j, 1], ALIVE if result == ALIVE else UNKNOWN)
    for j in range(n if result == ALIVE else 0):
        token = path[j, 8]
        is_inert = tables.is_inert[token]
        _hint(memo, path[j, 0], np.int64(-1) if is_inert else path[j, 1], token)
    return result


@compiled
def _lives(tables, memo, packed, nfc, last):
    """Whether the text can end from a state after a token: `DEAD`, `ALIVE`, `NEVER`, `ALWAYS`,
    `FULL` or `SPENT`."""
    if _is_spent(memo.work, 1):
        return np.int64(SPENT)
    found = _whatever_last(tables, memo, packed, nfc)
    return _search(tables, memo, packed, nfc, last) if found == UNKNOWN else found


@compiled
def _is_live(lives):
    return lives in (ALIVE, ALWAYS)


@unlocked
def live_tokens(tables, memo, trie, packed, nfc):
    """The tokens of a trie after which the text can end.

    Returns:
        Each token times four, plus 1 if it is alive after a cut that the merges make, plus 2 if it
        is alive after a cut that they do not make. A single `FULL` or `SPENT` if the result is not
        known.
    """
    found = walk(tables, trie, packed, nfc)
    live = found[:, 0] * 4
    for i in range(len(found)):
        for kind in range(2):
            after = found[i, 1 + kind]
            if after >= 0:
                lives = _lives(tables, memo, after, found[i, 3], found[i, 0])
                if lives < 0:
                    return np.full(1, lives, np.int64)
                live[i] |= _is_live(lives) << kind
    return live[live & 3 != 0]


@compiled
def _lives_plain(tables, memo, language, node, cuts, nfc, token):
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
        after = _placed(language, cuts[kind], node)
        if after >= 0:
            lives = _lives(tables, memo, after, nfc, token)
            if lives < 0:
                return np.int64(lives)
            live |= np.int64(_is_live(lives)) << kind
            live |= 0 if lives in (ALWAYS, NEVER) else 4
    return live


@compiled
def _recent(key, nfc):
    """The place of a result among the recent ones."""
    return (np.uint64(key) * _SPREAD + np.uint64(nfc) * _OTHER) >> np.uint64(52)


@unlocked
def live_plain(tables, memo, cuts, nfc, packed, inside, rest, apart, broken):
    """Add to A and B the plain tokens after which the text can end.

    Args:
        cuts, nfc, packed: as in `_walk_plain`.
        inside, rest: the result of `split_plain` for the state of the language; or no words, and
            all plain tokens.
        apart, broken: [words] uint32.

    Returns:
        Nothing, or a single `FULL` or `SPENT`.
    """
    language = unpack(packed)[0]
    kinds, behind = cuts
    # Recent results that do not depend on the token. They are read without a call, since nearly all
    # tokens find theirs here.
    keys = np.full((4096, 2), -1, np.int64)
    settled = np.zeros(4096, np.int64)
    for w in range(len(inside)):
        word, after_cut, after_none = inside[w], np.uint32(0), np.uint32(0)
        for place in range(32 if word else 0):
            bit = np.uint32(place)
            if not word >> bit & np.uint32(1):
                continue
            token = np.int64(32 * w + place)
            cut, after_nfc = np.int64(kinds[token]), np.int64(nfc[token])
            where = _recent(cut, after_nfc)
            live = settled[where]
            if keys[where, 0] != cut or keys[where, 1] != after_nfc:
                live = _lives_plain(tables, memo, language, 0, behind[cut], after_nfc, token)
                if live < 0:
                    return np.full(1, live, np.int64)
                if live < 4:
                    keys[where, 0], keys[where, 1], settled[where] = cut, after_nfc, live
            after_cut |= np.uint32(live & 1) << bit
            after_none |= np.uint32(live >> 1 & 1) << bit
        apart[w] |= after_cut
        broken[w] |= after_none
    keys[:] = -1
    taken = _walk_language(tables, rest, language)
    for i in range(len(taken)):
        token = np.int64(taken[i, 0])
        cut, after_nfc = np.int64(kinds[token]), np.int64(nfc[token])
        key = (((np.int64(taken[i, 1]) << NODE_BITS) | taken[i, 2]) << 32) | cut
        where = _recent(key, after_nfc)
        live = settled[where]
        if keys[where, 0] != key or keys[where, 1] != after_nfc:
            live = _lives_plain(
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


@unlocked
def live_added(tables, memo, packed, nfc):
    """The added tokens after which the text can end, in the format of `live_tokens`."""
    live = np.empty(len(tables.added), np.int64)
    n = 0
    for token in tables.added:
        after, after_nfc = _run_added(tables, packed, nfc, token)
        if after < 0:
            continue
        lives = _can_end(tables, memo, after, after_nfc)
        if lives < 0:
            return np.full(1, lives, np.int64)
        if lives == ALIVE:
            live[n] = 4 * token + 3
            n += 1
    return live[:n].copy()


@unlocked
def states_behind(tables, trie, packed, nfc, allowed):
    """The states that the tokens of a trie that are in a mask lead to.

    Returns:
        [n, 2] int64: packed state and state of NFC.
    """
    return _behind(walk(tables, trie, packed, nfc), allowed)


@unlocked
def states_behind_plain(tables, cuts, nfc, packed, allowed):
    """The result of `states_behind` for the plain tokens; arguments as in `_walk_plain`."""
    return _behind(_walk_plain(tables, cuts, nfc, packed), allowed)


@compiled
def _behind(found, allowed):
    """The result of `states_behind`, given the result of `walk`."""
    behind = np.empty((2 * len(found), 2), np.int64)
    recent = np.full(4096, -1, np.int64)  # a cache, because most tokens lead to few states
    n = 0
    for i in range(len(found)):
        token = found[i, 0]
        if not allowed[token >> 5] >> np.uint32(token & 31) & np.uint32(1):
            continue
        for kind in range(2):
            after = found[i, 1 + kind]
            at = np.int64(
                (np.uint64(after) * _SPREAD + np.uint64(found[i, 3]) * _OTHER) >> np.uint64(52)
            )
            if after < 0 or (
                recent[at] >= 0
                and behind[recent[at], 0] == after
                and behind[recent[at], 1] == found[i, 3]
            ):
                continue
            recent[at] = n
            behind[n, 0], behind[n, 1] = after, found[i, 3]
            n += 1
    return behind[:n].copy()


@compiled
def set_bits(mask, live, kinds):
    """Add to a mask the tokens that are alive after one of the given kinds of cuts."""
    for i in range(len(live)):
        if live[i] & kinds:
            token = live[i] >> 2
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)


@compiled
def combine(mask, apart, broken, row, odd):
    """Set a mask to the tokens of A and B that may follow a last token."""
    for i in range(len(mask)):
        mask[i] = (apart[i] & row[i]) | (broken[i] & ~row[i])
    for i in range(len(odd)):
        token = odd[i] >> 2
        kinds = odd[i] & 3
        if kinds == 3 or kinds & (1 if row[token >> 5] >> np.uint32(token & 31) & 1 else 2):
            mask[token >> 5] |= np.uint32(1) << np.uint32(token & 31)
