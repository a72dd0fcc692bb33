"""The window of every request row: the layout that the penalizer and the kernels share."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lz_penalty.fields.lz import LZParams

# The columns of `WindowState.params`.
PENALTY, WINDOW_SIZE, BUFFER_SIZE, FIRST_VISIBLE, IS_RATE, ONSET = range(6)
PARAMS = 6
# The columns of `WindowState.cover`.
LOOPED, MEMORY = range(2)
COVER = 2

# The planes of `WindowState.run`.
EXACT, ALIKE = range(2)
RUNS = 2

NUMBER_MARK = -(2**31)
"""The bit that marks a stored token as one of N, the numbers of docs/SPEC.md section 9."""
LEAST_ID = -(2**30)
"""The least id of a token. Stored tokens below it are marked."""

# The constants of docs/SPEC.md section 9.
SHORTEST_LOOP, SHORTEST_LOOP_OF_ONE = 24, 16
"""s_k, the shortest run that is a loop, in tokens: for k of 2 or more, and for k = 1."""
LONGEST_RUN = 32767
"""Runs saturate at this value."""
NUMBERS_TIMES, PERIOD_TIMES = 20, 3
"""Copies up to numbers count if 20 z <= 3 k, with z numbers among the newest k tokens."""
TOO_MANY_NUMBERS = -1
"""Stored as run'_k once there are enough copies, but too many numbers. This holds until the run
ends: a token that is alike to the one k before it leaves z as it is."""
COVERED = 64
"""How many of the newest tokens the cover C_t counts."""
LEAST_COVER = 40
"""How many of these must be looped to turn the memory on."""
MEMORY_STEPS = 512
"""For how many steps the memory then stays on."""
REMEMBERED_RUN, REMEMBERED_STRENGTH = 2, 2
"""While the memory is on, g_p is at least this strength where the run has at least this length."""
REPLAYED = MEMORY_STEPS + COVERED
"""The word M and the counter of a row depend only on this many of its newest steps."""


def shortest_loop(period: int) -> int:
    """s_k of docs/SPEC.md section 9: the shortest run of a period that is a loop, in tokens."""
    return SHORTEST_LOOP_OF_ONE if period == 1 else SHORTEST_LOOP


def tokens_to_seed(window_size: int, onset: int) -> int:
    """How many of a row's newest visible tokens determine its state."""
    # Without an onset, no run needs to reach past the window.
    return window_size + (REPLAYED + LONGEST_RUN if onset else 0)


def bytes_of_row(capacity: int) -> int:
    """Device memory of a request row, in bytes, with windows of at most `capacity` tokens."""
    token, run, param = torch.int32.itemsize, torch.int16.itemsize, torch.float32.itemsize
    return capacity * (token + RUNS * run) + PARAMS * param + COVER * torch.int64.itemsize


class StepInputs(NamedTuple):
    """A batch that appends one token to each row, or none where a row was just prefilled.

    Attributes:
        request_rows: the request row of each batch row, integer [rows]; the other tensors may have
            rows of padding after these.
        seq_lens: the number of tokens of each batch row, the newest included, integer [batch].
        input_ids: the newest token of batch row i >= prefilled is at index i + offset, integer.
        prefilled: how many leading batch rows were seeded whole.
        offset: see `input_ids`.
    """

    request_rows: Tensor
    seq_lens: Tensor
    input_ids: Tensor
    prefilled: int
    offset: int


class RowWindow(NamedTuple):
    """The initial state of a request row's window; the defaults clear the row.

    Attributes:
        tokens: the visible tokens, oldest first, as int64; the newest `tokens_to_seed` are enough.
        sampled: how many of them precede the first sampled token.
        length: how many tokens the request has so far, invisible ones included.
        first_visible: the position of the first token that may be visible.
        lz: the request's penalty.
    """

    tokens: array[int] = array("q")
    sampled: int = 0
    length: int = 0
    first_visible: int = 0
    lz: LZParams = LZParams(window_size=0, buffer_size=0)

    @property
    def params(self) -> tuple[float, ...]:
        """The row's columns of `WindowState.params`, in their order."""
        lz = self.lz
        sizes = lz.window_size, lz.buffer_size, self.first_visible
        return lz.penalty, *sizes, lz.cost == "rate", lz.onset


class WindowState:
    """Tokens, run lengths and parameters of each request row; rows do not move when a batch does.

    The position of the newest token (0-based, prompt included) is an argument of each step.

    Attributes:
        capacity: the largest window, in tokens.
        tokens: the token at position p in column p % capacity, int32 [rows, capacity]. In rows with
            an onset, a token of N is stored with NUMBER_MARK.
        run: int16 [rows, RUNS, capacity]: run_k of docs/SPEC.md section 9 in column k, and run'_k,
            the run up to numbers or TOO_MANY_NUMBERS, which only rows with an onset have. run_k is
            also the match length of the source k tokens before the newest, once it is limited to B
            tokens and to the window. Column 0 and the columns past the visible tokens are
            undefined.
        params: float32 [rows, PARAMS]: penalty, window size, buffer size, first visible position,
            1 for the `rate` cost, and the onset. A row whose penalty is 0 is skipped. (Positions
            below 2**24 are exact.)
        cover: int64 [rows, COVER]: a word whose bit i says that the i-th newest token is looped,
            and for how many steps, this one included, the memory is on (docs/SPEC.md section 9).
            Both stay 0 without an onset.
        numbers: 1 for each token of N, uint8 [V]; set by `set_numbers`.
        host_numbers: the same on the host, for seeds.
        arrays: tokens, run, params and cover as numpy views; empty on a device other than the CPU.
    """

    def __init__(
        self, rows: int, capacity: int, device: torch.device | str, vocab_size: int = 0
    ) -> None:
        """Allocate for `rows` request rows and windows of at most `capacity` tokens.

        Tokens from `vocab_size` on are never numbers; nor are others before `set_numbers`.
        """
        self.capacity = capacity
        # Each by itself, so that tools find accesses past its end.
        self.tokens = torch.zeros(rows, capacity, dtype=torch.int32, device=device)
        self.run = torch.zeros(rows, RUNS, capacity, dtype=torch.int16, device=device)
        self.params = torch.zeros(rows, PARAMS, dtype=torch.float32, device=device)
        self.cover = torch.zeros(rows, COVER, dtype=torch.int64, device=device)
        self.host_numbers = np.zeros(max(vocab_size, 1), dtype=np.uint8)
        self.numbers = torch.from_numpy(self.host_numbers).to(device)
        order = (self.tokens, self.run, self.params, self.cover)
        self.arrays = tuple(map(torch.Tensor.numpy, order)) if self.tokens.is_cpu else ()

    def set_numbers(self, numbers: NDArray[np.uint8]) -> None:
        """Set N before the first window is seeded.

        Args:
            numbers: 1 for each token of N, uint8, at most `vocab_size` of them.
        """
        self.host_numbers[: len(numbers)] = numbers
        self.numbers.copy_(torch.from_numpy(self.host_numbers))
