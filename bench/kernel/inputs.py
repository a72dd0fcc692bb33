"""The inputs that all implementations are given."""

from __future__ import annotations

import itertools
from array import array
from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_lz.fields.lz import DEFAULT_MAX_WINDOW_SIZE, LZParams
from sglang_lz.penalty import kernels
from sglang_lz.penalty.window import MEMORY, RowWindow, WindowState

LZ_PENALTY = 0.15
VOCAB = 152064
SECTOR_BYTES = 32
LONG_MEMORY = 1 << 30
"""Steps; a server's is on for 512 after a loop."""

# The parent of each node of the draft trees, and the longest path, which is accepted.
PARENTS = (-1, 0, 0, 1, 1, 2, 3, 3)
ACCEPTED = (0, 1, 3, 6)


@dataclass(frozen=True)
class Case:
    """One set of inputs.

    Attributes:
        rows: requests in a batch.
        vocab: V.
        window: W.
        buffer: B.
        history: a key of HISTORIES.
        nodes: nodes of a draft tree, each a row of the logits; 0 for a decode step.
    """

    rows: int
    vocab: int = VOCAB
    window: int = 512
    buffer: int = 32
    history: str = "text"
    nodes: int = 0

    @property
    def logits_rows(self) -> int:
        """Rows of the logits of a batch."""
        return self.rows * max(self.nodes, 1)

    def __str__(self) -> str:
        tree = f" x {self.nodes} nodes" if self.nodes else ""
        return (
            f"{self.rows} rows{tree}, V = {self.vocab}, W = {self.window}, B = {self.buffer}, "
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
    """What every implementation of a case is given: several batches, at one position each.

    Attributes:
        case: sizes and kinds.
        history: int64 [sets x rows, W + what follows].
        logits: [sets, logits rows, V].
        request_rows: int64 [sets, rows].
        newest: the token to append to each window, the root of a draft tree, int64 [sets, rows].
        drafts: draft trees, int64 [sets, rows, nodes]; None for a decode step.
        seq_lens: tokens of each row, the newest included, int64 [rows].
        root: where the newest tokens stand, int64 [rows].
    """

    def __init__(self, case: Case, device: torch.device, sets: int, steps: int) -> None:
        """Make the inputs of up to `steps` calls for each of `sets` batches."""
        self.case, self.device, self.sets = case, device, sets
        self.stride = len(ACCEPTED) if case.nodes else 1
        generator = torch.Generator().manual_seed(0)
        spread = torch.randperm(case.vocab, generator=generator)
        length = case.window + (steps + 1) * self.stride
        make = HISTORIES[case.history]
        self.history = make(sets * case.rows, length, spread, generator).to(device)
        shape = (case.logits_rows, case.vocab)
        self.fresh = torch.randn(shape, generator=generator).to(device)
        self.logits = torch.empty((sets, *shape), device=device)
        self.request_rows = torch.arange(sets * case.rows, device=device).view(sets, case.rows)
        self.newest = torch.empty(sets, case.rows, dtype=torch.int64, device=device)
        self.drafts = None
        if case.nodes:
            nodes = (sets, case.rows, case.nodes)
            self.drafts = torch.empty(nodes, dtype=torch.int64, device=device)
        self.seq_lens = torch.empty(case.rows, dtype=torch.int64, device=device)
        self.root = torch.empty_like(self.seq_lens)
        self.rewind()

    def rewind(self) -> None:
        """Go back to before the first call, where the windows are full."""
        self.position = self.case.window - self.stride

    def advance(self, sets: int | None = None) -> None:
        """Go on to the next call: newest tokens, and fresh logits for the first `sets` or all."""
        self.position += self.stride
        self.newest.copy_(self._at(self.position))
        self.root.fill_(self.position)
        self.seq_lens.fill_(self.position + 1)
        if self.drafts is not None:
            for node in range(self.case.nodes):
                self.drafts[..., node] = self._at(self._stands_at(node))
        self.logits[:sets] = self.fresh

    def windows(self) -> Tensor:
        """The windows before the first call, newest first, int64 [sets, rows, W]."""
        before = self.history[:, : self.case.window].flip(1)
        return before.view(self.sets, self.case.rows, self.case.window)

    def judged_windows(self) -> Tensor:
        """The window of each row of the first set's logits, newest first [logits rows, W]."""
        before = self.history[: self.case.rows, : self.position].flip(1)
        if self.drafts is None:
            paths = [self.newest[0, :, None]]
        else:
            paths = [self.drafts[0][:, path_to_root(node)] for node in range(self.case.nodes)]
        windows = [torch.cat([path, before], 1)[:, : self.case.window] for path in paths]
        return torch.stack(windows, 1).flatten(0, 1)

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

    def _at(self, position: int) -> Tensor:
        return self.history[:, position].view(self.sets, self.case.rows)

    def _stands_at(self, node: int) -> int:
        """Where in the history a node's token is taken from; a draft off the path is an old one."""
        if node in ACCEPTED:
            return self.position + ACCEPTED.index(node)
        return self.position - node


def path_to_root(node: int) -> list[int]:
    """The nodes of a draft tree from `node` up to the root, both included."""
    path = [node]
    while node:
        node = PARENTS[node]
        path.append(node)
    return path


def tree_links(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`first_child` and `next_sibling` of draft trees, int64 [rows, nodes], -1 for none."""
    children = [
        [node for node, up in enumerate(PARENTS) if up == parent] for parent in range(len(PARENTS))
    ]
    first = [min(nodes, default=-1) for nodes in children]
    following = dict(pair for nodes in children for pair in itertools.pairwise(nodes))
    sibling = [following.get(node, -1) for node in range(len(PARENTS))]
    links = torch.tensor([first, sibling], device=device).unsqueeze(1)
    return links[0].repeat(rows, 1), links[1].repeat(rows, 1)


def touched_bytes(case: Case, windows: Tensor) -> int:
    """The bytes that a call of ours must read and write, each once.

    Logits are read and written in the sectors in which a GPU moves memory.

    Args:
        case: its sizes.
        windows: tokens of the window of each row of the logits, [logits rows, W].
    """
    sector = (windows * torch.float32.itemsize // SECTOR_BYTES).sort(1).values
    sectors = len(windows) + int((sector.diff(dim=1) != 0).sum())
    token, match, param, index = 4, 2, 4, 8
    window = case.window * (token + match) + 5 * param
    if case.nodes:
        # The window and two places; the tree; the path of each node, written.
        row = window + 2 * index + case.nodes * (3 * index + len(ACCEPTED) * token)
    else:
        # The window, its row, place and newest token; the match lengths and a token, written.
        row = window + 3 * index + case.window * match + token
    return 2 * SECTOR_BYTES * sectors + case.rows * row
