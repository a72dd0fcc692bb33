"""The window of every request row, on the device, addressed by token position."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(slots=True)
class WindowView:
    """Some windows, newest first: column `k` is the token at distance `k + 1`.

    Attributes:
        tokens: int32 [..., width]; `...` is [rows], or [trees, nodes] of draft trees.
        match: match length of each source, int32 [..., width].
        length: seen columns, int64 [...].
        window_size: W, int64 [...].
        buffer_size: B, int64 [...].
    """

    tokens: Tensor
    match: Tensor
    length: Tensor
    window_size: Tensor
    buffer_size: Tensor

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
        length = torch.minimum(self.length + 1, self.window_size)
        column = torch.arange(tokens.shape[-1], device=tokens.device)
        seen = length.unsqueeze(-1)
        grows = (tokens == newest) & (column >= 1) & (column < seen)
        longest = torch.minimum(self.buffer_size.unsqueeze(-1), seen - column).to(torch.int32)
        match = torch.minimum(self.match + 1, longest).masked_fill(~grows, 0)
        return WindowView(tokens, match, length, self.window_size, self.buffer_size)


@dataclass(slots=True)
class Seed:
    """What a row needs when its history arrives whole, at prefill. Host tensors, one row each.

    Attributes:
        tokens: int32 [rows, capacity], the token of position p in column p % capacity.
        match: int32 [rows, capacity], laid out alike, for the newest position.
        position: the newest position, int64 [rows].
        params: float32 [rows, 5]: penalty, window size, buffer size, first visible position,
            1 for the `rate` cost.
    """

    tokens: Tensor
    match: Tensor
    position: Tensor
    params: Tensor


class WindowState:
    """Tokens and match lengths of each request row; the newest token's position is the clock.

    The token at position p (0-based, prompt included) stands in column p % capacity, so writing a
    step twice changes nothing and rows never move when a batch does. Match lengths are kept for
    the newest two positions, even and odd, because those of one step follow from those of the
    step before (`WindowView.advance`).
    """

    def __init__(self, rows: int, capacity: int, device: torch.device | str) -> None:
        """Allocate for `rows` request rows and windows of at most `capacity` tokens."""
        self.capacity = capacity
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int32, device=device)
        self.match = torch.zeros(2, rows, capacity, dtype=torch.int32, device=device)
        self.penalty = torch.zeros(rows, dtype=torch.float32, device=device)
        self.window_size = torch.zeros(rows, dtype=torch.int64, device=device)
        self.buffer_size = torch.zeros(rows, dtype=torch.int64, device=device)
        self.first_visible = torch.zeros(rows, dtype=torch.int64, device=device)
        self.is_rate = torch.zeros(rows, dtype=torch.bool, device=device)

    def seed(self, rows: Tensor, seed: Seed) -> None:
        """Give `rows` (int64 [rows], on the device) a new history and its parameters."""
        device = self.tokens.device
        position = seed.position.to(device, non_blocking=True)
        params = seed.params.to(device, non_blocking=True)
        self.tokens[rows] = seed.tokens.to(device, non_blocking=True)
        self.match[position % 2, rows] = seed.match.to(device, non_blocking=True)
        self.penalty[rows] = params[:, 0]
        self.window_size[rows] = params[:, 1].long()
        self.buffer_size[rows] = params[:, 2].long()
        self.first_visible[rows] = params[:, 3].long()
        self.is_rate[rows] = params[:, 4] != 0

    def append(self, rows: Tensor, position: Tensor, token: Tensor, width: int) -> None:
        """Make `token` the newest of each row.

        Args:
            rows: request rows, int64 [rows], distinct.
            position: the token's position, one past the row's newest so far, int64 [rows].
            token: integer [rows].
            width: at least the largest window size among the rows, at most the capacity.
        """
        before = self.view(rows, position - 1, width)
        self.store(rows, position, before.advance(token))

    def store(self, rows: Tensor, position: Tensor, view: WindowView) -> None:
        """Make `view` the windows of `rows`, whose newest tokens then stand at `position`."""
        slot = self._slots(position, view.tokens.shape[1])
        row = rows[:, None]
        self.tokens[row, slot] = view.tokens
        self.match[position[:, None] % 2, row, slot] = view.match

    def view(self, rows: Tensor, position: Tensor, width: int) -> WindowView:
        """The windows of `rows` whose newest tokens stand at `position`; arguments as `append`."""
        slot = self._slots(position, width)
        row = rows[:, None]
        window_size = self.window_size[rows]
        return WindowView(
            tokens=self.tokens[row, slot],
            match=self.match[position[:, None] % 2, row, slot],
            length=torch.minimum(position + 1 - self.first_visible[rows], window_size),
            window_size=window_size,
            buffer_size=self.buffer_size[rows],
        )

    def _slots(self, position: Tensor, width: int) -> Tensor:
        return (position[:, None] - torch.arange(width, device=position.device)) % self.capacity
