"""The penalties over a whole history, in the launch that applies the LZ penalty (`window_cuda`).

After the LZ penalty, each of the request's tokens a is changed once, in this order:

    frequency, presence   logit -= frequency * n_out + presence            if n_out > 0
    repetition            logit = logit / r, or logit * r below 0          if n_all > 0
    DRY                   logit -= multiplier * base ** (m - allowed)      if m >= allowed
    n-grams               a is forbidden                                   if a would repeat one
    min_new_tokens        a is forbidden                                   if a stops the request

n_all and n_out count a in the newest `penalty_last_n` tokens and in the output among them. m is the
longest repeat that a would extend: the largest min(run_k, dry_penalty_last_n - k, limit) over the
distances k at which a occurs, where limit is the number of tokens after the last sequence breaker
(as in llama.cpp). The token at distance k completes a repeated n-gram of size n if run_k >= n - 1
and the earlier n-gram lies in the window of `no_repeat_ngram_window` tokens. The logits of
forbidden tokens become -inf, unless the row has no other token left (`forbid`). That happens in the
same launch, or after the mask in a separate launch if a grammar masks the logits.

The runs run_k and the paths of new tokens are defined as for the LZ penalty. A program makes two
passes over the row's distinct tokens, one to find the path's tokens among them and one to change
the logits. It makes one pass over the periods, which stores m per distinct token in scratch memory
and sets a bit for each token that n-grams forbid. That pass takes WIDE periods at a time where it
can: their loads are in flight together, and need no masks.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lz_penalty import history, window
from lz_penalty.fields import histories

# Each is a column, row or number of `lz_penalty.history`.
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
AT = tl.constexpr(history.AT)
TOKENS = tl.constexpr(history.TOKENS)
NUMBERS = tl.constexpr(history.NUMBERS)
FREQUENCY = tl.constexpr(history.FREQUENCY)
PRESENCE = tl.constexpr(history.PRESENCE)
REPETITION = tl.constexpr(history.REPETITION)
DRY_MULTIPLIER = tl.constexpr(history.DRY_MULTIPLIER)
DRY_BASE = tl.constexpr(history.DRY_BASE)
STRENGTHS = tl.constexpr(len(history.STRENGTHS))
MOST_TAILS = tl.constexpr(histories.MOST_TAILS)
TAIL = tl.constexpr(1 + history.LONGEST_TAIL)
NUMBER_MARK = tl.constexpr(window.NUMBER_MARK)
LEAST_ID = tl.constexpr(window.LEAST_ID)
LOG_OF_LARGEST = tl.constexpr(88.7228391)
LARGEST = tl.constexpr(3.4028234e38)
LARGEST_CHANGE = tl.constexpr(history.LARGEST_CHANGE)

BLOCK = tl.constexpr(1024)
# Periods of a wide block. With more, some programs would need so many registers that fewer of them
# run at a time.
WIDE = tl.constexpr(2048)


@triton.jit
def _token_of(entry, length, distinct_ptr, fresh_ptr, mask):
    """The tokens at some places among the distinct ones; those that the path adds come last."""
    old = tl.load(distinct_ptr + entry, mask=mask & (entry < length), other=0)
    new = tl.load(fresh_ptr + (entry - length), mask=mask & (entry >= length), other=0)
    return tl.where(entry < length, old, new)


@triton.jit
def _entry_at(position, before, size, ring_ptr, walk_ptr, mask):
    """Which of the distinct tokens is at some positions, including those of the path."""
    old = tl.load(ring_ptr + position % size, mask=mask & (position <= before), other=0)
    new = tl.load(walk_ptr + (position - before - 1), mask=mask & (position > before), other=0)
    return tl.where(position <= before, old, new)


@triton.jit
def _entry_back(
    position, start, column, before, size, ring_ptr, walk_ptr, mask, IS_INNER: tl.constexpr
):
    """Which of the distinct tokens is `start + column` positions before `position`. IS_INNER as in
    `_look_back`."""
    if IS_INNER:
        entry = tl.load(ring_ptr + (position - start) % size - column, mask=mask, other=0)
    else:
        at = tl.maximum(position - start - column, 0)
        entry = _entry_at(at, before, size, ring_ptr, walk_ptr, mask)
    return entry


@triton.jit
def _unmarked(token):
    """A token of a path, on which rows with an onset mark numbers (`WindowState`)."""
    return tl.where(token < LEAST_ID, token ^ NUMBER_MARK, token)


@triton.jit
def _walk(path_ptr, on_path, length, distinct_ptr, walk_ptr, fresh_ptr):
    """Find the path's tokens among the distinct ones, oldest first. Returns how many are new."""
    for step in range(on_path):
        tl.store(walk_ptr + step, -1)
    # One thread wrote it; others write or read it from here on.
    tl.debug_barrier()
    for start in range(0, length, BLOCK):
        known = start + tl.arange(0, BLOCK)
        other = tl.load(distinct_ptr + known, mask=known < length, other=0)
        for step in range(on_path):
            token = _unmarked(tl.load(path_ptr + (on_path - 1 - step)).to(tl.int32))
            is_it = (known < length) & (other == token)
            tl.store(walk_ptr + step + tl.zeros_like(known), known, mask=is_it)
    tl.debug_barrier()
    new = 0
    for step in range(on_path):
        entry = tl.load(walk_ptr + step)
        if entry < 0:
            token = _unmarked(tl.load(path_ptr + (on_path - 1 - step)).to(tl.int32))
            entry = length + new
            for older in range(new):
                entry = tl.where(tl.load(fresh_ptr + older) == token, length + older, entry)
            # All threads have read what is written here.
            tl.debug_barrier()
            if entry == length + new:
                tl.store(fresh_ptr + new, token)
                new += 1
            tl.store(walk_ptr + step, entry)
            tl.debug_barrier()
    return new


@triton.jit
def _noticed(
    position, head, end, before, length, size, numbers_ptr, distinct_ptr, ring_ptr, walk_ptr,
    fresh_ptr, mask_ptr, masks, tails_ptr,
):  # fmt: skip
    """Where the newest sequence breaker begins and ends after the token at `position`."""
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
    """How often some distinct tokens occur in the newest LAST_N tokens, or in the output among them
    if `column` is OUTPUT_COUNT."""
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
def _note(token, mask, vocab_size, forbidden_ptr):
    """Set the bits of some tokens."""
    mask = mask & (token >= 0) & (token < vocab_size)
    word, bit = tl.where(mask, token, 0) // 32, tl.where(mask, token, 0) % 32
    ones = tl.full(token.shape, 1, tl.int32)
    tl.atomic_or(forbidden_ptr + word, ones << bit, mask=mask, sem="relaxed")


@triton.jit
def _forget(ids_ptr, count, vocab_size, forbidden_ptr):
    """Clear the bits of some tokens."""
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        token = tl.load(ids_ptr + i, mask=i < count, other=-1)
        mask = (token >= 0) & (token < vocab_size)
        word, bit = tl.where(mask, token, 0) // 32, tl.where(mask, token, 0) % 32
        ones = tl.full([BLOCK], 1, tl.int32)
        tl.atomic_and(forbidden_ptr + word, ~(ones << bit), mask=mask, sem="relaxed")


@triton.jit
def forbid(logits_ptr, token_stride, vocab_size, forbidden_ptr):
    """Set the logits of forbidden tokens to minus infinity, unless no token would be left, and
    clear their bits. All threads must have written their bits and logits before."""
    lane = tl.arange(0, BLOCK)
    words = (vocab_size + 31) // 32
    some = tl.zeros([BLOCK], tl.int32)
    for start in range(0, words, BLOCK):
        at = forbidden_ptr + start + lane
        some |= tl.load(at, mask=start + lane < words, other=0, cache_modifier=".cg")
    if tl.max((some != 0).to(tl.int32)) > 0:
        left, start = 0, 0
        # In a row without a grammar, hardly ever more than once.
        while (left == 0) & (start < vocab_size):
            token = start + lane
            known = token < vocab_size
            at = logits_ptr + tl.where(known, token, 0).to(tl.int64) * token_stride
            logit = tl.load(at, mask=known, other=float("-inf"), cache_modifier=".cg")
            bits = tl.load(forbidden_ptr + token // 32, mask=known, other=0, cache_modifier=".cg")
            is_left = (logit > float("-inf")) & (((bits >> (token % 32)) & 1) == 0)
            left = tl.max(is_left.to(tl.int32))
            start += BLOCK
        # All threads have read the bits that are cleared here.
        tl.debug_barrier()
        for start in range(0, words, BLOCK):
            word = start + lane
            bits = tl.load(forbidden_ptr + word, mask=word < words, other=0, cache_modifier=".cg")
            tl.store(forbidden_ptr + word, 0, mask=bits != 0)
            for bit in range(32):
                token = word * 32 + bit
                is_out = (left > 0) & (((bits >> bit) & 1) != 0)
                at = logits_ptr + tl.where(is_out, token, 0).to(tl.int64) * token_stride
                tl.store(at, float("-inf"), mask=is_out)


@triton.jit
def _look_back(
    start, reach, run_ptr, on_path, keeps, position, size, ring_ptr, walk_ptr, last_n, limit,
    allowed, best_ptr, ngram, furthest, length, distinct_ptr, fresh_ptr, vocab_size, forbidden_ptr,
    WIDTH: tl.constexpr, IS_INNER: tl.constexpr, LOWERS: tl.constexpr,
):  # fmt: skip
    """Find the runs of WIDTH periods from `start` on, but not beyond `reach`, and note the tokens
    that would extend them (if LOWERS). IS_INNER says that `reach` is not among them, that so many
    positions before each of the path and before the next token there is a token, none of them on
    the path, and that the ring holds these tokens without a wrap."""
    column = tl.arange(0, WIDTH)
    period = start + column
    before = position - on_path
    known = (period <= reach) | IS_INNER
    run = tl.load(run_ptr + start + column, mask=known, other=0)
    if LOWERS:
        # Loaded before the loop, this need not wait for what is loaded there.
        entry = _entry_back(
            position + 1, start, column, before, size, ring_ptr, walk_ptr, known, IS_INNER
        )
    for step in range(on_path):
        now = before + 1 + step
        is_there = known & ((period <= now) | IS_INNER)
        older = _entry_back(
            now, start, column, before, size, ring_ptr, walk_ptr, is_there, IS_INNER
        )
        run = tl.where(is_there & (older == tl.load(walk_ptr + step)), run + 1, 0)
    if LOWERS:
        if last_n > 0:
            matched = tl.minimum(tl.minimum(run, last_n - period), limit)
            repeats = known & (period < last_n) & (matched >= allowed)
            tl.atomic_max(best_ptr + entry, matched - allowed + 1, mask=repeats, sem="relaxed")
        if ngram > 0:
            completes = known & (period <= furthest) & (run >= ngram - 1)
            token = _token_of(entry, length, distinct_ptr, fresh_ptr, completes)
            _note(token, completes, vocab_size, forbidden_ptr)
    if keeps > 0:
        tl.store(run_ptr + start + column, run, mask=known)


@triton.jit
def penalise(
    row, node, request_row, position, path_ptr, on_path, keeps, logits_ptr, token_stride,
    vocab_size, memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks, tails_ptr, walk_ptr, depth,
    forbidden_ptr, words, forbids,
    LOWERS: tl.constexpr,
):  # fmt: skip
    """Change one row of logits by a request row's penalties (if LOWERS), after a path whose newest
    token is at `position`; append the path if `keeps`. `row` is the row of the logits, and `node`
    its number among those of the request. The bits of forbidden tokens are set in `forbidden_ptr`,
    and applied here if `forbids`."""
    numbers_ptr += request_row * NUMBERS
    strengths_ptr += request_row * STRENGTHS
    size = tl.load(numbers_ptr + RING)
    stops = tl.load(numbers_ptr + STOPS)
    tokens = tl.load(numbers_ptr + TOKENS)
    whitelisted = tl.load(numbers_ptr + WHITELISTED)
    distinct_ptr = memory_ptr + tl.load(numbers_ptr + AT).to(tl.int64)
    ring_ptr = distinct_ptr + 3 * tokens
    run_ptr = ring_ptr + size
    ids_ptr = run_ptr + size
    best_ptr = ids_ptr + stops + whitelisted + node * (tokens + depth)
    forbidden_ptr += row.to(tl.int64) * words
    walk_ptr += row.to(tl.int64) * 2 * depth
    fresh_ptr = walk_ptr + depth
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
        # The runs of longer periods are 0 and stay so.
        reach = tl.minimum(periods, position + 1)
        start = 1
        while start <= reach:
            slot = (before + 1 - start) % size
            is_inner = (start > on_path) & (start + WIDE - 1 <= tl.minimum(periods, before + 1))
            if is_inner & (slot >= WIDE - 1) & (slot + on_path < size):
                _look_back(
                    start, reach, run_ptr, on_path, keeps, position, size, ring_ptr, walk_ptr,
                    last_n, limit, allowed, best_ptr, ngram, furthest, length, distinct_ptr,
                    fresh_ptr, vocab_size, forbidden_ptr,
                    WIDTH=WIDE, IS_INNER=True, LOWERS=LOWERS,
                )  # fmt: skip
                start += WIDE
            else:
                _look_back(
                    start, reach, run_ptr, on_path, keeps, position, size, ring_ptr, walk_ptr,
                    last_n, limit, allowed, best_ptr, ngram, furthest, length, distinct_ptr,
                    fresh_ptr, vocab_size, forbidden_ptr,
                    WIDTH=BLOCK, IS_INNER=False, LOWERS=LOWERS,
                )  # fmt: skip
                start += BLOCK
        # From here on, the notes and lowered logits of other threads are read.
        tl.debug_barrier()
        if LOWERS:
            _forget(ids_ptr + stops, whitelisted, vocab_size, forbidden_ptr)
        frequency = tl.load(strengths_ptr + FREQUENCY)
        presence = tl.load(strengths_ptr + PRESENCE)
        repetition = tl.load(strengths_ptr + REPETITION)
        bits = tl.log2(tl.load(strengths_ptr + DRY_BASE))
        largest = tl.where(bits > 1.4e-6, LOG_OF_LARGEST / (bits * 0.6931471805599453), 1e9)
        breakers = tl.load(numbers_ptr + BREAKERS)
        own_mask_ptr = mask_ptr + tl.maximum(breakers, 0).to(tl.int64) * masks
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
                logit = tl.load(at, mask=in_vocab, other=0.0, cache_modifier=".cg")
                lowered = logit - (frequency * sampled.to(tl.float32) + presence)
                logit = tl.where(sampled > 0, lowered, logit)
                scaled = tl.where(logit < 0, logit * repetition, logit / repetition)
                logit = tl.where(count > 0, scaled, logit)
                if periods > 0:
                    best = tl.load(best_ptr + entry, mask=known, other=0, cache_modifier=".cg")
                    tl.store(best_ptr + entry, 0, mask=known & (best > 0))
                    alone = tl.load(
                        own_mask_ptr + token,
                        mask=in_vocab & (breakers >= 0) & (token < masks),
                        other=0,
                    )
                    exponent = tl.minimum(best - 1, largest.to(tl.int32)).to(tl.float32)
                    grown = tl.minimum(tl.exp2(exponent * bits), LARGEST)
                    repeated = logit - tl.minimum(multiplier * grown, LARGEST_CHANGE)
                    logit = tl.where((best > 0) & ((alone & 1) == 0), repeated, logit)
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
        is_short = missing < tl.load(numbers_ptr + MIN_NEW_TOKENS)
        if is_short:
            # A token freed by the whitelist may be one that stops the request.
            tl.debug_barrier()
            for start in range(0, stops, BLOCK):
                i = start + lane
                token = tl.load(ids_ptr + i, mask=i < stops, other=-1)
                _note(token, i < stops, vocab_size, forbidden_ptr)
        if (forbids > 0) & (is_short | (tl.load(numbers_ptr + NGRAM_SIZE) > 0)):
            # Every bit is set, and every logit lowered.
            tl.debug_barrier()
            forbid(logits_ptr, token_stride, vocab_size, forbidden_ptr)


def forbid_kernel(logits_ptr, row_stride, token_stride, vocab_size, forbidden_ptr, words):
    """`forbid` for each row of logits, after a grammar's mask."""
    row = tl.program_id(0).to(tl.int64)
    forbid(logits_ptr + row * row_stride, token_stride, vocab_size, forbidden_ptr + row * words)
