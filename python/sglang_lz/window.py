"""The window of every request row: the layout that the penalizer and the kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

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

    The position of the newest token (0-based, prompt included) is an argument of each step.

    Attributes:
        capacity: the largest window, in tokens.
        tokens: the token of position p in column p % capacity, int32 [rows, capacity].
        match: the match length of the source at distance k + 1 in column k, int16 [rows, capacity];
            past the seen columns it holds what an earlier window left.
        params: float32 [rows, PARAMS]: penalty, window size, buffer size, first visible position,
            1 for the `rate` cost. A row whose penalty is 0 is skipped. (Positions below 2**24 are
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
