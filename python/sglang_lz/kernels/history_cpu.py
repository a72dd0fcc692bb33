"""The penalties over a whole history for a CPU, compiled by numba, one row after the other.

`history_cuda` says what is computed. `seed` also prepares the rows of CUDA: a prompt's tokens are
on the host.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sglang_lz.compiled import compiled
from sglang_lz.history import (
    BREAK_END,
    BREAK_HEAD,
    BREAKERS,
    COUNT,
    DRY_ALLOWED_LENGTH,
    DRY_BASE,
    DRY_LAST_N,
    DRY_MULTIPLIER,
    ENTRY,
    FIRST_OUTPUT,
    FREQUENCY,
    LAST_N,
    LENGTH,
    MIN_NEW_TOKENS,
    NGRAM_SIZE,
    NGRAM_WINDOW,
    OUTPUT_COUNT,
    PERIODS,
    PRESENCE,
    REPETITION,
    RING,
    RUN,
    STOPS,
    TOKEN,
    WHITELISTED,
    HistorySeed,
    HistoryState,
)

# The largest exponent is that of the largest float (llama.cpp).
LOG_OF_LARGEST = 88.7228391


@compiled
def _run_lengths(tokens, run):
    """Write the run length of every period, by the Z-function of the reversed history."""
    count = len(tokens)
    run[:] = 0
    start = end = 0  # newest first, the run reaching furthest so far is tokens[start:end]
    for period in range(1, min(count, len(run))):
        length = min(end - period, run[period - start]) if period < end else 0
        while period + length < count and tokens[-1 - length] == tokens[-1 - period - length]:
            length += 1
        run[period] = length
        if period + length > end:
            start, end = period, period + length


@compiled
def _break(token_at, position, numbers, mask, tails):
    """Notice a sequence breaker that ends at `position`; `token_at` holds the newest tokens, newest
    first. The newest that begins counts, and of those that begin there the longest."""
    own = mask[numbers[BREAKERS]]
    token = token_at[0]
    if 0 <= token < len(own) and own[token] & 1:
        numbers[BREAK_HEAD] = numbers[BREAK_END] = position
        return
    for s in range(tails.shape[1]):
        tail = tails[numbers[BREAKERS], s]
        length = tail[0]
        if length == 0:
            break
        head = position - length
        if head < 0 or length >= len(token_at) or head < numbers[BREAK_HEAD]:
            continue
        first = token_at[length]
        if not (0 <= first < len(own) and (own[first] >> (1 + s)) & 1):
            continue
        is_whole = True
        for i in range(length):
            is_whole = is_whole and token_at[i] == tail[length - i]
        if is_whole:
            numbers[BREAK_HEAD], numbers[BREAK_END] = head, position


@compiled
def _seed(tokens, entries, distinct, ring, numbers, mask, tails):
    """Fill a slot; `entries` says which of the distinct tokens each token is."""
    count, size = len(tokens), numbers[RING]
    distinct[COUNT:] = 0
    for position in range(max(0, count - numbers[LAST_N]), count):
        distinct[COUNT, entries[position]] += 1
        if position >= numbers[FIRST_OUTPUT]:
            distinct[OUTPUT_COUNT, entries[position]] += 1
    for position in range(max(0, count - size), count):
        ring[ENTRY, position % size] = entries[position]
    if numbers[PERIODS]:
        _run_lengths(tokens, ring[RUN, : numbers[PERIODS] + 1])
    if numbers[BREAKERS] >= 0:
        newest_first = tokens[::-1]
        for position in range(count):
            _break(newest_first[count - 1 - position :], position, numbers, mask, tails)


@compiled
def _walk(path, distinct, numbers, entries, fresh):
    """Find which distinct tokens a path's are, oldest first. Returns how many are new."""
    length, new = numbers[LENGTH], 0
    for step in range(len(path)):
        token = np.int32(path[len(path) - 1 - step])
        entry = -1
        for known in range(length):
            if distinct[TOKEN, known] == token:
                entry = known
                break
        for known in range(new):
            if fresh[known] == token:
                entry = length + known
        if entry < 0:
            entry = length + new
            fresh[new] = token
            new += 1
        entries[step] = entry
    return new


@compiled
def _advance(
    path, entries, position, distinct, ring, numbers, mask, tails, newest, runs, recent, fresh
):  # fmt: skip
    """Write the entries after a path, newest first, and the runs of their periods; notice breakers.
    `position` is that of the newest token."""
    steps, size = len(entries), numbers[RING]
    before = position - steps
    kept = min(before + 1, size)
    for newer in range(steps):
        newest[newer] = entries[steps - 1 - newer]
    slot = before % size
    unwrapped = min(kept, slot + 1)
    for column in range(unwrapped):
        newest[steps + column] = ring[ENTRY, slot - column]
    for column in range(kept - unwrapped):
        newest[steps + unwrapped + column] = ring[ENTRY, size - 1 - column]
    periods = numbers[PERIODS]
    runs[: periods + 1] = ring[RUN, : periods + 1]
    for step in range(steps):
        newer = steps - 1 - step
        now = before + 1 + step
        entry, older, grown = newest[newer], newest[newer + 1 :], runs[1:]
        for column in range(min(periods, now)):
            grown[column] = grown[column] + 1 if older[column] == entry else 0
        grown[min(periods, now) : periods] = 0
    if numbers[BREAKERS] >= 0:
        length = numbers[LENGTH]
        held = min(steps + kept, len(recent))
        for column in range(held):
            entry = newest[column]
            recent[column] = distinct[TOKEN, entry] if entry < length else fresh[entry - length]
        for step in range(steps):
            newer = steps - 1 - step
            _break(recent[newer:held], position - newer, numbers, mask, tails)


@compiled
def _match(position, newest, runs, numbers, best, banned):
    """Note the longest repeat that each token would go on with, and what n-grams forbid."""
    last_n = min(numbers[DRY_LAST_N], position + 1)
    limit = last_n
    if numbers[BREAK_HEAD] > position - last_n:
        limit = position - numbers[BREAK_END]
    allowed = numbers[DRY_ALLOWED_LENGTH]
    for period in range(1, min(last_n - 1, numbers[PERIODS]) + 1):
        matched = min(runs[period], last_n - period, limit)
        if matched >= allowed:
            entry = newest[period - 1]
            best[entry] = max(best[entry], matched - allowed + 1)
    size = numbers[NGRAM_SIZE]
    if size:
        furthest = min(numbers[NGRAM_WINDOW] - size + 1, position + 1, numbers[PERIODS])
        for period in range(1, furthest + 1):
            if runs[period] >= size - 1:
                banned[newest[period - 1]] = 1


@compiled
def _is_breaker(token, numbers, mask):
    """Whether a token breaks sequences alone."""
    if numbers[BREAKERS] < 0:
        return False
    own = mask[numbers[BREAKERS]]
    return 0 <= token < len(own) and own[token] & 1 != 0


@compiled
def _shift(position, entries, newest, numbers, counts):
    """Count a path's tokens, and no longer those that it pushes out of the newest LAST_N."""
    steps = len(entries)
    for step in range(steps):
        now = position - steps + 1 + step
        counts[0, entries[step]] += 1
        counts[1, entries[step]] += now >= numbers[FIRST_OUTPUT]
        gone = now - numbers[LAST_N]
        if gone >= 0:
            entry = newest[position - gone]
            counts[0, entry] -= 1
            counts[1, entry] -= gone >= numbers[FIRST_OUTPUT]


@compiled
def _lower(logits, known, distinct, fresh, counts, best, banned, numbers, strengths, mask, ids):
    """Change the logits of the distinct tokens; see `history_cuda`."""
    length = numbers[LENGTH]
    frequency, presence = strengths[FREQUENCY], strengths[PRESENCE]
    repetition, base = strengths[REPETITION], strengths[DRY_BASE]
    largest = 2**30
    if base > np.float32(1.000001):
        largest = int(LOG_OF_LARGEST / np.log(base))
    whitelist = ids[numbers[STOPS] : numbers[STOPS] + numbers[WHITELISTED]]
    for entry in range(known):
        token = distinct[TOKEN, entry] if entry < length else fresh[entry - length]
        if not 0 <= token < len(logits):
            continue
        logit = logits[token]
        if counts[1, entry] > 0:
            logit -= frequency * np.float32(counts[1, entry]) + presence
        if counts[0, entry] > 0:
            logit = logit * repetition if logit < 0 else logit / repetition
        if best[entry] > 0 and not _is_breaker(token, numbers, mask):
            exponent = min(best[entry] - 1, largest)
            logit -= np.float32(strengths[DRY_MULTIPLIER] * np.float64(base) ** exponent)
        if banned[entry]:
            is_free = False
            for one in whitelist:
                is_free = is_free or one == token
            if not is_free:
                logit = np.float32(-np.inf)
        logits[token] = logit


@compiled
def _stop(logits, position, numbers, ids):
    """Keep the tokens that stop a request from an output that is still too short."""
    if position + 1 - numbers[FIRST_OUTPUT] < numbers[MIN_NEW_TOKENS]:
        for token in ids[: numbers[STOPS]]:
            if 0 <= token < len(logits):
                logits[token] = -np.inf


@compiled
def _penalise(
    logits, path, position, keeps, distinct, ring, own, strengths, ids, mask, tails,
    newest, runs, entries, fresh, counts, best, banned, recent,
):  # fmt: skip
    """One row of logits, or none, after a path whose newest token stands at `position`."""
    numbers = own.copy()
    steps = len(path)
    if numbers[RING] == 0:
        if len(logits):
            _stop(logits, position, numbers, ids)
        return
    new = _walk(path, distinct, numbers, entries[:steps], fresh)
    known = numbers[LENGTH] + new
    _advance(
        path, entries[:steps], position, distinct, ring, numbers, mask, tails, newest, runs, recent,
        fresh,
    )  # fmt: skip
    for entry in range(numbers[LENGTH]):
        counts[0, entry] = distinct[COUNT, entry]
        counts[1, entry] = distinct[OUTPUT_COUNT, entry]
    counts[:, numbers[LENGTH] : known] = 0
    _shift(position, entries[:steps], newest, numbers, counts)
    if len(logits):
        best[:known] = 0
        banned[:known] = 0
        if numbers[PERIODS]:
            _match(position, newest, runs, numbers, best, banned)
        _lower(
            logits, known, distinct, fresh, counts, best, banned, numbers, strengths, mask, ids
        )  # fmt: skip
        _stop(logits, position, numbers, ids)
    if keeps and known <= distinct.shape[1]:
        distinct[TOKEN, numbers[LENGTH] : known] = fresh[:new]
        distinct[COUNT, :known] = counts[0, :known]
        distinct[OUTPUT_COUNT, :known] = counts[1, :known]
        for step in range(steps):
            ring[ENTRY, (position - steps + 1 + step) % numbers[RING]] = entries[step]
        ring[RUN, : numbers[PERIODS] + 1] = runs[: numbers[PERIODS] + 1]
        numbers[LENGTH] = known
        own[:] = numbers


@compiled
def _step(
    logits, request_rows, seq_lens, input_ids, prefilled, offset,
    slots, distinct, ring, numbers, strengths, ids, mask, tails,
):  # fmt: skip
    room = _room(distinct, ring, 1)
    newest, runs, entries, fresh, counts, best, banned, recent = room
    for row, owner in enumerate(request_rows):
        slot = slots[owner]
        if slot < 0:
            continue
        first = row + offset
        path = input_ids[first : first + 1] if row >= prefilled else input_ids[:0]
        _penalise(
            logits[row], path, seq_lens[row] - 1, len(path) > 0, distinct[slot], ring[slot],
            numbers[slot], strengths[slot], ids[slot], mask, tails,
            newest, runs, entries, fresh, counts, best, banned, recent,
        )  # fmt: skip


@compiled
def _verify(
    logits, request_rows, root, paths, lengths,
    slots, distinct, ring, numbers, strengths, ids, mask, tails,
):  # fmt: skip
    nodes, depth = paths.shape[1:]
    room = _room(distinct, ring, depth)
    newest, runs, entries, fresh, counts, best, banned, recent = room
    for tree, owner in enumerate(request_rows):
        slot = slots[owner]
        if slot < 0:
            continue
        for node in range(nodes):
            path = paths[tree, node, : lengths[tree, node]]
            _penalise(
                logits[tree * nodes + node], path, root[tree] + len(path) - 1, False,
                distinct[slot], ring[slot], numbers[slot], strengths[slot], ids[slot], mask, tails,
                newest, runs, entries, fresh, counts, best, banned, recent,
            )  # fmt: skip


@compiled
def _accept(
    logits, request_rows, root, paths, accept_index, num_correct_drafts,
    slots, distinct, ring, numbers, strengths, ids, mask, tails,
):  # fmt: skip
    nodes, depth = paths.shape[1:]
    room = _room(distinct, ring, depth)
    newest, runs, entries, fresh, counts, best, banned, recent = room
    for tree, owner in enumerate(request_rows):
        slot = slots[owner]
        if slot < 0:
            continue
        accepted = num_correct_drafts[tree]
        node = accept_index[tree, accepted] - tree * nodes
        path = paths[tree, node, : accepted + 1]
        _penalise(
            logits[0, :0], path, root[tree] + accepted, True,
            distinct[slot], ring[slot], numbers[slot], strengths[slot], ids[slot], mask, tails,
            newest, runs, entries, fresh, counts, best, banned, recent,
        )  # fmt: skip


@compiled
def _room(distinct, ring, depth):
    """Working memory for a row: one after the other they use the same."""
    tokens, reach = distinct.shape[2] + depth, ring.shape[2] + depth
    return (
        np.empty(reach, np.int32),
        np.empty(reach, np.int32),
        np.empty(depth, np.int64),
        np.empty(depth, np.int32),
        np.empty((2, tokens), np.int32),
        np.empty(tokens, np.int32),
        np.empty(tokens, np.int8),
        np.empty(depth + 32, np.int32),
    )


def seed(state: HistoryState, seeds: list[HistorySeed]) -> None:
    """Give rows their slots and fill them, or give them up.

    Args:
        state: has room for them.
        seeds: those that give rows up first.
    """
    slot, distinct, ring, numbers, strengths, ids, mask, tails = state.arrays
    for one in seeds:
        slot[one.row] = one.slot
        if one.slot < 0:
            continue
        numbers[one.slot], strengths[one.slot] = one.numbers, one.strengths
        ids[one.slot, : len(one.ids)] = one.ids
        if one.numbers[RING]:
            known, entries = np.unique(one.tokens, return_inverse=True)
            distinct[one.slot, TOKEN, : len(known)] = known
            numbers[one.slot, LENGTH] = len(known)
            _seed(
                one.tokens, entries, distinct[one.slot], ring[one.slot], numbers[one.slot], mask,
                tails,
            )  # fmt: skip


def step(
    state: HistoryState,
    logits: Tensor,
    *,
    request_rows: Tensor,
    seq_lens: Tensor,
    input_ids: Tensor,
    prefilled: int,
    offset: int,
) -> None:
    """Bring the histories of a batch up to date, and change the logits by what they say.

    Args:
        state: the histories.
        others: as in `reference.steps.step`.
    """
    _step(
        logits.numpy(), request_rows.numpy(), seq_lens.numpy(), input_ids.numpy(), prefilled,
        offset, *state.arrays,
    )  # fmt: skip


def verify(
    state: HistoryState,
    logits: Tensor,
    *,
    request_rows: Tensor,
    root: Tensor,
    paths: Tensor,
    lengths: Tensor,
) -> None:
    """Change the logits of every node of a batch of draft trees.

    Args:
        state: the histories, which end before the roots and stay as they are.
        paths: the tokens from each node up to its root, int32 [batch, nodes, depth].
        lengths: how many there are, int64 [batch, nodes].
        others: as in `reference.steps.verify`.
    """
    _verify(
        logits.numpy(), request_rows.numpy(), root.numpy(), paths.numpy(), lengths.numpy(),
        *state.arrays,
    )  # fmt: skip


def accept(
    state: HistoryState,
    *,
    request_rows: Tensor,
    root: Tensor,
    paths: Tensor,
    accept_index: Tensor,
    num_correct_drafts: Tensor,
) -> None:
    """Append the accepted path of each draft tree; arguments as in `reference.steps.accept`."""
    none = np.empty((1, 0), np.float32)
    _accept(
        none, request_rows.numpy(), root.numpy(), paths.numpy(), accept_index.numpy(),
        num_correct_drafts.numpy(), *state.arrays,
    )  # fmt: skip
