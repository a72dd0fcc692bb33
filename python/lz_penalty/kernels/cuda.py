"""The steps of the penalties for CUDA: what the host prepares for each, and the launch.

The kernels are in `window_cuda` and `history_cuda`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from lz_penalty import history, window
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.fields.lz import DEFAULT_WINDOW_SIZE
from lz_penalty.history import RING, HistoryRoom, HistorySeed, HistorySize, HistoryState
from lz_penalty.kernels import cpu, history_cpu, history_cuda, window_cuda
from lz_penalty.kernels.kernel import Kernel
from lz_penalty.upload import upload
from lz_penalty.window import RowWindow, StepInputs, WindowState, bytes_of_row

SMALLEST_BLOCK = 128
# All trees of up to this many nodes share a binary: upstream may change their size while it serves.
SMALLEST_TREE = 32
# The whole vocabulary is read if all tokens that the grammar leaves are forbidden.
FORBID_WARPS = 8
# Columns that a program copies at a time, 4 per thread.
SEED_BLOCK, SEED_WARPS = 1024, 8


def seed_history(state: HistoryState, seeds: list[HistorySeed]) -> None:
    """See `history_cpu.seed`. The host builds the histories at their small initial size, and the
    device fetches them."""
    device = state.device
    sizes = [_size_at_first(one) for one in seeds]
    ends = np.cumsum([size.stored for size in sizes]).tolist()
    room = HistoryRoom(vocab_size=1, words=ends[-1], lists=0)
    staged = HistoryState(len(seeds), "cpu", room, pinned=device.type == "cuda")
    staged.breakers = state.host_breakers
    short = []
    for row, (one, size, end) in enumerate(zip(seeds, sizes, ends, strict=True)):
        numbers = one.numbers.copy()
        numbers[[history.AT, history.TOKENS]] = end - size.stored, size.tokens
        numbers[[RING, history.PERIODS]] = size.ring, size.periods
        short.append(replace(one, row=row, at=end - size.stored, numbers=numbers))
    history_cpu.seed(staged, short)
    memory = upload(staged.memory, device)
    for row, (one, size, end) in enumerate(zip(seeds, sizes, ends, strict=True)):
        state.memory[one.at : one.at + one.words].zero_()
        of_device = _parts(state.memory, one.at, one.numbers)
        of_host = _parts(memory, end - size.stored, short[row].numbers)
        for to, values in zip(of_device, of_host, strict=True):
            to[..., : values.shape[-1]] = values
        numbers = one.numbers.copy()
        numbers[[history.LENGTH, history.BREAK_HEAD, history.BREAK_END]] = staged.numbers[
            row, [history.LENGTH, history.BREAK_HEAD, history.BREAK_END]
        ]
        staged.numbers[row] = torch.from_numpy(numbers)
    rows = upload(torch.tensor([one.row for one in seeds]), device)
    state.numbers[rows] = upload(staged.numbers, device)
    state.strengths[rows] = upload(staged.strengths, device)


def _size_at_first(seed: HistorySeed) -> HistorySize:
    """How many columns of a history its first tokens fill; the columns after that are 0."""
    tokens = len(seed.tokens)
    ring = min(int(seed.numbers[RING]), max(tokens, 1) if seed.numbers[RING] else 0)
    periods = min(int(seed.numbers[history.PERIODS]), max(ring - 1, 0))
    return HistorySize(min(tokens, int(seed.numbers[history.TOKENS])), ring, periods, len(seed.ids))


def _parts(memory: Tensor, at: int, numbers: NDArray[np.int32]) -> tuple[Tensor, ...]:
    """The distinct tokens, the ring and the ids of a history."""
    tokens, ring = int(numbers[history.TOKENS]), int(numbers[RING])
    ring_at, ids_at = at + 3 * tokens, at + 3 * tokens + 2 * ring
    end = ids_at + int(numbers[history.STOPS] + numbers[history.WHITELISTED])
    distinct, rings = memory[at:ring_at].view(3, tokens), memory[ring_at:ids_at].view(2, ring)
    return distinct, rings, memory[ids_at:end]


def seed(state: WindowState, windows: Mapping[int, RowWindow]) -> None:
    """See `reference.steps.seed`. The host writes the windows, and the device fetches them."""
    # Without tokens, copy one dummy column.
    has_tokens = any(one.tokens for one in windows.values())
    count, width = len(windows), state.capacity if has_tokens else 1
    size = count * (torch.int64.itemsize + bytes_of_row(width))
    # Pinned, so that the copy does not wait.
    block = torch.zeros(size, dtype=torch.uint8, pin_memory=state.tokens.is_cuda)
    rows, cover, params, tokens, run = _parts_of_seed(block, count, width)
    rows[:] = list(windows)
    arrays = tokens, run, params, cover
    cpu.write_windows(dict(enumerate(windows.values())), arrays, state.host_numbers)
    _seed(
        (count, 1),
        block.to(state.tokens.device, non_blocking=True), count, width, state.tokens, state.run,
        state.params, state.cover, state.capacity,
        constants=(SEED_BLOCK,),
    )  # fmt: skip


def _parts_of_seed(block: Tensor, count: int, width: int) -> list[NDArray[Any]]:
    """The arrays of a seed in one block of memory, so that it takes one copy and one launch.

    Their order, from the largest element to the smallest, keeps each of them aligned.

    Args:
        block: memory on the CPU, uint8.
        count: how many rows there are.
        width: columns of each window.

    Returns:
        request rows [count], and as in `WindowState`, for these rows: cover, params, tokens, run.
    """
    memory = block.numpy()
    parts: list[NDArray[Any]] = []
    start = 0
    for shape, dtype in (
        ((count,), np.int64),
        ((count, window.COVER), np.int64),
        ((count, window.PARAMS), np.float32),
        ((count, width), np.int32),
        ((count, window.RUNS, width), np.int16),
    ):
        part: NDArray[Any] = np.ndarray(shape, dtype, memory, start)
        parts.append(part)
        start += part.nbytes
    return parts


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
    block = _block(width, state.capacity)
    _assert_dense(request_rows, seq_lens, input_ids)
    _assert_bits(history, logits)
    rows = request_rows.shape[0]
    _step(
        (rows, 1),
        logits, *logits.stride(), logits.shape[1], request_rows, seq_lens, input_ids, prefilled,
        offset, *_of_windows(state), state.numbers, state.numbers.shape[0],
        *_of_history(history, rows, 1), int(forbids),
        constants=(block, history is not None),
        types=(request_rows.dtype, seq_lens.dtype, input_ids.dtype),
    )  # fmt: skip


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
    request_rows, root, tokens, first_child, next_sibling, depth = trees
    batch, nodes = tokens.shape
    assert history is None or nodes <= history.room.nodes, "no scratch was reserved for such trees"
    paths = torch.empty(batch, nodes, depth, dtype=torch.int32, device=logits.device)
    block = _block(width, state.capacity)
    _assert_dense(request_rows, root)
    _assert_bits(history, logits)
    most_nodes = triton.next_power_of_2(max(nodes, SMALLEST_TREE))
    _verify(
        (batch, nodes),
        logits, *logits.stride(), logits.shape[1], request_rows, root, tokens.long().contiguous(),
        first_child.contiguous(), next_sibling.contiguous(), nodes, paths, depth,
        *_of_windows(state), state.numbers, state.numbers.shape[0],
        *_of_history(history, batch * nodes, depth), int(forbids),
        constants=(most_nodes, block, history is not None),
        types=(request_rows.dtype, root.dtype, first_child.dtype, next_sibling.dtype),
    )  # fmt: skip
    return paths


def accept(
    state: WindowState, accepted: AcceptedPaths, *, width: int, history: HistoryState | None = None
) -> None:
    """See `reference.steps.accept`."""
    request_rows, root, paths, accept_index, num_correct_drafts = accepted
    batch, _, depth = paths.shape
    block = max(_block(width, state.capacity), triton.next_power_of_2(depth))
    _assert_dense(request_rows, root, num_correct_drafts, accept_index[:1])
    _accept(
        (batch, 1),
        request_rows, root, paths, depth, accept_index, accept_index.stride(0),
        num_correct_drafts, *_of_windows(state), *_of_history(history, batch, depth), 0,
        constants=(block, history is not None),
        types=(request_rows.dtype, root.dtype, accept_index.dtype, num_correct_drafts.dtype),
    )  # fmt: skip


def forbid(history: HistoryState, logits: Tensor) -> None:
    """Forbid the tokens that a step or verification noted, after the mask of a grammar.

    Their logits become minus infinity, except in rows where no other token is left. There the
    grammar's mask takes precedence, and all logits stay as they are.

    Args:
        history: the histories that were stepped or verified with `forbids` False.
        logits: float32 [rows, V]; changed in place.
    """
    rows, vocab_size = logits.shape
    _assert_bits(history, logits)
    _forbid(
        (rows, 1),
        logits, *logits.stride(), vocab_size, history.forbidden, history.forbidden.shape[1],
    )  # fmt: skip


def _of_windows(state: WindowState) -> tuple[Any, ...]:
    """The kernels' arguments from `tokens_ptr` to `capacity`."""
    return state.tokens, state.run, state.params, state.cover, state.capacity


def _of_history(history: HistoryState | None, rows: int, depth: int) -> tuple[Any, ...]:
    """The kernels' arguments from `memory_ptr` to `words`; None where they are not read."""
    if history is None:
        return (None,) * 9
    assert depth <= history.room.nodes, "no scratch was reserved for such trees"
    walk = torch.empty(rows, 2, depth, dtype=torch.int32, device=history.device)
    return (
        history.memory, history.numbers, history.strengths, history.breakers.mask,
        history.breakers.mask.shape[1], history.breakers.tails, walk, history.forbidden,
        history.forbidden.shape[1],
    )  # fmt: skip


_seed = Kernel(window_cuda.seed_kernel, lambda block: {"num_warps": SEED_WARPS})
_step = Kernel(window_cuda.step_kernel, lambda block, history: _launch(block))
_verify = Kernel(window_cuda.verify_kernel, lambda nodes, block, history: _launch(block))
_accept = Kernel(window_cuda.accept_kernel, lambda block, history: _launch(block))
_forbid = Kernel(history_cuda.forbid_kernel, lambda: {"num_warps": FORBID_WARPS})


@functools.cache  # at most one entry for each window size
def _block(width: int, capacity: int) -> int:
    """Columns of a program: one of two sizes, so that there are few binaries."""
    usual = min(DEFAULT_WINDOW_SIZE, capacity)
    return max(SMALLEST_BLOCK, triton.next_power_of_2(usual if width <= usual else capacity))


def _launch(block: int) -> dict[str, int]:
    """Launch options. By default, ptxas spills registers to run more programs at a time. Given the
    limit explicitly, it also spills if a program needs nearly all registers."""
    warps = min(max(block // 64, 4), 32)
    limit = {"maxnreg": min(65536 // (32 * warps), 255)} if block <= 4096 else {}
    return {"num_warps": warps, **limit}


def _assert_dense(*tensors: Tensor) -> None:
    """Check that tensors are contiguous, because the kernels read them without strides."""
    for tensor in tensors:
        assert tensor.is_contiguous()


def _assert_bits(history: HistoryState | None, logits: Tensor) -> None:
    """Check that every row of logits has its bits."""
    if history is not None:
        rows, vocab_size = logits.shape
        has_room = rows <= len(history.forbidden) and vocab_size <= history.room.vocab_size
        assert has_room, "no bits were reserved for such a batch"
