"""The whole history of a request row: the layout that its penalties and the kernels share.

The penalties of `fields.histories` depend on all of a request's tokens, whereas the LZ penalty
only sees a window. A history stores the distinct tokens with their counts. For penalties that match
n-grams, it also stores which token is at which position. Only the tables of sequence breakers are
as wide as the vocabulary; there is one table for each list of breakers in use.

All memory is reserved when a server starts. Each history is one contiguous block, sized for its
own request. Requests wait until there is room for their history (`HistoryRoom`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lz_penalty.fields.histories import COUNTS, MOST_TAILS
from lz_penalty.upload import upload

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    AT,
    TOKENS,
) = range(17)
NUMBERS = 17
# The columns of `HistoryState.strengths`, and the fields that they hold.
FREQUENCY, PRESENCE, REPETITION, DRY_MULTIPLIER, DRY_BASE = range(5)
STRENGTHS = (*COUNTS, "dry_multiplier", "dry_base")
# The rows of a history's distinct tokens, and those of its ring.
TOKEN, COUNT, OUTPUT_COUNT = range(3)
ENTRY, RUN = range(2)

NOWHERE = -1
"""The address of a request row that has no history."""
NO_BREAKER = -(2**30)
"""The position of the last sequence breaker if there was none."""
EVERYTHING = 2**30
"""A window of this many newest tokens covers any history."""

LONGEST_TAIL = 20
"""The most tokens after the first one of a sequence breaker; llama.cpp has the same limit."""
LARGEST_CHANGE = 1e29
"""The largest change that DRY or a `logit_bias` may make to a logit. It keeps the logits finite in
float32 when they are divided by the smallest temperature that is not greedy (1e-6), and above the
-1e30 that SGLANG_SANITIZE_NAN_LOGITS substitutes for logits masked by a grammar."""
SPARE = 64
"""Room for tokens sampled past the end of an output, and for a breaker before a window."""
MOVED_AT_ONCE = 2**20
"""How many words of a history are copied at a time when it moves, to bound temporary memory."""


class HistorySize(NamedTuple):
    """How much a history stores.

    Attributes:
        tokens: the largest number of distinct tokens; 0 if no penalty counts or matches.
        ring: how many of the newest positions it stores.
        periods: the longest period whose run length it stores.
        ids: the number of tokens that stop the request, plus those that n-grams may repeat.
    """

    tokens: int
    ring: int
    periods: int
    ids: int

    @property
    def stored(self) -> int:
        """Words of 4 bytes, without the scratch space."""
        return 3 * self.tokens + 2 * self.ring + self.ids

    def words(self, nodes: int) -> int:
        """Words of 4 bytes in total; `nodes` as in `HistoryRoom`."""
        return self.stored + (nodes * (self.tokens + nodes) if self.periods else 0)


class HistoryNeed(NamedTuple):
    """The need of a request in a `HistoryRoom`.

    Attributes:
        words: its memory in words of 4 bytes; 0 without a history.
        breakers: its list of sequence breakers; None if it has none.
    """

    words: int = 0
    breakers: tuple[str, ...] | None = None


@dataclass(slots=True)
class HistoryRoom:
    """The memory that a server has reserved for histories.

    Attributes:
        vocab_size: V.
        words: the total for all histories, in words of 4 bytes.
        nodes: the largest number of logits rows of a request in one step, and of tokens on a path
            of them. Each row needs scratch space. It is 0 on a CPU, which handles rows in turn.
        lists: how many lists of sequence breakers may be in use at once.
        logits: the largest number of logits rows of a batch in one step.
        holders: the requests that have room, by identity, and how much. A request loses its room
            when its row becomes free.
        is_prepared: whether the texts of the tokens have been read.
    """

    vocab_size: int
    words: int = 2**24
    nodes: int = 1
    lists: int = 16
    logits: int = 0
    holders: dict[int, tuple[Any, HistoryNeed]] = field(default_factory=dict)
    is_prepared: bool = False

    @property
    def bytes(self) -> int:
        """The memory for the histories, the tables of breakers and the bits of forbidden tokens."""
        tables = self.lists * (8 * self.vocab_size + 4 * MOST_TAILS * (1 + LONGEST_TAIL))
        return 4 * self.words + tables + 4 * self.logits * self.words_of_bits

    @property
    def words_of_bits(self) -> int:
        """How many words hold one bit for each token of the vocabulary."""
        return -(-self.vocab_size // 32)


@dataclass(slots=True)
class HistorySeed:
    """The initial history of a row, built whole on the host at prefill.

    Attributes:
        row: the request row.
        at: where its memory begins.
        tokens: all tokens so far, oldest first, int64; empty if no penalty counts or matches.
        numbers: int32 [NUMBERS], as `HistoryState.numbers`; AT is set from `at`.
        strengths: float32, as `HistoryState.strengths`.
        ids: the tokens that stop the request, then those that n-grams may repeat, int32.
        words: the size of its memory in words of 4 bytes.
    """

    row: int
    at: int
    tokens: NDArray[np.int64]
    numbers: NDArray[np.int32]
    strengths: NDArray[np.float32]
    ids: NDArray[np.int32]
    words: int = 0


@dataclass(slots=True)
class BreakerTables:
    """Which tokens begin, form or end DRY's sequence breakers, for each list of breakers.

    Attributes:
        mask: int64 [lists, V]. Bit 0 of a token: it breaks a sequence by itself. Bit 1 + s: a
            breaker of several tokens begins with it and continues with tail s.
        tails: int32 [lists, MOST_TAILS, 1 + LONGEST_TAIL]: the length of each tail, then its
            tokens, oldest first; unused tails have length 0.
    """

    mask: Tensor
    tails: Tensor

    @classmethod
    def reserve(cls, lists: int, vocab_size: int, device: torch.device | str) -> BreakerTables:
        """Allocate tables for this many lists."""
        return cls(
            torch.zeros(lists, vocab_size, dtype=torch.int64, device=device),
            torch.zeros(lists, MOST_TAILS, 1 + LONGEST_TAIL, dtype=torch.int32, device=device),
        )

    def write(self, number: int, mask: NDArray[np.int64], tails: NDArray[np.int32]) -> None:
        """Store the tables of one list under its number."""
        for own, given in ((self.mask, mask), (self.tails, tails)):
            own[number] = upload(torch.from_numpy(given), own.device)


class HistoryState:
    """Memory and parameters of the histories; nothing moves when a batch changes.

    A history is one block of `memory` that begins at AT and contains, in this order:

    - int32 [3, TOKENS]: each distinct token of the request, in any order; how often it occurs in
      the newest LAST_N tokens; and how often in those of them that are output.
    - int32 [2, RING]: the index of the distinct token at position p, in column p % RING; and the
      run length of period k, in column k (docs/SPEC.md section 9, without an upper limit).
    - int32 [STOPS + WHITELISTED]: token ids.
    - scratch space if PERIODS is not 0, all 0 between two steps: int32 [nodes, distinct tokens],
      the longest repeat that each token would extend.

    Attributes:
        room: the memory available.
        memory: int32 [words].
        numbers: int32 [rows, NUMBERS], one row per request row. LENGTH: how many distinct tokens.
            RING: 0 if only MIN_NEW_TOKENS is in use, so that no tokens are stored. PERIODS: the
            longest period whose run is stored, below RING; 0 if no n-grams are matched.
            FIRST_OUTPUT: the position of the first sampled token. NGRAM_SIZE and DRY_LAST_N: 0
            where those penalties are off. BREAKERS: the row of the tables, -1 for none.
            BREAK_HEAD, BREAK_END: where the newest sequence breaker begins and ends. STOPS,
            WHITELISTED: how many ids of each kind there are. AT: `NOWHERE` for a row without a
            history, whose other numbers are meaningless. TOKENS: the most distinct tokens.
        strengths: float32 [rows, len(STRENGTHS)].
        breakers: the tables of DRY's sequence breakers.
        host_breakers: a copy of them on the host, for prompts.
        forbidden: int32 [rows of logits, ceil(V / 32)], a bit for each token that is forbidden in
            that row; all 0 between two steps.
    """

    def __init__(
        self, rows: int, device: torch.device | str, room: HistoryRoom, pinned: bool = False
    ) -> None:
        """Allocate for `rows` request rows."""
        where: dict[str, Any] = {"dtype": torch.int32, "device": device, "pin_memory": pinned}
        self.room = room
        self.device = torch.device(device)
        self.memory = torch.zeros(room.words, **where)
        self.numbers = torch.full((rows, NUMBERS), NOWHERE, **where)
        self.strengths = torch.zeros(rows, len(STRENGTHS), **(where | {"dtype": torch.float32}))
        self.breakers = BreakerTables.reserve(room.lists, room.vocab_size, device)
        self.host_breakers = self.breakers
        if self.device.type != "cpu":
            self.host_breakers = BreakerTables.reserve(room.lists, room.vocab_size, "cpu")
        self.forbidden = torch.zeros(room.logits, room.words_of_bits, **where)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The arrays that numba needs, as numpy views; CPU only."""
        tensors = (
            *(self.memory, self.numbers, self.strengths),
            *(self.breakers.mask, self.breakers.tails),
        )
        return tuple(map(torch.Tensor.numpy, tensors))

    def clear(self, rows: Sequence[int]) -> None:
        """Let request rows have no history."""
        # An assignment through the index would wait for the device.
        self.numbers[:, AT].index_fill_(0, upload(torch.tensor(rows), self.device), NOWHERE)

    def write_tables(self, number: int, mask: NDArray[np.int64], tails: NDArray[np.int32]) -> None:
        """Store the tables of a list of breakers under its number."""
        self.breakers.write(number, mask, tails)
        if self.host_breakers is not self.breakers:
            self.host_breakers.write(number, mask, tails)

    def move(self, moves: Sequence[tuple[int, int, int, int]]) -> None:
        """Move histories to lower addresses.

        Args:
            moves: request row, old address, new address and words, in order of address.
        """
        for row, old, new, words in moves:
            for start in range(0, words, MOVED_AT_ONCE):
                end = min(start + MOVED_AT_ONCE, words)
                piece = self.memory[old + start : old + end].clone()
                self.memory[new + start : new + end] = piece
            self.numbers[row, AT].fill_(new)
