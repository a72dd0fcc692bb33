"""The steps of the LZ penalty for a CPU, compiled by numba; rows are processed in sequence.

The formulas, symbols and columns are those of `window_cuda`. `seed` is also used for CUDA, because
the tokens of a prompt are on the host.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lz_penalty import draft_tree
from lz_penalty.compiled import compiled
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE
from lz_penalty.history import HistorySeed, HistoryState
from lz_penalty.kernels import history_cpu
from lz_penalty.kernels.history_cpu import Trees, run_lengths
from lz_penalty.window import (
    ALIKE,
    BUFFER_SIZE,
    COVER,
    COVERED,
    EXACT,
    FIRST_VISIBLE,
    IS_RATE,
    LEAST_COVER,
    LEAST_ID,
    LONGEST_RUN,
    LOOPED,
    MEMORY,
    MEMORY_STEPS,
    NUMBER_MARK,
    NUMBERS_TIMES,
    ONSET,
    PARAMS,
    PENALTY,
    PERIOD_TIMES,
    REMEMBERED_RUN,
    REMEMBERED_STRENGTH,
    REPLAYED,
    RUNS,
    SHORTEST_LOOP,
    SHORTEST_LOOP_OF_ONE,
    TOO_MANY_NUMBERS,
    WINDOW_SIZE,
    RowWindow,
    StepInputs,
    WindowState,
)

# A row of `WindowState.params`, and one of `WindowState.cover`.
_PARAMS, _COVER = struct.Struct(f"{PARAMS}f"), struct.Struct(f"{COVER}q")
# For distances, and for match lengths plus one; log2 of 0 is never read.
LOG2 = np.log2(np.arange(LARGEST_MAX_WINDOW_SIZE + 2).clip(1)).astype(np.float32)


@compiled
def _shortest_loop(period):
    """s_k."""
    return SHORTEST_LOOP_OF_ONE if period == 1 else SHORTEST_LOOP


@compiled
def _is_loop(run, period):
    """Whether run_k is at least s_k, so that its copies count (docs/SPEC.md section 9)."""
    return run >= _shortest_loop(period)


@compiled
def _copies(run, period):
    """floor(run_k / k)."""
    # As in `window_cuda._copies`: a division of integers would not be vectorised.
    return int((np.float32(run) + np.float32(0.5)) / np.float32(period))


@compiled
def _reach(newest_first, runs, onset):
    """E_t, limited to the tokens that the cover counts. `newest_first` are the newest tokens, at
    least as many as the longest period."""
    reach = _reach_alike(newest_first, runs[ALIKE], onset)
    run = runs[EXACT]
    for period in range(1, len(run)):
        if reach >= COVERED:
            return COVERED
        if run[period] >= onset * period and _is_loop(run[period], period):
            reach = max(reach, run[period] + period)
    return min(reach, COVERED)


@compiled
def _reach_alike(newest_first, alike, onset):
    """How many of the newest tokens are looped up to numbers.

    Runs that have just enough copies, but too many numbers, become TOO_MANY_NUMBERS. Longer ones
    became so before."""
    has_just_enough = False
    for period in range(1, len(alike)):
        has_just_enough |= alike[period] == _least_alike(period, onset)
    if has_just_enough:
        _mark_many_numbers(newest_first, alike, onset)
    reach = np.int32(0)
    for period in range(1, len(alike)):
        is_looped = alike[period] >= _least_alike(period, onset)
        reach = max(reach, np.int32(alike[period] + period) if is_looped else np.int32(0))
    return reach


@compiled
def _least_alike(period, onset):
    """The shortest run up to numbers that has enough copies."""
    return max(_shortest_loop(period), (onset + 1) * period)


@compiled
def _mark_many_numbers(newest_first, alike, onset):
    """Let runs that have enough copies, but too many numbers, become TOO_MANY_NUMBERS."""
    counted = numbers = 0
    for period in range(1, len(alike)):
        if alike[period] < _least_alike(period, onset):
            continue
        while counted < period:
            numbers += newest_first[counted] < LEAST_ID
            counted += 1
        if NUMBERS_TIMES * numbers > PERIOD_TIMES * period:
            alike[period] = TOO_MANY_NUMBERS


@compiled
def _notice(cover, reach):
    """Update the word M and the counter of a row for one step, given `_reach`."""
    cover[LOOPED] = -1 if reach == COVERED else (cover[LOOPED] << 1) | ((1 << reach) - 1)
    bits = cover[LOOPED]
    bits -= (bits >> 1) & 0x5555555555555555
    bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333)
    bits = (bits + (bits >> 4)) & 0x0F0F0F0F0F0F0F0F
    bits += bits >> 8
    bits += bits >> 16
    bits += bits >> 32
    if bits & 0x7F >= LEAST_COVER:
        cover[MEMORY] = MEMORY_STEPS
    elif cover[MEMORY] > 0:
        cover[MEMORY] -= 1


@compiled
def _marked(token, numbers, onset):
    """A token as `WindowState` stores it."""
    is_number = onset and 0 <= token < len(numbers) and numbers[token]
    return np.int32(token | NUMBER_MARK if is_number else token)


@compiled
def _append(newest, older, runs, onset):
    """Update the runs for one more token; `older` are the tokens before it, newest first, one for
    each period whose run is known. Returns the longest run, of either kind."""
    # The slices begin at 0 so that the compiler can prove it to be within bounds.
    grown, alike, longest = runs[EXACT, 1:], runs[ALIKE, 1:], np.int16(0)
    if not onset:
        for column in range(len(older)):
            longer = np.int16(min(grown[column], LONGEST_RUN - 1) + 1)
            grown[column] = longer if older[column] == newest else np.int16(0)
            longest = max(longest, grown[column])
        return longest
    # A token is alike if it equals a token that is no number, or if both are numbers.
    last = np.int32(LEAST_ID - 1 if newest < LEAST_ID else newest)
    first = np.int32(NUMBER_MARK if newest < LEAST_ID else newest)
    for column in range(len(older)):
        longer = np.int16(min(grown[column], LONGEST_RUN - 1) + 1)
        grown[column] = longer if older[column] == newest else np.int16(0)
        longer = np.int16(min(alike[column], LONGEST_RUN - 1) + 1)
        longer = longer if alike[column] >= 0 else np.int16(TOO_MANY_NUMBERS)
        alike[column] = longer if first <= older[column] <= last else np.int16(0)
        longest = max(longest, grown[column], alike[column])
    return longest


@compiled
def _replay(visible, first, onset, runs, cover):
    """Update runs and cover from the step after the first tokens to the step after all of them;
    `visible` are marked tokens, oldest first."""
    alike = np.where(visible[:first] < LEAST_ID, np.int32(NUMBER_MARK), visible[:first])
    run_lengths(visible[:first], runs[EXACT], LONGEST_RUN)
    run_lengths(alike, runs[ALIKE], LONGEST_RUN)
    newest_first = visible[::-1].copy()
    steps = len(visible) - first
    _mark_many_numbers(newest_first[steps:], runs[ALIKE], onset)
    _notice(cover, _reach(newest_first[steps:], runs, onset))
    for newer in range(steps - 1, -1, -1):
        older = newest_first[newer + 1 : newer + runs.shape[1]]
        longest = _append(newest_first[newer], older, runs, onset)
        is_long = longest >= SHORTEST_LOOP_OF_ONE
        _notice(cover, _reach(newest_first[newer:], runs, onset) if is_long else 0)


@compiled
def _seed(row, own, sampled, length, window_size, onset, tokens, run, cover, numbers):
    capacity = tokens.shape[1]
    visible = np.empty(len(own), np.int32)
    for i in range(len(own)):
        visible[i] = _marked(own[i], numbers, onset)
    kept = visible[max(len(own) - capacity, 0) :]
    end = (length - 1) % capacity + 1
    wrapped = max(len(kept) - end, 0)
    tokens[row, end - (len(kept) - wrapped) : end] = kept[wrapped:]
    tokens[row, capacity - wrapped :] = kept[:wrapped]
    if not onset:
        run_lengths(visible, run[row, EXACT, :window_size], LONGEST_RUN)
        return
    # Contiguous, because otherwise the compiler does not vectorise the loops over them.
    runs = np.empty((RUNS, window_size), np.int16)
    _replay(visible, max(sampled, len(own) - REPLAYED + 1), onset, runs, cover[row])
    for plane in range(RUNS):
        for period in range(window_size):
            run[row, plane, period] = runs[plane, period]


@compiled
def _advance(path, tokens, run, params, cover, numbers, position, window, runs, cover_after):
    """Write the seen tokens after a path, newest first, the runs of their periods, and the row's
    cover; see `window_cuda._runs_and_cover`. `position` is that of the newest token. Returns the
    number of seen tokens, and how many of the newest are looped."""
    visible = max(0, position + 1 - int(params[FIRST_VISIBLE]))
    window_size = int(params[WINDOW_SIZE])
    onset = int(params[ONSET])
    for newer in range(len(path)):
        window[newer] = _marked(path[newer], numbers, onset)
    # A token of the path is compared with the tokens of the window before it.
    old = max(min(visible, window_size + max(len(path) - 1, 0)) - len(path), 0)
    slot = (position - len(path)) % len(tokens)
    unwrapped = min(old, slot + 1)
    for column in range(unwrapped):
        window[len(path) + column] = tokens[slot - column]
    for column in range(old - unwrapped):
        window[len(path) + unwrapped + column] = tokens[len(tokens) - 1 - column]
    before = max(min(visible - len(path), window_size), 1)
    for plane in range(RUNS if onset else 1):
        runs[plane, 0] = 0
        # Assigning slices would take ten times as long.
        for period in range(1, before):
            runs[plane, period] = run[plane, period]
        for period in range(before, window_size + 1):
            runs[plane, period] = 0
    cover_after[:] = cover
    own = runs[:, :window_size]
    reach = _reach(window, own, onset) if onset and not len(path) else 0
    for newer in range(len(path) - 1, -1, -1):
        known = min(visible - newer, window_size) - 1
        older = window[newer + 1 : newer + 1 + max(known, 0)]
        longest = _append(window[newer], older, runs, onset)
        if onset:
            is_long = longest >= SHORTEST_LOOP_OF_ONE
            reach = _reach(window[newer:], own, onset) if is_long else 0
            _notice(cover_after, reach)
    return min(visible, window_size), reach


@compiled
def _lower(logits, window, runs, length, params, cover, reach, matched, lowered):
    """Lower a row of logits as `cuda` describes."""
    run, alike = runs[EXACT], runs[ALIKE]
    onset, has_memory = int(params[ONSET]), cover[MEMORY] > 0
    if onset and not reach and not has_memory:
        return
    vocab_size = len(logits)
    literal = np.float32(np.log2(vocab_size))
    buffer_size = np.int16(params[BUFFER_SIZE])
    penalty = params[PENALTY]
    longest = np.int16(0)
    for column in range(length + 1):
        match = min(run[column], buffer_size, np.int16(length - column))
        matched[column] = match
        longest = max(longest, match)
    before, log2_of_distance = matched[1:], LOG2[1:]
    if params[IS_RATE] != 0:
        for column in range(length):
            count = before[column] + 1
            cost = (log2_of_distance[column] + LOG2[count]) / np.float32(count)
            lowered[column] = penalty * max(literal - cost, np.float32(0))
    else:
        nearest, gained = 1, np.float32(0)
        if longest:
            while matched[nearest - 1] < longest:
                nearest += 1
            gained = LOG2[longest + 1] - LOG2[longest] - LOG2[nearest] - np.float32(1)
        for column in range(length):
            cost = log2_of_distance[column]
            cost += gained if before[column] == longest else np.float32(0)
            lowered[column] = penalty * max(literal - cost, np.float32(0))
    if onset:
        strengths = matched  # which is no longer needed
        for column in range(length):
            own_run, period = run[column + 1], column + 1
            strength = REMEMBERED_STRENGTH if has_memory and own_run >= REMEMBERED_RUN else 0
            if _is_loop(own_run, period):
                strength = max(strength, _copies(own_run, period) - onset + 1)
            strengths[column] = strength
        if _differ(run, alike, length):  # otherwise the copies of exact runs are stronger
            for column in range(length):
                own_run, period = alike[column + 1], column + 1
                grows = _is_loop(own_run, period) and window[column] >= LEAST_ID
                grown = _copies(own_run, period) - onset if grows else 0
                strengths[column] = max(strengths[column], grown)
        for column in range(length):
            lowered[column] *= np.float32(strengths[column])
            # Tokens that are not lowered are replaced by -1, so that their logits are not read.
            token = window[column]
            token = token ^ NUMBER_MARK if token < LEAST_ID else token
            window[column] = token if strengths[column] > 0 else -1
    # Reading all logits before lowering any lets the reads wait for memory in parallel.
    for column in range(length):
        token = window[column]
        if 0 <= token < vocab_size:
            lowered[column] = logits[token] - lowered[column]
    for column in range(length):
        token = window[column]
        if 0 <= token < vocab_size:
            # A branch on which of the two is less would be mispredicted.
            now = logits[token]
            logits[token] = lowered[column] if lowered[column] < now else now


@compiled
def _differ(run, alike, length):
    """Whether any run up to numbers differs from the exact one."""
    differ = False
    for period in range(1, length + 1):
        differ |= run[period] != alike[period]
    return differ


@compiled
def _keep(path, runs, cover_after, position, tokens, run, params, cover):
    """Write a window back; the arguments are those that `_advance` receives and fills, but `path`
    has its tokens marked."""
    window_size = int(params[WINDOW_SIZE])
    for plane in range(RUNS if params[ONSET] else 1):
        for period in range(window_size):
            run[plane, period] = runs[plane, period]
    cover[:] = cover_after
    for newer in range(min(len(path), len(tokens))):
        tokens[(position - newer) % len(tokens)] = path[newer]


@compiled
def _run(logits, request_rows, root, paths, lengths, keeps, tokens, run, params, cover, numbers):
    """Lower the logits after each path, as far as there are any, and keep the paths if `keeps`."""
    capacity = tokens.shape[1]
    nodes, depth = paths.shape[1:]
    window, runs = np.empty(capacity + depth, np.int32), np.empty((RUNS, capacity + 1), np.int16)
    matched, lowered = np.empty(capacity + 1, np.int16), np.empty(capacity, np.float32)
    cover_after = np.empty(COVER, np.int64)
    for tree, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        for node in range(nodes):
            path = paths[tree, node, : lengths[tree, node]]
            position = root[tree] + len(path) - 1
            length, reach = _advance(
                path, tokens[owner], run[owner], own, cover[owner], numbers, position, window,
                runs, cover_after,
            )  # fmt: skip
            if keeps and len(path):
                _keep(
                    window[: len(path)], runs, cover_after, position, tokens[owner], run[owner],
                    own, cover[owner],
                )  # fmt: skip
            if logits.shape[1]:
                _lower(
                    logits[tree * nodes + node], window, runs, length, own, cover_after, reach,
                    matched, lowered,
                )  # fmt: skip


def seed(state: WindowState, windows: Mapping[int, RowWindow]) -> None:
    """See `reference.steps.seed`."""
    write_windows(windows, state.arrays, state.host_numbers)


def write_windows(
    windows: Mapping[int, RowWindow], arrays: Sequence[Any], numbers: NDArray[np.uint8]
) -> None:
    """Write windows into the arrays of `WindowState.arrays`, by row.

    Args:
        windows: as in `reference.steps.seed`.
        arrays: C-contiguous numpy arrays, with the columns and types of `WindowState`.
        numbers: as `WindowState.numbers`.
    """
    tokens, run, params, cover = arrays
    for row, window in windows.items():
        # Not compiled, because a call would take longer, and many windows start empty.
        _PARAMS.pack_into(params, row * _PARAMS.size, *window.params)
        _COVER.pack_into(cover, row * _COVER.size, 0, 0)
        own, sampled, length, _, lz = window
        if own:
            seen = np.frombuffer(own, np.int64)
            _seed(row, seen, sampled, length, lz.window_size, lz.onset, tokens, run, cover, numbers)


def seed_history(state: HistoryState, seeds: list[HistorySeed]) -> None:
    """See `history_cpu.seed`."""
    history_cpu.seed(state, seeds)


def step(
    state: WindowState,
    logits: Tensor,
    inputs: StepInputs,
    *,
    width: int,
    history: HistoryState | None = None,
    forbids: bool = True,
) -> None:
    """See `reference.steps.step`, and `forbid` for `forbids`."""
    request_rows, seq_lens, input_ids, prefilled, offset = inputs
    # As trees of one node, or of none where a row was seeded.
    rows = len(request_rows)
    lengths = np.zeros((rows, 1), dtype=np.int64)
    lengths[prefilled:] = 1
    paths = np.zeros((rows, 1, 1), dtype=np.int32)
    paths[prefilled:, 0, 0] = input_ids.numpy()[prefilled + offset : rows + offset]
    root = seq_lens.numpy()[:rows] - lengths[:, 0]
    trees = request_rows.numpy(), root, paths, lengths
    _run_both(state, history, width, logits.numpy(), trees, keeps=True, forbids=forbids)


def verify(
    state: WindowState,
    logits: Tensor,
    trees: DraftTrees,
    *,
    width: int,
    history: HistoryState | None = None,
    forbids: bool = True,
) -> Tensor:
    """See `reference.steps.verify`, and `forbid` for `forbids`."""
    paths, lengths = draft_tree.paths(
        trees.tokens, trees.first_child, trees.next_sibling, trees.depth
    )
    own = trees.request_rows.numpy(), trees.root.numpy(), paths.numpy(), lengths.numpy()
    _run_both(state, history, width, logits.numpy(), own, keeps=False, forbids=forbids)
    return paths


def accept(
    state: WindowState, accepted: AcceptedPaths, *, width: int, history: HistoryState | None = None
) -> None:
    """See `reference.steps.accept`."""
    request_rows, root, paths, accept_index, correct = (tensor.numpy() for tensor in accepted)
    tree = np.arange(len(request_rows))
    node = accept_index[tree, correct] - tree * paths.shape[1]
    own = request_rows, root, paths[tree, node][:, None], correct[:, None] + np.int64(1)
    none = np.empty((len(tree), 0), dtype=np.float32)
    _run_both(state, history, width, none, own, keeps=True, forbids=False)


def _run_both(
    state: WindowState,
    history: HistoryState | None,
    width: int,
    logits: NDArray[np.float32],
    trees: Trees,
    *,
    keeps: bool,
    forbids: bool,
) -> None:
    if width:
        _run(logits, *trees, keeps, *state.arrays, state.host_numbers)
    if history is not None:
        history_cpu.run(history, logits, trees, keeps=keeps, forbids=forbids)


def forbid(history: HistoryState, logits: Tensor) -> None:
    """See `cuda.forbid`."""
    history_cpu.forbid(history, logits)
