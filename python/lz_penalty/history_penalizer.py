"""Which request rows have penalties over their whole history, and where each history is stored.

This is the host side of `lz_penalty.history`. It is independent of upstream's classes;
`sglang_lz.scheduler.sampling` reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from lz_penalty import history
from lz_penalty.fields.histories import COUNTS, NEUTRAL, UPSTREAM, HistoryParams
from lz_penalty.history import (
    EVERYTHING,
    NO_BREAKER,
    NUMBERS,
    SPARE,
    STRENGTHS,
    HistoryNeed,
    HistoryRoom,
    HistorySeed,
    HistorySize,
    HistoryState,
)

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    Tables: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32]]

_DEFAULTS = HistoryParams()


class RowHistory(NamedTuple):
    """The initial state of a request row's penalties.

    Attributes:
        tokens: all of the request's tokens so far, oldest first.
        first_output: the number of prompt tokens among them.
        longest: the largest number of tokens that the request can reach.
        upstream: the values of upstream's fields that are not neutral, at least.
        params: our own fields; None for the defaults.
        stops: the tokens that stop the request, which `min_new_tokens` forbids.
        tables: builds the tables of its sequence breakers (`breakers.tables_of`); None if DRY is
            off or there are no breakers.
    """

    tokens: Sequence[int]
    first_output: int
    longest: int
    upstream: Mapping[str, float] = UPSTREAM
    params: HistoryParams | None = None
    stops: Collection[int] = ()
    tables: Callable[[], Tables] | None = None

    @property
    def counts(self) -> bool:
        """Whether a penalty counts tokens."""
        return any(self.value(name) != NEUTRAL[name] for name in COUNTS)

    def value(self, field: str) -> Any:
        """The value of a request field."""
        if field in UPSTREAM:
            return self.upstream.get(field, UPSTREAM[field])
        return getattr(self.params or _DEFAULTS, field)

    @property
    def breakers(self) -> tuple[str, ...] | None:
        """Its list of sequence breakers; None if DRY is off or there are no breakers."""
        return None if self.tables is None else (self.params or _DEFAULTS).dry_sequence_breakers

    def size(self, vocab_size: int) -> HistorySize:
        """The size of the history that it needs; `vocab_size` is V."""
        params = self.params or _DEFAULTS
        longest = self.longest + SPARE
        last_n = _up_to(params.penalty_last_n)
        window, ngram = _up_to(params.no_repeat_ngram_window), params.no_repeat_ngram_size
        periods = max(
            _up_to(params.dry_penalty_last_n) - 1 if params.has_dry else 0,
            window - ngram + 1 if ngram else 0,
        )
        periods = min(max(periods, 0), longest)
        ids = (len(self.stops) if self.value("min_new_tokens") else 0) + (
            len(params.no_repeat_ngram_whitelist) if ngram else 0
        )
        if not (self.counts or periods):
            return HistorySize(0, 0, 0, ids)
        seen = min(last_n, longest) if self.counts and last_n < EVERYTHING else 0
        tokens = longest
        if tokens > vocab_size:
            known = np.array(self.tokens, dtype=np.int64)
            outside = np.unique(known[(known < 0) | (known >= vocab_size)])
            # Sampled tokens are always in the vocabulary.
            tokens = min(tokens, vocab_size + len(outside))
        return HistorySize(tokens, max(periods, seen) + SPARE, periods, ids)

    def need(self, room: HistoryRoom) -> HistoryNeed:
        """Its need in a room: at least one word."""
        return HistoryNeed(max(self.size(room.vocab_size).words(room.nodes), 1), self.breakers)


@dataclass(slots=True)
class HistoryStep:
    """The changes to make before a step of a batch in which some rows have a history.

    Attributes:
        moves: the arguments of `HistoryState.move`; they are applied first.
        tables: new tables of breakers, each with the number under which to store it.
        cleared: rows that lose their history.
        seeds: the new histories.
        refused: the batch rows whose histories did not fit. They have no penalty.
        forbids: whether any row of the batch may have forbidden tokens.
    """

    moves: list[tuple[int, int, int, int]] = field(default_factory=list)
    tables: list[tuple[int, Tables]] = field(default_factory=list)
    cleared: list[int] = field(default_factory=list)
    seeds: list[HistorySeed] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)
    forbids: bool = False

    @property
    def is_still(self) -> bool:
        """Whether there is nothing to change."""
        return not (self.moves or self.tables or self.cleared or self.seeds or self.refused)


class HistoryPenalizer:
    """The histories of all requests that share one pool of request rows.

    Attributes:
        users: rows that were active when they were last prefilled. While there are none, batches
            skip all work here.
        room: the memory available.
        state: the histories.
    """

    def __init__(
        self, rows: int, device: torch.device | str, kernels: ModuleType, room: HistoryRoom
    ) -> None:
        """Reserve the memory for `rows` request rows.

        Raises:
            RuntimeError: the memory cannot be allocated.
        """
        self.users: set[int] = set()
        self.room = room
        self.state = HistoryState(rows, device, room)
        self._kernels = kernels
        self._generation = np.full(rows, -1)
        self._forbids = np.zeros(rows, dtype=bool)
        # For each row, the address of its history and its size in words, in order of address.
        self._places: dict[int, tuple[int, int]] = {}
        self._end = 0  # of the last history
        # The list of breakers behind each table, and the list that each row uses.
        self._lists: list[tuple[str, ...] | None] = [None] * room.lists
        self._list_of_row: dict[int, tuple[str, ...]] = {}

    def deactivate(self, rows: list[int]) -> None:
        """Deactivate the rows of requests that are being prefilled; `plan` reactivates them."""
        for row in self.users.intersection(rows):
            self._generation[row] = -1
            self.users.discard(row)

    def plan(
        self,
        rows: NDArray[np.int64],
        generation: NDArray[np.int64],
        histories: Mapping[int, RowHistory],
        in_pool: NDArray[np.int64],
        live_rows: Callable[[], Collection[int]],
    ) -> HistoryStep | None:
        """Activate the batch rows that come with a history.

        Args:
            rows: the request row of each batch row, int64 [rows].
            generation: the pool's generation of each, int64 [rows].
            histories: the new histories, by batch row.
            in_pool: the pool's generation of every request row, int64.
            live_rows: returns the rows of all requests that still need their histories.

        Returns:
            The changes to make before the step; None if no batch row is active.
        """
        if not (histories or self.users):
            return None
        active = self._generation[rows] == generation
        active[list(histories)] = True
        stale = [row for row in rows[~active].tolist() if row in self._places]
        if not active.any():
            return None
        step = HistoryStep()
        for row in stale:
            self._free(row, step)
        if not histories:
            step.forbids = bool(self._forbids[rows[active]].any())
            return step
        for i in histories:
            self._free(int(rows[i]), step)
        live = {*live_rows(), *rows[active].tolist()}
        for row in list(self._places):
            if row not in live or self._generation[row] != in_pool[row]:
                self._free(row, step)
        needs = {i: own.need(self.room) for i, own in histories.items()}
        if self._end + sum(need.words for need in needs.values()) > self.room.words:
            self._move_together(step)
        for i, own in histories.items():
            row, words = int(rows[i]), needs[i].words
            number = self._list(own, step)
            if self._end + words > self.room.words or number is None:
                step.refused.append(i)
                continue
            if own.breakers is not None:
                self._list_of_row[row] = own.breakers
            self.users.add(row)
            self._generation[row] = generation[i]
            self._places[row] = self._end, words
            step.seeds.append(_seed(row, own, self.room.vocab_size, self._places[row], number))
            self._forbids[row] = _forbids(step.seeds[-1].numbers)
            self._end += words
        step.forbids = bool(self._forbids[rows[self._generation[rows] == generation]].any())
        return step

    def write(self, step: HistoryStep) -> HistoryState:
        """Apply a step's changes, on the stream where steps run. Returns the updated state."""
        self.state.move(step.moves)
        for number, tables in step.tables:
            self.state.write_tables(number, *tables)
        if step.cleared:
            self.state.clear(step.cleared)
        if step.seeds:
            self._kernels.seed_history(self.state, step.seeds)
        return self.state

    def _free(self, row: int, step: HistoryStep) -> None:
        if self._places.pop(row, None) is None:
            return
        self._list_of_row.pop(row, None)
        self.users.discard(row)
        self._generation[row] = -1
        step.cleared.append(row)

    def _move_together(self, step: HistoryStep) -> None:
        """Close the gaps between the histories."""
        self._end = 0
        for row, (at, words) in self._places.items():
            if at != self._end:
                step.moves.append((row, at, self._end, words))
            self._places[row] = self._end, words
            self._end += words

    def _list(self, own: RowHistory, step: HistoryStep) -> int | None:
        """The number of the tables for a history's breakers, -1 for none. New tables replace unused
        ones. None if all tables are in use."""
        breakers = own.breakers
        if breakers is None:
            return -1
        if breakers not in self._lists:
            used = set(self._list_of_row.values())
            free = [i for i, one in enumerate(self._lists) if one not in used]
            if not free:
                return None
            # Prefer an empty table: a list that is unused now may be requested again.
            number = min(free, key=lambda i: self._lists[i] is not None)
            assert own.tables is not None
            self._lists[number] = breakers
            step.tables.append((number, own.tables()))
        return self._lists.index(breakers)


def _seed(
    row: int, own: RowHistory, vocab_size: int, place: tuple[int, int], number: int
) -> HistorySeed:
    """The seed of a row; `number` is that of its breakers' tables."""
    params = own.params or _DEFAULTS
    size = own.size(vocab_size)
    ngram = params.no_repeat_ngram_size
    min_new_tokens = int(own.value("min_new_tokens"))
    stops = sorted(own.stops) if min_new_tokens else []
    whitelist = params.no_repeat_ngram_whitelist if ngram else ()
    numbers = np.zeros(NUMBERS, dtype=np.int32)
    numbers[history.AT] = place[0]
    numbers[history.TOKENS] = size.tokens
    numbers[history.RING] = size.ring
    numbers[history.PERIODS] = size.periods
    numbers[history.FIRST_OUTPUT] = own.first_output
    numbers[history.LAST_N] = _up_to(params.penalty_last_n) if own.counts else EVERYTHING
    numbers[history.MIN_NEW_TOKENS] = min(min_new_tokens, EVERYTHING)
    numbers[history.NGRAM_SIZE] = ngram
    numbers[history.NGRAM_WINDOW] = _up_to(params.no_repeat_ngram_window)
    numbers[history.DRY_ALLOWED_LENGTH] = params.dry_allowed_length
    numbers[history.DRY_LAST_N] = _up_to(params.dry_penalty_last_n) if params.has_dry else 0
    numbers[[history.BREAK_HEAD, history.BREAK_END]] = NO_BREAKER
    numbers[history.BREAKERS] = number
    numbers[history.STOPS] = len(stops)
    numbers[history.WHITELISTED] = len(whitelist)
    strengths = np.array([own.value(name) for name in STRENGTHS], dtype=np.float32)
    tokens = np.array(own.tokens if size.ring else (), dtype=np.int64)
    ids = np.array([*stops, *whitelist], dtype=np.int32)
    return HistorySeed(row, place[0], tokens, numbers, strengths, ids, place[1])


def _forbids(numbers: NDArray[np.int32]) -> bool:
    """Whether a row may have forbidden tokens; `numbers` as in `HistorySeed`."""
    return bool(
        numbers[history.NGRAM_SIZE] or (numbers[history.MIN_NEW_TOKENS] and numbers[history.STOPS])
    )


def _up_to(tokens: int) -> int:
    """A number of newest tokens, where -1 means all."""
    return EVERYTHING if tokens < 0 else min(tokens, EVERYTHING)
