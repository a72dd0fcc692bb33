"""How much each penalty lowers the true next token at every position of a text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from lz_penalty.fields.lz import LZParams
from lz_penalty.history import HistoryRoom
from lz_penalty.penalizer import Penalizer, RowStart
from lz_penalty.window import ALIKE, EXACT, LOOPED, SHORTEST_LOOP, SHORTEST_LOOP_OF_ONE, RowWindow

LZ_PENALTY = 0.15
WINDOW, BUFFER = 512, 32
ONSETS = (1, 2, 3)
REPETITION, FREQUENCY, PRESENCE = (1.1, 1.2), (0.1, 0.5), (0.5,)
# The values that its author recommends, and the usual breakers; it sees the whole output.
DRY_MULTIPLIER, DRY_BASE, DRY_ALLOWED_LENGTH = 0.8, 1.75, 2
DRY_BREAKERS = ("\n", ":", '"', "*")
MOST_NATS = 20.0
"""A lowering counts at most so much: from there on the token is as good as forbidden."""
ROWS = 64
"""Texts of a batch."""

Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Onset:
    """Where a text first looped often enough for an onset.

    Attributes:
        position: the first position at which it had, in tokens.
        period: the shortest period of a loop there, in tokens.
    """

    position: int
    period: int


@dataclass(frozen=True)
class Outcome:
    """The effect of a penalty on a text.

    Attributes:
        lowered: what the logit of the true next token loses, float32 [tokens], in nats, at most
            MOST_NATS. Where nats would depend on the logit: 1 if it loses anything.
        onset: where the onset was first reached; None if it was not, or there is none to reach.
    """

    lowered: NDArray[np.float32]
    onset: Onset | None = None


Outcomes = Callable[[Sequence[Tokens], int], list[Outcome]]
"""The effect of a penalty on each of some texts, given V."""


@dataclass(frozen=True)
class Penalty:
    """A penalty and its setting.

    Attributes:
        name: as tables have it.
        has_nats: whether what it takes from a token is known without the logit.
        outcomes: what it does.
    """

    name: str
    has_nats: bool
    outcomes: Outcomes


def penalties(is_breaker: NDArray[np.bool_], numbers: NDArray[np.uint8]) -> list[Penalty]:
    """Return the penalties that are compared; `is_breaker` [V] says at which tokens DRY starts, and
    `numbers` [V] which are numbers."""

    def lz(onset: int, numbers: NDArray[np.uint8] = numbers) -> Outcomes:
        return lambda texts, vocab: lz_outcomes(texts, vocab, onset, numbers)

    def counting(strength: float, most: float) -> Outcomes:
        return lambda texts, vocab: [
            _outcome(strength * np.minimum(earlier_occurrences(tokens, vocab), most))
            for tokens in texts
        ]

    def dry(texts: Sequence[Tokens], vocab: int) -> list[Outcome]:
        return [_outcome(dry_lowered(tokens, is_breaker)) for tokens in texts]

    return [
        Penalty(f"lz {LZ_PENALTY:g}", True, lz(0)),
        *(Penalty(f"lz {LZ_PENALTY:g}, onset {n}", True, lz(n)) for n in ONSETS),
        Penalty(f"lz {LZ_PENALTY:g}, onset 3, N empty", True, lz(3, np.zeros_like(numbers))),
        *(Penalty(f"repetition {r:g}", False, counting(1, most=1)) for r in REPETITION),
        *(Penalty(f"frequency {f:g}", True, counting(f, most=math.inf)) for f in FREQUENCY),
        *(Penalty(f"presence {p:g}", True, counting(p, most=1)) for p in PRESENCE),
        Penalty("DRY", True, dry),
    ]


def lz_outcomes(
    texts: Sequence[Tokens], vocab: int, onset: int, numbers: NDArray[np.uint8]
) -> list[Outcome]:
    """Run the penalizer of a server over texts as outputs, `marginal` cost, usual sizes.

    Args:
        texts: token ids below V.
        vocab: V.
        onset: n; 0 for always on.
        numbers: 1 for each token that is a number, uint8 [V].
    """
    outcomes: dict[int, Outcome] = {}
    by_length = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    logits = torch.zeros(min(ROWS, max(len(texts), 1)), vocab)
    for first in range(0, len(texts), ROWS):
        batch = by_length[first : first + ROWS]
        found = _Forced([texts[i] for i in batch], logits, onset, numbers).outcomes()
        outcomes.update(zip(batch, found, strict=True))
    return [outcomes[i] for i in range(len(texts))]


class _Forced:
    """A batch of requests, longest first, whose samples are given."""

    def __init__(
        self, texts: Sequence[Tokens], logits: torch.Tensor, onset: int, numbers: NDArray[np.uint8]
    ) -> None:
        self.texts, self.logits, self.onset = texts, logits, onset
        self.lengths = [len(text) for text in texts]
        self.tokens = torch.zeros(self.lengths[0], len(texts), dtype=torch.int64)
        for row, text in enumerate(texts):
            self.tokens[: len(text), row] = torch.from_numpy(text)
        self.lowered = np.zeros((self.lengths[0], len(texts)), dtype=np.float32)
        self.onsets: dict[int, Onset] = {}
        generations = torch.zeros(len(texts), dtype=torch.int64)
        room = HistoryRoom(logits.shape[1], words=1, lists=0)
        self.penalizer = Penalizer(generations, WINDOW, "cpu", room)
        self.penalizer.state.set_numbers(numbers)
        lz = LZParams(LZ_PENALTY, WINDOW, BUFFER, onset=onset)
        # The prompt is one token, which the penalty does not see.
        window = RowWindow(length=1, first_visible=1, lz=lz)
        rows = torch.arange(len(texts))
        starts = dict.fromkeys(range(len(texts)), RowStart(window))
        plan = self.penalizer.plan(rows, len(texts), starts)
        assert plan is not None
        self.penalizer.write_windows(plan.windows)
        self.plan = dataclasses.replace(plan, windows={})

    def outcomes(self) -> list[Outcome]:
        """Return the outcome of each text."""
        for position, rows in self._positions():
            self._step(position, rows)
        return [
            _outcome(self.lowered[:length, row], self.onsets.get(row))
            for row, length in enumerate(self.lengths)
        ]

    def _positions(self) -> Iterator[tuple[int, int]]:
        """Yield each position after the first token, and how many texts are longer."""
        rows = len(self.texts)
        for position in range(1, self.lengths[0]):
            while self.lengths[rows - 1] <= position:
                rows -= 1
            yield position, rows

    def _step(self, position: int, rows: int) -> None:
        own = torch.arange(rows)
        true = self.tokens[position, :rows]
        self.logits[own, true] = 0  # no other is read
        self.penalizer.apply(
            dataclasses.replace(self.plan, rows=rows),
            self.logits[:rows],
            request_rows=own,
            seq_lens=torch.full((rows,), position + 1),
            input_ids=self.tokens[position - 1, :rows],
        )
        self.lowered[position, :rows] = -self.logits[own, true].numpy()
        _, run, _, cover = self.penalizer.state.arrays
        for row in cover[:rows, LOOPED].nonzero()[0].tolist():
            if row not in self.onsets:
                self.onsets[row] = Onset(position, _shortest_loop(run[row], position, self.onset))


def _shortest_loop(runs: NDArray[np.int16], tokens: int, copies: int) -> int:
    """The shortest period with so many copies, or one more up to numbers, of an output of so many
    tokens; `runs` are a row of `WindowState.run`."""
    periods = np.arange(1, min(runs.shape[1], tokens))
    shortest = np.where(periods == 1, SHORTEST_LOOP_OF_ONE, SHORTEST_LOOP)
    is_loop = [
        (runs[plane, periods] >= shortest) & (runs[plane, periods] >= least * periods)
        for plane, least in ((EXACT, copies), (ALIKE, copies + 1))
    ]
    return int(periods[is_loop[EXACT] | is_loop[ALIKE]][0])


def dry_lowered(tokens: Tokens, is_breaker: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return what DRY takes from each token of an output, in nats, float64 [tokens].

    A token that would make a repetition longer pays multiplier x base ** (length - allowed length)
    from the allowed length on. A breaker pays nothing, and no repetition goes on across one, as in
    llama.cpp.
    """
    length = _repeated_before(tokens, is_breaker)
    exponent = np.minimum(length - DRY_ALLOWED_LENGTH, 100)
    return np.where(exponent >= 0, DRY_MULTIPLIER * DRY_BASE ** exponent.astype(float), 0.0)


def earlier_occurrences(tokens: Tokens, vocab: int) -> Tokens:
    """Return how often each token of an output stands there before, int64 [tokens]."""
    return _earlier_occurrences(tokens, np.zeros(vocab, dtype=np.int64))


def _outcome(lowered: NDArray[Any], onset: Onset | None = None) -> Outcome:
    return Outcome(np.minimum(lowered, MOST_NATS).astype(np.float32), onset)


@numba.njit
def _earlier_occurrences(tokens: Any, count: Any) -> Any:
    found = np.empty(len(tokens), np.int64)
    for position, token in enumerate(tokens):
        found[position] = count[token]
        count[token] += 1
    return found


@numba.njit
def _repeated_before(tokens: Any, is_breaker: Any) -> Any:
    """How many tokens before each one stand before an earlier one like it, at most."""
    longest = np.zeros(len(tokens), np.int64)
    newest = np.full(len(is_breaker), -1, np.int64)
    before = np.empty(len(tokens), np.int64)  # the occurrence before this one
    for position, token in enumerate(tokens):
        before[position] = newest[token]
        newest[token] = position
        if is_breaker[token]:
            continue
        other = before[position]
        while other >= 0:
            length = 0
            while (
                length < other
                and tokens[other - 1 - length] == tokens[position - 1 - length]
                and not is_breaker[tokens[position - 1 - length]]
            ):
                length += 1
            longest[position] = max(longest[position], length)
            other = before[other]
    return longest
