"""The steps of the LZ penalty in torch operators: each kernel must match them.

`penalty.kernels.cuda` and `penalty.kernels.cpu` have functions with the same names and arguments.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sglang_lz.penalty import draft_tree
from sglang_lz.penalty.draft_tree import AcceptedPaths, DraftTrees
from sglang_lz.penalty.reference.codelength import run_lengths, saved_bits, subtract_savings
from sglang_lz.penalty.reference.window_view import WindowView
from sglang_lz.penalty.window import (
    BUFFER_SIZE,
    FIRST_VISIBLE,
    IS_RATE,
    ONSET,
    PENALTY,
    WINDOW_SIZE,
    RowWindow,
    StepInputs,
    WindowState,
)


def seed(state: WindowState, windows: Mapping[int, RowWindow]) -> None:
    """Give rows new windows and parameters, or clear them.

    Args:
        state: the windows.
        windows: the new contents, by request row.
    """
    device = state.tokens.device
    for row, window in windows.items():
        tokens, sampled, length, first_visible, lz = window
        visible = torch.tensor(tokens, dtype=torch.int64, device=device)
        newest_first = visible.flip(0)[: state.capacity]
        slot = (length - 1 - torch.arange(len(newest_first), device=device)) % state.capacity
        state.tokens[row, slot] = newest_first.to(torch.int32)
        periods = max(1, lz.window_size)
        state.run[row, :periods] = run_lengths(visible, periods).to(torch.int16)
        state.params[row, PENALTY] = lz.penalty
        state.params[row, WINDOW_SIZE] = lz.window_size
        state.params[row, BUFFER_SIZE] = lz.buffer_size
        state.params[row, FIRST_VISIBLE] = first_visible
        state.params[row, IS_RATE] = lz.cost == "rate"
        state.params[row, ONSET] = lz.onset
        state.cover[row] = 0
        # Every prefix from which a token was sampled, including the last.
        for end in range(sampled, len(visible) + 1):
            runs = run_lengths(visible[:end], periods)
            given = state.params[row], state.cover[row]
            view = WindowView(runs, runs, torch.tensor(end), *given)
            state.cover[row] = view.notice().cover


def step(
    state: WindowState,
    logits: Tensor,
    inputs: StepInputs,
    *,
    width: int,
) -> None:
    """Bring the windows of a batch up to date, and lower the logits of predicted tokens.

    Args:
        state: the windows; those of the first `prefilled` batch rows are already up to date.
        logits: next-token logits, float32 [batch, V], with any strides; changed in place.
        inputs: the newest tokens.
        width: at least the largest window size among the rows with a penalty, at most the
            capacity.
    """
    batch_rows = _penalised(state, inputs.request_rows)
    for rows, is_seeded in (
        (batch_rows[batch_rows < inputs.prefilled], True),
        (batch_rows[batch_rows >= inputs.prefilled], False),
    ):
        if not len(rows):
            continue
        owners = inputs.request_rows[rows].long()
        position = inputs.seq_lens[rows].long() - 1
        if is_seeded:
            windows = WindowView.of(state, owners, position, width)
        else:
            before = WindowView.of(state, owners, position - 1, width)
            windows = before.advance(inputs.input_ids[rows + inputs.offset])
            windows.keep(state, owners, position, new=1)
        _subtract(logits, rows, windows)


def verify(
    state: WindowState,
    logits: Tensor,
    trees: DraftTrees,
    *,
    width: int,
) -> Tensor:
    """Lower the logits of the tokens that the window of each draft node predicts.

    Args:
        state: the windows, which end before the roots and are not changed.
        logits: next-token logits, float32 [batch x nodes, V], with any strides; changed in place.
        trees: the draft trees.
        width: as in `step`.

    Returns:
        What `accept` needs: the tokens on the path of each node, the node's first and the root's
        last, integer [batch, nodes, depth]. Columns after the root, and rows without the penalty,
        are undefined.
    """
    nodes = trees.tokens.shape[1]
    paths, length = draft_tree.paths(
        trees.tokens, trees.first_child, trees.next_sibling, trees.depth
    )
    penalised = _penalised(state, trees.request_rows)
    if len(penalised):
        owners = trees.request_rows[penalised].long()
        before = WindowView.of(state, owners, trees.root[penalised].long() - 1, width)
        node = torch.arange(nodes, device=penalised.device)
        tree = torch.arange(len(penalised), device=penalised.device)[:, None].expand(-1, nodes)
        windows = advance_along(before[tree], paths[penalised], length[penalised])
        rows = (penalised[:, None] * nodes + node).flatten()
        flat = WindowView(
            windows.tokens.flatten(0, 1),
            windows.run.flatten(0, 1),
            windows.visible.flatten(),
            windows.params.flatten(0, 1),
            windows.cover.flatten(0, 1),
        )
        _subtract(logits, rows, flat)
    return paths


def accept(
    state: WindowState,
    accepted: AcceptedPaths,
    *,
    width: int,
) -> None:
    """Append the accepted path of each draft tree to the windows.

    Args:
        state: the windows, which end before the roots.
        accepted: the accepted paths.
        width: as in `step`.
    """
    nodes = accepted.paths.shape[1]
    trees = _penalised(state, accepted.request_rows)
    if not len(trees):
        return
    owners = accepted.request_rows[trees].long()
    position = accepted.root[trees].long()
    correct = accepted.num_correct_drafts[trees].long()
    node = accepted.accept_index[trees, correct].long() - trees * nodes
    before = WindowView.of(state, owners, position - 1, width)
    windows = advance_along(before, accepted.paths[trees, node], correct + 1)
    windows.keep(state, owners, position + correct, new=int(correct.max()) + 1)


def advance_along(windows: WindowView, path: Tensor, length: Tensor) -> WindowView:
    """The windows after the tokens of a path.

    Args:
        windows: those before it; leading dimensions [...].
        path: its tokens, newest first, integer [..., depth].
        length: how many leading tokens of `path` are valid, integer [...].
    """
    for newer in reversed(range(int(length.max()))):
        further = windows.advance(path[..., newer])
        on_path = newer < length
        windows = WindowView(
            torch.where(on_path[..., None], further.tokens, windows.tokens),
            torch.where(on_path[..., None], further.run, windows.run),
            torch.where(on_path, further.visible, windows.visible),
            windows.params,
            torch.where(on_path[..., None], further.cover, windows.cover),
        )
    return windows


def _penalised(state: WindowState, request_rows: Tensor) -> Tensor:
    return (state.params[request_rows.long(), PENALTY] > 0).nonzero().squeeze(1)


def _subtract(logits: Tensor, rows: Tensor, windows: WindowView) -> None:
    is_rate = windows.params[:, IS_RATE] != 0
    savings = saved_bits(windows.match, windows.length, logits.shape[1], is_rate)
    savings *= windows.params[:, PENALTY, None] * windows.strength
    subtract_savings(logits, rows, windows.tokens, savings)
