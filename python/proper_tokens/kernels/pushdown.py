"""The states of a recursive language: the configurations of a pushdown automaton (`Pushdown`)."""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import AnyArray, Int, Int32s, Int64s
from proper_tokens.compiled import compiled
from proper_tokens.kernels.memo import is_spent
from proper_tokens.kernels.packing import SPREAD, mixed
from proper_tokens.kernels.tables import (
    CONFIGURATIONS,
    CROWDED,
    ITEMS,
    STACKS,
    UNEXPLORED,
    Pushdown,
    Tables,
)
from proper_tokens.language import FAR
from proper_tokens.references import reference

MOST_ITEMS = 1024
"""The most items of a configuration."""
MOST_CONFIGURATIONS = 1 << 17
"""The most configurations of a constraint, and the most stacks."""
CONFIGURATION_BYTES = 20 << 20
"""The most memory for the rows of the table of configurations."""


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


def _room(configurations: int, items: int, stacks: int, work: Int64s) -> dict[str, AnyArray]:
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


def with_pushdown(tables: Tables, calls: Int32s, work: Int64s) -> Tables:
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
def begin_pushdown(tables: Tables) -> None:
    """Make the first configuration."""
    pushdown = tables.pushdown
    pushdown.found[0] = 0
    _configuration(tables, 1)


@compiled
def language_after(tables: Tables, language: Int, c: Int) -> Int:
    """The state of the language after a class of characters; -1 if there is none."""
    after = tables.language[language, c]
    return explored(tables, language, c) if after == UNEXPLORED else after


@compiled
def explored(tables: Tables, language: Int, c: Int) -> Int:
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
            n = _with_item(found, n, after, items[i] & 0xFFFFFFFF)
    k = _configuration(tables, n)
    if k >= 0:
        tables.language[language, c] = k
    return np.int32(k)


@compiled
def _configuration(tables: Tables, n: Int) -> Int:
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
            n = _with_item(found, n, stacks[stack, 0], stacks[stack, 1])
        for j in range(call_begin[state], call_begin[state + 1]):
            above = stack
            if calls[j, 1] >= 0:
                above = _pushed(pushdown, np.int64(calls[j, 1]), stack)
            n = _with_item(found, n, calls[j, 0], above) if n >= 0 and above >= 0 else -1
        i += 1
    if n < 0:
        used[CROWDED] = 1
        return np.int64(-1)
    is_spent(work, n + n * n // 64)
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
        at = (at ^ np.uint64(items[i])) * SPREAD
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
def _describe(tables: Tables, k: Int, items: Int64s) -> None:
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
def _pushed(pushdown: Pushdown, back: Int, below: Int) -> Int:
    """The stack with a state put on another stack; -1 if there is no room for it."""
    stacks, slots, used = pushdown.stacks, pushdown.stack_slots, pushdown.used
    mask = len(slots) - 1
    at = mixed(back, below)
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
def _with_item(found: Int64s, n: Int, state: Int, stack: Int) -> Int:
    """Add an item to a set of n items; return its new size, or -1 if there is no room."""
    item = (np.int64(state) << 32) | stack
    for i in range(n):
        if found[i] == item:
            return n
    if n == len(found):
        return -1
    found[n] = item
    return n + 1
