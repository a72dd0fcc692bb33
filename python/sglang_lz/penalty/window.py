"""The window of every request row: the layout that the penalizer and the kernels share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The columns of `WindowState.params`.
PENALTY, WINDOW_SIZE, BUFFER_SIZE, FIRST_VISIBLE, IS_RATE, ONSET = range(6)
PARAMS = 6

SHORTEST_LOOP = 16
"""A run of fewer tokens does not count as a loop (docs/SPEC.md section 9)."""
LONGEST_RUN = 32767
"""Runs saturate at this value."""


def bytes_of_row(capacity: int) -> int:
    """Device memory of a request row, in bytes, with windows of at most `capacity` tokens."""
    token, run, param = torch.int32.itemsize, torch.int16.itemsize, torch.float32.itemsize
    return capacity * (token + run) + PARAMS * param


@dataclass(slots=True)
class Seed:
    """The initial state of rows, built whole on the host at prefill, with one entry per row.

    Attributes:
        rows: request rows, int64 [rows], distinct.
        position: the position of the newest token of each, int64 [rows].
        end: where the tokens of each end in `history`, int64 [rows].
        history: the visible tokens of all rows, one row after the other, oldest first, int64. For a
            row without an onset, the tokens of its window are enough.
        sampled: how many tokens of each row's history precede its first sampled one, int64 [rows].
        params: float32 [rows, PARAMS], as `WindowState.params`; all 0 to clear a row.
    """

    rows: NDArray[np.int64]
    position: NDArray[np.int64]
    end: NDArray[np.int64]
    history: NDArray[np.int64]
    sampled: NDArray[np.int64]
    params: NDArray[np.float32]


class WindowState:
    """Tokens, run lengths and parameters of each request row; rows do not move when a batch does.

    The position of the newest token (0-based, prompt included) is an argument of each step.

    Attributes:
        capacity: the largest window, in tokens.
        tokens: the token at position p in column p % capacity, int32 [rows, capacity].
        run: the run length of period k in column k (docs/SPEC.md section 9), int16 [rows,
            capacity]. The match length of the source there is the same run, limited by buffer and
            window. Column 0 and the columns past the visible tokens are undefined.
        params: float32 [rows, PARAMS]: penalty, window size, buffer size, first visible position,
            1 for the `rate` cost, and the onset, which becomes negative once it is reached. A row
            whose penalty is 0 is skipped. (Positions below 2**24 are exact.)
        arrays: these three as numpy views; empty on a device other than the CPU.
    """

    def __init__(
        self, rows: int, capacity: int, device: torch.device | str, pinned: bool = False
    ) -> None:
        """Allocate for `rows` request rows and windows of at most `capacity` tokens."""
        self.capacity = capacity
        where: dict[str, Any] = {"device": device, "pin_memory": pinned}
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int32, **where)
        self.run = torch.zeros(rows, capacity, dtype=torch.int16, **where)
        self.params = torch.zeros(rows, PARAMS, dtype=torch.float32, **where)
        tensors = (self.tokens, self.run, self.params)
        self.arrays = tuple(map(torch.Tensor.numpy, tensors)) if self.tokens.is_cpu else ()
