"""The steps of the penalties for CUDA as Triton kernels, which `cuda` launches: one for each step.

The symbols are those of docs/SPEC.md, sections 1, 2 and 9. For every token a in the window of a
row, whose positions there are p:

    logits(a) -= alpha * max over p of: g_p * max(0, log2 V - cost_p)

    marginal   cost_p = log2(delta_p) + (log2((l + 1) / (l * d)) - 1  if lambda_p = l + 1 >= 2)
    rate       cost_p = (log2(delta_p) + log2(lambda_p)) / lambda_p

Arrays of tokens hold the position p with delta_p = k + 1 in column k, and arrays of runs hold run_k
in column k. The match of length m = lambda_p - 1 that p extends therefore belongs to the run of the
next column, k + 1: m is run_{delta_p}, limited to B tokens and to the window.

A step adds the newest token: run_k becomes run_k + 1 if the token in column k equals it, and 0
otherwise. Without an onset, g_p is 1. With an onset n >= 1, g_p is the largest of

    growth     c_p - n + 1  if c_p >= n, where c_p = floor(run_k / k) for k = delta_p, or 0 if the
               run is shorter than s_k
    up to      c'_p - n  if c'_p >= n + 1 and p's token is no number, where c'_p is c_p with the run
    numbers    up to numbers, run'_k, or 0 if 20 z > 3 k for z numbers among the newest k tokens
    memory     2  if the row's memory is on and run_k >= 2

or 0 if none applies. A row stores the word M, which has a bit for each of its newest 64 tokens.
If runs have n copies, or n + 1 up to numbers, the step sets the bits of the tokens in the longest
of them and its first copy. A step after which at least 40 bits are set turns the memory on for 512
steps, which the row's counter counts down.

Rows with an onset store the tokens of N with a mark (`WindowState`), so two tokens are alike if
they are equal or both marked.

One program handles one row of logits. It changes at most W of them, so its cost does not depend on
V. It allocates nothing, waits for nothing, and gives bit-identical results in every run and on
every rank. For a row without the penalty, it returns at once.

The newest tokens of a row that the stored window does not hold yet are its *path*, newest first:
the sampled token at decode, nothing after a prefill, and a draft node with all its ancestors.
"""

from __future__ import annotations

import triton
import triton.language as tl

from lz_penalty import history, window
from lz_penalty.kernels import history_cuda

PARAMS = tl.constexpr(window.PARAMS)
PENALTY = tl.constexpr(window.PENALTY)
WINDOW_SIZE = tl.constexpr(window.WINDOW_SIZE)
BUFFER_SIZE = tl.constexpr(window.BUFFER_SIZE)
FIRST_VISIBLE = tl.constexpr(window.FIRST_VISIBLE)
IS_RATE = tl.constexpr(window.IS_RATE)
ONSET = tl.constexpr(window.ONSET)
NUMBERS = tl.constexpr(history.NUMBERS)
AT = tl.constexpr(history.AT)
COVER = tl.constexpr(window.COVER)
LOOPED = tl.constexpr(window.LOOPED)
MEMORY = tl.constexpr(window.MEMORY)
SHORTEST_LOOP = tl.constexpr(window.SHORTEST_LOOP)
SHORTEST_LOOP_OF_ONE = tl.constexpr(window.SHORTEST_LOOP_OF_ONE)
LONGEST_RUN = tl.constexpr(window.LONGEST_RUN)
RUNS = tl.constexpr(window.RUNS)
TOO_MANY_NUMBERS = tl.constexpr(window.TOO_MANY_NUMBERS)
NUMBER_MARK = tl.constexpr(window.NUMBER_MARK)
LEAST_ID = tl.constexpr(window.LEAST_ID)
NUMBERS_TIMES = tl.constexpr(window.NUMBERS_TIMES)
PERIOD_TIMES = tl.constexpr(window.PERIOD_TIMES)
COVERED = tl.constexpr(window.COVERED)
LEAST_COVER = tl.constexpr(window.LEAST_COVER)
MEMORY_STEPS = tl.constexpr(window.MEMORY_STEPS)
REMEMBERED_RUN = tl.constexpr(window.REMEMBERED_RUN)
REMEMBERED_STRENGTH = tl.constexpr(window.REMEMBERED_STRENGTH)

# More bits than any run with its period has.
RUN_BITS = tl.constexpr(16)
# More than any column, and small enough that its product with a match length is an int32.
COLUMNS = tl.constexpr(1 << 14)
# The registers of a program with so few columns hold their logits as well.
FEW_COLUMNS = tl.constexpr(512)


@triton.jit
def _marked(token, is_number_ptr, numbers_end, mask):
    """Tokens as a row with an onset stores them; those outside the mask stay as they are."""
    known = mask & (token >= 0) & (token < numbers_end)
    is_number = tl.load(is_number_ptr + token, mask=known, other=0)
    return tl.where(is_number != 0, token | NUMBER_MARK, token)


@triton.jit
def _tokens_at(
    column, path_ptr, on_path, newest, tokens_ptr, slot, capacity, mask, STEP: tl.constexpr
):
    """The tokens of some columns; `slot` is the place of column `on_path` in the ring. In a `STEP`,
    the path is no more than the newest token, which is given."""
    at = slot - (column - on_path)
    at = tl.where(at < 0, at + capacity, at)
    new = newest if STEP else tl.load(path_ptr + column, mask=mask & (column < on_path), other=0)
    old = tl.load(tokens_ptr + at, mask=mask & (column >= on_path), other=0)
    return tl.where(column < on_path, new, old)


@triton.jit
def _stored(period, run_ptr, cover_ptr, capacity, onset):
    """run_k and run'_k of each period k before the path, and the row's word M and counter.

    These loads do not wait for the window size, because they are masked by the capacity.
    """
    in_window = period < capacity
    run = tl.load(run_ptr + period, mask=in_window, other=0).to(tl.int32)
    in_alike = in_window & (onset > 0)
    alike = tl.load(run_ptr + capacity + period, mask=in_alike, other=0).to(tl.int32)
    word = tl.load(cover_ptr + LOOPED)
    memory = tl.load(cover_ptr + MEMORY).to(tl.int32)
    return run, alike, word, memory


@triton.jit
def _runs_and_cover(
    period, run, alike, word, memory, path_ptr, on_path, newest, tokens_ptr, slot, capacity,
    visible, window_size, onset, STEP: tl.constexpr,
):  # fmt: skip
    """run_k, run'_k, the word M and the counter after the path.

    Periods that are not visible or beyond the window get runs of 0.
    """
    is_known = period < tl.minimum(visible - on_path, window_size)
    run = tl.where(is_known, run, 0)
    alike = tl.where(is_known, alike, 0)
    for older in range(on_path):
        newer = on_path - 1 - older
        added = newest if STEP else tl.load(path_ptr + newer)
        token = _tokens_at(
            period + newer, path_ptr, on_path, newest, tokens_ptr, slot, capacity,
            period < capacity, STEP,
        )  # fmt: skip
        is_known = period < tl.minimum(visible - newer, window_size)
        run = tl.where((token == added) & is_known, tl.minimum(run + 1, LONGEST_RUN), 0)
        if onset > 0:
            is_number = added < LEAST_ID
            is_alike = ((token == added) | (is_number & (token < LEAST_ID))) & is_known
            longer = tl.where(alike < 0, alike, tl.minimum(alike + 1, LONGEST_RUN))
            alike = tl.where(is_alike, longer, 0)
            # One reduction says how far a loop reaches, and the longest period at which numbers
            # must be counted. That is once in a run, since a token that is alike leaves their count
            # as it is.
            has_enough = alike == _least_alike(period, onset)
            looped = _looped(run, alike, period, onset)
            reach = tl.max(looped | tl.where(has_enough, period << RUN_BITS, 0))
            counted = reach >> RUN_BITS
            if counted > 0:
                while counted > 0:
                    # The columns of these tokens are those before `period`, but for the newest.
                    is_counted = (period < counted) & (token < LEAST_ID)
                    numbers = tl.sum(is_counted.to(tl.int32)) + is_number.to(tl.int32)
                    has_many = NUMBERS_TIMES * numbers > PERIOD_TIMES * counted
                    alike = tl.where((period == counted) & has_many, TOO_MANY_NUMBERS, alike)
                    has_enough = (period < counted) & (alike == _least_alike(period, onset))
                    counted = tl.max(tl.where(has_enough, period, 0))
                reach = tl.max(_looped(run, alike, period, onset))
            reach = reach.to(tl.int64)
            newest_looped = tl.where(reach < COVERED, (1 << tl.minimum(reach, COVERED - 1)) - 1, -1)
            word = (word << 1) | newest_looped
            is_covered = _bits(word) >= LEAST_COVER
            memory = tl.where(is_covered, MEMORY_STEPS, tl.maximum(memory - 1, 0))
    return run, alike, word, memory


@triton.jit
def _looped(run, alike, period, onset):
    """By period, how many tokens a loop with enough copies covers, or 0."""
    is_loop = _is_loop(run, period) & (run >= onset * period)
    is_alike = alike >= _least_alike(period, onset)
    return tl.maximum(tl.where(is_loop, run + period, 0), tl.where(is_alike, alike + period, 0))


@triton.jit
def _least_alike(period, onset):
    """The shortest run up to numbers that has enough copies."""
    return tl.maximum(_shortest_loop(period), (onset + 1) * period)


@triton.jit
def _is_loop(run, period):
    """Whether run_k is at least s_k, so that its copies count."""
    return run >= _shortest_loop(period)


@triton.jit
def _shortest_loop(period):
    """s_k."""
    return tl.where(period == 1, SHORTEST_LOOP_OF_ONE, SHORTEST_LOOP)


@triton.jit
def _bits(word):
    """How many bits of a word are set."""
    bits = word - ((word >> 1) & 0x5555555555555555)
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    bits += bits >> 32
    return bits & 0x7F


@triton.jit
def _savings(column, matched_before, bits_of_vocab, is_rate):
    """max(0, log2 V - cost_p) by the column of p; `matched_before` is m = lambda_p - 1.

    `matched_before` holds the match lengths of all columns but the first, which has none.
    """
    best = tl.max(matched_before * COLUMNS + (COLUMNS - 2 - column))
    longest = best // COLUMNS
    nearest = COLUMNS - best % COLUMNS
    alone = tl.log2((column + 1).to(tl.float32))
    if is_rate:
        extended = (matched_before + 1).to(tl.float32)
        cost = (alone + tl.log2(extended)) / extended
    else:
        gained = tl.log2((longest + 1).to(tl.float32)) - tl.log2(
            (2 * tl.maximum(longest, 1) * nearest).to(tl.float32)
        )
        extends_longest = (longest >= 1) & (matched_before == longest)
        cost = alone + tl.where(extends_longest, gained, 0.0)
    return tl.maximum(bits_of_vocab - cost, 0.0)


@triton.jit
def _penalise(
    column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, newest, tokens_ptr, run_ptr,
    slot, capacity, visible, params_ptr, cover_ptr, penalty, onset, STEP: tl.constexpr,
):  # fmt: skip
    """Lower one row of logits. Returns run_{k+1} and run'_{k+1} for each column k, the row's word M
    and its counter. Every thread has then loaded what it needs of the stored window and cover, so
    they may be overwritten."""
    window_size = tl.load(params_ptr + WINDOW_SIZE).to(tl.int32)
    # Loads before the reductions need not wait for their barriers. But what a large window needs
    # later would not fit into the registers beside its runs.
    is_large: tl.constexpr = column.shape[0] > 4096
    if not is_large:
        buffer_size = tl.load(params_ptr + BUFFER_SIZE).to(tl.int32)
        is_rate = tl.load(params_ptr + IS_RATE) != 0
        token = _tokens_at(
            column, path_ptr, on_path, newest, tokens_ptr, slot, capacity, column < capacity, STEP
        )  # fmt: skip
    run, alike, word, memory = _stored(column + 1, run_ptr, cover_ptr, capacity, onset)
    length = tl.minimum(visible, window_size)
    sure, early = False, 0.0
    if column.shape[0] <= FEW_COLUMNS:
        # Without an onset, all tokens are lowered, so their logits need not wait for the runs.
        # Without `loaded`, which is always true, some runs would be loaded only after the tokens.
        loaded = (run >= 0) & (alike >= TOO_MANY_NUMBERS) & (memory >= 0)
        sure = loaded & (onset == 0) & (column < length) & (token >= 0) & (token < vocab_size)
        at = logits_ptr + tl.where(sure, token, 0).to(tl.int64) * token_stride
        early = tl.load(at, mask=sure, other=0.0, cache_modifier=".cg")
    run, alike, word, memory = _runs_and_cover(
        column + 1, run, alike, word, memory, path_ptr, on_path, newest, tokens_ptr, slot,
        capacity, visible, window_size, onset, STEP,
    )  # fmt: skip
    strength = tl.full(column.shape, 1, tl.int32)
    if onset > 0:
        grown = tl.where(_is_loop(run, column + 1), _copies(run, column + 1) - onset + 1, 0)
        remembers = (memory > 0) & (run >= REMEMBERED_RUN)
        strength = tl.maximum(grown, tl.where(remembers, REMEMBERED_STRENGTH, 0))
    if is_large:
        buffer_size = tl.load(params_ptr + BUFFER_SIZE).to(tl.int32)
        is_rate = tl.load(params_ptr + IS_RATE) != 0
        token = _tokens_at(
            column, path_ptr, on_path, newest, tokens_ptr, slot, capacity, column < capacity, STEP
        )  # fmt: skip
    if onset > 0:
        is_number = token < LEAST_ID
        grows = _is_loop(alike, column + 1) & ~is_number
        grown = tl.where(grows, _copies(alike, column + 1) - onset, 0)
        strength = tl.maximum(strength, grown)
        token = tl.where(is_number, token ^ NUMBER_MARK, token)
    known = (column < length) & (token >= 0) & (token < vocab_size) & (strength > 0)
    matched_before = _match_lengths(column + 1, run, length, buffer_size)
    bits_of_vocab = tl.log2(vocab_size.to(tl.float32))
    savings = penalty * _savings(column, matched_before, bits_of_vocab, is_rate)
    at = logits_ptr + tl.where(known, token, 0).to(tl.int64) * token_stride
    # Load from L2, where the atomics act. L1 would keep the old value for the other penalties.
    late = known & ~sure if column.shape[0] <= FEW_COLUMNS else known
    original = tl.load(at, mask=late, other=early, cache_modifier=".cg")
    lowered = original - savings * strength.to(tl.float32)
    # The logit of a token in two columns must be read for both before either lowers it.
    tl.debug_barrier()
    # A token gets the lowest logit of all its columns, in whatever order they are processed.
    tl.atomic_min(at, lowered, mask=known, sem="relaxed")
    return run, alike, word, memory


@triton.jit
def _copies(run, period):
    """floor(run_k / k)."""
    # Half a token added to the run keeps the quotient further from whole numbers than the error of
    # any division. A division of integers takes so many registers that others would spill.
    return ((run.to(tl.float32) + 0.5) / period.to(tl.float32)).to(tl.int32)


@triton.jit
def _match_lengths(period, run, length, buffer_size):
    """The match length of the source at each period: its run, limited to B and to the window."""
    return tl.maximum(tl.minimum(run, tl.minimum(buffer_size, length - period)), 0)


@triton.jit
def _keep(
    request_row, column, run, alike, word, memory, run_ptr, cover_ptr, capacity, onset
):  # fmt: skip
    """Write back the runs of the next column's period, the row's word M and its counter."""
    run_ptr += request_row * RUNS * capacity + 1
    in_window = column + 1 < capacity
    tl.store(run_ptr + column, run.to(tl.int16), mask=in_window)
    tl.store(run_ptr + capacity + column, alike.to(tl.int16), mask=in_window & (onset > 0))
    tl.store(cover_ptr + request_row * COVER + LOOPED, word)
    tl.store(cover_ptr + request_row * COVER + MEMORY, memory)


@triton.jit
def _visible(position, params_ptr):
    """How many tokens are visible when the newest is at `position`."""
    return position + 1 - tl.load(params_ptr + FIRST_VISIBLE).to(tl.int32)


def step_kernel(
    logits_ptr, row_stride, token_stride, vocab_size, request_rows_ptr, seq_lens_ptr, input_ids_ptr,
    prefilled, offset, tokens_ptr, run_ptr, params_ptr, cover_ptr, capacity, is_number_ptr,
    numbers_end,
    memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks, tails_ptr, walk_ptr, forbidden_ptr,
    words, forbids,
    BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    """Append the newest token of each row, and lower its logits."""
    row = tl.program_id(0)
    request_row = tl.load(request_rows_ptr + row).to(tl.int64)
    position = tl.load(seq_lens_ptr + row).to(tl.int32) - 1
    path_ptr = input_ids_ptr + row + offset
    on_path = (row >= prefilled).to(tl.int32)
    logits_ptr += row.to(tl.int64) * row_stride
    params_ptr += request_row * PARAMS
    penalty = tl.load(params_ptr + PENALTY)
    onset = tl.load(params_ptr + ONSET).to(tl.int32)
    newest = tl.load(path_ptr, mask=on_path > 0, other=0).to(tl.int32)
    # Always true: without it, ptxas would load these values only once it knows the penalty, and
    # each round of loads is a good part of a step. The largest program would spill registers.
    loaded = (onset >= 0) & (position >= 0) & (newest >= LEAST_ID)
    if (penalty != 0) & (loaded | (HISTORY and BLOCK > 4096)):
        column = tl.arange(0, BLOCK)
        before = (position - on_path) % capacity
        visible = _visible(position, params_ptr)
        newest = _marked(newest, is_number_ptr, numbers_end, (on_path > 0) & (onset > 0))
        run, alike, word, memory = _penalise(
            column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, newest,
            tokens_ptr + request_row * capacity, run_ptr + request_row * RUNS * capacity, before,
            capacity, visible, params_ptr, cover_ptr + request_row * COVER, penalty, onset,
            STEP=True,
        )  # fmt: skip
        if on_path > 0:
            if BLOCK > 4096:
                # Loaded again, because its addresses would not fit into the registers until here.
                request_row = tl.load(request_rows_ptr + row).to(tl.int64)
            _keep(
                request_row, column, run, alike, word, memory, run_ptr, cover_ptr, capacity, onset
            )  # fmt: skip
            tl.store(tokens_ptr + request_row * capacity + position % capacity, newest)
    if HISTORY:
        place = tl.load(numbers_ptr + request_row * NUMBERS + AT)
        if place >= 0:
            # The LZ penalty has lowered all its logits.
            tl.debug_barrier()
            history_cuda.penalise(
                row, 0, request_row, position, path_ptr, on_path, on_path, logits_ptr,
                token_stride, vocab_size, memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks,
                tails_ptr, walk_ptr, 1, forbidden_ptr, words, forbids, LOWERS=True,
            )  # fmt: skip


@triton.jit
def _write_path(
    path_ptr, depth, drafts_ptr, first_child_ptr, next_sibling_ptr, nodes, node, is_number_ptr,
    numbers_end, onset, NODES: tl.constexpr,
):  # fmt: skip
    """Write the tokens from a node up to its root, as the row stores them; returns how many."""
    other = tl.arange(0, NODES)
    child = tl.load(first_child_ptr + other, mask=other < nodes, other=-1)
    sibling = tl.load(next_sibling_ptr + other, mask=other < nodes, other=-1)
    on_path = 0
    # Each node is passed at most once. Counting keeps cyclic links from hanging the device.
    hops = 0
    while (node != 0) & (on_path < depth - 1) & (hops < nodes):
        token = tl.load(drafts_ptr + node).to(tl.int32)
        tl.store(path_ptr + on_path, _marked(token, is_number_ptr, numbers_end, onset > 0))
        on_path += 1
        elder = tl.max(tl.where(sibling == node, other, -1))
        while (elder >= 0) & (hops < nodes):
            node = elder
            elder = tl.max(tl.where(sibling == node, other, -1))
            hops += 1
        # A node outside the tree has no parent, and is treated as a child of the root.
        node = tl.max(tl.where(child == node, other, 0))
        hops += 1
    token = tl.load(drafts_ptr).to(tl.int32)
    tl.store(path_ptr + on_path, _marked(token, is_number_ptr, numbers_end, onset > 0))
    return on_path + 1


def verify_kernel(
    logits_ptr, row_stride, token_stride, vocab_size, request_rows_ptr, root_ptr, drafts_ptr,
    first_child_ptr, next_sibling_ptr, nodes, paths_ptr, depth, tokens_ptr, run_ptr, params_ptr,
    cover_ptr, capacity, is_number_ptr, numbers_end,
    memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks, tails_ptr, walk_ptr, forbidden_ptr,
    words, forbids,
    NODES: tl.constexpr, BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    """Lower the logits of each draft node, and write its path."""
    tree = tl.program_id(0)
    node = tl.program_id(1)
    request_row = tl.load(request_rows_ptr + tree).to(tl.int64)
    params_ptr += request_row * PARAMS
    penalty = tl.load(params_ptr + PENALTY)
    onset = tl.load(params_ptr + ONSET).to(tl.int32)
    place = tl.load(numbers_ptr + request_row * NUMBERS + AT) if HISTORY else -1
    before = tl.load(root_ptr + tree).to(tl.int32) - 1
    # The last two are never true: with them, ptxas loads these values as early as the penalty.
    if ((penalty == 0) & (place < 0)) | (before < -1) | (onset < 0):
        return
    tokens_ptr += request_row * capacity
    row = tree.to(tl.int64) * nodes + node
    path_ptr = paths_ptr + row * depth
    links = tree.to(tl.int64) * nodes
    on_path = _write_path(
        path_ptr, depth, drafts_ptr + links, first_child_ptr + links, next_sibling_ptr + links,
        nodes, node, is_number_ptr, numbers_end, onset, NODES,
    )  # fmt: skip
    # One thread wrote the path, all threads read it.
    tl.debug_barrier()
    logits_ptr += row * row_stride
    if penalty != 0:
        column = tl.arange(0, BLOCK)
        _penalise(
            column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, 0, tokens_ptr,
            run_ptr + request_row * RUNS * capacity, before % capacity, capacity,
            _visible(before + on_path, params_ptr), params_ptr, cover_ptr + request_row * COVER,
            penalty, onset, STEP=False,
        )  # fmt: skip
    if HISTORY:  # noqa: SIM102 -- known when it is compiled, the place is not
        if place >= 0:
            tl.debug_barrier()
            history_cuda.penalise(
                row, node, request_row, before + on_path, path_ptr, on_path, 0, logits_ptr,
                token_stride, vocab_size, memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks,
                tails_ptr, walk_ptr, depth, forbidden_ptr, words, forbids, LOWERS=True,
            )  # fmt: skip


def accept_kernel(
    request_rows_ptr, root_ptr, paths_ptr, depth, accept_index_ptr, index_stride,
    num_correct_drafts_ptr, tokens_ptr, run_ptr, params_ptr, cover_ptr, capacity,
    memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks, tails_ptr, walk_ptr, forbidden_ptr,
    words, forbids,
    BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    """Append the accepted path of each draft tree."""
    tree = tl.program_id(0)
    request_row = tl.load(request_rows_ptr + tree).to(tl.int64)
    accepted = tl.load(num_correct_drafts_ptr + tree).to(tl.int32)
    last = tl.load(accept_index_ptr + tree.to(tl.int64) * index_stride + accepted).to(tl.int64)
    path_ptr = paths_ptr + last * depth
    on_path = accepted + 1
    before = tl.load(root_ptr + tree).to(tl.int32) - 1
    if HISTORY:
        place = tl.load(numbers_ptr + request_row * NUMBERS + AT)
        if place >= 0:
            history_cuda.penalise(
                tree, 0, request_row, before + on_path, path_ptr, on_path, 1, memory_ptr, 0,
                0, memory_ptr, numbers_ptr, strengths_ptr, mask_ptr, masks, tails_ptr, walk_ptr,
                depth, forbidden_ptr, words, forbids, LOWERS=False,
            )  # fmt: skip
    params_ptr += request_row * PARAMS
    if tl.load(params_ptr + PENALTY) == 0:
        return
    column = tl.arange(0, BLOCK)
    visible = _visible(before + on_path, params_ptr)
    window_size = tl.load(params_ptr + WINDOW_SIZE).to(tl.int32)
    onset = tl.load(params_ptr + ONSET).to(tl.int32)
    run, alike, word, memory = _stored(
        column + 1, run_ptr + request_row * RUNS * capacity, cover_ptr + request_row * COVER,
        capacity, onset,
    )  # fmt: skip
    run, alike, word, memory = _runs_and_cover(
        column + 1, run, alike, word, memory, path_ptr, on_path, 0,
        tokens_ptr + request_row * capacity, before % capacity, capacity, visible, window_size,
        onset, STEP=False,
    )  # fmt: skip
    # Two threads may hold the same column when there are more threads than columns.
    tl.debug_barrier()
    if BLOCK > 4096:
        # As in `step_kernel`.
        request_row = tl.load(request_rows_ptr + tree).to(tl.int64)
    _keep(request_row, column, run, alike, word, memory, run_ptr, cover_ptr, capacity, onset)
    tokens_ptr += request_row * capacity
    at = (before + on_path) % capacity - column
    at = tl.where(at < 0, at + capacity, at)
    new = (column < on_path) & (column < capacity)
    tl.store(tokens_ptr + at, tl.load(path_ptr + column, mask=new, other=0), mask=new)


def seed_kernel(
    block_ptr, count, width, tokens_ptr, run_ptr, params_ptr, cover_ptr, capacity,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Copy rows from a block of memory that has the layout of `_parts_of_seed`."""
    number = tl.program_id(0).to(tl.int64)
    rows_ptr = block_ptr.to(tl.pointer_type(tl.int64))
    new_cover_ptr = rows_ptr + count
    new_params_ptr = (new_cover_ptr + count * COVER).to(tl.pointer_type(tl.float32))
    new_tokens_ptr = (new_params_ptr + count * PARAMS).to(tl.pointer_type(tl.int32))
    new_run_ptr = (new_tokens_ptr + count.to(tl.int64) * width).to(tl.pointer_type(tl.int16))
    row = tl.load(rows_ptr + number)
    column = tl.arange(0, BLOCK)
    in_params, in_cover = column < PARAMS, column < COVER
    params = tl.load(new_params_ptr + number * PARAMS + column, mask=in_params)
    tl.store(params_ptr + row * PARAMS + column, params, mask=in_params)
    cover = tl.load(new_cover_ptr + number * COVER + column, mask=in_cover)
    tl.store(cover_ptr + row * COVER + column, cover, mask=in_cover)
    for start in range(0, width, BLOCK):
        new, old = number * width + start + column, row * capacity + start + column
        in_width = start + column < width
        tl.store(tokens_ptr + old, tl.load(new_tokens_ptr + new, mask=in_width), mask=in_width)
        new, old = new + number * width, old + row * capacity  # of the first of two kinds of runs
        tl.store(run_ptr + old, tl.load(new_run_ptr + new, mask=in_width), mask=in_width)
        new, old = new + width, old + capacity
        tl.store(run_ptr + old, tl.load(new_run_ptr + new, mask=in_width), mask=in_width)
