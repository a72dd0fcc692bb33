"""The steps of the penalties for CUDA, as Triton kernels: one launch a step.

For every token a that stands in the window of a row (docs/SPEC.md section 2):

    logits[a] -= penalty * max over the columns k of a: max(0, log2 V - cost[k])

    marginal   cost[k] = log2(k + 1) + (log2((l + 1) / (l * d)) - 1  if m[k + 1] == l >= 1)
    rate       cost[k] = (log2(k + 1) + log2(m[k + 1] + 1)) / (m[k + 1] + 1)

Column k is the token at distance k + 1. m[k + 1] is the length of the match that ends right before
it, l the longest match of the row, and d the distance of the nearest source that is so long.

What is kept are runs (section 9): run[k] is how far the newest text repeats what stands k tokens
before it, and m[k] as much of that as buffer and window hold. A step makes run'[k] = run[k] + 1
where column k holds the newest token, else 0. With an onset n of 1 or more, logits stay as they
are until the largest floor(run[k] / k), of runs of 16 or more, has been n once; from then on the
savings of a column count max(1, floor(run[k + 1] / (k + 1)) - n + 1) times.

One program serves one row of logits. It touches at most W of them, so its cost does not depend on
the vocabulary; it allocates nothing, waits for nothing, and gives the same bits whenever it runs,
on every rank. A row without the penalty returns at once.

The newest tokens of a row are a *path*, newest first, that the stored window does not hold yet: the
sampled token at decode, none after a prefill, the way up to the root for a node of a draft tree.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from sglang_lz import window
from sglang_lz.history import NO_SLOT, RING, HistorySeed, HistoryState
from sglang_lz.kernels import cpu, history_cpu, history_cuda
from sglang_lz.params import DEFAULT_WINDOW_SIZE
from sglang_lz.window import Seed, WindowState

PARAMS = tl.constexpr(window.PARAMS)
PENALTY = tl.constexpr(window.PENALTY)
WINDOW_SIZE = tl.constexpr(window.WINDOW_SIZE)
BUFFER_SIZE = tl.constexpr(window.BUFFER_SIZE)
FIRST_VISIBLE = tl.constexpr(window.FIRST_VISIBLE)
IS_RATE = tl.constexpr(window.IS_RATE)
ONSET = tl.constexpr(window.ONSET)
SHORTEST_LOOP = tl.constexpr(window.SHORTEST_LOOP)
LONGEST_RUN = tl.constexpr(window.LONGEST_RUN)

# Above any column, and with a match length beside it still an int32.
COLUMNS = tl.constexpr(1 << 14)

SMALLEST_BLOCK = 128
# One binary for all trees of up to so many nodes: upstream may change their size while it serves.
SMALLEST_TREE = 32


@triton.jit
def _tokens_at(column, path_ptr, on_path, tokens_ptr, slot, capacity, mask):
    """The tokens of some columns; `slot` is where column `on_path` stands in the ring."""
    at = slot - (column - on_path)
    at = tl.where(at < 0, at + capacity, at)
    new = tl.load(path_ptr + column, mask=mask & (column < on_path), other=0).to(tl.int32)
    old = tl.load(tokens_ptr + at, mask=mask & (column >= on_path), other=0)
    return tl.where(column < on_path, new, old)


@triton.jit
def _runs(
    period, path_ptr, on_path, tokens_ptr, run_ptr, slot, capacity, visible, window_size, onset
):  # fmt: skip
    """The run of each period after the path, and whether the onset was reached on it."""
    run = tl.load(
        run_ptr + period,
        mask=(period >= 1) & (period < tl.minimum(visible - on_path, window_size)),
        other=0,
    ).to(tl.int32)
    reached = onset < 0
    for older in range(on_path):
        newer = on_path - 1 - older
        newest = tl.load(path_ptr + newer).to(tl.int32)
        known = (period >= 1) & (period < tl.minimum(visible - newer, window_size))
        token = _tokens_at(period + newer, path_ptr, on_path, tokens_ptr, slot, capacity, known)
        run = tl.where(known & (token == newest), tl.minimum(run + 1, LONGEST_RUN), 0)
        is_loop = (run >= SHORTEST_LOOP) & (run >= onset * period)
        reached = reached | (tl.max(is_loop.to(tl.int32)) > 0)
    return run, reached


@triton.jit
def _savings(column, matched, matched_before, bits_of_vocab, is_rate):
    """The saved bits of each column; `matched_before` is the match length of the column after."""
    best = tl.max(matched * COLUMNS + (COLUMNS - 1 - column))
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
    column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, tokens_ptr, run_ptr, slot,
    capacity, visible, params_ptr, penalty,
):  # fmt: skip
    """Lower one row of logits, unless its onset is still to come. Returns its runs and its onset.
    By then every thread has loaded what it needs of the stored window, so that may be written."""
    window_size = tl.load(params_ptr + WINDOW_SIZE).to(tl.int32)
    buffer_size = tl.load(params_ptr + BUFFER_SIZE).to(tl.int32)
    is_rate = tl.load(params_ptr + IS_RATE) != 0
    onset = tl.load(params_ptr + ONSET).to(tl.int32)
    run, reached = _runs(
        column, path_ptr, on_path, tokens_ptr, run_ptr, slot, capacity, visible, window_size, onset
    )
    following, _ = _runs(
        column + 1, path_ptr, on_path, tokens_ptr, run_ptr, slot, capacity, visible, window_size,
        onset,
    )  # fmt: skip
    onset = tl.where(reached & (onset > 0), -onset, onset)
    length = tl.minimum(visible, window_size)
    token = _tokens_at(column, path_ptr, on_path, tokens_ptr, slot, capacity, column < length)
    known = (column < length) & (token >= 0) & (token < vocab_size) & (onset <= 0)
    at = logits_ptr + tl.where(known, token, 0).to(tl.int64) * token_stride
    original = tl.load(at, mask=known, other=0.0)
    matched = _match_lengths(column, run, length, buffer_size)
    matched_before = _match_lengths(column + 1, following, length, buffer_size)
    bits_of_vocab = tl.log2(vocab_size.to(tl.float32))
    savings = penalty * _savings(column, matched, matched_before, bits_of_vocab, is_rate)
    copies = tl.where(following >= SHORTEST_LOOP, following // (column + 1), 0)
    growth = tl.where(onset < 0, tl.maximum(copies + onset + 1, 1), 1)
    # A token that stands in two columns must be read by both before either lowers it.
    tl.debug_barrier()
    # The least of what the columns of a token want, in whatever order they come.
    tl.atomic_min(at, original - savings * growth.to(tl.float32), mask=known, sem="relaxed")
    return run, onset


@triton.jit
def _match_lengths(column, run, length, buffer_size):
    """The match length of the source in each column: its run, as far as buffer and window reach."""
    return tl.maximum(tl.minimum(run, tl.minimum(buffer_size, length - column)), 0)


@triton.jit
def _visible(position, params_ptr):
    """How many tokens are visible when the newest stands at `position`."""
    return position + 1 - tl.load(params_ptr + FIRST_VISIBLE).to(tl.int32)


def _step_kernel(
    logits_ptr, row_stride, token_stride, vocab_size, request_rows_ptr, seq_lens_ptr, input_ids_ptr,
    prefilled, offset, tokens_ptr, run_ptr, params_ptr, capacity,
    slots_ptr, distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr, ids_ptr, ids,
    mask_ptr, masks, tails_ptr, walk_ptr, scratch_ptr, columns,
    BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    request_row = tl.load(request_rows_ptr + row).to(tl.int64)
    position = tl.load(seq_lens_ptr + row).to(tl.int32) - 1
    path_ptr = input_ids_ptr + row + offset
    on_path = (row >= prefilled).to(tl.int32)
    logits_ptr += row.to(tl.int64) * row_stride
    params_ptr += request_row * PARAMS
    penalty = tl.load(params_ptr + PENALTY)
    if penalty != 0:
        tokens_ptr += request_row * capacity
        run_ptr += request_row * capacity
        column = tl.arange(0, BLOCK)
        run, onset = _penalise(
            column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, tokens_ptr, run_ptr,
            (position - on_path) % capacity, capacity, _visible(position, params_ptr), params_ptr,
            penalty,
        )  # fmt: skip
        if on_path > 0:
            tl.store(run_ptr + column, run.to(tl.int16), mask=column < capacity)
            tl.store(params_ptr + ONSET, onset.to(tl.float32))
            tl.store(tokens_ptr + position % capacity, tl.load(path_ptr).to(tl.int32))
    if HISTORY:
        slot = tl.load(slots_ptr + request_row)
        if slot >= 0:
            # Every logit that the LZ penalty lowers has been.
            tl.debug_barrier()
            history_cuda.penalise(
                row, slot, position, path_ptr, on_path, on_path, logits_ptr, token_stride,
                vocab_size, distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr,
                ids_ptr, ids, mask_ptr, masks, tails_ptr, walk_ptr, 1, scratch_ptr, columns,
                LOWERS=True,
            )  # fmt: skip


@triton.jit
def _write_path(
    path_ptr, depth, drafts_ptr, first_child_ptr, next_sibling_ptr, nodes, node, NODES: tl.constexpr
):
    """Write the tokens from a node up to its root; returns how many."""
    other = tl.arange(0, NODES)
    child = tl.load(first_child_ptr + other, mask=other < nodes, other=-1)
    sibling = tl.load(next_sibling_ptr + other, mask=other < nodes, other=-1)
    on_path = 0
    # Each node is passed at most once; counting keeps links that go round from hanging the device.
    hops = 0
    while (node != 0) & (on_path < depth - 1) & (hops < nodes):
        tl.store(path_ptr + on_path, tl.load(drafts_ptr + node).to(tl.int32))
        on_path += 1
        elder = tl.max(tl.where(sibling == node, other, -1))
        while (elder >= 0) & (hops < nodes):
            node = elder
            elder = tl.max(tl.where(sibling == node, other, -1))
            hops += 1
        # A node outside the tree has no parent, and is judged as a child of the root.
        node = tl.max(tl.where(child == node, other, 0))
        hops += 1
    tl.store(path_ptr + on_path, tl.load(drafts_ptr).to(tl.int32))
    return on_path + 1


def _verify_kernel(
    logits_ptr, row_stride, token_stride, vocab_size, request_rows_ptr, root_ptr, drafts_ptr,
    first_child_ptr, next_sibling_ptr, nodes, paths_ptr, depth, tokens_ptr, run_ptr, params_ptr,
    capacity,
    slots_ptr, distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr, ids_ptr, ids,
    mask_ptr, masks, tails_ptr, walk_ptr, scratch_ptr, columns,
    NODES: tl.constexpr, BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    tree = tl.program_id(0)
    node = tl.program_id(1)
    request_row = tl.load(request_rows_ptr + tree).to(tl.int64)
    params_ptr += request_row * PARAMS
    penalty = tl.load(params_ptr + PENALTY)
    slot = tl.load(slots_ptr + request_row) if HISTORY else -1
    if (penalty == 0) & (slot < 0):
        return
    tokens_ptr += request_row * capacity
    run_ptr += request_row * capacity
    row = tree.to(tl.int64) * nodes + node
    path_ptr = paths_ptr + row * depth
    links = tree.to(tl.int64) * nodes
    on_path = _write_path(
        path_ptr, depth, drafts_ptr + links, first_child_ptr + links, next_sibling_ptr + links,
        nodes, node, NODES,
    )  # fmt: skip
    # One thread wrote the path, all threads read it.
    tl.debug_barrier()
    before = tl.load(root_ptr + tree).to(tl.int32) - 1
    logits_ptr += row * row_stride
    if penalty != 0:
        column = tl.arange(0, BLOCK)
        _penalise(
            column, logits_ptr, token_stride, vocab_size, path_ptr, on_path, tokens_ptr, run_ptr,
            before % capacity, capacity, _visible(before + on_path, params_ptr), params_ptr,
            penalty,
        )  # fmt: skip
    if HISTORY:  # noqa: SIM102 -- known when it is compiled, the slot is not
        if slot >= 0:
            tl.debug_barrier()
            history_cuda.penalise(
                row, slot, before + on_path, path_ptr, on_path, 0, logits_ptr, token_stride,
                vocab_size, distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr,
                ids_ptr, ids, mask_ptr, masks, tails_ptr, walk_ptr, depth, scratch_ptr, columns,
                LOWERS=True,
            )  # fmt: skip


def _accept_kernel(
    request_rows_ptr, root_ptr, paths_ptr, depth, accept_index_ptr, index_stride,
    num_correct_drafts_ptr, tokens_ptr, run_ptr, params_ptr, capacity,
    slots_ptr, distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr, ids_ptr, ids,
    mask_ptr, masks, tails_ptr, walk_ptr, scratch_ptr, columns,
    BLOCK: tl.constexpr, HISTORY: tl.constexpr,
):  # fmt: skip
    tree = tl.program_id(0)
    request_row = tl.load(request_rows_ptr + tree).to(tl.int64)
    accepted = tl.load(num_correct_drafts_ptr + tree).to(tl.int32)
    last = tl.load(accept_index_ptr + tree.to(tl.int64) * index_stride + accepted).to(tl.int64)
    path_ptr = paths_ptr + last * depth
    on_path = accepted + 1
    before = tl.load(root_ptr + tree).to(tl.int32) - 1
    if HISTORY:
        slot = tl.load(slots_ptr + request_row)
        if slot >= 0:
            history_cuda.penalise(
                tree, slot, before + on_path, path_ptr, on_path, 1, distinct_ptr, 0, 0,
                distinct_ptr, distinct, ring_ptr, reach, numbers_ptr, strengths_ptr, ids_ptr, ids,
                mask_ptr, masks, tails_ptr, walk_ptr, depth, scratch_ptr, columns, LOWERS=False,
            )  # fmt: skip
    params_ptr += request_row * PARAMS
    if tl.load(params_ptr + PENALTY) == 0:
        return
    tokens_ptr += request_row * capacity
    run_ptr += request_row * capacity
    column = tl.arange(0, BLOCK)
    visible = _visible(before + on_path, params_ptr)
    window_size = tl.load(params_ptr + WINDOW_SIZE).to(tl.int32)
    onset = tl.load(params_ptr + ONSET).to(tl.int32)
    run, reached = _runs(
        column, path_ptr, on_path, tokens_ptr, run_ptr, before % capacity, capacity, visible,
        window_size, onset,
    )  # fmt: skip
    onset = tl.where(reached & (onset > 0), -onset, onset)
    # Two threads may hold the same column when there are more threads than columns.
    tl.debug_barrier()
    tl.store(run_ptr + column, run.to(tl.int16), mask=column < capacity)
    tl.store(params_ptr + ONSET, onset.to(tl.float32))
    at = (before + on_path) % capacity - column
    at = tl.where(at < 0, at + capacity, at)
    new = (column < on_path) & (column < capacity)
    tl.store(tokens_ptr + at, tl.load(path_ptr + column, mask=new, other=0), mask=new)


def seed_history(state: HistoryState, seeds: list[HistorySeed]) -> None:
    """See `history_cpu.seed`. The host fills the slots, and the device fetches them."""
    device = state.device
    pinned = device.type == "cuda"  # so that the host does not wait until they are fetched
    given = [one for one in seeds if one.slot != NO_SLOT]
    staged = HistoryState(
        len(given), "cpu",
        slots=len(given),
        tokens=min(max((len(one.tokens) for one in given), default=0), state.tokens),
        reach=max((int(one.numbers[RING]) for one in given), default=0),
        ids=max((len(one.ids) for one in given), default=0),
        pinned=pinned,
    )  # fmt: skip
    staged.breakers = state.host_breakers
    moved = [replace(one, row=slot, slot=slot) for slot, one in enumerate(given)]
    history_cpu.seed(staged, moved)

    def fetched(values: Tensor) -> Tensor:
        return values.to(device, non_blocking=True)

    slot_of = {one.row: one.slot for one in seeds}  # the last one of a row counts
    rows = torch.tensor([*slot_of], pin_memory=pinned)
    state.slot[fetched(rows)] = fetched(
        torch.tensor([*slot_of.values()], dtype=torch.int32, pin_memory=pinned)
    )
    if not given:
        return
    slots = fetched(torch.tensor([one.slot for one in given], dtype=torch.int64, pin_memory=pinned))
    state.numbers[slots] = fetched(staged.numbers)
    state.strengths[slots] = fetched(staged.strengths)
    for name in ("distinct", "ring", "ids"):
        values = fetched(getattr(staged, name))
        getattr(state, name)[slots, ..., : values.shape[-1]] = values


def seed(state: WindowState, seed: Seed) -> None:
    """See `reference.steps.seed`. The host writes the windows, and the device fetches them."""
    device = state.tokens.device
    pinned = device.type == "cuda"  # so that the host does not wait until they are fetched
    count, is_seen = len(seed.rows), len(seed.history) > 0
    staged = WindowState(count, state.capacity if is_seen else 1, "cpu", pinned)
    cpu.seed(staged, replace(seed, rows=np.arange(count)))
    rows = torch.tensor(seed.rows, pin_memory=pinned).to(device, non_blocking=True)
    state.params[rows] = staged.params.to(device, non_blocking=True)
    if is_seen:
        state.tokens[rows] = staged.tokens.to(device, non_blocking=True)
        state.run[rows] = staged.run.to(device, non_blocking=True)


def step(
    state: WindowState,
    logits: Tensor,
    *,
    request_rows: Tensor,
    seq_lens: Tensor,
    input_ids: Tensor,
    prefilled: int,
    offset: int,
    width: int,
    history: HistoryState | None = None,
) -> None:
    """See `reference.steps.step`."""
    block = _block(width, state.capacity)
    _step[(len(request_rows),)](
        logits, *logits.stride(), logits.shape[1], request_rows, seq_lens, input_ids, prefilled,
        offset, state.tokens, state.run, state.params, state.capacity,
        *_of_history(state, history, len(request_rows), 1),
        BLOCK=block, HISTORY=history is not None, num_warps=_warps(block),
    )  # fmt: skip


def verify(
    state: WindowState,
    logits: Tensor,
    *,
    request_rows: Tensor,
    root: Tensor,
    tokens: Tensor,
    first_child: Tensor,
    next_sibling: Tensor,
    depth: int,
    width: int,
    history: HistoryState | None = None,
) -> Tensor:
    """See `reference.steps.verify`."""
    batch, nodes = tokens.shape
    paths = torch.empty(batch, nodes, depth, dtype=torch.int32, device=logits.device)
    block = _block(width, state.capacity)
    _verify[(batch, nodes)](
        logits, *logits.stride(), logits.shape[1], request_rows, root, tokens.long().contiguous(),
        first_child.contiguous(), next_sibling.contiguous(), nodes, paths, depth,
        state.tokens, state.run, state.params, state.capacity,
        *_of_history(state, history, batch * nodes, depth),
        NODES=triton.next_power_of_2(max(nodes, SMALLEST_TREE)), BLOCK=block,
        HISTORY=history is not None, num_warps=_warps(block),
    )  # fmt: skip
    return paths


def accept(
    state: WindowState,
    *,
    request_rows: Tensor,
    root: Tensor,
    paths: Tensor,
    accept_index: Tensor,
    num_correct_drafts: Tensor,
    width: int,
    history: HistoryState | None = None,
) -> None:
    """See `reference.steps.accept`."""
    batch, _, depth = paths.shape
    block = max(_block(width, state.capacity), triton.next_power_of_2(depth))
    _accept[(batch,)](
        request_rows, root, paths, depth, accept_index, accept_index.stride(0),
        num_correct_drafts, state.tokens, state.run, state.params, state.capacity,
        *_of_history(state, history, batch, depth),
        BLOCK=block, HISTORY=history is not None, num_warps=_warps(block),
    )  # fmt: skip


def _of_history(
    state: WindowState, history: HistoryState | None, rows: int, depth: int
) -> tuple[Any, ...]:
    """The kernels' arguments from `slots_ptr` on; anything where they are not read."""
    if history is None:
        nothing = state.params
        return (*[nothing] * 2, 0, nothing, 0, *[nothing] * 3, 0, nothing, 0, *[nothing] * 3, 0)
    scratch = history.rows_of_scratch(rows, history.tokens + depth)
    walk = torch.empty(rows, 2, depth, dtype=torch.int32, device=history.device)
    return (
        history.slot, history.distinct, history.tokens, history.ring, history.reach,
        history.numbers, history.strengths, history.ids, history.ids.shape[1],
        history.breakers.mask, history.breakers.mask.shape[1], history.breakers.tails, walk,
        scratch, scratch.shape[2],
    )  # fmt: skip


def _compiled_once(kernel: Any) -> Any:
    """A kernel of which one binary serves every batch, vocabulary and slice of a buffer.

    Triton compiles anew for arguments that are 1 or divide by 16, unless told not to; a server
    would stop for that in the middle of serving. (No argument may be called `params`, `options` or
    `specialization`: the launcher that Triton writes has variables of these names.)
    """
    arguments = [name for name in inspect.signature(kernel).parameters if not name.isupper()]
    return triton.jit(kernel, do_not_specialize=arguments, do_not_specialize_on_alignment=arguments)


_step = _compiled_once(_step_kernel)
_verify = _compiled_once(_verify_kernel)
_accept = _compiled_once(_accept_kernel)


def _block(width: int, capacity: int) -> int:
    """Columns of a program: one of two sizes, so that few binaries exist."""
    usual = min(DEFAULT_WINDOW_SIZE, capacity)
    return max(SMALLEST_BLOCK, triton.next_power_of_2(usual if width <= usual else capacity))


def _warps(block: int) -> int:
    return min(max(block // 64, 4), 32)
