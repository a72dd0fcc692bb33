"""The ways to adjust logits that the benchmark compares."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from bench.kernel.inputs import ACCEPTED, LZ_PENALTY, Inputs, tree_links
from sglang_lz.fields.lz import DEFAULT_MAX_WINDOW_SIZE
from sglang_lz.penalty.draft_tree import AcceptedPaths, DraftTrees
from sglang_lz.penalty.reference import steps as reference
from sglang_lz.penalty.window import StepInputs, WindowState

FREQUENCY_PENALTY = 0.5
REPETITION_PENALTY = 1.2
# The values that its author recommends.
DRY_MULTIPLIER, DRY_BASE, DRY_ALLOWED_LENGTH = 0.8, 1.75, 2
DRY_LARGEST_EXPONENT = 100  # float32 ends soon after
WARPS = 8  # of a program of ours for windows of the default size


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

    def __init__(
        self,
        inputs: Inputs,
        kernels: ModuleType,
        size: int | None,
        onset: int = 0,
        *,
        memory: bool = False,
    ) -> None:
        super().__init__(inputs, size, capturable=kernels is not reference)
        self.kernels = kernels
        self.state = inputs.window_state(onset, memory=memory)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs = self.inputs
        self.kernels.step(
            self.state,
            inputs.logits[k],
            StepInputs(
                request_rows=inputs.request_rows[k],
                seq_lens=inputs.seq_lens,
                input_ids=inputs.newest[k],
                prefilled=0,
                offset=0,
            ),
            width=inputs.case.window,
        )


class Verify(Step):
    """A verify step of draft trees; that the tree is accepted is not timed."""

    def __init__(
        self,
        inputs: Inputs,
        kernels: ModuleType,
        size: int | None,
        onset: int = 0,
        *,
        memory: bool = False,
    ) -> None:
        super().__init__(inputs, kernels, size, onset, memory=memory)
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
            DraftTrees(
                request_rows=inputs.request_rows[k],
                root=inputs.root,
                tokens=inputs.drafts[k],
                first_child=self.first_child,
                next_sibling=self.next_sibling,
                depth=len(ACCEPTED),
            ),
            width=inputs.case.window,
        )

    def between(self) -> None:
        """Accept the longest path of each tree."""
        for k, paths in self.paths.items():
            self.kernels.accept(
                self.state,
                AcceptedPaths(
                    request_rows=self.inputs.request_rows[k],
                    root=self.inputs.root,
                    paths=paths,
                    accept_index=self.accept_index,
                    num_correct_drafts=self.accepted,
                ),
                width=self.inputs.case.window,
            )


class _OnWindows(Implementation):
    """An implementation that keeps its windows as tokens and reads the whole of them each step."""

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
    """What upstream's penalties read of a batch."""

    reqs: list[SimpleNamespace]
    device: str


def upstream_penalties() -> tuple[Callable[..., Any], Callable[..., None], bool]:
    """A maker of `Penalties`, a `scale`, and whether both are upstream's own."""
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

    def __init__(self, inputs: Inputs) -> None:
        case = inputs.case
        super().__init__(inputs, size=0)
        self.kernel = empty_kernel()
        self.grid = case.rows, case.nodes or 1
        self.state = WindowState(1, max(case.window, DEFAULT_MAX_WINDOW_SIZE), inputs.device)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        inputs, state = self.inputs, self.state
        logits = inputs.logits[k]
        self.kernel(
            self.grid,
            logits, *logits.stride(), logits.shape[1], inputs.request_rows[k], inputs.seq_lens,
            inputs.newest[k], 0, 0, state.tokens, state.run, state.params, state.cover,
            state.capacity,
        )  # fmt: skip


def empty_kernel() -> Any:
    """A kernel with the arguments of a step, launched as ours is."""
    from sglang_lz.penalty.kernels.launch import Kernel

    def empty(  # type: ignore[no-untyped-def] # noqa: PLR0917
        logits, row_stride, token_stride, vocab_size, request_rows, seq_lens, input_ids, prefilled,
        offset, tokens, run, strengths, cover, capacity,
    ):  # fmt: skip
        pass

    return Kernel(empty, lambda: {"num_warps": WARPS})


class Copy(Implementation):
    """A copy within the device's memory: half of the bytes read, half written."""

    def __init__(self, inputs: Inputs, size: int) -> None:
        super().__init__(inputs, size)
        shape = (2, inputs.sets, size // 2)
        self.memory = torch.zeros(shape, dtype=torch.uint8, device=inputs.device)

    def call(self, k: int) -> None:
        """See `Implementation.call`."""
        self.memory[0, k].copy_(self.memory[1, k])
