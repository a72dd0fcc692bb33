"""The penalties over a whole history, in the launch that applies the LZ penalty (`cuda`).

After the LZ penalty, each token a that the request has is changed once, in this order:

    frequency, presence   logit -= frequency * n_out + presence            if n_out > 0
    repetition            logit = logit / r, or logit * r below 0          if n_all > 0
    DRY                   logit -= multiplier * base ** (m - allowed)      if m >= allowed
    n-grams               logit = -inf                                     if a would repeat one
    min_new_tokens        logit = -inf                                     of what stops the request

n_all and n_out count a in the newest `penalty_last_n` tokens and in the output among them. m is the
longest repeat that a would go on with: the largest min(run[k], dry_penalty_last_n - k, limit) of
the periods k at whose distance a stands, where limit is how many tokens came after the last
sequence breaker (llama.cpp). An n-gram of size n repeats where run[k] >= n - 1 and it lies in the
window.

Run lengths are kept as those of the LZ penalty are, and a path of new tokens is as there. A program
passes over the row's distinct tokens twice, to find the path's tokens among them and to change the
logits, and once over the periods, where it notes m by distinct token in scratch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sglang_lz import history

# Each is a column, row or number of `sglang_lz.history`.
LENGTH = tl.constexpr(history.LENGTH)
RING = tl.constexpr(history.RING)
PERIODS = tl.constexpr(history.PERIODS)
FIRST_OUTPUT = tl.constexpr(history.FIRST_OUTPUT)
LAST_N = tl.constexpr(history.LAST_N)
MIN_NEW_TOKENS = tl.constexpr(history.MIN_NEW_TOKENS)
NGRAM_SIZE = tl.constexpr(history.NGRAM_SIZE)
NGRAM_WINDOW = tl.constexpr(history.NGRAM_WINDOW)
DRY_ALLOWED_LENGTH = tl.constexpr(history.DRY_ALLOWED_LENGTH)
DRY_LAST_N = tl.constexpr(history.DRY_LAST_N)
BREAKERS = tl.constexpr(history.BREAKERS)
BREAK_HEAD = tl.constexpr(history.BREAK_HEAD)
BREAK_END = tl.constexpr(history.BREAK_END)
STOPS = tl.constexpr(history.STOPS)
WHITELISTED = tl.constexpr(history.WHITELISTED)
NUMBERS = tl.constexpr(history.NUMBERS)
FREQUENCY = tl.constexpr(history.FREQUENCY)
PRESENCE = tl.constexpr(history.PRESENCE)
REPETITION = tl.constexpr(history.REPETITION)
DRY_MULTIPLIER = tl.constexpr(history.DRY_MULTIPLIER)
DRY_BASE = tl.constexpr(history.DRY_BASE)
STRENGTHS = tl.constexpr(history.STRENGTHS)
MOST_TAILS = tl.constexpr(history.MOST_TAILS)
TAIL = tl.constexpr(1 + history.LONGEST_TAIL)
LOG_OF_LARGEST = tl.constexpr(88.7228391)

BLOCK = tl.constexpr(1024)


@triton.jit
def _token_of(entry, length, distinct_ptr, fresh_ptr, mask):
    """The token of some of the distinct ones; those that the path adds come last."""
    old = tl.load(distinct_ptr + entry, mask=mask & (entry < length), other=0)
    new = tl.load(fresh_ptr + (entry - length), mask=mask & (entry >= length), other=0)
    return tl.where(entry < length, old, new)


@triton.jit
def _entry_at(position, before, size, ring_ptr, walk_ptr, mask):
    """Which of the distinct tokens stands at some positions, those of the path included."""
    old = tl.load(ring_ptr + position % size, mask=mask & (position <= before), other=0)
    new = tl.load(walk_ptr + (position - before - 1), mask=mask & (position > before), other=0)
    return tl.where(position <= before, old, new)


@triton.jit
def _walk(path_ptr, on_path, length, distinct_ptr, walk_ptr, fresh_ptr):
    """Find which distinct tokens a path's are, oldest first. Returns how many are new."""
    new = 0
    for step in range(on_path):
        token = tl.load(path_ptr + (on_path - 1 - step)).to(tl.int32)
        entry = -1
        for start in range(0, length, BLOCK):
            known = start + tl.arange(0, BLOCK)
            other = tl.load(distinct_ptr + known, mask=known < length, other=0)
            is_it = (known < length) & (other == token)
            entry = tl.maximum(entry, tl.max(tl.where(is_it, known, -1)))
        for older in range(new):
            is_it = tl.load(fresh_ptr + older) == token
            entry = tl.where(is_it, length + older, entry)
        tl.debug_barrier()
        if entry < 0:
            entry = length + new
            tl.store(fresh_ptr + new, token)
            new += 1
        tl.store(walk_ptr + step, entry)
        # One thread wrote it, all threads read it.
        tl.debug_barrier()
    return new


@triton.jit
def _noticed(
    position, head, end, before, length, size, numbers_ptr, distinct_ptr, ring_ptr, walk_ptr,
    fresh_ptr, mask_ptr, masks, tails_ptr,
):  # fmt: skip
    """Where the newest sequence breaker begins and ends once the token at `position` has come."""
    breakers = tl.load(numbers_ptr + BREAKERS).to(tl.int64)
    mask_ptr += breakers * masks
    tails_ptr += breakers * MOST_TAILS * TAIL
    entry = _entry_at(position, before, size, ring_ptr, walk_ptr, True)
    token = _token_of(entry, length, distinct_ptr, fresh_ptr, True)
    is_known = (token >= 0) & (token < masks)
    alone = (tl.load(mask_ptr + token, mask=is_known, other=0) & 1) != 0
    tail = 0
    behind = tl.load(tails_ptr)
    while (behind > 0) & (alone == 0):
        first = position - behind
        is_here = (first >= 0) & (first >= head)
        at = tl.maximum(first, 0)
        entry = _entry_at(at, before, size, ring_ptr, walk_ptr, is_here)
        token = _token_of(entry, length, distinct_ptr, fresh_ptr, is_here)
        is_known = is_here & (token >= 0) & (token < masks)
        bits = tl.load(mask_ptr + token, mask=is_known, other=0)
        is_here = is_here & (((bits >> (1 + tail)) & 1) != 0)
        for older in range(behind):
            entry = _entry_at(position - older, before, size, ring_ptr, walk_ptr, is_here)
            token = _token_of(entry, length, distinct_ptr, fresh_ptr, is_here)
            is_here = is_here & (token == tl.load(tails_ptr + tail * TAIL + behind - older))
        head = tl.where(is_here, first, head)
        end = tl.where(is_here, position, end)
        tail += 1
        behind = tl.load(tails_ptr + tail * TAIL, mask=tail < MOST_TAILS, other=0)
    return tl.where(alone, position, head), tl.where(alone, position, end)


@triton.jit
def _count(
    entry, column, on_path, before, size, numbers_ptr, distinct_ptr, tokens, ring_ptr, walk_ptr,
    length, mask,
):  # fmt: skip
    """How often some distinct tokens stand in the newest LAST_N tokens; in the output if `column`
    is OUTPUT_COUNT."""
    first_output = tl.load(numbers_ptr + FIRST_OUTPUT)
    last_n = tl.load(numbers_ptr + LAST_N)
    is_stored = mask & (entry < length)
    count = tl.load(distinct_ptr + column * tokens + entry, mask=is_stored, other=0)
    first = tl.where(column == 1, 0, first_output)
    for step in range(on_path):
        now = before + 1 + step
        come = tl.load(walk_ptr + step)
        count += ((entry == come) & (now >= first)).to(tl.int32)
        gone = now - last_n
        left = _entry_at(tl.maximum(gone, 0), before, size, ring_ptr, walk_ptr, gone >= 0)
        count -= ((entry == left) & (gone >= first) & (gone >= 0)).to(tl.int32)
    return count


@triton.jit
def penalise(
    row, slot, position, path_ptr, on_path, keeps, logits_ptr, token_stride, vocab_size,
    distinct_ptr, tokens, ring_ptr, reach, numbers_ptr, strengths_ptr, ids_ptr, ids, mask_ptr,
    masks, tails_ptr, walk_ptr, depth, scratch_ptr, columns,
    LOWERS: tl.constexpr,
):  # fmt: skip
    """Change one row of logits by a slot's penalties (if LOWERS), after a path whose newest token
    stands at `position`; append the path if `keeps`."""
    slot = slot.to(tl.int64)
    distinct_ptr += slot * 3 * tokens
    ring_ptr += slot * 2 * reach
    run_ptr = ring_ptr + reach
    numbers_ptr += slot * NUMBERS
    strengths_ptr += slot * STRENGTHS
    ids_ptr += slot * ids
    walk_ptr += row.to(tl.int64) * 2 * depth
    fresh_ptr = walk_ptr + depth
    best_ptr = scratch_ptr + row.to(tl.int64) * 2 * columns
    banned_ptr = best_ptr + columns
    size = tl.load(numbers_ptr + RING)
    stops = tl.load(numbers_ptr + STOPS)
    lane = tl.arange(0, BLOCK)
    if size > 0:
        length = tl.load(numbers_ptr + LENGTH)
        periods = tl.load(numbers_ptr + PERIODS)
        before = position - on_path
        new = _walk(path_ptr, on_path, length, distinct_ptr, walk_ptr, fresh_ptr)
        head = tl.load(numbers_ptr + BREAK_HEAD)
        end = tl.load(numbers_ptr + BREAK_END)
        if tl.load(numbers_ptr + BREAKERS) >= 0:
            for step in range(on_path):
                head, end = _noticed(
                    before + 1 + step, head, end, before, length, size, numbers_ptr, distinct_ptr,
                    ring_ptr, walk_ptr, fresh_ptr, mask_ptr, masks, tails_ptr,
                )  # fmt: skip
        multiplier = tl.load(strengths_ptr + DRY_MULTIPLIER)
        allowed = tl.load(numbers_ptr + DRY_ALLOWED_LENGTH)
        last_n = tl.minimum(tl.load(numbers_ptr + DRY_LAST_N), position + 1)
        limit = tl.where(head > position - last_n, position - end, last_n)
        ngram = tl.load(numbers_ptr + NGRAM_SIZE)
        furthest = tl.minimum(tl.load(numbers_ptr + NGRAM_WINDOW) - ngram + 1, position + 1)
        for start in range(1, periods + 1, BLOCK):
            period = start + lane
            known = period <= periods
            run = tl.load(run_ptr + period, mask=known, other=0)
            for step in range(on_path):
                now = before + 1 + step
                is_there = known & (period <= now)
                at = tl.maximum(now - period, 0)
                older = _entry_at(at, before, size, ring_ptr, walk_ptr, is_there)
                run = tl.where(is_there & (older == tl.load(walk_ptr + step)), run + 1, 0)
            if LOWERS:
                following = tl.maximum(position + 1 - period, 0)
                is_there = known & (period <= position + 1)
                entry = _entry_at(following, before, size, ring_ptr, walk_ptr, is_there)
                matched = tl.minimum(tl.minimum(run, last_n - period), limit)
                repeats = is_there & (period < last_n) & (matched >= allowed)
                tl.atomic_max(best_ptr + entry, matched - allowed + 1, mask=repeats, sem="relaxed")
                forbids = is_there & (ngram > 0) & (period <= furthest) & (run >= ngram - 1)
                tl.atomic_max(
                    banned_ptr + entry, tl.full([BLOCK], 1, tl.int32), mask=forbids, sem="relaxed"
                )
            if keeps > 0:
                tl.store(run_ptr + period, run, mask=known)
        # What other threads noted, and lowered before, is read from here on.
        tl.debug_barrier()
        frequency = tl.load(strengths_ptr + FREQUENCY)
        presence = tl.load(strengths_ptr + PRESENCE)
        repetition = tl.load(strengths_ptr + REPETITION)
        bits = tl.log2(tl.load(strengths_ptr + DRY_BASE))
        largest = tl.where(bits > 1.4e-6, LOG_OF_LARGEST / (bits * 0.6931471805599453), 1e9)
        breakers = tl.load(numbers_ptr + BREAKERS)
        own_mask_ptr = mask_ptr + tl.maximum(breakers, 0).to(tl.int64) * masks
        whitelisted = tl.load(numbers_ptr + WHITELISTED)
        for start in range(0, length + new, BLOCK):
            entry = start + lane
            known = entry < length + new
            token = _token_of(entry, length, distinct_ptr, fresh_ptr, known)
            count = _count(
                entry, 1, on_path, before, size, numbers_ptr, distinct_ptr, tokens, ring_ptr,
                walk_ptr, length, known,
            )  # fmt: skip
            sampled = _count(
                entry, 2, on_path, before, size, numbers_ptr, distinct_ptr, tokens, ring_ptr,
                walk_ptr, length, known,
            )  # fmt: skip
            if LOWERS:
                in_vocab = known & (token >= 0) & (token < vocab_size)
                at = logits_ptr + tl.where(in_vocab, token, 0).to(tl.int64) * token_stride
                logit = tl.load(at, mask=in_vocab, other=0.0)
                lowered = logit - (frequency * sampled.to(tl.float32) + presence)
                logit = tl.where(sampled > 0, lowered, logit)
                scaled = tl.where(logit < 0, logit * repetition, logit / repetition)
                logit = tl.where(count > 0, scaled, logit)
                if periods > 0:
                    best = tl.load(best_ptr + entry, mask=known, other=0)
                    banned = tl.load(banned_ptr + entry, mask=known, other=0)
                    tl.store(best_ptr + entry, 0, mask=known & (best > 0))
                    tl.store(banned_ptr + entry, 0, mask=known & (banned > 0))
                    alone = tl.load(
                        own_mask_ptr + token,
                        mask=in_vocab & (breakers >= 0) & (token < masks),
                        other=0,
                    )
                    exponent = tl.minimum(best - 1, largest.to(tl.int32)).to(tl.float32)
                    repeated = logit - multiplier * tl.exp2(exponent * bits)
                    logit = tl.where((best > 0) & ((alone & 1) == 0), repeated, logit)
                    is_free = tl.zeros([BLOCK], tl.int32)
                    for i in range(whitelisted):
                        is_it = token == tl.load(ids_ptr + stops + i)
                        is_free = tl.maximum(is_free, is_it.to(tl.int32))
                    logit = tl.where((banned > 0) & (is_free == 0), float("-inf"), logit)
                tl.store(at, logit, mask=in_vocab)
            if keeps > 0:
                tl.store(distinct_ptr + tokens + entry, count, mask=known & (entry < tokens))
                tl.store(distinct_ptr + 2 * tokens + entry, sampled, mask=known & (entry < tokens))
        if keeps > 0:
            # All threads have read what is written here.
            tl.debug_barrier()
            for i in range(new):
                token = tl.load(fresh_ptr + i)
                tl.store(distinct_ptr + length + i, token, mask=length + i < tokens)
            for step in range(on_path):
                now = before + 1 + step
                tl.store(ring_ptr + now % size, tl.load(walk_ptr + step))
            tl.store(numbers_ptr + LENGTH, tl.minimum(length + new, tokens))
            tl.store(numbers_ptr + BREAK_HEAD, head)
            tl.store(numbers_ptr + BREAK_END, end)
    if LOWERS:
        missing = position + 1 - tl.load(numbers_ptr + FIRST_OUTPUT)
        if missing < tl.load(numbers_ptr + MIN_NEW_TOKENS):
            tl.debug_barrier()
            for start in range(0, stops, BLOCK):
                i = start + lane
                token = tl.load(ids_ptr + i, mask=i < stops, other=-1)
                known = (i < stops) & (token >= 0) & (token < vocab_size)
                at = logits_ptr + tl.where(known, token, 0).to(tl.int64) * token_stride
                tl.store(at, float("-inf"), mask=known)
