"""The penalties over a whole history for a CPU, compiled by numba; rows are processed in sequence.

`history_cuda` documents the formulas and symbols. `seed` also prepares the rows for CUDA, because
the tokens of a prompt are on the host.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lz_penalty.compiled import compiled
from lz_penalty.history import (
    AT,
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
    LARGEST_CHANGE,
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
    TOKENS,
    WHITELISTED,
    HistorySeed,
    HistoryState,
)

Trees: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]
"""The request row and the position of the root of each tree, integer [batch]; and the paths from
each node up to its root, newest first, int32 [batch, nodes, depth], with their lengths, int64
[batch, nodes]."""

# The largest exponent, that of the largest float (as in llama.cpp).
LOG_OF_LARGEST = 88.7228391


@compiled
def run_lengths(tokens, run, longest):
    """Write run_k to column k, at most `longest`; columns past the tokens get 0.

    With the newest token first, run_k is the length of the longest common prefix of the tokens and
    of the tokens from column k on, which is the Z-function. It takes O(tokens + columns), however
    often the tokens repeat.

    Args:
        tokens: integer [length], oldest first.
        run: integer [columns]; filled.
        longest: where runs saturate.
    """
    count = len(tokens)
    newest = count - 1
    run[:] = 0
    start = end = 0  # newest first, the run that reaches furthest so far is tokens[start:end]
    for period in range(1, min(count, len(run))):
        length = 0
        if period < end:
            length = min(end - period, run[period - start])
            if length < end - period:
                run[period] = length
                continue
        elif tokens[newest] != tokens[newest - period]:
            continue
        while (
            length < longest
            and period + length < count
            and tokens[newest - length] == tokens[newest - period - length]
        ):
            length += 1
        run[period] = length
        if period + length > end:
            start, end = period, period + length


@compiled
def _break(token_at, position, numbers, mask, tails):
    """Record a sequence breaker that ends at `position`; `token_at` holds the newest tokens, newest
    first. The breaker that begins last wins, and among those that begin there the longest."""
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
    """Fill a history; `entries` has the index of each token among the distinct tokens."""
    count, size = len(tokens), numbers[RING]
    distinct[COUNT:] = 0
    for position in range(max(0, count - numbers[LAST_N]), count):
        distinct[COUNT, entries[position]] += 1
        if position >= numbers[FIRST_OUTPUT]:
            distinct[OUTPUT_COUNT, entries[position]] += 1
    for position in range(max(0, count - size), count):
        ring[ENTRY, position % size] = entries[position]
    if numbers[PERIODS]:
        run_lengths(tokens, ring[RUN, : numbers[PERIODS] + 1], count)
    if numbers[BREAKERS] >= 0:
        newest_first = tokens[::-1]
        for position in range(count):
            _break(newest_first[count - 1 - position :], position, numbers, mask, tails)


@compiled
def _walk(path, distinct, numbers, entries, fresh):
    """Find the path's tokens among the distinct ones, oldest first. Returns how many are new."""
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
    """Write the entries after a path, newest first, and the runs of their periods, and record
    breakers. `position` is that of the newest token."""
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
def _match(position, newest, runs, numbers, best, completes):
    """Note the longest repeat that each token would extend, and which tokens complete n-grams."""
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
                completes[newest[period - 1]] = 1


@compiled
def _is_breaker(token, numbers, mask):
    """Whether a token breaks a sequence by itself."""
    if numbers[BREAKERS] < 0:
        return False
    own = mask[numbers[BREAKERS]]
    return 0 <= token < len(own) and own[token] & 1 != 0


@compiled
def _shift(position, entries, newest, numbers, counts):
    """Count a path's tokens, and uncount those that it pushes out of the newest LAST_N."""
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
def _lower(logits, known, distinct, fresh, counts, best, numbers, strengths, mask):
    """Change the logits of the distinct tokens; see `history_cuda`."""
    length = numbers[LENGTH]
    frequency, presence = strengths[FREQUENCY], strengths[PRESENCE]
    repetition, base = strengths[REPETITION], strengths[DRY_BASE]
    largest = 2**30
    if base > np.float32(1.000001):
        largest = int(LOG_OF_LARGEST / np.log(base))
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
            grown = strengths[DRY_MULTIPLIER] * np.float64(base) ** exponent
            logit -= np.float32(min(grown, LARGEST_CHANGE))
        logits[token] = logit


@compiled
def _note(vocab_size, known, distinct, fresh, completes, numbers, ids, forbidden):
    """Note which tokens would complete a repeated n-gram, except those of the whitelist."""
    length = numbers[LENGTH]
    for entry in range(known):
        token = distinct[TOKEN, entry] if entry < length else fresh[entry - length]
        if completes[entry] and 0 <= token < vocab_size:
            forbidden[token >> 5] |= np.uint32(1 << (token & 31))
    for token in ids[numbers[STOPS] : numbers[STOPS] + numbers[WHITELISTED]]:
        if 0 <= token < vocab_size:
            forbidden[token >> 5] &= ~np.uint32(1 << (token & 31))


@compiled
def _note_stops(vocab_size, position, numbers, ids, forbidden):
    """Note the tokens that stop a request, if its output is still too short."""
    if position + 1 - numbers[FIRST_OUTPUT] < numbers[MIN_NEW_TOKENS]:
        for token in ids[: numbers[STOPS]]:
            if 0 <= token < vocab_size:
                forbidden[token >> 5] |= np.uint32(1 << (token & 31))


@compiled
def _forbid_row(logits, forbidden):
    """See `history_cuda.forbid`."""
    left = False
    for token in range(len(logits)):
        is_free = (forbidden[token >> 5] >> np.uint32(token & 31)) & np.uint32(1) == 0
        if is_free and logits[token] > -np.inf:
            left = True
            break
    for word in range((len(logits) + 31) >> 5):
        bits = forbidden[word]
        if bits == 0:
            continue
        forbidden[word] = 0
        for bit in range(32):
            if left and (bits >> np.uint32(bit)) & np.uint32(1):
                logits[32 * word + bit] = -np.inf


@compiled
def _forbid(logits, forbidden):
    for row in range(len(logits)):
        _forbid_row(logits[row], forbidden[row])


@compiled
def _penalise(
    logits, path, position, keeps, distinct, ring, own, strengths, ids, mask, tails, forbidden,
    newest, runs, entries, fresh, counts, best, completes, recent,
):  # fmt: skip
    """Process one row of logits, or none, after a path whose newest token is at `position`. The
    bits of forbidden tokens are only set here, not applied."""
    numbers = own.copy()
    steps = len(path)
    if numbers[RING] == 0:
        if len(logits):
            _note_stops(len(logits), position, numbers, ids, forbidden)
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
        completes[:known] = 0
        if numbers[PERIODS]:
            _match(position, newest, runs, numbers, best, completes)
        _lower(logits, known, distinct, fresh, counts, best, numbers, strengths, mask)
        if numbers[NGRAM_SIZE]:
            _note(len(logits), known, distinct, fresh, completes, numbers, ids, forbidden)
        _note_stops(len(logits), position, numbers, ids, forbidden)
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
def _run(
    logits, request_rows, root, paths, lengths, keeps, forbidden, forbids,
    memory, numbers, strengths, mask, tails,
):  # fmt: skip
    nodes, depth = paths.shape[1:]
    scratch = _scratch(request_rows, numbers, depth)
    newest, runs, entries, fresh, counts, best, completes, recent = scratch
    for tree, owner in enumerate(request_rows):
        own = numbers[owner]
        if own[AT] < 0:
            continue
        distinct, ring, ids = _parts(memory, own)
        for node in range(nodes):
            path = paths[tree, node, : lengths[tree, node]]
            row = tree * nodes + node
            _penalise(
                logits[row], path, root[tree] + len(path) - 1, keeps and len(path) > 0,
                distinct, ring, own, strengths[owner], ids, mask, tails, forbidden[row],
                newest, runs, entries, fresh, counts, best, completes, recent,
            )  # fmt: skip
            if forbids and (own[NGRAM_SIZE] or own[MIN_NEW_TOKENS]):
                _forbid_row(logits[row], forbidden[row])


@compiled
def _parts(memory, own):
    """The distinct tokens, the ring and the ids of a history."""
    at, tokens, size = np.int64(own[AT]), np.int64(own[TOKENS]), np.int64(own[RING])
    ring = at + 3 * tokens
    ids = ring + 2 * size
    end = ids + own[STOPS] + own[WHITELISTED]
    return (
        memory[at:ring].reshape((3, tokens)),
        memory[ring:ids].reshape((2, size)),
        memory[ids:end],
    )


@compiled
def _scratch(request_rows, numbers, depth):
    """Working memory for one row at a time; all rows reuse it."""
    tokens = reach = depth
    for owner in request_rows:
        if numbers[owner, AT] >= 0:
            tokens = max(tokens, numbers[owner, TOKENS] + depth)
            reach = max(reach, numbers[owner, RING] + depth)
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
    """Give rows their histories.

    Args:
        state: has room for the histories at their addresses.
        seeds: one for each row.
    """
    memory, numbers, strengths, mask, tails = state.arrays
    for one in seeds:
        own = numbers[one.row]
        own[:], strengths[one.row] = one.numbers, one.strengths
        distinct, ring, ids = _parts(memory, own)
        ids[:] = one.ids
        if own[RING]:
            known, entries = np.unique(one.tokens, return_inverse=True)
            distinct[TOKEN, : len(known)] = known
            own[LENGTH] = len(known)
            _seed(one.tokens, entries, distinct, ring, own, mask, tails)


def run(
    state: HistoryState, logits: NDArray[np.float32], trees: Trees, *, keeps: bool, forbids: bool
) -> None:
    """Change the logits after each path of a batch.

    Args:
        state: the histories, which end before the roots.
        logits: float32 [batch x nodes, V]; changed in place. Without columns, none are changed.
        trees: the paths.
        keeps: whether to append the paths to the histories; each tree then has only one.
        forbids: whether to forbid the noted tokens at once; otherwise `forbid` does.
    """
    _run(logits, *trees, keeps, _forbidden(state, logits), forbids, *state.arrays)


def forbid(state: HistoryState, logits: Tensor) -> None:
    """See `cuda.forbid`."""
    _forbid(logits.numpy(), _forbidden(state, logits.numpy()))


def _forbidden(state: HistoryState, logits: NDArray[np.float32]) -> NDArray[np.uint32]:
    """The bits of the forbidden tokens for each row of logits."""
    assert len(logits) <= len(state.forbidden), "no bits were reserved for such a batch"
    bits: NDArray[np.int32] = state.forbidden.numpy()
    return bits.view(np.uint32)
