"""The window of every request row, on the device."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The columns of `WindowState.params`.
PENALTY, WINDOW_SIZE, BUFFER_SIZE, FIRST_VISIBLE, IS_RATE = range(5)
PARAMS = 5


def bytes_of_row(capacity: int) -> int:
    """Device memory of a request row, in bytes, with windows of at most `capacity` tokens."""
    token, match, param = torch.int32.itemsize, torch.int16.itemsize, torch.float32.itemsize
    return capacity * (token + match) + PARAMS * param


@dataclass(slots=True)
class Seed:
    """What rows get when their histories arrive whole, at prefill. On the host, one row each.

    Attributes:
        rows: request rows, int64 [rows], distinct.
        position: where the newest token of each stands, int64 [rows].
        end: where its tokens end in `history`, int64 [rows].
        history: the seen tokens of all rows, one row after the other, oldest first, int64.
        params: float32 [rows, PARAMS], as `WindowState.params`; all 0 to give a row up.
    """

    rows: NDArray[np.int64]
    position: NDArray[np.int64]
    end: NDArray[np.int64]
    history: NDArray[np.int64]
    params: NDArray[np.float32]


class WindowState:
    """Tokens, match lengths and parameters of each request row; rows never move when a batch does.

    The newest token's position (0-based, prompt included) is not kept: whoever steps knows it.

    Attributes:
        capacity: the largest window, in tokens.
        tokens: the token of position p in column p % capacity, int32 [rows, capacity].
        match: the match length of the source at distance k + 1 in column k, int16 [rows, capacity];
            past the seen columns what an earlier window left.
        params: float32 [rows, PARAMS]: penalty, window size, buffer size, first visible position,
            1 for the `rate` cost. A row whose penalty is 0 is nobody's. (Positions below 2**24 are
            exact.)
        arrays: these three as numpy sees them; none on a device.
    """

    def __init__(
        self, rows: int, capacity: int, device: torch.device | str, pinned: bool = False
    ) -> None:
        """Allocate for `rows` request rows and windows of at most `capacity` tokens."""
        self.capacity = capacity
        where: dict[str, Any] = {"device": device, "pin_memory": pinned}
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int32, **where)
        self.match = torch.zeros(rows, capacity, dtype=torch.int16, **where)
        self.params = torch.zeros(rows, PARAMS, dtype=torch.float32, **where)
        tensors = (self.tokens, self.match, self.params)
        self.arrays = tuple(map(torch.Tensor.numpy, tensors)) if self.tokens.is_cpu else ()


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
