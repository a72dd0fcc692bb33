"""A batch of windows, newest token first, and how each further token changes them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from sglang_lz.penalty.window import (
    BUFFER_SIZE,
    COVERED,
    FIRST_VISIBLE,
    LEAST_COVER,
    LONGEST_RUN,
    LOOPED,
    MEMORY,
    MEMORY_STEPS,
    ONSET,
    REMEMBERED_RUN,
    REMEMBERED_STRENGTH,
    SHORTEST_LOOP,
    SHORTEST_LOOP_OF_ONE,
    WINDOW_SIZE,
    WindowState,
)


@dataclass(slots=True)
class WindowView:
    """A batch of windows, newest first: column `k` is the token at distance `k + 1`.

    The symbols are those of docs/SPEC.md.

    Attributes:
        tokens: int32 [..., width]; `...` is [rows], or [trees, nodes] for draft trees.
        run: run_k in column k, int16 [..., width]; 0 in column 0, and where the two tokens that it
            compares are not both visible.
        visible: the number of visible tokens, those before the window included, int64 [...].
        params: float32 [..., PARAMS], as `WindowState.params`.
        cover: int64 [..., COVER], as `WindowState.cover`.
    """

    tokens: Tensor
    run: Tensor
    visible: Tensor
    params: Tensor
    cover: Tensor

    @classmethod
    def of(cls, state: WindowState, rows: Tensor, position: Tensor, width: int) -> WindowView:
        """The windows of request rows.

        Args:
            state: where they are stored.
            rows: int64 [rows].
            position: the positions of their newest tokens, int64 [rows].
            width: at least the largest window size among the rows, at most the capacity.
        """
        params = state.params[rows]
        column = torch.arange(width, device=rows.device)
        slot = (position[:, None] - column) % state.capacity
        visible = position + 1 - params[:, FIRST_VISIBLE].long()
        tokens = state.tokens.index_select(0, rows).gather(1, slot)
        run = state.run[:, :width].index_select(0, rows)
        view = cls(tokens, run, visible, params, state.cover[rows])
        view.run = run.masked_fill_(~view.periods(), 0)
        return view

    @property
    def length(self) -> Tensor:
        """The number of seen columns, int64 [...]."""
        return torch.minimum(self.visible, self.params[..., WINDOW_SIZE].long())

    def periods(self) -> Tensor:
        """Which columns are periods with known runs, bool [..., width]."""
        column = torch.arange(self.tokens.shape[-1], device=self.tokens.device)
        return (column >= 1) & (column < self.length[..., None])

    @property
    def match(self) -> Tensor:
        """m_j by the column of the source j, int32 [..., width]."""
        column = torch.arange(self.tokens.shape[-1], device=self.tokens.device)
        longest = (self.length[..., None] - column).clamp_min(0)
        longest = longest.minimum(self.params[..., BUFFER_SIZE, None].long())
        return self.run.int().minimum(longest.int())

    @property
    def following(self) -> Tensor:
        """run_k for k = delta_p, by the column of p, int32 [..., width]; 0 at distance W."""
        return torch.nn.functional.pad(self.run[..., 1:], (0, 1)).int()

    @property
    def copies(self) -> Tensor:
        """c_p of docs/SPEC.md section 9, by the column of p, int32 [..., width]."""
        period = self._distance()
        shortest = torch.where(period == 1, SHORTEST_LOOP_OF_ONE, SHORTEST_LOOP)
        following = self.following
        return torch.where(following >= shortest, following // period, 0).int()

    @property
    def strength(self) -> Tensor:
        """g_p of docs/SPEC.md section 9, by the column of p, int32 [..., width]; 1 for n = 0."""
        onset = self.params[..., ONSET, None].int()
        grown = (self.copies - onset + 1).clamp_min(0)
        has_memory = self.cover[..., MEMORY, None] > 0
        remembered = has_memory & (self.following >= REMEMBERED_RUN)
        strength = torch.maximum(grown, REMEMBERED_STRENGTH * remembered.int())
        return torch.where(onset > 0, strength, 1)

    def notice(self) -> WindowView:
        """The same windows, with the word M and the counter of the memory after this step."""
        onset = self.params[..., ONSET, None]
        is_loop = (onset > 0) & (self.copies >= onset)
        reach = (is_loop * (self.following + self._distance())).amax(dim=-1).clamp_max(COVERED)
        newest = torch.where(reach < COVERED, (1 << reach % COVERED) - 1, -1)
        word = (self.cover[..., LOOPED] << 1) | newest
        bit = torch.arange(COVERED, device=word.device)
        count = ((word[..., None] >> bit) & 1).sum(dim=-1)
        before = self.cover[..., MEMORY]
        memory = torch.where(count >= LEAST_COVER, MEMORY_STEPS, (before - 1).clamp_min(0))
        cover = torch.stack([word, memory], dim=-1)
        return WindowView(self.tokens, self.run, self.visible, self.params, cover)

    def _distance(self) -> Tensor:
        return torch.arange(1, self.run.shape[-1] + 1, device=self.run.device)

    def keep(self, state: WindowState, rows: Tensor, position: Tensor, new: int) -> None:
        """Write these windows [rows, width] back; the arguments are those of `of`.

        Args:
            new: the most newest tokens that `state` may not hold yet.
        """
        column = torch.arange(min(new, self.tokens.shape[1]), device=rows.device)
        slot = (position[:, None] - column) % state.capacity
        state.tokens[rows[:, None], slot] = self.tokens[:, : len(column)]
        state.run[rows, : self.run.shape[1]] = self.run
        state.cover[rows] = self.cover

    def __getitem__(self, index: Any) -> WindowView:
        """The windows at an index of the leading dimensions."""
        return WindowView(*(getattr(self, field.name)[index] for field in fields(self)))

    def advance(self, token: Tensor) -> WindowView:
        """The windows after one more token, integer [...].

        run_k grows by one if the token k before the newest equals it, and becomes 0 otherwise. So a
        step takes O(W), however often the tokens repeat.
        """
        newest = token.to(torch.int32).unsqueeze(-1)
        tokens = torch.cat([newest, self.tokens[..., :-1]], dim=-1)
        longer = (self.run.int() + 1).clamp_max(LONGEST_RUN).to(torch.int16)
        run = longer * (tokens == newest)
        after = WindowView(tokens, run, self.visible + 1, self.params, self.cover)
        after.run = after.run.masked_fill(~after.periods(), 0)
        return after.notice()
