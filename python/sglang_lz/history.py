"""The whole history of a request row: the layout that its penalties and the kernels share.

The penalties of `sglang_lz.penalties` see all of a request's tokens, where the LZ penalty sees a
window. What is kept is the distinct tokens, each with its counts, and for those penalties that
match n-grams which of them stood where. Nothing here is as wide as the vocabulary but the tables
of sequence breakers, one for each list of breakers in use.

A row gets a *slot* here when a request with such a penalty takes it. Slots are as long as the
longest of those requests may become; both numbers double when they run out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The columns of `HistoryState.numbers`.
(
    LENGTH,
    RING,
    PERIODS,
    FIRST_OUTPUT,
    LAST_N,
    MIN_NEW_TOKENS,
    NGRAM_SIZE,
    NGRAM_WINDOW,
    DRY_ALLOWED_LENGTH,
    DRY_LAST_N,
    BREAKERS,
    BREAK_HEAD,
    BREAK_END,
    STOPS,
    WHITELISTED,
) = range(15)
NUMBERS = 15
# The columns of `HistoryState.strengths`.
FREQUENCY, PRESENCE, REPETITION, DRY_MULTIPLIER, DRY_BASE = range(5)
STRENGTHS = 5
# The rows of a slot of `HistoryState.distinct`, and of `HistoryState.ring`.
TOKEN, COUNT, OUTPUT_COUNT = range(3)
ENTRY, RUN = range(2)

NO_SLOT = -1
NO_BREAKER = -(2**30)
"""Where a request without a sequence breaker had its last one."""
EVERYTHING = 2**30
"""A number of newest tokens that is never reached."""

MOST_TAILS = 62
"""The bits of a table's mask, less the sign and the one for breakers of a single token."""
LONGEST_TAIL = 20
"""Tokens behind the first of a sequence breaker; llama.cpp cuts them off there, too."""
SPARE = 64
"""Room for what is sampled behind the end of an output, and for a breaker before a window."""


@dataclass(slots=True)
class HistorySeed:
    """What a row gets when its history arrives whole, at prefill. On the host.

    Attributes:
        row: the request row.
        slot: its slot; `NO_SLOT` to give the row up, and then the rest means nothing.
        tokens: all tokens so far, oldest first, int64; empty if no penalty counts or matches.
        numbers: int32 [NUMBERS], as `HistoryState.numbers`.
        strengths: float32 [STRENGTHS], as `HistoryState.strengths`.
        ids: the tokens that stop the request, then those that n-grams may repeat, int32.
    """

    row: int
    slot: int
    tokens: NDArray[np.int64]
    numbers: NDArray[np.int32]
    strengths: NDArray[np.float32]
    ids: NDArray[np.int32]


@dataclass(slots=True)
class BreakerTables:
    """Which tokens begin, are and end the sequence breakers of DRY, for each list of them in use.

    Attributes:
        mask: int64 [lists, V]. Bit 0 of a token: it breaks a sequence alone; bit 1 + s: a breaker
            of several tokens begins with it and goes on with tail s.
        tails: int32 [lists, MOST_TAILS, 1 + LONGEST_TAIL]: the length of each tail and its tokens,
            oldest first; length 0 behind the last one.
    """

    mask: Tensor
    tails: Tensor

    @classmethod
    def empty(cls, device: torch.device | str) -> BreakerTables:
        """No list."""
        return cls(
            torch.zeros(0, 1, dtype=torch.int64, device=device),
            torch.zeros(0, MOST_TAILS, 1 + LONGEST_TAIL, dtype=torch.int32, device=device),
        )

    def to(self, device: torch.device) -> BreakerTables:
        """The same on another device."""
        is_pinned = device.type == "cuda"  # so that the host does not wait
        tensors = (t.pin_memory() if is_pinned else t for t in (self.mask, self.tails))
        return BreakerTables(*(t.to(device, non_blocking=True) for t in tensors))


class HistoryState:
    """Distinct tokens, positions and parameters of each slot; slots never move when a batch does.

    Attributes:
        tokens: the most distinct tokens of a slot.
        reach: how many of the newest positions a slot holds.
        slot: the slot of each request row, int32 [rows]; `NO_SLOT` for none.
        distinct: int32 [slots, 3, tokens]: each token that the request has, in any order; how often
            it stands in the newest LAST_N tokens; and how often in those of them that are output.
        ring: int32 [slots, 2, reach]: which of the distinct tokens stands at position p, in column
            p % RING; and the run length of period k, in column k (docs/SPEC.md section 9, without
            an upper end).
        numbers: int32 [slots, NUMBERS]. LENGTH: how many distinct tokens. RING: the columns that
            the slot uses; 0 where nothing but MIN_NEW_TOKENS is asked for, and no token kept.
            PERIODS: the longest period whose run is kept; 0 where no n-gram is matched.
            FIRST_OUTPUT: the position of the first sampled token. NGRAM_SIZE and DRY_LAST_N: 0
            where those penalties are off. BREAKERS: the row of the tables, -1 for none.
            BREAK_HEAD, BREAK_END: where the newest sequence breaker begins and ends. STOPS,
            WHITELISTED: how many `ids` are of which kind.
        strengths: float32 [slots, STRENGTHS].
        ids: int32 [slots, ids].
        breakers: the tables of DRY's sequence breakers.
        host_breakers: the same on the host, for prompts.
        matches: whether any slot has ever matched n-grams; without, there is no scratch.
        scratch: int32 [rows, 2, distinct], all 0 between two steps.
    """

    def __init__(
        self,
        rows: int,
        device: torch.device | str,
        *,
        slots: int = 1,
        tokens: int = 1,
        reach: int = 1,
        ids: int = 1,
        pinned: bool = False,
    ) -> None:
        """Allocate `slots` slots for `rows` request rows."""
        where: dict[str, Any] = {"dtype": torch.int32, "device": device, "pin_memory": pinned}
        self.device = torch.device(device)
        self.slot = torch.full((rows,), NO_SLOT, **where)
        self.distinct = torch.zeros(slots, 3, tokens, **where)
        self.ring = torch.zeros(slots, 2, reach, **where)
        self.numbers = torch.zeros(slots, NUMBERS, **where)
        self.strengths = torch.zeros(slots, STRENGTHS, **(where | {"dtype": torch.float32}))
        self.ids = torch.zeros(slots, ids, **where)
        self.breakers = BreakerTables.empty(device)
        self.host_breakers = BreakerTables.empty("cpu")
        self.matches = False
        self.scratch = torch.zeros(0, 2, 1, dtype=torch.int32, device=device)

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.numbers)

    @property
    def tokens(self) -> int:
        """The most distinct tokens of a slot."""
        return self.distinct.shape[2]

    @property
    def reach(self) -> int:
        """How many of the newest positions a slot holds."""
        return self.ring.shape[2]

    def bytes_of_slot(self) -> int:
        """Device memory of a slot, in bytes: 12 a distinct token, 8 a position that it reaches."""
        tensors = (self.distinct, self.ring, self.numbers, self.strengths, self.ids)
        return sum(tensor[0].nbytes for tensor in tensors)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What numba needs of it, as numpy sees it; only on a CPU."""
        tensors = (
            *(self.slot, self.distinct, self.ring, self.numbers, self.strengths, self.ids),
            *(self.breakers.mask, self.breakers.tails),
        )
        return tuple(map(torch.Tensor.numpy, tensors))

    def grow(self, *, slots: int, tokens: int, reach: int, ids: int) -> None:
        """Have room for at least so much; what is there stays. Runs where steps run."""
        self.distinct = _grown(self.distinct, slots, tokens)
        self.ids = _grown(self.ids, slots, ids)
        self.numbers = _grown(self.numbers, slots, NUMBERS)
        self.strengths = _grown(self.strengths, slots, STRENGTHS)
        self.ring = _grown(self.ring, slots, reach)

    def rows_of_scratch(self, rows: int, distinct: int) -> Tensor:
        """Scratch of at least so many rows and columns, all 0; none where nothing matches."""
        if not self.matches:
            return self.scratch
        if self.scratch.shape[0] < rows or self.scratch.shape[2] < distinct:
            shape = (
                max(rows, self.scratch.shape[0]),
                2,
                max(distinct, self.scratch.shape[2]),
            )
            self.scratch = torch.zeros(shape, dtype=torch.int32, device=self.device)
        return self.scratch


def power_of_two(least: int) -> int:
    """The smallest power of two that is at least so much."""
    return 1 << max(least - 1, 0).bit_length()


def _grown(tensor: Tensor, slots: int, columns: int) -> Tensor:
    slots, columns = max(slots, len(tensor)), max(columns, tensor.shape[-1])
    if (slots, columns) == (len(tensor), tensor.shape[-1]):
        return tensor
    grown = tensor.new_zeros((slots, *tensor.shape[1:-1], columns))
    grown[: len(tensor), ..., : tensor.shape[-1]] = tensor
    return grown
