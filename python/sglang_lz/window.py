"""The window of every request row, on the device, addressed by token position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class WindowView:
    """The windows of some rows, newest first: column `k` is the token at distance `k + 1`.

    Attributes:
        tokens: int32 [rows, width].
        match: match length of each source, int32 [rows, width].
        length: seen columns, int64 [rows].
    """

    tokens: Tensor
    match: Tensor
    length: Tensor


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
    step before in O(window): a source matches one token longer if its predecessor matched, and
    not at all if its own token differs from the newest.
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
        token = token.to(torch.int32)
        self.tokens[rows, position % self.capacity] = token
        column = torch.arange(width, device=rows.device)
        slot = (position[:, None] - column) % self.capacity
        row = rows[:, None]
        before = self.match[(position[:, None] - 1) % 2, row, (slot - 1) % self.capacity]
        length = self.seen(rows, position)[:, None]
        longest = torch.minimum(self.buffer_size[row], length - column)
        grows = (self.tokens[row, slot] == token[:, None]) & (column >= 1) & (column < length)
        match = torch.minimum(before + 1, longest).masked_fill(~grows, 0)
        self.match[position[:, None] % 2, row, slot] = match.to(torch.int32)

    def view(self, rows: Tensor, position: Tensor, width: int) -> WindowView:
        """The windows of `rows` whose newest tokens stand at `position`; arguments as `append`."""
        slot = (position[:, None] - torch.arange(width, device=rows.device)) % self.capacity
        row = rows[:, None]
        return WindowView(
            tokens=self.tokens[row, slot],
            match=self.match[position[:, None] % 2, row, slot],
            length=self.seen(rows, position),
        )

    def seen(self, rows: Tensor, position: Tensor) -> Tensor:
        """How many tokens of each row are in its window, int64 [rows]."""
        return torch.minimum(position + 1 - self.first_visible[rows], self.window_size[rows])
