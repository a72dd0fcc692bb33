"""The inputs that all implementations are given."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from lz_penalty import kernels
from lz_penalty.fields.lz import DEFAULT_MAX_WINDOW_SIZE, LZParams
from lz_penalty.window import MEMORY, RowWindow, WindowState

LZ_PENALTY = 0.15
VOCAB = 152064
SECTOR_BYTES = 32
LONG_MEMORY = 1 << 30
"""Steps; a server's is on for 512 after a loop."""


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        rows: requests in a batch.
        vocab: V.
        window: W.
        buffer: B.
        history: a key of HISTORIES.
    """

    rows: int
    vocab: int = VOCAB
    window: int = 512
    buffer: int = 32
    history: str = "text"

    def __str__(self) -> str:
        return (
            f"{self.rows} rows, V = {self.vocab}, W = {self.window}, B = {self.buffer}, "
            f"{self.history}"
        )


# Histories: int64 [rows, length], oldest first. `spread` is the vocabulary in random order, so that
# neighbours in a history are no neighbours in memory.


def _text(rows: int, length: int, spread: Tensor, generator: torch.Generator) -> Tensor:
    """Token ranks as words have them (Zipf's law), one independent of the other."""
    rank = len(spread) ** torch.rand(rows, length, generator=generator) - 1
    return spread[rank.long().clamp_(max=len(spread) - 1)]


def _loop(rows: int, length: int, spread: Tensor, generator: torch.Generator) -> Tensor:
    """One token for ever: every source matches as long as it can."""
    return _cycle(rows, length, spread, generator, period=1)


def _alternating(rows: int, length: int, spread: Tensor, generator: torch.Generator) -> Tensor:
    return _cycle(rows, length, spread, generator, period=2)


def _distinct(rows: int, length: int, spread: Tensor, generator: torch.Generator) -> Tensor:
    """No token twice in a window: nothing matches, and the most logits are touched."""
    return _cycle(rows, length, spread, generator, period=len(spread))


def _cycle(
    rows: int, length: int, spread: Tensor, generator: torch.Generator, period: int
) -> Tensor:
    start = torch.randint(len(spread), (rows, 1), generator=generator)
    return spread[(start + torch.arange(length) % period) % len(spread)]


HISTORIES = {"text": _text, "loop": _loop, "alternating": _alternating, "distinct": _distinct}


class Inputs:
    """The input of every implementation of a case: several batches, at one position each.

    Attributes:
        case: sizes and kinds.
        history: int64 [sets x rows, W + what follows].
        logits: [sets, rows, V].
        request_rows: int64 [sets, rows].
        newest: the token to append to each window, int64 [sets, rows].
        seq_lens: tokens of each row, the newest included, int64 [rows].
    """

    def __init__(self, case: Case, device: torch.device, sets: int, steps: int) -> None:
        """Make the inputs of up to `steps` calls for each of `sets` batches."""
        self.case, self.device, self.sets = case, device, sets
        generator = torch.Generator().manual_seed(0)
        spread = torch.randperm(case.vocab, generator=generator)
        length = case.window + steps + 1
        make = HISTORIES[case.history]
        self.history = make(sets * case.rows, length, spread, generator).to(device)
        shape = (case.rows, case.vocab)
        self.fresh = torch.randn(shape, generator=generator).to(device)
        self.logits = torch.empty((sets, *shape), device=device)
        self.request_rows = torch.arange(sets * case.rows, device=device).view(sets, case.rows)
        self.newest = torch.empty(sets, case.rows, dtype=torch.int64, device=device)
        self.seq_lens = torch.empty(case.rows, dtype=torch.int64, device=device)
        self.rewind()

    def rewind(self) -> None:
        """Go back to before the first call, where the windows are full."""
        self.position = self.case.window - 1

    def advance(self, sets: int | None = None) -> None:
        """Go on to the next call: newest tokens, and fresh logits for the first `sets` or all."""
        self.position += 1
        self.newest.copy_(self.history[:, self.position].view(self.sets, self.case.rows))
        self.seq_lens.fill_(self.position + 1)
        self.logits[:sets] = self.fresh

    def judged_windows(self) -> Tensor:
        """The window of each row of the first set, newest first [rows, W]."""
        seen = self.history[: self.case.rows, : self.position + 1]
        return seen.flip(1)[:, : self.case.window]

    def window_state(self, onset: int = 0, *, memory: bool = False) -> WindowState:
        """Our windows before the first call, request row k x rows + i for row i of set k.

        With `memory`, loops have just turned the memory on, and it outlasts the calls.
        """
        case = self.case
        capacity = max(case.window, DEFAULT_MAX_WINDOW_SIZE)
        state = WindowState(self.sets * case.rows, capacity, self.device)
        lz = LZParams(LZ_PENALTY, case.window, case.buffer, onset=onset)
        windows = {
            row: RowWindow(array("q", tokens), case.window, case.window, lz=lz)
            for row, tokens in enumerate(self.history[:, : case.window].tolist())
        }
        kernels.import_for(self.device).seed(state, windows)
        if memory:
            state.cover[:, MEMORY] = LONG_MEMORY
        return state


def touched_bytes(case: Case, windows: Tensor) -> int:
    """The bytes that a call of ours must read and write, each once.

    Logits are read and written in the sectors in which a GPU moves memory.

    Args:
        case: its sizes.
        windows: tokens of the window of each row, [rows, W].
    """
    sector = (windows * torch.float32.itemsize // SECTOR_BYTES).sort(1).values
    sectors = len(windows) + int((sector.diff(dim=1) != 0).sum())
    token, match, param, index = 4, 2, 4, 8
    window = case.window * (token + match) + 5 * param
    # The window, its row, place and newest token; the match lengths and a token, written.
    row = window + 3 * index + case.window * match + token
    return 2 * SECTOR_BYTES * sectors + case.rows * row
