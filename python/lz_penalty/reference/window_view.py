"""A batch of windows, newest token first, and how each further token changes them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lz_penalty.window import (
    ALIKE,
    BUFFER_SIZE,
    COVERED,
    EXACT,
    FIRST_VISIBLE,
    LEAST_COVER,
    LEAST_ID,
    LONGEST_RUN,
    LOOPED,
    MEMORY,
    MEMORY_STEPS,
    NUMBER_MARK,
    NUMBERS_TIMES,
    ONSET,
    PERIOD_TIMES,
    REMEMBERED_RUN,
    REMEMBERED_STRENGTH,
    SHORTEST_LOOP,
    SHORTEST_LOOP_OF_ONE,
    TOO_MANY_NUMBERS,
    WINDOW_SIZE,
    WindowState,
)


@dataclass(slots=True)
class WindowView:
    """A batch of windows, newest first: column `k` is the token at distance `k + 1`.

    The symbols are those of docs/SPEC.md.

    Attributes:
        tokens: int32 [..., width], marked as in `WindowState`; `...` is [rows], or [trees, nodes]
            for draft trees.
        run: run_k in column k, int16 [..., width]; 0 in column 0, and where the two tokens that it
            compares are not both visible.
        alike: run'_k or TOO_MANY_NUMBERS, likewise.
        visible: the number of visible tokens, those before the window included, int64 [...].
        params: float32 [..., PARAMS], as `WindowState.params`.
        cover: int64 [..., COVER], as `WindowState.cover`.
    """

    tokens: Tensor
    run: Tensor
    alike: Tensor
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
        run, alike = state.run[rows, :, :width].unbind(1)
        view = cls(tokens, run, alike, visible, params, state.cover[rows])
        return view._without_unknown()

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
        return self._copies(self.following)

    @property
    def copies_alike(self) -> Tensor:
        """c'_p, the copies up to numbers, by the column of p, int32 [..., width]."""
        return self._copies(self._following_alike)

    @property
    def ids(self) -> Tensor:
        """The tokens without their marks, int32 [..., width]."""
        return torch.where(self._is_number, self.tokens ^ NUMBER_MARK, self.tokens)

    @property
    def strength(self) -> Tensor:
        """g_p of docs/SPEC.md section 9, by the column of p, int32 [..., width]; 1 for n = 0."""
        onset = self.params[..., ONSET, None].int()
        grown = (self.copies - onset + 1).clamp_min(0)
        grown_alike = (self.copies_alike - onset).clamp_min(0).masked_fill(self._is_number, 0)
        has_memory = self.cover[..., MEMORY, None] > 0
        remembered = has_memory & (self.following >= REMEMBERED_RUN)
        strength = torch.maximum(grown, REMEMBERED_STRENGTH * remembered.int())
        return torch.where(onset > 0, strength.maximum(grown_alike), 1)

    def notice(self) -> WindowView:
        """The same windows, with the word M and the counter of the memory after this step, and with
        TOO_MANY_NUMBERS for the runs up to numbers whose copies do not count."""
        known = self._without_many_numbers()
        onset = self.params[..., ONSET, None]
        looped = (self.copies >= onset) * (self.following + self._distance())
        looped_alike = known._following_alike + self._distance()
        looped_alike = (known.copies_alike >= onset + 1) * looped_alike
        reach = (onset > 0) * looped.maximum(looped_alike)
        reach = reach.amax(dim=-1).clamp_max(COVERED)
        newest = torch.where(reach < COVERED, (1 << reach % COVERED) - 1, -1)
        word = (self.cover[..., LOOPED] << 1) | newest
        bit = torch.arange(COVERED, device=word.device)
        count = ((word[..., None] >> bit) & 1).sum(dim=-1)
        before = self.cover[..., MEMORY]
        memory = torch.where(count >= LEAST_COVER, MEMORY_STEPS, (before - 1).clamp_min(0))
        cover = torch.stack([word, memory], dim=-1)
        return replace(known, cover=cover)

    @property
    def _is_number(self) -> Tensor:
        """Which tokens are marked, bool [..., width]."""
        return self.tokens < LEAST_ID

    @property
    def _following_alike(self) -> Tensor:
        """run'_k, as `following`."""
        return torch.nn.functional.pad(self.alike[..., 1:], (0, 1)).int()

    def _copies(self, following: Tensor) -> Tensor:
        """The copies of runs, 0 where these are too short for a loop, int32 [..., width]."""
        period = self._distance()
        return torch.where(self._is_loop(following, period), following // period, 0).int()

    @staticmethod
    def _is_loop(run: Tensor, period: Tensor) -> Tensor:
        """Whether runs have at least s_k tokens, bool [..., width]."""
        return run >= torch.where(period == 1, SHORTEST_LOOP_OF_ONE, SHORTEST_LOOP)

    def _without_many_numbers(self) -> WindowView:
        column = torch.arange(self.tokens.shape[-1], device=self.tokens.device)
        numbers = torch.nn.functional.pad(self._is_number.cumsum(-1)[..., :-1], (1, 0))
        has_many = NUMBERS_TIMES * numbers > PERIOD_TIMES * column
        has_enough = self._is_loop(self.alike, column)
        has_enough &= self.alike >= (self.params[..., ONSET, None] + 1) * column
        alike = self.alike.masked_fill(has_enough & has_many, TOO_MANY_NUMBERS)
        return replace(self, alike=alike)

    def _without_unknown(self) -> WindowView:
        """The same windows, with runs of 0 for periods that are not known."""
        unknown = ~self.periods()
        self.run, self.alike = (x.masked_fill(unknown, 0) for x in (self.run, self.alike))
        return self

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
        state.run[rows, EXACT, : self.run.shape[1]] = self.run
        state.run[rows, ALIKE, : self.run.shape[1]] = self.alike
        state.cover[rows] = self.cover

    def __getitem__(self, index: Any) -> WindowView:
        """The windows at an index of the leading dimensions."""
        return WindowView(*(getattr(self, field.name)[index] for field in fields(self)))

    def advance(self, token: Tensor) -> WindowView:
        """The windows after one more token, integer [...], marked as in `WindowState`.

        run_k grows by one if the token k before the newest equals it, and becomes 0 otherwise. So a
        step takes O(W), however often the tokens repeat. run'_k does the same for tokens that are
        alike.
        """
        newest = token.to(torch.int32).unsqueeze(-1)
        tokens = torch.cat([newest, self.tokens[..., :-1]], dim=-1)
        equal = tokens == newest
        alike = equal | ((tokens < LEAST_ID) & (newest < LEAST_ID))
        longer, longer_alike = (
            (run.int() + 1).clamp_max(LONGEST_RUN).to(torch.int16) for run in (self.run, self.alike)
        )
        longer_alike = torch.where(self.alike < 0, self.alike, longer_alike)
        runs = longer * equal, longer_alike * alike
        after = WindowView(tokens, *runs, self.visible + 1, self.params, self.cover)
        return after._without_unknown().notice()
