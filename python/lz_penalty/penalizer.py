"""The penalties of a server: which request rows have one, and the steps that apply them.

`Penalizer.plan` decides on the host what the next step of a batch does. `apply` or `verify` then
does it on the device. The windows of the LZ penalty are kept here. The penalties over whole
histories (`history_penalizer`) belong to the same rows and are applied in the same launch.

State belongs to the request row, so it needs no counterpart of upstream's merging and filtering of
batches. The host knows which rows have a penalty, so it launches nothing for a batch without any.
The device also knows, from the rows' parameters, so a step needs no data from the host. Windows are
only written on the forward stream.

This module is independent of upstream's classes; `sglang_lz.scheduler.sampling` reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lz_penalty import kernels
from lz_penalty.draft_tree import AcceptedPaths, DraftTrees
from lz_penalty.history import HistoryRoom, HistoryState
from lz_penalty.history_penalizer import HistoryPenalizer, HistoryStep, RowHistory
from lz_penalty.window import RowWindow, StepInputs, WindowState

if TYPE_CHECKING:
    from numpy.typing import NDArray

NO_GENERATION = -1


class RowStart(NamedTuple):
    """The initial state of a request row.

    Attributes:
        window: its window; None without an LZ penalty.
        history: its whole history; None without any other penalty.
    """

    window: RowWindow | None = None
    history: RowHistory | None = None


@dataclass(slots=True)
class StepPlan:
    """The plan for one batch in which some rows have a penalty, for one step or several.

    Attributes:
        penalizer: the penalizer that made it.
        windows: for rows that were prefilled, handed over or cleared, by request row.
        rows: how many batch rows are requests; upstream may add padding after them.
        prefilled: how many leading batch rows are prefills, whose windows are complete.
        offset: the newest token of a later batch row i is at index i + offset of `input_ids`.
        width: the largest window size among the rows with an LZ penalty, in tokens; 0 without any.
        history: what the other penalties need; None if no row has any.
        waits: whether `forbid` has yet to mask the forbidden tokens. False before the plan is
            applied, and also after it if that has already masked them.
    """

    penalizer: Penalizer
    windows: dict[int, RowWindow]
    rows: int
    prefilled: int
    offset: int
    width: int
    history: HistoryStep | None = None
    waits: bool = False


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
        kernels: the module of `lz_penalty.kernels` that steps them.
        histories: the penalties over whole histories, for the same rows.
    """

    def __init__(
        self,
        generations: Tensor,
        capacity: int,
        device: torch.device | str,
        room: HistoryRoom | None = None,
        live_rows: Callable[[], Collection[int]] = list,
    ) -> None:
        """Reserve the memory for the windows and histories of all request rows.

        Args:
            generations: the pool's generation of every request row, int64 [rows], on the CPU. The
                pool changes it when it gives a row to another request.
            capacity: the largest window size, in tokens.
            device: where the model runs.
            room: for the penalties over whole histories; None to support none of them.
            live_rows: returns the request rows that still need their histories.

        Raises:
            RuntimeError: the memory cannot be allocated.
        """
        rows = len(generations)
        room = room or HistoryRoom(vocab_size=1, words=1, lists=0)
        self.device = torch.device(device)
        self.state = WindowState(rows, capacity, device, room.vocab_size)
        self.kernels = kernels.import_for(self.device)
        self.histories = HistoryPenalizer(rows, device, self.kernels, room)
        self._live_rows = live_rows
        self._pool_generation: NDArray[np.int64] = generations.numpy()
        # Rows with a window that were active when they were last prefilled.
        self._users: set[int] = set()
        # The generation in which each row was last active.
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

    def new_rows(self, request_rows: Tensor, count: int) -> list[int]:
        """Which batch rows hold requests that no earlier call has seen; arguments as in `plan`."""
        rows = request_rows.numpy()[:count]
        generation = self._pool_generation[rows]
        unknown: list[int] = (self._seen[rows] != generation).nonzero()[0].tolist()
        self._seen[rows] = generation
        return unknown

    def plan_again(self, request_rows: Tensor, count: int, offset: int) -> StepPlan | None:
        """The plan of the last batch, if that was the same batch and no row has started since.

        Most steps decode the batch of the step before. For these, `plan` would take most of the
        time that the penalty costs the host.

        Args:
            request_rows: as in `plan`; upstream makes another tensor when a batch changes.
            count: how many of them are requests.
            offset: as in `StepPlan`.

        Returns:
            The same object, or None if `plan` must make another.
        """
        last_rows, last = self._last
        if last is None or request_rows is not last_rows:
            return None
        return last if (last.rows, last.offset) == (count, offset) else None

    def plan(
        self,
        request_rows: Tensor,
        count: int,
        starts: Mapping[int, RowStart],
        *,
        prefilled: int = 0,
        offset: int = 0,
    ) -> StepPlan | None:
        """Plan a batch: activate the rows that start, and collect what to write before the step.

        It reads and changes host data only. If another step of this batch would get the same plan,
        it is kept for `plan_again`.

        Args:
            request_rows: the request row of each batch row, int64 [at least `count`], on the CPU.
            count: how many of them are requests.
            starts: the initial state of the batch rows that start, by batch row.
            prefilled: as in `StepPlan`. These rows lose what they had, unless they start.
            offset: as in `StepPlan`.

        Returns:
            The plan; None if no row of the batch has a penalty.
        """
        self._last = None, None
        given: dict[int, RowWindow] = {}
        width = 0
        if prefilled or starts:
            width = self._start(request_rows.tolist(), prefilled, starts, given)
        history = None
        histories = {i: own.history for i, own in starts.items() if own.history is not None}
        if histories or self.histories.users:
            rows = request_rows.numpy()[:count]
            history = self.histories.plan(
                rows, self._pool_generation[rows], histories, self._pool_generation, self._live_rows
            )
        if prefilled < count and (self._users or history is not None):
            width = max(width, self._continue(request_rows.numpy()[prefilled:count], given))
        if not width and history is None:
            return None
        plan = StepPlan(self, given, count, prefilled, offset, width, history)
        # It holds for later steps if no row starts, ends or moves.
        if not (prefilled or given or (history is not None and not history.is_still)):
            self._last = request_rows, plan
        return plan

    def _start(
        self,
        rows: list[int],
        prefilled: int,
        starts: Mapping[int, RowStart],
        given: dict[int, RowWindow],
    ) -> int:
        """Activate the rows that start, and deactivate the other prefilled ones.

        Args:
            rows: the request row of each batch row.
            prefilled, starts: as in `plan`.
            given: receives `StepPlan.windows`.

        Returns:
            The largest of the windows.
        """
        width = 0
        prefills = rows[:prefilled]
        if self.histories.users:
            self.histories.deactivate(prefills)
        # Element by element, because numpy needs longer for a few rows, and few rows start at once.
        for i, (window, _) in starts.items():
            if window is None:
                continue
            row = rows[i]
            given[row] = window
            self._users.add(row)
            self._generation[row] = self._pool_generation[row]
            size = self._window_size[row] = window.lz.window_size
            if size > width:  # noqa: PLR1730 -- `max` takes longer
                width = size
        for row in prefills:
            if row in given:
                continue
            if row in self._users:
                self._users.discard(row)
                self._generation[row] = NO_GENERATION
            if self._seeded[row]:
                given[row] = RowWindow()
        return width

    def _continue(self, rows: NDArray[np.int64], given: dict[int, RowWindow]) -> int:
        """Clear the windows of request rows that are no longer active; returns the largest of the
        others. `given` as in `_start`."""
        active = self._generation[rows] == self._pool_generation[rows]
        for row in rows[self._seeded[rows] & ~active].tolist():
            given[row] = RowWindow()
        return max(self._window_size[rows[active]].tolist(), default=0)

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
        if request_rows.shape[0] != plan.rows:
            request_rows = request_rows[: plan.rows]
        inputs = StepInputs(request_rows, seq_lens, input_ids, plan.prefilled, plan.offset)
        self.kernels.step(
            self.state, logits, inputs, width=plan.width, history=history, forbids=not plan.waits
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
            self.state, logits, trees, width=plan.width, history=history, forbids=not plan.waits
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

    def write_windows(self, windows: Mapping[int, RowWindow]) -> None:
        """Give request rows new windows, as `StepPlan.windows`."""
        if windows:
            self.kernels.seed(self.state, windows)
            for row, window in windows.items():
                self._seeded[row] = window.lz.penalty > 0

    def _begin(self, plan: StepPlan, logits: Tensor, is_masked: bool) -> HistoryState | None:
        """Write the plan's windows and histories. Returns the histories if it has any."""
        # Upstream's LogitsProcessor returns float32 for sampling (tests/patches enforces this).
        if logits.dtype != torch.float32:
            raise TypeError(
                "logits must be torch.float32 where the LZ penalty lowers them, got "
                f"{logits.dtype}."
            )
        self.write_windows(plan.windows)
        if plan.history is None:
            return None
        plan.waits = is_masked and plan.history.forbids
        return self.histories.write(plan.history)
