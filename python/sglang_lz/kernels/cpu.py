"""The steps of the LZ penalty for a CPU, compiled by numba, one row after the other.

The formulas and the words are those of `sglang_lz.kernels.cuda`. `seed` also runs for CUDA: the
tokens of a prompt are on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

from sglang_lz import draft_tree
from sglang_lz.params import LARGEST_MAX_WINDOW_SIZE
from sglang_lz.window import (
    BUFFER_SIZE,
    FIRST_VISIBLE,
    IS_RATE,
    PENALTY,
    WINDOW_SIZE,
    Seed,
    WindowState,
)

# Of distances, and of match lengths and one more; log2 of 0 is never read.
LOG2 = np.log2(np.arange(LARGEST_MAX_WINDOW_SIZE + 2).clip(1)).astype(np.float32)


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(function, cache=True)
    except RuntimeError:  # nowhere to keep what was compiled: a read-only installation
        return numba.njit(function)


@_compiled
def _match_lengths(history, buffer_size, match):
    """Write `codelength.match_lengths` of a history, oldest first, in O(history) whatever repeats.

    Newest first, a source's match is the longest common prefix of the history and of its part from
    the source on: the Z-function.
    """
    count = len(history)
    match[:1] = 0
    start = end = 0  # newest first, the match reaching furthest so far is history[start:end]
    for source in range(1, count):
        length = min(end - source, match[source - start]) if source < end else 0
        while source + length < count and history[-1 - length] == history[-1 - source - length]:
            length += 1
        match[source] = length
        if source + length > end:
            start, end = source, source + length
    for source in range(count):
        match[source] = min(match[source], buffer_size)


@_compiled
def _seed(rows, position, end, history, given, tokens, match, params):
    capacity = tokens.shape[1]
    start = 0
    for n, row in enumerate(rows):
        own = history[start : end[n]]
        start = end[n]
        slot = position[n] % capacity
        for newer in range(len(own)):
            tokens[row, slot] = own[len(own) - 1 - newer]
            slot = slot - 1 if slot else capacity - 1
        _match_lengths(own, int(given[n, BUFFER_SIZE]), match[row])
        params[row] = given[n]


@_compiled
def _advance(path, tokens, match, params, position, window, matched):
    """Write the seen tokens after a path, newest first, and their match lengths; see
    `cuda._match_lengths`. `position` is that of the newest token. Returns how many are seen."""
    seen = position + 1 - int(params[FIRST_VISIBLE])
    length = max(0, min(seen, int(params[WINDOW_SIZE])))
    buffer_size = int(params[BUFFER_SIZE])
    slot = (position - len(path)) % len(tokens)
    for column in range(length):
        if column < len(path):
            window[column] = path[column]
        else:
            window[column] = tokens[slot]
            slot = slot - 1 if slot else len(tokens) - 1
    matched[0] = 0
    for column in range(1, length):
        run = 0
        while run < len(path) and column + run < length and window[column + run] == path[run]:
            run += 1
        if run == len(path):
            run += match[column]
        matched[column] = min(run, buffer_size, length - column)
    matched[length] = 0
    return length


@_compiled
def _lower(logits, window, matched, length, params, lowered):
    """Lower a row of logits: `codelength.saved_bits` and `codelength.subtract_savings`."""
    vocab_size = len(logits)
    literal = np.float32(np.log2(vocab_size))
    penalty, is_rate = params[PENALTY], params[IS_RATE] != 0
    longest, nearest = 0, 1
    for column in range(length):
        if matched[column] > longest:
            longest, nearest = matched[column], column + 1
    gained = LOG2[longest + 1] - LOG2[max(longest, 1)] - LOG2[nearest] - np.float32(1)
    # Three passes: all are read before any is lowered, and reads wait for memory side by side.
    for column in range(length):
        token = window[column]
        lowered[column] = logits[token] if 0 <= token < vocab_size else np.float32(0)
    for column in range(length):
        before = matched[column + 1]
        cost = LOG2[column + 1]
        if is_rate:
            cost = (cost + LOG2[before + 1]) / np.float32(before + 1)
        elif longest >= 1 and before == longest:
            cost += gained
        lowered[column] -= penalty * max(literal - cost, np.float32(0))
    for column in range(length):
        token = window[column]
        if 0 <= token < vocab_size and lowered[column] < logits[token]:
            logits[token] = lowered[column]


@_compiled
def _step(
    logits, request_rows, seq_lens, input_ids, prefilled, offset, tokens, match, params
):  # fmt: skip
    capacity = tokens.shape[1]
    window, matched = np.empty(capacity, np.int32), np.empty(capacity + 1, np.int16)
    lowered = np.empty(capacity, np.float32)
    for row, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        position = seq_lens[row] - 1
        first = row + offset
        path = input_ids[first : first + 1] if row >= prefilled else input_ids[:0]
        length = _advance(path, tokens[owner], match[owner], own, position, window, matched)
        _lower(logits[row], window, matched, length, own, lowered)
        if len(path):
            match[owner, :length] = matched[:length]
            tokens[owner, position % capacity] = path[0]


@_compiled
def _verify(logits, request_rows, root, paths, lengths, tokens, match, params):
    capacity = tokens.shape[1]
    window, matched = np.empty(capacity, np.int32), np.empty(capacity + 1, np.int16)
    lowered = np.empty(capacity, np.float32)
    nodes = paths.shape[1]
    for tree, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        for node in range(nodes):
            path = paths[tree, node, : lengths[tree, node]]
            position = root[tree] + len(path) - 1
            length = _advance(path, tokens[owner], match[owner], own, position, window, matched)
            _lower(logits[tree * nodes + node], window, matched, length, own, lowered)


@_compiled
def _accept(request_rows, root, paths, accept_index, num_correct_drafts, tokens, match, params):
    capacity = tokens.shape[1]
    window, matched = np.empty(capacity, np.int32), np.empty(capacity + 1, np.int16)
    nodes = paths.shape[1]
    for tree, owner in enumerate(request_rows):
        own = params[owner]
        if own[PENALTY] == 0:
            continue
        accepted = num_correct_drafts[tree]
        node = accept_index[tree, accepted] - tree * nodes
        path = paths[tree, node, : accepted + 1]
        position = root[tree] + accepted
        length = _advance(path, tokens[owner], match[owner], own, position, window, matched)
        match[owner, :length] = matched[:length]
        for newer in range(min(len(path), capacity)):
            tokens[owner, (position - newer) % capacity] = path[newer]


def seed(state: WindowState, seed: Seed) -> None:
    """See `reference.steps.seed`."""
    _seed(seed.rows, seed.position, seed.end, seed.history, seed.params, *state.arrays)


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
) -> None:
    """See `reference.steps.step`."""
    _step(
        logits.numpy(), request_rows.numpy(), seq_lens.numpy(), input_ids.numpy(),
        prefilled, offset, *state.arrays,
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
) -> Tensor:
    """See `reference.steps.verify`."""
    paths, lengths = draft_tree.paths(tokens, first_child, next_sibling, depth)
    _verify(
        logits.numpy(), request_rows.numpy(), root.numpy(), paths.numpy(), lengths.numpy(),
        *state.arrays,
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
) -> None:
    """See `reference.steps.accept`."""
    _accept(
        request_rows.numpy(), root.numpy(), paths.numpy(), accept_index.numpy(),
        num_correct_drafts.numpy(), *state.arrays,
    )  # fmt: skip
