"""The steps of the LZ penalty for a CPU, compiled by numba; rows are processed in sequence.

The formulas and terms are those of `penalty.kernels.cuda`. `seed` is also used for CUDA, because
the tokens of a prompt are on the host.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from sglang_lz.compiled import compiled
from sglang_lz.fields.lz import LARGEST_MAX_WINDOW_SIZE
from sglang_lz.penalty import draft_tree
from sglang_lz.penalty.history import HistorySeed, HistoryState
from sglang_lz.penalty.kernels import history_cpu
from sglang_lz.penalty.window import (
    BUFFER_SIZE,
    FIRST_VISIBLE,
    IS_RATE,
    LONGEST_RUN,
    ONSET,
    PENALTY,
    SHORTEST_LOOP,
    WINDOW_SIZE,
    Seed,
    WindowState,
)

# For distances, and for match lengths plus one; log2 of 0 is never read.
LOG2 = np.log2(np.arange(LARGEST_MAX_WINDOW_SIZE + 2).clip(1)).astype(np.float32)


@compiled
def _run_lengths(visible, run):
    """Write the run lengths of a history, oldest first, in O(history + periods) for any repeats.

    With the newest token first, the run of a period is the longest common prefix of the history and
    its suffix from that column on, which is the Z-function. Columns past the history get 0.
    """
    count = len(visible)
    run[:] = 0
    start = end = 0  # newest first, the run that reaches furthest so far is visible[start:end]
    for period in range(1, min(count, len(run))):
        length = min(end - period, run[period - start]) if period < end else 0
        while (
            length < LONGEST_RUN
            and period + length < count
            and visible[-1 - length] == visible[-1 - period - length]
        ):
            length += 1
        run[period] = length
        if period + length > end:
            start, end = period, period + length


@compiled
def _is_loop(run, onset):
    """Whether some period's run contains this many copies (docs/SPEC.md section 9)."""
    for period in range(1, len(run)):
        if run[period] >= SHORTEST_LOOP and run[period] >= onset * period:
            return True
    return False


@compiled
def _was_reached(visible, sampled, onset, run):
    """Whether any prefix from which a token was sampled ended in a loop.

    O(outputs x periods), for a request that is prefilled again. `run` is scratch for the runs.
    """
    _run_lengths(visible[:sampled], run)
    if _is_loop(run, onset):
        return True
    for newest in range(sampled, len(visible)):
        for period in range(1, min(len(run), newest + 1)):
            if visible[newest] == visible[newest - period]:
                run[period] = min(run[period] + 1, LONGEST_RUN)
            else:
                run[period] = 0
        if _is_loop(run, onset):
            return True
    return False


@compiled
def _seed(rows, position, end, history, sampled, given, tokens, run, params):
    capacity = tokens.shape[1]
    start = 0
    for n, row in enumerate(rows):
        own = history[start : end[n]]
        start = end[n]
        slot = position[n] % capacity
        for newer in range(min(len(own), capacity)):
            tokens[row, slot] = own[len(own) - 1 - newer]
            slot = slot - 1 if slot else capacity - 1
        params[row] = given[n]
        onset = given[n, ONSET]
        own_run = run[row, : int(given[n, WINDOW_SIZE])]
        if onset > 0 and _was_reached(own, sampled[n], onset, own_run):
            params[row, ONSET] = -onset
        _run_lengths(own, own_run)


@compiled
def _advance(path, tokens, run, params, position, window, runs):
    """Write the seen tokens after a path, newest first, and the runs of their periods; see
    `cuda._runs`. `position` is that of the newest token. Returns the number of seen tokens, and the
    onset, which is negative once it is reached."""
    visible = max(0, position + 1 - int(params[FIRST_VISIBLE]))
    window_size = int(params[WINDOW_SIZE])
    onset = params[ONSET]
    window[: len(path)] = path
    # A token of the path is compared with the tokens of the window before it.
    old = max(min(visible, window_size + max(len(path) - 1, 0)) - len(path), 0)
    slot = (position - len(path)) % len(tokens)
    unwrapped = min(old, slot + 1)
    for column in range(unwrapped):
        window[len(path) + column] = tokens[slot - column]
    for column in range(old - unwrapped):
        window[len(path) + unwrapped + column] = tokens[len(tokens) - 1 - column]
    before = max(min(visible - len(path), window_size), 1)
    runs[0] = 0
    runs[1:before] = run[1:before]
    runs[before : window_size + 1] = 0
    for newer in range(len(path) - 1, -1, -1):
        # The slices begin at 0 so that the compiler can prove them to be within bounds.
        known = min(visible - newer, window_size) - 1
        newest, older, grown = window[newer], window[newer + 1 :], runs[1:]
        for column in range(known):
            longer = np.int16(min(grown[column], LONGEST_RUN - 1) + 1)
            grown[column] = longer if older[column] == newest else np.int16(0)
        if onset > 0 and _is_loop(runs[:window_size], onset):
            onset = -onset
    return min(visible, window_size), onset


@compiled
def _lower(logits, window, runs, length, params, onset, matched, lowered):
    """Lower a row of logits as `cuda` describes, unless its onset has not been reached."""
    if onset > 0:
        return
    vocab_size = len(logits)
    literal = np.float32(np.log2(vocab_size))
    buffer_size = int(params[BUFFER_SIZE])
    penalty, is_rate = params[PENALTY], params[IS_RATE] != 0
    for column in range(length + 1):
        matched[column] = min(runs[column], buffer_size, length - column)
    longest, nearest = 0, 1
    for column in range(length):
        if matched[column] > longest:
            longest, nearest = matched[column], column + 1
    gained = LOG2[longest + 1] - LOG2[max(longest, 1)] - LOG2[nearest] - np.float32(1)
    for column in range(length):
        before = matched[column + 1]
        cost = LOG2[column + 1]
        if is_rate:
            cost = (cost + LOG2[before + 1]) / np.float32(before + 1)
        elif longest >= 1 and before == longest:
            cost += gained
        lowered[column] = penalty * max(literal - cost, np.float32(0))
    if onset < 0:
        for column in range(length):
            if runs[column + 1] >= SHORTEST_LOOP:
                copies = np.float32(runs[column + 1] // (column + 1))
                lowered[column] *= max(np.float32(1), copies + onset + np.float32(1))
    # Reading all logits before lowering any lets the reads wait for memory in parallel.
    for column in range(length):
        token = window[column]
        if 0 <= token < vocab_size:
            lowered[column] = logits[token] - lowered[column]
    for column in range(length):
        token = window[column]
        if 0 <= token < vocab_size and lowered[column] < logits[token]:
            logits[token] = lowered[column]


@compiled
def _step(
    logits, request_rows, seq_lens, input_ids, prefilled, offset, tokens, run, params
):  # fmt: skip
    capacity = tokens.shape[1]
    window, runs = np.empty(capacity + 1, np.int32), np.empty(capacity + 1, np.int16)
    matched, lowered = np.empty(capacity + 1, np.int16), np.empty(capacity, np.float32)
    for row, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        position = seq_lens[row] - 1
        first = row + offset
        path = input_ids[first : first + 1] if row >= prefilled else input_ids[:0]
        length, onset = _advance(path, tokens[owner], run[owner], own, position, window, runs)
        _lower(logits[row], window, runs, length, own, onset, matched, lowered)
        if len(path):
            _keep(path, runs, onset, position, tokens[owner], run[owner], own)


@compiled
def _keep(path, runs, onset, position, tokens, run, params):
    """Write a window back; the arguments are those that `_advance` receives and fills."""
    window_size = int(params[WINDOW_SIZE])
    run[:window_size] = runs[:window_size]
    params[ONSET] = onset
    for newer in range(min(len(path), len(tokens))):
        tokens[(position - newer) % len(tokens)] = path[newer]


@compiled
def _verify(logits, request_rows, root, paths, lengths, tokens, run, params):
    capacity = tokens.shape[1]
    nodes, depth = paths.shape[1:]
    window, runs = np.empty(capacity + depth, np.int32), np.empty(capacity + 1, np.int16)
    matched, lowered = np.empty(capacity + 1, np.int16), np.empty(capacity, np.float32)
    for tree, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        for node in range(nodes):
            path = paths[tree, node, : lengths[tree, node]]
            position = root[tree] + len(path) - 1
            length, onset = _advance(path, tokens[owner], run[owner], own, position, window, runs)
            _lower(logits[tree * nodes + node], window, runs, length, own, onset, matched, lowered)


@compiled
def _accept(request_rows, root, paths, accept_index, num_correct_drafts, tokens, run, params):
    capacity = tokens.shape[1]
    nodes, depth = paths.shape[1:]
    window, runs = np.empty(capacity + depth, np.int32), np.empty(capacity + 1, np.int16)
    for tree, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        accepted = num_correct_drafts[tree]
        node = accept_index[tree, accepted] - tree * nodes
        path = paths[tree, node, : accepted + 1]
        position = root[tree] + accepted
        _, onset = _advance(path, tokens[owner], run[owner], own, position, window, runs)
        _keep(path, runs, onset, position, tokens[owner], run[owner], own)


def seed(state: WindowState, seed: Seed) -> None:
    """See `reference.steps.seed`."""
    _seed(
        seed.rows, seed.position, seed.end, seed.history, seed.sampled, seed.params, *state.arrays
    )  # fmt: skip


def seed_history(state: HistoryState, seeds: list[HistorySeed]) -> None:
    """See `history_cpu.seed`."""
    history_cpu.seed(state, seeds)


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
    forbids: bool = True,
) -> None:
    """See `reference.steps.step`, and `forbid` for `forbids`."""
    if width:
        _step(
            logits.numpy(), request_rows.numpy(), seq_lens.numpy(), input_ids.numpy(),
            prefilled, offset, *state.arrays,
        )  # fmt: skip
    if history is not None:
        history_cpu.step(
            history, logits, request_rows=request_rows, seq_lens=seq_lens, input_ids=input_ids,
            prefilled=prefilled, offset=offset, forbids=forbids,
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
    forbids: bool = True,
) -> Tensor:
    """See `reference.steps.verify`, and `forbid` for `forbids`."""
    paths, lengths = draft_tree.paths(tokens, first_child, next_sibling, depth)
    if width:
        _verify(
            logits.numpy(), request_rows.numpy(), root.numpy(), paths.numpy(), lengths.numpy(),
            *state.arrays,
        )  # fmt: skip
    if history is not None:
        history_cpu.verify(
            history, logits, request_rows=request_rows, root=root, paths=paths, lengths=lengths,
            forbids=forbids,
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
    if width:
        _accept(
            request_rows.numpy(), root.numpy(), paths.numpy(), accept_index.numpy(),
            num_correct_drafts.numpy(), *state.arrays,
        )  # fmt: skip
    if history is not None:
        history_cpu.accept(
            history, request_rows=request_rows, root=root, paths=paths,
            accept_index=accept_index, num_correct_drafts=num_correct_drafts,
        )  # fmt: skip


def forbid(history: HistoryState, logits: Tensor) -> None:
    """See `cuda.forbid`."""
    history_cpu.forbid(history, logits)
