"""The LZ penalizer of a server: which request rows have a penalty, and the steps that apply it.

The penalties over whole histories (`history_penalizer`) belong to the same rows and are applied in
the same steps.

State belongs to the request row, so it needs no counterpart of upstream's merging and filtering of
batches. The host knows which rows have a penalty, so it launches nothing for a batch without any.
The device also knows, from the rows' parameters, so a step needs no data from the host. Windows are
only written on the forward stream.

This module is independent of upstream's classes; `sglang_lz.sampling` reads those.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sglang_lz.penalty import kernels
from sglang_lz.penalty.history import HistoryRoom, HistoryState
from sglang_lz.penalty.history_penalizer import HistoryPenalizer, HistoryStep
from sglang_lz.penalty.window import PARAMS, PENALTY, Seed, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_GENERATION = -1


class History(NamedTuple):
    """The initial state of a request row's window.

    Attributes:
        tokens: the newest `window.tokens_to_seed` of the visible tokens, oldest first.
        sampled: how many of them precede the first sampled token.
        end: how many tokens the request has so far, invisible ones included.
        first_visible: the position of the first token that may be visible.
        penalty: alpha, in nats per bit.
        window_size: W, in tokens.
        buffer_size: B, in tokens.
        is_rate: whether the cost is `rate`.
        onset: n, in copies; 0 if the penalty is always on.
    """

    tokens: Sequence[int]
    sampled: int
    end: int
    first_visible: int
    penalty: float
    window_size: int
    buffer_size: int
    is_rate: bool
    onset: int


@dataclass(slots=True)
class LZStep:
    """The plan for one forward batch in which some rows have a penalty.

    Attributes:
        penalizer: the penalizer that applies it.
        seed: for rows that were prefilled, handed over or cleared; None if there are none.
        rows: how many batch rows are requests; upstream may add padding after them.
        prefilled: how many leading batch rows are prefills, whose seeds are complete.
        offset: the newest token of a later batch row i is at index i + offset of `input_ids`.
        width: the largest window size among the rows with an LZ penalty, in tokens; 0 without any.
        history: what the other penalties need; None if no row has any.
        pending: the histories whose forbidden tokens `forbid` has yet to mask. It is None before
            `apply`, and also after it if `apply` has already masked them.
    """

    penalizer: BatchedLZPenalizer
    seed: Seed | None
    rows: int
    prefilled: int
    offset: int
    width: int
    history: HistoryStep | None = None
    pending: HistoryState | None = None


@dataclass(slots=True)
class LZVerify:
    """A batch of draft trees between `verify` and `accept`.

    Attributes:
        penalizer: the penalizer that verified them.
        request_rows: the request row of each tree, integer [batch], on the device.
        root: the position of each tree's root, integer [batch], on the device.
        paths: the tokens from each node up to its root, as `reference.steps.verify` returns them.
        width: as in `LZStep`.
        history: the histories of the other penalties; None if no row has any.
        pending: as in `LZStep`.
    """

    penalizer: BatchedLZPenalizer
    request_rows: Tensor
    root: Tensor
    paths: Tensor
    width: int
    history: HistoryState | None = None
    pending: HistoryState | None = None


class BatchedLZPenalizer:
    """The LZ penalty of all requests that share one pool of request rows.

    A row is active while its generation in the pool is the one in which it was seeded. If upstream
    gives the row to another request, it becomes inactive without any notification.

    Attributes:
        users: rows that were active when they were last prefilled. While there are none, batches
            skip all work here.
        state: the windows.
        kernels: the module of `sglang_lz.penalty.kernels` that steps them.
        others: the penalties over whole histories, for the same rows.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        device: torch.device | str,
        room: HistoryRoom | None = None,
    ) -> None:
        """Reserve windows of at most `capacity` tokens for `rows` request rows, and histories.

        Args:
            rows: how many request rows there are.
            capacity: the largest window, in tokens.
            device: where the model runs.
            room: for the penalties over whole histories; None to support none of them.

        Raises:
            RuntimeError: the memory cannot be allocated.
        """
        self.device = torch.device(device)
        self.users: set[int] = set()
        self.state = WindowState(rows, capacity, device)
        self.kernels = kernels.import_for(self.device)
        self.others = HistoryPenalizer(
            rows, device, self.kernels, room or HistoryRoom(vocab_size=1, words=1, lists=0)
        )
        self._generation = np.full(rows, NO_GENERATION)
        self._window_size = np.zeros(rows, dtype=np.int64)
        # The generation in which a decode server last saw each row.
        self._looked_at = np.full(rows, NO_GENERATION)
        # Rows whose penalty on the device is not 0. Inactive ones are cleared in the next step of a
        # batch that contains them.
        self._seeded = np.zeros(rows, dtype=bool)

    def give_up(self, rows: NDArray[np.int64]) -> None:
        """Deactivate the rows of requests that are being prefilled; `admit` reactivates them."""
        self.others.give_up(rows)
        if self.users and len(rows):
            self._generation[rows] = NO_GENERATION
            self.users.difference_update(rows.tolist())

    def look_at(self, rows: NDArray[np.int64], generation: NDArray[np.int64]) -> list[int]:
        """Which batch rows hold requests that no earlier call has seen.

        Args:
            rows: the request row of each, int64 [rows].
            generation: the pool's generation of each, int64 [rows].
        """
        unknown: list[int] = (self._looked_at[rows] != generation).nonzero()[0].tolist()
        self._looked_at[rows] = generation
        return unknown

    def admit(
        self,
        rows: NDArray[np.int64],
        generation: NDArray[np.int64],
        histories: Mapping[int, History],
        is_stepped: bool = False,
    ) -> tuple[Seed | None, int]:
        """Activate the batch rows that come with a history.

        Args:
            rows: the request row of each batch row, int64 [rows].
            generation: the pool's generation of each, int64 [rows].
            histories: the new histories, by batch row.
            is_stepped: whether the batch is stepped even if no row is active.

        Returns:
            The seed to write before the step, None if there is none; and the largest window size
            among the active rows, 0 without any.
        """
        if not (histories or self.users or is_stepped):
            return None, 0
        for i, history in histories.items():
            row = int(rows[i])
            self.users.add(row)
            self._generation[row] = generation[i]
            self._window_size[row] = history.window_size
        active = self._generation[rows] == generation
        width = max(self._window_size[rows[active]].tolist(), default=0)
        given_up = (self._seeded[rows] & ~active).nonzero()[0].tolist()
        if not (width or is_stepped) or not (histories or given_up):
            return None, width
        return seed_of(rows[[*histories, *given_up]], list(histories.values())), width

    def apply(
        self,
        step: LZStep,
        logits: Tensor,
        *,
        request_rows: Tensor,
        seq_lens: Tensor,
        input_ids: Tensor,
        is_masked: bool = False,
    ) -> None:
        """Bring the windows of `step` up to date and lower the logits of predicted tokens.

        Args:
            step: the plan of this batch.
            logits: next-token logits, float32 [batch, V]; changed in place.
            request_rows: the request row of each batch row, integer [batch], on the device.
            seq_lens: as in `reference.steps.step`.
            input_ids: as in `reference.steps.step`.
            is_masked: whether a grammar masks the logits later; the caller then calls `forbid`
                after it.

        Raises:
            TypeError: the logits have another dtype.
        """
        _check(logits)
        self.take(step.seed)
        history = None if step.history is None else self.others.take(step.history)
        waits = is_masked and step.history is not None and step.history.forbids
        self.kernels.step(
            self.state,
            logits,
            request_rows=request_rows[: step.rows],
            seq_lens=seq_lens,
            input_ids=input_ids,
            prefilled=step.prefilled,
            offset=step.offset,
            width=step.width,
            history=history,
            forbids=not waits,
        )
        step.pending = history if waits else None

    def verify(
        self,
        seed: Seed | None,
        logits: Tensor,
        *,
        request_rows: Tensor,
        root: Tensor,
        tokens: Tensor,
        first_child: Tensor,
        next_sibling: Tensor,
        depth: int,
        width: int,
        history: HistoryStep | None = None,
        is_masked: bool = False,
    ) -> LZVerify:
        """Lower the logits of the tokens that the window of each draft node predicts.

        Args:
            seed: what `admit` returned.
            history: what the other penalties need; None if no row has any.
            is_masked: as in `apply`.
            others: as in `reference.steps.verify`.

        Returns:
            What `accept` needs.

        Raises:
            TypeError: the logits have another dtype.
        """
        _check(logits)
        self.take(seed)
        state = None if history is None else self.others.take(history)
        waits = is_masked and history is not None and history.forbids
        paths = self.kernels.verify(
            self.state,
            logits,
            request_rows=request_rows,
            root=root,
            tokens=tokens,
            first_child=first_child,
            next_sibling=next_sibling,
            depth=depth,
            width=width,
            history=state,
            forbids=not waits,
        )
        return LZVerify(
            self, request_rows, root, paths, width, state, pending=state if waits else None
        )

    def forbid(self, step: LZStep | LZVerify, logits: Tensor) -> None:
        """Mask the forbidden tokens that had to wait for a grammar's mask, if any.

        Args:
            step: the argument of `apply`, or the result of `verify`.
            logits: the same logits, masked; changed in place.
        """
        if step.pending is not None:
            self.kernels.forbid(step.pending, logits)
            step.pending = None

    def accept(self, verified: LZVerify, accept_index: Tensor, num_correct_drafts: Tensor) -> None:
        """Append the accepted path of each tree to its window.

        The token sampled at its end is not appended yet. It becomes the root of the row's next
        tree, or the input of its next decode, as after a step without drafts.

        Args:
            verified: what `verify` returned.
            accept_index: as in `reference.steps.accept`.
            num_correct_drafts: as in `reference.steps.accept`.
        """
        self.kernels.accept(
            self.state,
            request_rows=verified.request_rows,
            root=verified.root,
            paths=verified.paths,
            accept_index=accept_index,
            num_correct_drafts=num_correct_drafts,
            width=verified.width,
            history=verified.history,
        )

    def take(self, seed: Seed | None) -> None:
        """Write a seed into the windows, if there is one."""
        if seed is not None:
            self.kernels.seed(self.state, seed)
            self._seeded[seed.rows] = seed.params[:, PENALTY] > 0


def seed_of(rows: NDArray[np.int64], histories: Sequence[History]) -> Seed:
    """The seed of request rows: the first ones get these histories, the others are cleared.

    Args:
        rows: request rows, int64 [rows], at least as many as there are histories.
        histories: the new histories.
    """
    given_up = len(rows) - len(histories)
    tokens = array("q")
    ends: list[int] = []
    for history in histories:
        tokens.extend(history.tokens)
        ends.append(len(tokens))
    # In the column order of `WindowState.params`.
    params: list[tuple[float, ...]] = [
        (h.penalty, h.window_size, h.buffer_size, h.first_visible, h.is_rate, h.onset)
        for h in histories
    ]
    return Seed(
        rows=rows,
        position=np.array([*(h.end for h in histories), *[0] * given_up], dtype=np.int64) - 1,
        end=np.array([*ends, *[len(tokens)] * given_up], dtype=np.int64),
        history=np.array(tokens, dtype=np.int64),
        sampled=np.array([*(h.sampled for h in histories), *[0] * given_up], dtype=np.int64),
        params=np.array([*params, *[(0.0,) * PARAMS] * given_up], dtype=np.float32),
    )


def _check(logits: Tensor) -> None:
    # Upstream's LogitsProcessor returns float32 for sampling (tests/patches enforces this).
    if logits.dtype != torch.float32:
        raise TypeError(
            f"logits must be torch.float32 where the LZ penalty lowers them, got {logits.dtype}."
        )
