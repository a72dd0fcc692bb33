"""The ways to adjust logits that `kernel.py` compares, and the inputs that all are given."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from sglang_lz.params import DEFAULT_MAX_WINDOW_SIZE
from sglang_lz.reference import steps as reference
from sglang_lz.reference.codelength import match_lengths
from sglang_lz.window import WindowState

LZ_PENALTY = 0.15
FREQUENCY_PENALTY = 0.5
REPETITION_PENALTY = 1.2
# The values that its author recommends.
DRY_MULTIPLIER, DRY_BASE, DRY_ALLOWED_LENGTH = 0.8, 1.75, 2
DRY_LARGEST_EXPONENT = 100  # float32 ends soon after

VOCAB = 152064
SECTOR_BYTES = 32

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
        """Go back to where the windows are full, before the first call."""
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

    def window_state(self) -> WindowState:
        """Our windows before the first call, request row k x rows + i for row i of set k."""
        case = self.case
        capacity = max(case.window, DEFAULT_MAX_WINDOW_SIZE)
        state = WindowState(self.sets * case.rows, capacity, self.device)
        state.params[:] = torch.tensor([LZ_PENALTY, case.window, case.buffer, 0, 0])
        state.tokens[:, : case.window] = self.history[:, : case.window]
        for k, windows in enumerate(self.windows()):
            full = torch.full((case.rows,), case.window, device=self.device)
            lengths = match_lengths(windows, full, torch.full_like(full, case.buffer))
            state.match[self.request_rows[k], : case.window] = lengths.to(torch.int16)
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


class Implementation:
    """One way to adjust the logits of a batch.

    Attributes:
        inputs: what it is given.
        bytes: what a call must move at least, in bytes; None where that is not counted.
        capturable: whether a CUDA graph can hold a call.
    """

    def __init__(self, inputs: Inputs, size: int | None, capturable: bool = True) -> None:
        self.inputs, self.bytes, self.capturable = inputs, size, capturable

    def call(self, k: int) -> None:
        """Append the newest tokens of set `k` and adjust its logits: what is timed."""
        raise NotImplementedError

    def between(self) -> None:
        """Do what a call leaves to do before the next, not timed."""


class Step(Implementation):
    """A decode step of the LZ penalty by the kernels of CUDA or a CPU, or by the reference."""

    def __init__(self, inputs: Inputs, kernels: ModuleType, size: int | None) -> None:
        super().__init__(inputs, size, capturable=kernels is not reference)
        self.kernels = kernels
        self.state = inputs.window_state()

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs = self.inputs
        self.kernels.step(
            self.state,
            inputs.logits[k],
            request_rows=inputs.request_rows[k],
            seq_lens=inputs.seq_lens,
            input_ids=inputs.newest[k],
            prefilled=0,
            offset=0,
            width=inputs.case.window,
        )


class Verify(Step):
    """A verify step of draft trees; that the tree is accepted is not timed."""

    def __init__(self, inputs: Inputs, kernels: ModuleType, size: int | None) -> None:
        super().__init__(inputs, kernels, size)
        rows, nodes = inputs.case.rows, inputs.case.nodes
        self.first_child, self.next_sibling = tree_links(rows, inputs.device)
        first_node = torch.arange(rows, device=inputs.device)[:, None] * nodes
        self.accept_index = first_node + torch.tensor(ACCEPTED, device=inputs.device)
        self.accepted = torch.full((rows,), len(ACCEPTED) - 1, device=inputs.device)
        self.paths: dict[int, Tensor] = {}

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs = self.inputs
        assert inputs.drafts is not None
        self.paths[k] = self.kernels.verify(
            self.state,
            inputs.logits[k],
            request_rows=inputs.request_rows[k],
            root=inputs.root,
            tokens=inputs.drafts[k],
            first_child=self.first_child,
            next_sibling=self.next_sibling,
            depth=len(ACCEPTED),
            width=inputs.case.window,
        )

    def between(self) -> None:
        """Accept the longest path of each tree."""
        for k, paths in self.paths.items():
            self.kernels.accept(
                self.state,
                request_rows=self.inputs.request_rows[k],
                root=self.inputs.root,
                paths=paths,
                accept_index=self.accept_index,
                num_correct_drafts=self.accepted,
                width=self.inputs.case.window,
            )


class _OnWindows(Implementation):
    """What keeps its windows as tokens, newest first, and looks at the whole of them each step."""

    def __init__(self, inputs: Inputs, rows: int, size: int) -> None:
        super().__init__(inputs, size)
        self.rows = rows
        self.windows = inputs.windows()[:, :rows].clone()

    def _append(self, k: int) -> Tensor:
        newest = self.inputs.newest[k, : self.rows, None]
        self.windows[k] = torch.cat([newest, self.windows[k, :, :-1]], 1)
        return self.windows[k]


class Dense(_OnWindows):
    """The LZ penalty over B x V x W comparisons, `marginal` cost."""

    def __init__(self, inputs: Inputs, rows: int, slice_bytes: int) -> None:
        """Serve the first `rows` rows only, with slices of V of about so many bytes."""
        case = inputs.case
        super().__init__(inputs, rows, size=2 * rows * case.vocab * case.window)
        # A comparison, and the saving that it selects.
        cell_bytes = torch.bool.itemsize + torch.float32.itemsize
        self.slice = max(slice_bytes // (rows * case.window * cell_bytes), 1)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        case = self.inputs.case
        window = self._append(k)
        savings = LZ_PENALTY * dense_savings(window, case.vocab, case.buffer)
        logits = self.inputs.logits[k, : self.rows]
        for start in range(0, case.vocab, self.slice):
            end = min(start + self.slice, case.vocab)
            token = torch.arange(start, end, device=logits.device)
            stands_there = token[:, None] == window[:, None, :]
            logits[:, start:end] -= (stands_there * savings[:, None, :]).amax(2)


def dense_savings(window: Tensor, vocab: int, buffer: int) -> Tensor:
    """What `marginal` saves at each window position (docs/SPEC.md section 2), in bits.

    Args:
        window: full windows, newest first, integer [rows, W].
        vocab: V.
        buffer: B.

    Returns:
        float32 [rows, W].
    """
    match = compared_matches(window, buffer)
    distance = torch.arange(1, window.shape[1] + 1, device=window.device)
    longest = match.amax(1, keepdim=True)
    nearest = (
        distance.expand_as(match)
        .masked_fill(match < longest, len(distance) + 1)
        .amin(1, keepdim=True)
    )
    before = torch.nn.functional.pad(match[:, 1:], (0, 1))
    extending = torch.log2((longest + 1.0) * distance) - torch.log2(longest * nearest * 2.0)
    extends = (longest >= 1) & (before == longest)
    cost = extending.where(extends, torch.log2(distance.float()))
    return (math.log2(vocab) - cost).clamp_min(0)


def compared_matches(window: Tensor, buffer: int) -> Tensor:
    """Match lengths by comparing the newest B tokens with those at every source.

    Args:
        window: full windows, newest first, tokens >= 0, integer [rows, W].
        buffer: B.

    Returns:
        int64 [rows, W]; 0 for the newest token, which is no source.
    """
    before_sources = torch.nn.functional.pad(window, (0, buffer - 1), value=-1)
    same = before_sources.unfold(1, buffer, 1) == window[:, None, :buffer]
    match = same.to(torch.int8).cumprod(2, dtype=torch.int8).sum(2)
    match[:, 0] = 0
    return match


class Dry(_OnWindows):
    """A DRY-style penalty: exponential in the match length, without a distance."""

    def __init__(self, inputs: Inputs) -> None:
        case = inputs.case
        super().__init__(inputs, case.rows, size=2 * case.rows * case.window * case.buffer)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        dry_penalise(self.inputs.logits[k], self._append(k), self.inputs.case.buffer)


def dry_penalise(logits: Tensor, window: Tensor, buffer: int) -> None:
    """Lower, in place, what would extend a repetition of DRY_ALLOWED_LENGTH tokens or more.

    Args:
        logits: float [rows, V].
        window: full windows, newest first, int64 [rows, W].
        buffer: the longest repetition that counts.
    """
    length = compared_matches(window, buffer)[:, 1:] - DRY_ALLOWED_LENGTH
    penalty = DRY_MULTIPLIER * DRY_BASE ** length.clamp(0, DRY_LARGEST_EXPONENT)
    follows = window[:, :-1]
    lowered = logits.gather(1, follows) - penalty * (length >= 0)
    logits.scatter_reduce_(1, follows, lowered, "amin")


class Penalties:
    """The state of upstream's frequency and repetition penalties, with its operators: a stand-in.

    It has those methods of upstream's `BatchedPenalizerOrchestrator` that run at each step.
    """

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        self.frequency = torch.full((rows, 1), FREQUENCY_PENALTY, device=device)
        self.repetition = torch.full((rows, 1), REPETITION_PENALTY, device=device)
        self.additive = torch.zeros(rows, vocab, device=device)
        self.scaling = torch.ones(rows, vocab, device=device)

    def cumulate_output_tokens(self, output_ids: Tensor) -> None:
        """Count tokens [rows]."""
        self.additive.scatter_add_(1, output_ids[:, None], self.frequency)
        self.scaling.scatter_(1, output_ids[:, None], self.repetition)

    def accumulate_additive_penalties(self, logits: Tensor) -> None:
        """Subtract what was counted from `logits` [rows, V]."""
        logits.sub_(self.additive)

    def accumulate_scaling_penalties(self) -> Tensor:
        """The factors [rows, V], anew each step."""
        return self.scaling.clone()


def scale(logits: Tensor, scaling: Tensor) -> None:
    """Make logits smaller by their factors, whatever their sign, in place."""
    logits[:] = torch.where(logits < 0, logits * scaling, logits / scaling)


@dataclass
class _Batch:
    """What upstream's penalties want to know of a batch."""

    reqs: list[SimpleNamespace]
    device: str


def upstream_penalties() -> tuple[Callable[..., Any], Callable[..., None], bool]:
    """What makes `Penalties` and what `scale` is, and whether both are upstream's own."""
    try:
        from sglang.srt.sampling import penaltylib
        from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties
    except ModuleNotFoundError as missing:
        if missing.name != "sglang":
            raise
        return Penalties, torch.compile(scale, dynamic=True), False
    kinds = {penaltylib.BatchedFrequencyPenalizer, penaltylib.BatchedRepetitionPenalizer}
    params = SimpleNamespace(
        frequency_penalty=FREQUENCY_PENALTY, repetition_penalty=REPETITION_PENALTY
    )

    def orchestrator(rows: int, vocab: int, device: torch.device) -> Any:
        batch = _Batch([SimpleNamespace(sampling_params=params)] * rows, device.type)
        return penaltylib.BatchedPenalizerOrchestrator(vocab, batch, kinds)

    return orchestrator, apply_scaling_penalties, True


class Upstream(Implementation):
    """Upstream's frequency and repetition penalties, as a server with overlap runs them."""

    def __init__(
        self, inputs: Inputs, make: Callable[..., Any], scale: Callable[..., None]
    ) -> None:
        case = inputs.case
        # Additive: zeroed, lowered by what was counted (two read, one written), read. Factors:
        # copied (one read, one written), read. Logits: read and written by each of the two.
        each = 12 * torch.float32.itemsize
        super().__init__(inputs, size=each * case.rows * case.vocab)
        self.scale = scale
        self.make = functools.partial(make, case.rows, case.vocab, inputs.device)
        self.penalties: dict[int, Any] = {}

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        if k not in self.penalties:
            self.penalties[k] = self.make()
        logits, penalties = self.inputs.logits[k], self.penalties[k]
        penalties.cumulate_output_tokens(self.inputs.newest[k])
        additive = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        penalties.accumulate_additive_penalties(additive)
        scaling = penalties.accumulate_scaling_penalties()
        logits.add_(additive)
        self.scale(logits, scaling)


class Empty(Implementation):
    """A kernel that does nothing, with the grid, threads and number of arguments of ours."""

    def __init__(self, inputs: Inputs, kernels: ModuleType) -> None:
        case = inputs.case
        super().__init__(inputs, size=0)
        self.kernel = empty_kernel(kernels)
        self.grid = (case.rows, case.nodes) if case.nodes else (case.rows,)
        self.state = WindowState(1, max(case.window, DEFAULT_MAX_WINDOW_SIZE), inputs.device)
        self.warps = kernels._warps(kernels._block(case.window, self.state.capacity))

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs, state = self.inputs, self.state
        logits = inputs.logits[k]
        self.kernel[self.grid](
            logits, *logits.stride(), logits.shape[1], inputs.request_rows[k], inputs.seq_lens,
            inputs.newest[k], 0, 0, state.tokens, state.match, state.params, state.capacity,
            num_warps=self.warps,
        )  # fmt: skip


def empty_kernel(kernels: ModuleType) -> Any:
    """A kernel with the arguments of a step, compiled as `kernels` compiles its own."""

    def empty(  # type: ignore[no-untyped-def] # noqa: PLR0917
        logits, row_stride, token_stride, vocab_size, request_rows, seq_lens, input_ids, prefilled,
        offset, tokens, match, params, capacity,
    ):  # fmt: skip
        pass

    return kernels._compiled_once(empty)


class Copy(Implementation):
    """A copy within the device's memory: half of the bytes read, half written."""

    def __init__(self, inputs: Inputs, size: int) -> None:
        super().__init__(inputs, size)
        shape = (2, inputs.sets, size // 2)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=inputs.device)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        self.memory[0, k].copy_(self.memory[1, k])


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
