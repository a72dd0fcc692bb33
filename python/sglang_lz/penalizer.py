"""The LZ penalizer: from upstream's batches to windows, and from windows to logits.

Upstream calls five functions here. `reserve_windows` makes the windows of a server when it starts.
Of a batch that samples one token a row, `plan_step` reads the host's data while the forward batch
is made, and `apply_step` brings the windows up to date right before sampling. Of a batch that
verifies draft trees, `verify_step` judges every node, and `accept_step` keeps what was accepted.
Windows are written on the forward stream only. State belongs to the request row, so upstream's
merging and filtering of batches needs no counterpart here.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import logging
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from sglang_lz import hooks
from sglang_lz.params import DEFAULT_WINDOW_SIZE
from sglang_lz.support import unsupported_modes
from sglang_lz.window import PARAMS, PENALTY, Seed, WindowState, bytes_of_row

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    VerifyInput: TypeAlias = EagleVerifyInput | NgramVerifyInput

logger = logging.getLogger(__name__)

NO_GENERATION = -1


@dataclass(slots=True)
class LZStep:
    """What one forward batch with LZ rows has to be done.

    Attributes:
        penalizer: who planned the step and applies it.
        seed: what rows that were prefilled, handed over or given up get; None if there are none.
        rows: how many batch rows are requests; behind them upstream may pad.
        prefilled: how many leading batch rows are prefills, whose seeds are complete.
        offset: the newest token of a later batch row i stands at i + offset in `input_ids`.
        width: the largest window size among the rows with a penalty, in tokens.
    """

    penalizer: BatchedLZPenalizer
    seed: Seed | None
    rows: int
    prefilled: int
    offset: int
    width: int


@dataclass(slots=True)
class LZVerify:
    """A batch of draft trees with LZ rows, between their judgement and acceptance.

    Attributes:
        penalizer: who judged them.
        request_rows: the request row of each tree, integer [batch], on the device.
        root: the position of each tree's root, integer [batch], on the device.
        paths: the tokens from each node up to its root, as `eager.verify` returns them.
        width: the largest window size among the rows with a penalty, in tokens.
    """

    penalizer: BatchedLZPenalizer
    request_rows: Tensor
    root: Tensor
    paths: Tensor
    width: int


class BatchedLZPenalizer:
    """Plans and applies the LZ penalty of all requests that share one request-to-token pool.

    The host knows which rows are active, so that nothing is launched for a batch without any. The
    device knows it too, by their penalty, so that a step needs nothing from the host.
    """

    def __init__(self, pool: ReqToTokenPool, capacity: int, device: torch.device | str) -> None:
        """Track the rows of `pool`; windows hold at most `capacity` tokens."""
        self.pool = pool
        self.capacity = capacity
        self.device = torch.device(device)
        rows = pool.req_to_token.shape[0]
        # A row is active while the generation it was seeded in is the pool's: a row that upstream
        # gave to another request is inactive without being told.
        self.generation = np.full(rows, NO_GENERATION)
        self.window_size = np.zeros(rows, dtype=np.int64)
        # Rows that were active when they were last prefilled: without any, a batch costs nothing.
        self.users: set[int] = set()
        # What a decode server has looked at: the generation of each row that it saw.
        self.looked_at = np.full(rows, NO_GENERATION)
        # Rows whose penalty on the device is not 0. One that is no longer active is given up before
        # a step comes near it.
        self.seeded = np.zeros(rows, dtype=bool)
        self.state = WindowState(rows, capacity, device)
        self.kernels = kernels_of(self.device)

    def plan(self, batch: ScheduleBatch) -> LZStep | None:
        """Which rows of `batch` need the penalty, and what their windows lack; None if no row.

        Reads host data only. Loops over requests only when their tokens are on the host: at prefill
        and when they are handed over.
        """
        prefilled, offset = _split(batch)
        histories = {
            i: req.extend_end
            for i, req in enumerate(batch.reqs[:prefilled])
            if _samples_with_penalty(req)
        }
        if not (histories or self.users or _is_decode_server()):
            return None
        rows = _request_rows(batch)
        if self.users and prefilled:
            self.generation[rows[:prefilled]] = NO_GENERATION
            self.users.difference_update(rows[:prefilled].tolist())
        for i, end in self._handed_over(batch, rows).items():
            assert int(batch.seq_lens_cpu[i]) == end + 1, "not all of a new row's tokens are here"
            histories[i] = end
        seed, width = self._admit(batch, rows, histories)
        if not width:
            return None
        return LZStep(self, seed, len(batch.reqs), prefilled, offset, width)

    def apply(self, step: LZStep, logits: Tensor, batch: ForwardBatch) -> None:
        """Bring the windows of `step` up to date and lower the logits of what they predict.

        Args:
            step: what `plan` returned for this batch.
            logits: next-token logits, float32 [batch, V]; changed in place.
            batch: gives the request row, length and input tokens of each batch row.

        Raises:
            TypeError: the logits have another dtype.
        """
        _check(logits)
        if step.seed is not None:
            self.take(step.seed)
        self.kernels.step(
            self.state,
            logits,
            request_rows=batch.req_pool_indices[: step.rows],
            seq_lens=batch.seq_lens,
            input_ids=batch.input_ids,
            prefilled=step.prefilled,
            offset=step.offset,
            width=step.width,
        )

    def verify(
        self,
        trees: VerifyInput,
        batch: ScheduleBatch,
        logits: Tensor,
    ) -> LZVerify | None:
        """Lower the logits of what the window of each draft node predicts.

        Args:
            trees: upstream's draft trees, one a batch row; node 0 of each is the newest token.
            batch: gives the request row of each batch row and the position of its root.
            logits: next-token logits, float32 [batch x nodes, V]; changed in place.

        Returns:
            What `accept` needs; None if no row has a penalty.

        Raises:
            TypeError: the logits have another dtype.
        """
        if not (self.users or _is_decode_server()):
            return None
        rows = _request_rows(batch)
        seed, width = self._admit(batch, rows, self._handed_over(batch, rows))
        if not width:
            return None
        _check(logits)
        if seed is not None:
            self.take(seed)
        paths = self.kernels.verify(
            self.state,
            logits,
            request_rows=batch.req_pool_indices,
            root=batch.seq_lens,
            tokens=trees.draft_token.view(-1, trees.draft_token_num),
            first_child=trees.retrieve_next_token,
            next_sibling=trees.retrieve_next_sibling,
            depth=trees.max_tree_depth,
            width=width,
        )
        return LZVerify(self, batch.req_pool_indices, batch.seq_lens, paths, width)

    def accept(self, verified: LZVerify, accept_index: Tensor, num_correct_drafts: Tensor) -> None:
        """Append the accepted path of each tree to its window.

        The token sampled at its end is not appended yet: it is the root of the row's next tree, or
        the input of its next decode, as it is after a step without drafts.

        Args:
            verified: what `verify` returned.
            accept_index: accepted nodes of each row, root first, as rows of the logits, integer
                [batch, depth].
            num_correct_drafts: how many nodes beside the root are accepted, integer [batch].
        """
        self.kernels.accept(
            self.state,
            request_rows=verified.request_rows,
            root=verified.root,
            paths=verified.paths,
            accept_index=accept_index,
            num_correct_drafts=num_correct_drafts,
            width=verified.width,
        )

    def _handed_over(self, batch: ScheduleBatch, rows: NDArray[np.int64]) -> dict[int, int]:
        """Rows of `batch` with a penalty whose prefill was another server's, each only once.

        A decode server (prefill/decode disaggregation) runs no prefill that announces a request: a
        row whose generation was never looked at is new, so no step loops over all requests.

        Returns:
            How many of each row's tokens come before its newest, on the host. There they are exact
            only now: nothing was sampled here yet, and the newest is the last of `output_ids`.
        """
        if not _is_decode_server():
            return {}
        generation = self.pool.req_generation.numpy()[rows]
        unknown = (self.looked_at[rows] != generation).nonzero()[0].tolist()
        self.looked_at[rows] = generation
        new = [i for i in unknown if _generates_with_penalty(batch.reqs[i])]
        return {i: len(batch.reqs[i].full_untruncated_fill_ids) - 1 for i in new}

    def take(self, seed: Seed) -> None:
        """Write a seed into the windows."""
        self.kernels.seed(self.state, seed)
        self.seeded[seed.rows] = seed.params[:, PENALTY] > 0

    def _admit(
        self, batch: ScheduleBatch, rows: NDArray[np.int64], histories: Mapping[int, int]
    ) -> tuple[Seed | None, int]:
        """Make batch rows active whose first so many tokens make their windows.

        Returns:
            What to tell the device before it steps, None if nothing; and the largest window size
            among the active rows, 0 without any.
        """
        if not (histories or self.users):
            return None, 0
        generation = self.pool.req_generation.numpy()[rows]
        for i in histories:
            row = int(rows[i])
            self.users.add(row)
            self.generation[row] = generation[i]
            self.window_size[row] = batch.reqs[i].sampling_params.lz_window_size
        active = self.generation[rows] == generation
        width = max(self.window_size[rows[active]].tolist(), default=0)
        given_up = (self.seeded[rows] & ~active).nonzero()[0].tolist()
        if not width or not (histories or given_up):
            return None, width
        return _seed_of(batch.reqs, rows, histories, given_up), width


def _seed_of(
    reqs: Sequence[Req],
    rows: NDArray[np.int64],
    histories: Mapping[int, int],
    given_up: Sequence[int],
) -> Seed:
    """The seed of the requests in `histories`, with their first so many tokens, and of no others.

    What is copied here may change before the seed is used, so nothing is read from a request then.
    """
    history = array("q")
    ends: list[int] = []
    params: list[tuple[float, ...]] = []
    for i, end in histories.items():
        requested = reqs[i].sampling_params
        first = 0 if requested.lz_include_prompt else len(reqs[i].origin_input_ids)
        start = max(first, end - requested.lz_window_size)
        if start < end:
            history.extend(reqs[i].full_untruncated_fill_ids[start:end])
        ends.append(len(history))
        # In the order of the columns of `WindowState.params`.
        params.append((
            requested.lz_penalty, requested.lz_window_size, requested.lz_buffer_size, first,
            requested.lz_cost == "rate",
        ))  # fmt: skip
    nothing = [0] * len(given_up)
    return Seed(
        rows=rows[[*histories, *given_up]],
        position=np.array([*histories.values(), *nothing], dtype=np.int64) - 1,
        end=np.array([*ends, *(len(history) for _ in given_up)], dtype=np.int64),
        history=np.array(history, dtype=np.int64),
        params=np.array([*params, *([0.0] * PARAMS for _ in given_up)], dtype=np.float32),
    )


def reserve_windows(runner: ModelRunner) -> None:
    """Reserve the windows of a model's requests for good (upstream's hook).

    Upstream calls it where it has made the pool of request rows, and before it captures CUDA graphs
    or takes what memory is left. The kernels are compiled here too, so that no request waits.

    Args:
        runner: upstream's model runner, with its pool.

    Raises:
        RuntimeError: the memory cannot be had.
        ValueError: something replaced a function that calls us.
    """
    if not _samples(runner) or any(unsupported_modes(_config_of_any_role)):
        return
    hooks.check()
    pool, capacity = runner.req_to_token_pool, _max_window_size()
    rows = pool.req_to_token.shape[0]
    size = f"{rows} request rows of {bytes_of_row(capacity)} bytes"
    kernels_of(torch.device(runner.device))  # what fails here does not lack memory
    try:
        penalizer = BatchedLZPenalizer(pool, capacity, runner.device)
    except (RuntimeError, MemoryError) as error:
        cause = (str(error).splitlines() or ["no memory"])[0]
        raise RuntimeError(
            f"the LZ penalty cannot reserve {rows * bytes_of_row(capacity)} bytes on "
            f"{runner.device} ({size}; {cause}): lower --lz-max-window-size, which is {capacity}, "
            "or --max-running-requests."
        ) from None
    warm_up(penalizer.kernels, capacity, penalizer.device, _tree_sizes())
    pool.lz_penalizer = penalizer
    logger.info(
        "LZ penalty: %s, %.1f MiB in all, reserved", size, rows * bytes_of_row(capacity) / 2**20
    )


def plan_step(batch: ScheduleBatch, runner: ModelRunner, forward_batch: ForwardBatch) -> None:
    """Attach the LZ rows of `batch` to `forward_batch`, for `apply_step` (upstream's hook)."""
    _check_hooks_again()
    mode = batch.forward_mode
    if not _samples(runner) or not (mode.is_decode() or mode.is_extend_without_speculative()):
        return
    penalizer = _penalizer(batch)
    if penalizer is None:
        ignored = not mode.is_decode() and any(map(_samples_with_penalty, batch.reqs))
        assert not ignored, "a penalty was admitted in a mode that is refused"
        return
    forward_batch.lz_step = penalizer.plan(batch)


def apply_step(logits: Tensor, forward_batch: ForwardBatch) -> None:
    """Apply the penalty that `plan_step` planned, if any (upstream's hook, before sampling)."""
    _check_hooks_again()
    step: LZStep | None = getattr(forward_batch, "lz_step", None)
    if step is not None:
        step.penalizer.apply(step, logits, forward_batch)


def verify_step(trees: VerifyInput, batch: ScheduleBatch, logits: Tensor) -> LZVerify | None:
    """Apply the penalty to every node of a batch of draft trees (upstream's hook, before sampling).

    Takes what `BatchedLZPenalizer.verify` takes, and returns what `accept_step` takes.
    """
    penalizer = _penalizer(batch)
    return None if penalizer is None else penalizer.verify(trees, batch, logits)


def accept_step(
    verified: LZVerify | None, accept_index: Tensor, num_correct_drafts: Tensor
) -> None:
    """Keep the accepted tokens of the trees that `verify_step` judged (upstream's hook)."""
    if verified is not None:
        verified.penalizer.accept(verified, accept_index, num_correct_drafts)


def kernels_of(device: torch.device) -> ModuleType:
    """The module that steps windows on `device`, imported with the compiler that it brings."""
    name = "compiled" if device.type == "cpu" else "fused"
    return importlib.import_module(f"sglang_lz.{name}")


def warm_up(
    kernels: ModuleType, capacity: int, device: torch.device, tree_sizes: Collection[int]
) -> None:
    """Compile what a server will need, on a row without the penalty, before it serves.

    Args:
        kernels: those of `device`.
        capacity: the largest window, in tokens.
        device: where the server runs.
        tree_sizes: how many nodes its draft trees may have; empty without speculation.
    """
    state = WindowState(1, capacity, device)
    none = torch.zeros(2, dtype=torch.int64, device=device)
    kernels.seed(state, _seed_of([], np.zeros(1, dtype=np.int64), {}, [0]))
    # Upstream cuts the padding off the vocabulary: numba has other code for such rows.
    shapes = [torch.zeros(max({2, *tree_sizes}), columns, device=device) for columns in (1, 2)]
    for width, wide in itertools.product({min(DEFAULT_WINDOW_SIZE, capacity), capacity}, shapes):
        logits = wide[:, :1]
        kernels.step(
            state,
            logits[:2],
            request_rows=none,
            seq_lens=none,
            input_ids=none,
            prefilled=0,
            offset=0,
            width=width,
        )
        for nodes, depth in {(size, depth) for size in tree_sizes for depth in (1, size)}:
            tree = torch.zeros(1, nodes, dtype=torch.int64, device=device)
            paths = kernels.verify(
                state,
                logits[:nodes],
                request_rows=none[:1],
                root=none[:1],
                tokens=tree,
                first_child=tree,
                next_sibling=tree,
                depth=depth,
                width=width,
            )
            kernels.accept(
                state,
                request_rows=none[:1],
                root=none[:1],
                paths=paths,
                accept_index=tree.int(),
                num_correct_drafts=none[:1].int(),
                width=width,
            )


@functools.cache
def _check_hooks_again() -> None:
    """`hooks.check` at the first batch: --forward-hooks run later than `reserve_windows`."""
    hooks.check()


def _samples(runner: ModelRunner) -> bool:
    """Whether a runner samples tokens: no draft model or embedding model does, and of the ranks of
    a pipeline only the last."""
    return bool(
        not runner.is_draft_worker and runner.is_generation and runner.pp_group.is_last_rank
    )


def _penalizer(batch: ScheduleBatch) -> BatchedLZPenalizer | None:
    """The penalizer of a batch; None where `reserve_windows` found that the mode is refused."""
    penalizer: BatchedLZPenalizer | None = getattr(batch.req_to_token_pool, "lz_penalizer", None)
    return penalizer


def _samples_with_penalty(req: Req) -> bool:
    """Whether this prefill ends in a sampled token (no middle chunk does) that LZ adjusts."""
    return _generates_with_penalty(req) and req.extend_end == len(req.full_untruncated_fill_ids)


def _generates_with_penalty(req: Req) -> bool:
    """Whether a request has a penalty, and room to generate: upstream may have left it none.

    What then generates nothing is sampled only in company, and the penalty must not depend on that.
    """
    params = req.sampling_params
    return bool(params.lz_penalty) and params.max_new_tokens != 0


def _request_rows(batch: ScheduleBatch) -> NDArray[np.int64]:
    rows: NDArray[np.int64] = batch.req_pool_indices_cpu.numpy()[: len(batch.reqs)]
    return rows


def _split(batch: ScheduleBatch) -> tuple[int, int]:
    """How many leading rows are prefills, and what turns a later row into its index in input_ids.

    A decode row of an extend batch is one input token: upstream appends decode rows to a chunk
    (mixed chunk), or runs a whole decode batch as an extend (`decoding_reqs`). The host does not
    know those tokens yet, so these rows are appended to from the device.
    """
    if batch.forward_mode.is_decode():
        return 0, 0
    if batch.forward_mode.is_mixed():
        decoding = len(batch.mix_running_indices_cpu)
        prefilled = len(batch.reqs) - decoding
        return prefilled, batch.extend_num_tokens - len(batch.reqs)
    if batch.decoding_reqs is not None:
        return 0, 0
    return len(batch.reqs), 0


def _check(logits: Tensor) -> None:
    # Upstream's LogitsProcessor makes all that is sampled float32 (tests/patches holds it to that).
    if logits.dtype != torch.float32:
        raise TypeError(
            f"logits must be torch.float32 where the LZ penalty lowers them, got {logits.dtype}."
        )


def _max_window_size() -> int:
    from sglang.srt.runtime_context import get_exec

    size: int = get_exec().features.lz_max_window_size
    return size


def _tree_sizes() -> set[int]:
    """How many nodes draft trees may have; empty without speculation."""
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    spec = get_spec()
    sizes = {spec.speculative_num_draft_tokens or 0} - {0}
    if spec.speculative_adaptive:
        steps = resolve_candidate_steps_from_config(spec.speculative_adaptive_config)
        sizes |= {step + 1 for step in steps}
    return sizes


def _config_of_any_role(name: str) -> Any:
    from sglang.srt.runtime_context import get_context

    # A server may change its role between prefill and decode, and is then sent what it refused.
    return "null" if name == "disaggregation_mode" else get_context().config_leaf(name)


def _is_decode_server() -> bool:
    from sglang.srt.runtime_context import get_disagg

    # Not the argument of the server's start: a server may change its role.
    mode: str = get_disagg().disaggregation_mode
    return mode == "decode"
