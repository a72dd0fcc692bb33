"""The steps of the LZ penalty in torch operators: each kernel must match them.

`kernels.cuda` and `kernels.cpu` have functions with the same names and arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import torch
from torch import Tensor

from lz_penalty import draft_tree
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.reference.codelength import run_lengths, saved_bits, subtract_savings
from lz_penalty.reference.window_view import WindowView
from lz_penalty.window import (
    ALIKE,
    IS_RATE,
    LEAST_ID,
    NUMBER_MARK,
    ONSET,
    PENALTY,
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
        tokens, sampled, length, _, lz = window
        state.params[row] = torch.tensor(window.params)
        visible = torch.tensor(tokens, dtype=torch.int64, device=device)
        visible = marked(state, torch.tensor([row], device=device), visible[None])[0]
        newest_first = visible.flip(0)[: state.capacity]
        slot = (length - 1 - torch.arange(len(newest_first), device=device)) % state.capacity
        state.tokens[row, slot] = newest_first
        periods = max(1, lz.window_size)
        state.run[row, :, :periods] = _runs(visible, periods)
        state.cover[row] = 0
        # Every prefix from which a token was sampled, including the last.
        for end in range(sampled, len(visible) + 1):
            newest = torch.zeros(periods, dtype=torch.int32, device=device)
            seen = visible[:end].flip(0)[:periods]
            newest[: len(seen)] = seen
            run, alike = _runs(visible[:end], periods)
            given = torch.tensor(end), state.params[row], state.cover[row]
            noticed = WindowView(newest, run, alike, *given).notice()
            state.cover[row] = noticed.cover
            state.run[row, ALIKE, :periods] = noticed.alike


def marked(state: WindowState, rows: Tensor, tokens: Tensor) -> Tensor:
    """Tokens as `WindowState` stores them.

    Args:
        state: has N, and the onset of each row.
        rows: request rows, int64 [rows].
        tokens: their tokens, integer [rows, ...].

    Returns:
        int32 [rows, ...].
    """
    count = len(state.numbers)
    known = (tokens >= 0) & (tokens < count)
    is_number = known & (state.numbers[tokens.long().clamp(0, count - 1)] != 0)
    has_onset = (state.params[rows, ONSET] > 0).view(-1, *[1] * (tokens.dim() - 1))
    ids = tokens.to(torch.int32)
    return torch.where(is_number & has_onset, ids | NUMBER_MARK, ids)


def _runs(visible: Tensor, periods: int) -> Tensor:
    """Runs and runs up to numbers of marked tokens, oldest first: int16 [RUNS, periods]."""
    alike = visible.masked_fill(visible < LEAST_ID, NUMBER_MARK)
    runs = [run_lengths(tokens, periods) for tokens in (visible, alike)]
    return torch.stack(runs).to(torch.int16)


def step(state: WindowState, logits: Tensor, inputs: StepInputs, *, width: int) -> None:
    """Bring the windows of a batch up to date, and lower the logits of predicted tokens.

    Args:
        state: the windows; those of the first `prefilled` batch rows are already up to date.
        logits: next-token logits, float32 [batch, V], with any strides; changed in place.
        inputs: the newest tokens.
        width: at least the largest window size among the rows with a penalty, at most the
            capacity.
    """
    rows = _penalised(state, inputs.request_rows)
    if not len(rows):
        return
    owners = inputs.request_rows[rows].long()
    position = inputs.seq_lens[rows].long() - 1
    length = (rows >= inputs.prefilled).long()
    newest = inputs.input_ids[(rows + inputs.offset) * length]  # any token where there is none
    before = WindowView.of(state, owners, position - length, width)
    windows = advance_along(before, marked(state, owners, newest[:, None]), length)
    windows.keep(state, owners, position, new=1)
    _subtract(logits, rows, windows)


def verify(state: WindowState, logits: Tensor, trees: DraftTrees, *, width: int) -> Tensor:
    """Lower the logits of the tokens that the window of each draft node predicts.

    Args:
        state: the windows, which end before the roots and are not changed.
        logits: next-token logits, float32 [batch x nodes, V], with any strides; changed in place.
        trees: the draft trees.
        width: as in `step`.

    Returns:
        What `accept` needs: the tokens on the path of each node, the node's first and the root's
        last, integer [batch, nodes, depth]. Kernels may mark them as `WindowState` does. Columns
        after the root, and rows without the penalty, are undefined.
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
        tokens = marked(state, owners, paths[penalised])
        windows = advance_along(before[tree], tokens, length[penalised])
        rows = (penalised[:, None] * nodes + node).flatten()
        flat = (getattr(windows, field.name).flatten(0, 1) for field in fields(windows))
        _subtract(logits, rows, WindowView(*flat))
    return paths


def accept(state: WindowState, accepted: AcceptedPaths, *, width: int) -> None:
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
    path = marked(state, owners, accepted.paths[trees, node])
    windows = advance_along(before, path, correct + 1)
    windows.keep(state, owners, position + correct, new=int(correct.max()) + 1)


def advance_along(windows: WindowView, path: Tensor, length: Tensor) -> WindowView:
    """The windows after the tokens of a path.

    Args:
        windows: those before it; leading dimensions [...].
        path: its tokens, newest first and marked, integer [..., depth].
        length: how many leading tokens of `path` are valid, integer [...].
    """
    for newer in reversed(range(int(length.max()))):
        further = windows.advance(path[..., newer])
        on_path = newer < length
        windows = WindowView(
            torch.where(on_path[..., None], further.tokens, windows.tokens),
            torch.where(on_path[..., None], further.run, windows.run),
            torch.where(on_path[..., None], further.alike, windows.alike),
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
    subtract_savings(logits, rows, windows.ids, savings)
