"""Some windows at once, newest token first, and how one more token changes them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sglang_lz.window import BUFFER_SIZE, FIRST_VISIBLE, WINDOW_SIZE, WindowState


@dataclass(slots=True)
class WindowView:
    """Some windows, newest first: column `k` is the token at distance `k + 1`.

    Attributes:
        tokens: int32 [..., width]; `...` is [rows], or [trees, nodes] of draft trees.
        match: match length of each source, int16 [..., width]; 0 from column `length` on.
        length: seen columns, int64 [...].
        params: float32 [..., PARAMS], as `WindowState.params`.
    """

    tokens: Tensor
    match: Tensor
    length: Tensor
    params: Tensor

    @classmethod
    def of(cls, state: WindowState, rows: Tensor, position: Tensor, width: int) -> WindowView:
        """The windows of request rows.

        Args:
            state: where they are kept.
            rows: int64 [rows].
            position: where their newest tokens stand, int64 [rows].
            width: at least the largest window size among the rows, at most the capacity.
        """
        params = state.params[rows]
        column = torch.arange(width, device=rows.device)
        slot = (position[:, None] - column) % state.capacity
        seen = position + 1 - params[:, FIRST_VISIBLE].long()
        length = torch.minimum(seen, params[:, WINDOW_SIZE].long())
        tokens = state.tokens.index_select(0, rows).gather(1, slot)
        match = state.match[:, :width].index_select(0, rows)
        match = match.masked_fill_(column >= length[:, None], 0)
        return cls(tokens, match, length, params)

    def keep(self, state: WindowState, rows: Tensor, position: Tensor, new: int) -> None:
        """Write these windows [rows, width] back; arguments as `of`.

        Args:
            new: how many of their newest tokens at most `state` does not hold yet.
        """
        column = torch.arange(min(new, self.tokens.shape[1]), device=rows.device)
        slot = (position[:, None] - column) % state.capacity
        state.tokens[rows[:, None], slot] = self.tokens[:, : len(column)]
        state.match[rows, : self.match.shape[1]] = self.match

    def __getitem__(self, index: Any) -> WindowView:
        """The windows at an index of the leading dimensions."""
        return WindowView(*(getattr(self, field.name)[index] for field in fields(self)))

    def advance(self, token: Tensor) -> WindowView:
        """The windows after one more token, integer [...].

        In the new window column `k` is a source whose predecessor was column `k` of the old one: it
        matches one token longer if that matched, and not at all if its own token differs from
        the newest. So a step costs O(window), whatever repeats.
        """
        newest = token.to(torch.int32).unsqueeze(-1)
        tokens = torch.cat([newest, self.tokens[..., :-1]], dim=-1)
        length = torch.minimum(self.length + 1, self.params[..., WINDOW_SIZE].long())
        column = torch.arange(tokens.shape[-1], dtype=torch.int16, device=tokens.device)
        longest = length.to(torch.int16).unsqueeze(-1) - column
        longest = longest.minimum(self.params[..., BUFFER_SIZE, None].to(torch.int16)).clamp_min(0)
        match = (self.match + 1).minimum(longest) * (tokens == newest)
        match[..., 0] = 0
        return WindowView(tokens, match, length, self.params)
