"""Which request rows have penalties over their whole history, and in which slots.

The host's side of `sglang_lz.history`. Nothing is allocated before the first such request. Nothing
here knows upstream's classes; `sglang_lz.sampling` reads them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch

from sglang_lz import history
from sglang_lz.history import (
    EVERYTHING,
    NO_BREAKER,
    NO_SLOT,
    NUMBERS,
    SPARE,
    BreakerTables,
    HistorySeed,
    HistoryState,
    power_of_two,
)
from sglang_lz.penalties import HistoryParams

if TYPE_CHECKING:
    from types import ModuleType

    from numpy.typing import NDArray

    Tables: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32]]

logger = logging.getLogger(__name__)

_DEFAULTS = HistoryParams()


class RowHistory(NamedTuple):
    """What a request row's penalties begin with.

    Attributes:
        tokens: all of the request's tokens so far, oldest first.
        first_output: how many of them are the prompt.
        longest: how many tokens the request can have at most.
        frequency, presence, repetition: upstream's penalties.
        min_new_tokens: how many tokens to sample before any of `stops`.
        stops: the tokens that stop the request.
        params: our own fields; None for the defaults.
        tables: those of its sequence breakers (`breakers.tables_of`); None without DRY or any.
    """

    tokens: Sequence[int]
    first_output: int
    longest: int
    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0
    min_new_tokens: int = 0
    stops: Collection[int] = ()
    params: HistoryParams | None = None
    tables: Tables | None = None


@dataclass(slots=True)
class HistoryStep:
    """What changes before a step of a batch in which some rows have a history.

    Attributes:
        seeds: rows to give up, then rows to fill.
        room: what `HistoryState.grow` is asked for; None if it has it.
        tables: new tables of breakers; None if they stay.
    """

    seeds: list[HistorySeed] = field(default_factory=list)
    room: dict[str, int] | None = None
    tables: BreakerTables | None = None


class HistoryPenalizer:
    """The histories of all requests that share one pool of request rows.

    Attributes:
        users: rows that were active when they were last prefilled; without any, a batch costs
            nothing.
        state: the histories; None before the first.
    """

    def __init__(
        self,
        rows: int,
        device: torch.device | str,
        kernels: ModuleType,
        vocab_size: int,
    ) -> None:
        """Serve `rows` request rows of a model with `vocab_size` tokens."""
        self.users: set[int] = set()
        self.state: HistoryState | None = None
        self._device = torch.device(device)
        self._kernels = kernels
        self._vocab_size = vocab_size
        self._generation = np.full(rows, -1)
        self._slot = np.full(rows, NO_SLOT)
        self._row: list[int] = []  # of each slot, -1 if it is free
        # The lists of breakers whose tables the state has, in their order, and who uses them.
        self._lists: list[tuple[str, ...]] = []
        self._all_tables: list[Tables] = []
        self._list_of_row: dict[int, tuple[str, ...]] = {}
        self._room = {"slots": 0, "tokens": 0, "reach": 0, "ids": 0}
        self._had = dict(self._room)

    def give_up(self, rows: NDArray[np.int64]) -> None:
        """Make request rows inactive that are prefilled; `admit` makes them active again."""
        if self.users and len(rows):
            self._generation[rows] = -1
            self.users.difference_update(rows.tolist())

    def admit(
        self,
        rows: NDArray[np.int64],
        generation: NDArray[np.int64],
        histories: Mapping[int, RowHistory],
        in_pool: NDArray[np.int64],
        free_rows: Callable[[], Collection[int]],
    ) -> HistoryStep | None:
        """Make the batch rows active that come with a history.

        Args:
            rows: the request row of each batch row, int64 [rows].
            generation: the pool's generation of each, int64 [rows].
            histories: by batch row.
            in_pool: the pool's generation of every request row, int64.
            free_rows: the request rows that no request has.

        Returns:
            What to do before the step; None if no batch row is active.
        """
        if not (histories or self.users):
            return None
        active = self._generation[rows] == generation
        active[list(histories)] = True
        stale = rows[(self._slot[rows] != NO_SLOT) & ~active].tolist()
        if not active.any():
            return None
        step = HistoryStep()
        for row in stale:
            self._free(row, step)
        if not histories:
            return step
        for i in histories:
            self._free(int(rows[i]), step)
        if len(histories) > self._row.count(-1):
            gone = set(free_rows())
            for row in [row for row in self._row if row >= 0]:
                if row in gone or self._generation[row] != in_pool[row]:
                    self._free(row, step)
        for i, own in histories.items():
            row = int(rows[i])
            self.users.add(row)
            self._generation[row] = generation[i]
            step.seeds.append(self._seed(row, own, step))
        self._make_room(step)
        return step

    def take(self, step: HistoryStep) -> HistoryState:
        """Do what a step needs, where steps run. Returns the state to step."""
        if self.state is None:
            self.state = HistoryState(len(self._slot), self._device)
        if step.room is not None:
            self.state.grow(**step.room)
            logger.info(
                "penalties: %d histories of up to %d distinct tokens and %d positions: "
                "%.1f KiB each, %.1f MiB in all",
                self.state.slots, self.state.tokens, self.state.reach,
                self.state.bytes_of_slot() / 2**10,
                self.state.slots * self.state.bytes_of_slot() / 2**20,
            )  # fmt: skip
        if step.tables is not None:
            self.state.host_breakers = step.tables
            self.state.breakers = step.tables.to(self._device)
        if step.seeds:
            matching = (one.numbers[history.PERIODS] > 0 for one in step.seeds if one.slot >= 0)
            self.state.matches |= any(matching)
            self._kernels.seed_history(self.state, step.seeds)
        return self.state

    def _free(self, row: int, step: HistoryStep) -> None:
        slot = int(self._slot[row])
        if slot == NO_SLOT:
            return
        self._slot[row] = NO_SLOT
        self._row[slot] = -1
        self._list_of_row.pop(row, None)
        self.users.discard(row)
        self._generation[row] = -1
        nothing = np.zeros(0, dtype=np.int64)
        numbers, strengths = np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32)
        step.seeds.append(HistorySeed(row, NO_SLOT, nothing, numbers, strengths, numbers))

    def _take_slot(self, row: int) -> int:
        if -1 not in self._row:
            self._row += [-1] * max(len(self._row), 1)
        slot = self._row.index(-1)
        self._row[slot], self._slot[row] = row, slot
        return slot

    def _seed(self, row: int, own: RowHistory, step: HistoryStep) -> HistorySeed:
        """The seed of a row; notes the room that it needs."""
        params = own.params or _DEFAULTS
        longest = own.longest + SPARE
        dry, ngram = params.has_dry, params.no_repeat_ngram_size
        counts = (own.frequency, own.presence, own.repetition) != (0, 0, 1)
        last_n = _up_to(params.penalty_last_n) if counts else EVERYTHING
        dry_last_n = _up_to(params.dry_penalty_last_n) if dry else 0
        window = _up_to(params.no_repeat_ngram_window)
        periods = max(dry_last_n - 1, window - ngram + 1 if ngram else 0)
        periods = min(max(periods, 0), longest)
        reach = max(periods, min(last_n, longest) if last_n < EVERYTHING else 0) + SPARE
        keeps = counts or periods > 0
        numbers = np.zeros(NUMBERS, dtype=np.int32)
        numbers[history.RING] = reach if keeps else 0
        numbers[history.PERIODS] = periods
        numbers[history.FIRST_OUTPUT] = own.first_output
        numbers[history.LAST_N] = last_n
        numbers[history.MIN_NEW_TOKENS] = min(own.min_new_tokens, EVERYTHING)
        numbers[history.NGRAM_SIZE] = ngram
        numbers[history.NGRAM_WINDOW] = window
        numbers[history.DRY_ALLOWED_LENGTH] = params.dry_allowed_length
        numbers[history.DRY_LAST_N] = dry_last_n
        numbers[[history.BREAK_HEAD, history.BREAK_END]] = NO_BREAKER
        numbers[history.BREAKERS] = -1
        if own.tables is not None:
            numbers[history.BREAKERS] = self._list(row, own, step)
        stops = sorted(own.stops) if own.min_new_tokens else []
        numbers[history.STOPS] = len(stops)
        whitelist = params.no_repeat_ngram_whitelist if ngram else ()
        numbers[history.WHITELISTED] = len(whitelist)
        strengths = np.array(
            # In the order of the columns of `HistoryState.strengths`.
            (
                *(own.frequency, own.presence, own.repetition),
                *(params.dry_multiplier, params.dry_base),
            ),
            dtype=np.float32,
        )
        tokens = np.array(own.tokens if keeps else (), dtype=np.int64)
        ids = np.array([*stops, *whitelist], dtype=np.int32)
        if keeps:
            outside = np.unique(tokens[(tokens < 0) | (tokens >= self._vocab_size)])
            most = self._vocab_size + len(outside)  # what is sampled is in the vocabulary
            self._need("tokens", min(power_of_two(longest), most))
            self._need("reach", power_of_two(reach))
        self._need("ids", power_of_two(len(ids)))
        return HistorySeed(row, self._take_slot(row), tokens, numbers, strengths, ids)

    def _need(self, name: str, least: int) -> None:
        self._room[name] = max(self._room[name], least)

    def _make_room(self, step: HistoryStep) -> None:
        self._need("slots", len(self._row))
        if self._room != self._had:
            step.room = self._had = dict(self._room)

    def _list(self, row: int, own: RowHistory, step: HistoryStep) -> int:
        """Which of the tables are those of a row; new ones take the place of unused ones."""
        assert own.params is not None
        assert own.tables is not None
        breakers = own.params.dry_sequence_breakers
        if breakers not in self._lists:
            used = set(self._list_of_row.values())
            free = [i for i, one in enumerate(self._lists) if one not in used]
            number = free[0] if free else len(self._lists)
            self._lists[number : number + 1] = [breakers]
            self._all_tables[number : number + 1] = [own.tables]
            masks, tails = zip(*self._all_tables, strict=True)
            step.tables = BreakerTables(
                torch.tensor(np.stack(masks)), torch.tensor(np.stack(tails))
            )
        self._list_of_row[row] = breakers
        return self._lists.index(breakers)


def _up_to(tokens: int) -> int:
    """A number of newest tokens, -1 being all."""
    return EVERYTHING if tokens < 0 else min(tokens, EVERYTHING)
