"""The penalties of a server: which request rows have one, and the steps that apply them.

`Penalizer.plan` decides on the host what the next step of a batch does. `apply` or `verify` then
does it on the device. The windows of the LZ penalty are kept here. The penalties over whole
histories (`history_penalizer`) belong to the same rows and are applied in the same launch.

State belongs to the request row, so it needs no counterpart of upstream's merging and filtering of
batches. The host knows which rows have a penalty, so it launches nothing for a batch without any.
The device also knows, from the rows' parameters, so a step needs no data from the host. Windows are
only written on the forward stream.

This module is independent of upstream's classes; `sglang_lz.sampling` reads those.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sglang_lz.penalty import kernels
from sglang_lz.penalty.draft_tree import AcceptedPaths, DraftTrees
from sglang_lz.penalty.history import HistoryRoom, HistoryState
from sglang_lz.penalty.history_penalizer import HistoryPenalizer, HistoryStep, RowHistory
from sglang_lz.penalty.window import PARAMS, PENALTY, Seed, StepInputs, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_GENERATION = -1
NO_TOKENS = np.zeros(0, dtype=np.int64)


class RowWindow(NamedTuple):
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
class StepPlan:
    """The plan for one batch in which some rows have a penalty, for one step or several.

    Attributes:
        penalizer: the penalizer that made it.
        seed: for rows that were prefilled, handed over or cleared; None if there are none.
        rows: how many batch rows are requests; upstream may add padding after them.
        prefilled: how many leading batch rows are prefills, whose seeds are complete.
        offset: the newest token of a later batch row i is at index i + offset of `input_ids`.
        width: the largest window size among the rows with an LZ penalty, in tokens; 0 without any.
        history: what the other penalties need; None if no row has any.
        waits: whether `forbid` has yet to mask the forbidden tokens. False before the plan is
            applied, and also after it if that has already masked them.
    """

    penalizer: Penalizer
    seed: Seed | None
    rows: int
    prefilled: int
    offset: int
    width: int
    history: HistoryStep | None = None
    waits: bool = False

    @property
    def is_steady(self) -> bool:
        """Whether the plan holds for later steps too, because no row starts, ends or moves."""
        is_still = self.history is None or self.history.is_still
        return not self.prefilled and self.seed is None and is_still


@dataclass(slots=True)
class VerifiedTrees:
    """A batch of draft trees between `verify` and `accept`.

    Attributes:
        plan: the plan of the batch.
        trees: the trees.
        paths: the tokens from each node up to its root, as `reference.steps.verify` returns them.
    """

    plan: StepPlan
    trees: DraftTrees
    paths: Tensor


class Penalizer:
    """The penalties of all requests that share one pool of request rows.

    A row is active while its generation in the pool is the one in which it was seeded. If upstream
    gives the row to another request, it becomes inactive without any notification.

    Attributes:
        state: the windows of the LZ penalty.
        kernels: the module of `sglang_lz.penalty.kernels` that steps them.
        histories: the penalties over whole histories, for the same rows.
    """

    def __init__(
        self,
        rows: int,
        capacity: int,
        device: torch.device | str,
        room: HistoryRoom | None = None,
    ) -> None:
        """Reserve the memory for the windows and histories of `rows` request rows.

        Args:
            rows: how many request rows there are.
            capacity: the largest window size, in tokens.
            device: where the model runs.
            room: for the penalties over whole histories; None to support none of them.

        Raises:
            RuntimeError: the memory cannot be allocated.
        """
        self.device = torch.device(device)
        self.state = WindowState(rows, capacity, device)
        self.kernels = kernels.import_for(self.device)
        self.histories = HistoryPenalizer(
            rows, device, self.kernels, room or HistoryRoom(vocab_size=1, words=1, lists=0)
        )
        # Rows with a window that were active when they were last prefilled.
        self._users: set[int] = set()
        self._generation = np.full(rows, NO_GENERATION)
        self._window_size = np.zeros(rows, dtype=np.int64)
        # The generation in which `new_rows` last saw each row.
        self._seen = np.full(rows, NO_GENERATION)
        # Rows whose penalty on the device is not 0. Inactive ones are cleared in the next step of a
        # batch that contains them.
        self._seeded = np.zeros(rows, dtype=bool)
        # The request rows of the last batch, and its plan if that holds for the next step, too.
        self._last: tuple[Tensor | None, StepPlan | None] = None, None

    @property
    def has_users(self) -> bool:
        """Whether any row may be active. While none is, batches skip all work here."""
        return bool(self._users or self.histories.users)

    def new_rows(self, rows: NDArray[np.int64], generations: NDArray[np.int64]) -> list[int]:
        """Which batch rows hold requests that no earlier call has seen; arguments as in `plan`."""
        generation = generations[rows]
        unknown: list[int] = (self._seen[rows] != generation).nonzero()[0].tolist()
        self._seen[rows] = generation
        return unknown

    def plan_again(self, rows: Tensor, count: int, offset: int) -> StepPlan | None:
        """The plan of the last batch, if that was the same batch and no row has started since.

        Most steps decode the batch of the step before. For these, `plan` would take most of the
        time that the penalty costs the host.

        Args:
            rows: the tensor of the request rows; upstream makes another when a batch changes.
            count: how many of them are requests.
            offset: as in `StepPlan`.

        Returns:
            The same object, or None if `plan` must make another.
        """
        last_rows, last = self._last
        if last is None or rows is not last_rows or last.rows != count or last.offset != offset:
            return None
        return last

    def plan(
        self,
        rows: Tensor,
        count: int,
        generations: NDArray[np.int64],
        windows: Mapping[int, RowWindow],
        histories: Mapping[int, RowHistory],
        *,
        live_rows: Callable[[], Collection[int]],
        prefilled: int = 0,
        offset: int = 0,
    ) -> StepPlan | None:
        """Plan a batch: activate the rows that start, and collect what to write before the step.

        It reads and changes host data only. If another step of this batch would get the same plan,
        it is kept for `plan_again`.

        Args:
            rows: the request row of each batch row, int64 [at least `count`], on the CPU.
            count: how many of them are requests.
            generations: the pool's generation of every request row, int64.
            windows: the initial windows of the batch rows that start, by batch row.
            histories: their initial histories, by batch row.
            live_rows: returns the request rows that still need their histories.
            prefilled: as in `StepPlan`. These rows lose what they had, unless they start.
            offset: as in `StepPlan`.

        Returns:
            The plan; None if no row of the batch has a penalty.
        """
        self._last = None, None
        in_batch = rows.numpy()[:count]
        generation = generations[in_batch]
        if prefilled:
            self._deactivate(in_batch[:prefilled])
        history = self.histories.plan(in_batch, generation, histories, generations, live_rows)
        seed, width = self._plan_windows(in_batch, generation, windows, history is not None)
        if not width and history is None:
            return None
        plan = StepPlan(self, seed, count, prefilled, offset, width, history)
        if plan.is_steady:
            self._last = rows, plan
        return plan

    def _deactivate(self, rows: NDArray[np.int64]) -> None:
        self.histories.deactivate(rows)
        if self._users:
            self._generation[rows] = NO_GENERATION
            self._users.difference_update(rows.tolist())

    def _plan_windows(
        self,
        rows: NDArray[np.int64],
        generation: NDArray[np.int64],
        windows: Mapping[int, RowWindow],
        is_stepped: bool,
    ) -> tuple[Seed | None, int]:
        """The seed and the width of a plan; `is_stepped` if other penalties step the batch."""
        if not (windows or self._users or is_stepped):
            return None, 0
        for i, window in windows.items():
            row = int(rows[i])
            self._users.add(row)
            self._generation[row] = generation[i]
            self._window_size[row] = window.window_size
        active = self._generation[rows] == generation
        width = max(self._window_size[rows[active]].tolist(), default=0)
        cleared = (self._seeded[rows] & ~active).nonzero()[0].tolist()
        if not (width or is_stepped) or not (windows or cleared):
            return None, width
        return seed_of(rows[[*windows, *cleared]].tolist(), list(windows.values())), width

    def apply(
        self,
        plan: StepPlan,
        logits: Tensor,
        *,
        request_rows: Tensor,
        seq_lens: Tensor,
        input_ids: Tensor,
        is_masked: bool = False,
    ) -> None:
        """Append the newest token of each row, and apply the penalties to the logits.

        Args:
            plan: the plan of this batch.
            logits: next-token logits, float32 [batch, V]; changed in place.
            request_rows: the request row of each batch row, integer [batch], on the device.
            seq_lens, input_ids: as in `StepInputs`.
            is_masked: whether a grammar masks the logits later; the caller then calls `forbid`
                after it.

        Raises:
            TypeError: the logits have another dtype.
        """
        history = self._begin(plan, logits, is_masked)
        if len(request_rows) != plan.rows:
            request_rows = request_rows[: plan.rows]
        inputs = StepInputs(request_rows, seq_lens, input_ids, plan.prefilled, plan.offset)
        self.kernels.step(
            self.state,
            logits,
            inputs,
            width=plan.width,
            history=history,
            forbids=not plan.waits,
        )

    def verify(
        self, plan: StepPlan, logits: Tensor, trees: DraftTrees, is_masked: bool = False
    ) -> VerifiedTrees:
        """Apply the penalties to the logits of each draft node; the rows' state does not change.

        Args:
            plan: the plan of this batch.
            logits: next-token logits, float32 [batch x nodes, V]; changed in place.
            trees: the draft tree of each batch row.
            is_masked: as in `apply`.

        Returns:
            What `accept` needs.

        Raises:
            TypeError: the logits have another dtype.
        """
        history = self._begin(plan, logits, is_masked)
        paths = self.kernels.verify(
            self.state,
            logits,
            trees,
            width=plan.width,
            history=history,
            forbids=not plan.waits,
        )
        return VerifiedTrees(plan, trees, paths)

    def forbid(self, plan: StepPlan, logits: Tensor) -> None:
        """Mask the forbidden tokens that had to wait for a grammar's mask, if any.

        Args:
            plan: the argument of `apply` or `verify`.
            logits: the same logits, masked; changed in place.
        """
        if plan.waits:
            self.kernels.forbid(self.histories.state, logits)
            plan.waits = False

    def accept(self, verified: VerifiedTrees, accept_index: Tensor, num_correct: Tensor) -> None:
        """Append the accepted path of each tree to the window and the history of its row.

        The token sampled at its end is not appended yet. It becomes the root of the row's next
        tree, or the input of its next decode, as after a step without drafts.

        Args:
            verified: what `verify` returned.
            accept_index: as in `AcceptedPaths`.
            num_correct: `num_correct_drafts` of `AcceptedPaths`.
        """
        plan, trees = verified.plan, verified.trees
        self.kernels.accept(
            self.state,
            AcceptedPaths(
                trees.request_rows, trees.root, verified.paths, accept_index, num_correct
            ),
            width=plan.width,
            history=None if plan.history is None else self.histories.state,
        )

    def write_seed(self, seed: Seed | None) -> None:
        """Write a seed into the windows, if there is one."""
        if seed is not None:
            self.kernels.seed(self.state, seed)
            self._seeded[seed.rows] = seed.params[:, PENALTY] > 0

    def _begin(self, plan: StepPlan, logits: Tensor, is_masked: bool) -> HistoryState | None:
        """Write a plan's seeds into the rows' state. Returns the histories if the plan has any."""
        # Upstream's LogitsProcessor returns float32 for sampling (tests/patches enforces this).
        if logits.dtype != torch.float32:
            raise TypeError(
                "logits must be torch.float32 where the LZ penalty lowers them, got "
                f"{logits.dtype}."
            )
        self.write_seed(plan.seed)
        if plan.history is None:
            return None
        plan.waits = is_masked and plan.history.forbids
        return self.histories.write(plan.history)


def seed_of(rows: Sequence[int], windows: Sequence[RowWindow]) -> Seed:
    """The seed of request rows: the first ones get these windows, the others are cleared.

    Args:
        rows: request rows, at least as many as there are windows.
        windows: the new windows.
    """
    cleared = len(rows) - len(windows)
    tokens = array("q")
    ends: list[int] = []
    for window in windows:
        tokens.extend(window.tokens)
        ends.append(len(tokens))
    # One array instead of four: creating an array takes longer than filling it.
    numbers = np.array(
        [
            rows,
            [*(w.end - 1 for w in windows), *[-1] * cleared],
            [*ends, *[len(tokens)] * cleared],
            [*(w.sampled for w in windows), *[0] * cleared],
        ],
        dtype=np.int64,
    )
    # In the column order of `WindowState.params`.
    params: list[tuple[float, ...]] = [
        (w.penalty, w.window_size, w.buffer_size, w.first_visible, w.is_rate, w.onset)
        for w in windows
    ]
    return Seed(
        rows=numbers[0],
        position=numbers[1],
        end=numbers[2],
        tokens=np.frombuffer(tokens, dtype=np.int64) if tokens else NO_TOKENS,
        sampled=numbers[3],
        params=np.array([*params, *[(0.0,) * PARAMS] * cleared], dtype=np.float32),
    )
