"""The LZ penalizer: from upstream's batches to windows, and from windows to logits.

Upstream calls four functions here. Of a batch that samples one token a row, `plan_step` reads the
host's data while the forward batch is made, and `apply_step` brings the windows up to date
right before sampling. Of a batch that verifies draft trees, `verify_step` judges every node, and
`accept_step` keeps what was accepted. Windows are written on the forward stream only. State
belongs to the request row, so upstream's merging and filtering of batches needs no
counterpart here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from sglang_lz import draft_tree
from sglang_lz.codelength import match_lengths_of, saved_bits, subtract_savings
from sglang_lz.window import Seed, WindowState, WindowView

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    VerifyInput: TypeAlias = EagleVerifyInput | NgramVerifyInput

NO_GENERATION = -1


@dataclass(slots=True)
class LZStep:
    """The LZ rows of one forward batch: the prefilled, then the handed over, then all others.

    Attributes:
        penalizer: who planned the step and applies it.
        rows: batch rows with an LZ penalty, int64 [rows], on the device.
        newest: for the rows after the prefilled ones, where in `input_ids` their newest token
            stands, int64, on the device.
        seed: histories of the prefilled and handed over rows; None if there are none.
        width: the largest window size among the rows, in tokens.
    """

    penalizer: BatchedLZPenalizer
    rows: Tensor
    newest: Tensor
    seed: Seed | None
    width: int


@dataclass(slots=True)
class LZVerify:
    """The LZ rows of one batch of draft trees, between their judgement and acceptance.

    Attributes:
        penalizer: who judged them.
        rows: batch rows with an LZ penalty, int64 [rows], on the device.
        request_rows: their request rows, int64 [rows], on the device.
        root: the position of each tree's root, int64 [rows], on the device.
        windows: those of the nodes, [rows, nodes].
    """

    penalizer: BatchedLZPenalizer
    rows: Tensor
    request_rows: Tensor
    root: Tensor
    windows: WindowView


class BatchedLZPenalizer:
    """Plans and applies the LZ penalty of all requests that share one request-to-token pool."""

    def __init__(self, pool: ReqToTokenPool, capacity: int, device: str) -> None:
        """Track the rows of `pool`; windows hold at most `capacity` tokens."""
        self.pool = pool
        self.capacity = capacity
        self.device = torch.device(device)
        rows = pool.req_to_token.shape[0]
        # A row is active while the generation it was seeded in is the pool's: a row that upstream
        # gave to another request is inactive without being told.
        self.generation = torch.full((rows,), NO_GENERATION, dtype=torch.int64)
        self.window_size = torch.zeros(rows, dtype=torch.int64)
        self.state = WindowState(rows, capacity, device)

    def plan(self, batch: ScheduleBatch, handed_over: Mapping[int, int]) -> LZStep | None:
        """Which rows of `batch` need the penalty, and what their windows lack; None if no row.

        Reads host data only. Loops over requests only when their tokens are on the host: at prefill
        and when they are handed over.

        Args:
            batch: upstream's batch.
            handed_over: what `_handed_over` says of it.
        """
        prefilled, decode_offset = _split(batch)
        rows_cpu = batch.req_pool_indices_cpu[: len(batch.reqs)]
        self.generation[rows_cpu[:prefilled]] = NO_GENERATION
        histories = {
            i: req.extend_end
            for i, req in enumerate(batch.reqs[:prefilled])
            if _samples_with_penalty(req)
        }
        without_newest = len(histories)
        for i, end in handed_over.items():
            assert int(batch.seq_lens_cpu[i]) == end + 1, "not all of a new row's tokens are here"
            histories[i] = end
        seed = self._admit(batch, histories)

        active = self._active(rows_cpu)
        if not len(active):
            return None
        if handed_over:
            first = torch.tensor(list(histories))
            active = torch.cat([first, active[~torch.isin(active, first)]])
        newest = active[without_newest:] + decode_offset
        on_device = self._on_device(torch.cat([active, newest]))
        return LZStep(
            penalizer=self,
            rows=on_device[: len(active)],
            newest=on_device[len(active) :],
            seed=seed,
            width=self._width(rows_cpu[active]),
        )

    def apply(self, step: LZStep, logits: Tensor, batch: ForwardBatch) -> None:
        """Bring the windows of `step` up to date and lower the logits of what they predict.

        Args:
            step: what `plan` returned for this batch.
            logits: next-token logits, float [batch, V]; changed in place.
            batch: gives the request row, length and input tokens of each batch row.
        """
        rows = batch.req_pool_indices[step.rows]
        position = batch.seq_lens[step.rows].long() - 1
        if step.seed is not None:
            self.state.seed(rows[: len(step.seed.position)], step.seed)
        if len(step.newest):
            prefilled = len(rows) - len(step.newest)
            newest = batch.input_ids[step.newest]
            self.state.append(rows[prefilled:], position[prefilled:], newest, step.width)

        self._subtract(logits, step.rows, rows, self.state.view(rows, position, step.width))

    def verify(
        self,
        trees: VerifyInput,
        batch: ScheduleBatch,
        logits: Tensor,
        handed_over: Mapping[int, int],
    ) -> LZVerify | None:
        """Lower the logits of what the window of each draft node predicts.

        Args:
            trees: upstream's draft trees, one a batch row; node 0 of each is the newest token.
            batch: gives the request row of each batch row and the position of its root.
            logits: next-token logits, float [batch x nodes, V]; changed in place.
            handed_over: what `_handed_over` says of the batch.

        Returns:
            What `accept` needs; None if no row has a penalty.
        """
        rows_cpu = batch.req_pool_indices_cpu[: len(batch.reqs)]
        seed = self._admit(batch, handed_over)
        if seed is not None:
            rows = self._on_device(torch.tensor(list(handed_over)))
            self.state.seed(batch.req_pool_indices[rows], seed)
        active = self._active(rows_cpu)
        if not len(active):
            return None
        width = self._width(rows_cpu[active])
        rows = self._on_device(active)
        request_rows = batch.req_pool_indices[rows]
        root = batch.seq_lens[rows].long()
        nodes = trees.draft_token_num
        tokens = trees.draft_token.reshape(-1, nodes)[rows]
        self.state.append(request_rows, root, tokens[:, 0], width)
        windows = draft_tree.node_windows(
            self.state.view(request_rows, root, width),
            tokens,
            draft_tree.parents(trees.retrieve_next_token[rows], trees.retrieve_next_sibling[rows]),
            trees.max_tree_depth - 1,
        )
        node_rows = rows[:, None] * nodes + torch.arange(nodes, device=self.device)
        self._subtract(logits, node_rows, request_rows[:, None].expand(-1, nodes), windows)
        return LZVerify(self, rows, request_rows, root, windows)

    def accept(self, verified: LZVerify, accept_index: Tensor, num_correct_drafts: Tensor) -> None:
        """Keep the window of the last accepted node of each tree.

        The token sampled there is not kept yet: it is the root of the row's next tree, or the input
        of its next decode, as it is after a step without drafts.

        Args:
            verified: what `verify` returned.
            accept_index: accepted nodes of each row, root first, as rows of the logits, integer
                [batch, depth].
            num_correct_drafts: how many nodes beside the root are accepted, integer [batch].
        """
        accepted = num_correct_drafts[verified.rows].long()
        last = accept_index[verified.rows, accepted].long()
        tree = torch.arange(len(accepted), device=self.device)
        node = last - verified.rows * verified.windows.tokens.shape[1]
        position = verified.root + accepted
        self.state.store(verified.request_rows, position, verified.windows[tree, node])

    def in_use(self) -> bool:
        """Whether any row still belongs to a request with an LZ penalty."""
        seeded = (self.generation != NO_GENERATION).nonzero().squeeze(1)
        held = seeded[self._active(seeded)].tolist()
        return any(row not in self.pool.free_slots for row in held)

    def _active(self, rows_cpu: Tensor) -> Tensor:
        active = self.generation[rows_cpu] == self.pool.req_generation[rows_cpu]
        return active.nonzero().squeeze(1)

    def _width(self, rows_cpu: Tensor) -> int:
        return int(self.window_size[rows_cpu].max())

    def _subtract(
        self, logits: Tensor, rows: Tensor, request_rows: Tensor, windows: WindowView
    ) -> None:
        width = windows.tokens.shape[-1]
        match, length = windows.match.view(-1, width), windows.length.flatten()
        request_rows = request_rows.flatten()
        is_rate = self.state.is_rate[request_rows]
        savings = saved_bits(match, length, logits.shape[1], is_rate)
        savings *= self.state.penalty[request_rows][:, None]
        subtract_savings(logits, rows.flatten(), windows.tokens.view(-1, width), savings)

    def _on_device(self, tensor: Tensor) -> Tensor:
        return self._pinned(tensor).to(self.device, non_blocking=True)

    def _pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def _admit(self, batch: ScheduleBatch, histories: Mapping[int, int]) -> Seed | None:
        """Make batch rows active; returns what their first so many tokens make of their windows."""
        if not histories:
            return None
        rows_cpu = batch.req_pool_indices_cpu[list(histories)]
        self.generation[rows_cpu] = self.pool.req_generation[rows_cpu]
        tokens = torch.zeros(len(histories), self.capacity, dtype=torch.int32)
        match = torch.zeros_like(tokens)
        position = torch.empty(len(histories), dtype=torch.int64)
        params = torch.empty(len(histories), 5, dtype=torch.float32)
        for i, (row, end) in enumerate(histories.items()):
            req = batch.reqs[row]
            requested = req.sampling_params
            self.window_size[rows_cpu[i]] = requested.lz_window_size
            first = 0 if requested.lz_include_prompt else len(req.origin_input_ids)
            start = max(first, end - requested.lz_window_size)
            newest_first = list(reversed(req.full_untruncated_fill_ids[start:end]))
            column = (end - 1 - torch.arange(len(newest_first))) % self.capacity
            tokens[i, column] = torch.tensor(newest_first).to(torch.int32)
            lengths = match_lengths_of(newest_first, requested.lz_buffer_size)
            match[i, column] = torch.tensor(lengths).to(torch.int32)
            position[i] = end - 1
            params[i] = torch.tensor(
                [
                    requested.lz_penalty,
                    requested.lz_window_size,
                    requested.lz_buffer_size,
                    first,
                    requested.lz_cost == "rate",
                ]
            )
        return Seed(*map(self._pinned, (tokens, match, position, params)))


def plan_step(batch: ScheduleBatch, runner: ModelRunner, forward_batch: ForwardBatch) -> None:
    """Attach the LZ rows of `batch` to `forward_batch`, for `apply_step` (upstream's hook).

    The first request with a penalty allocates the windows; the first batch after the last such
    request has gone frees them. Without either this returns at once. Of the ranks of a pipeline
    only the last samples and keeps windows.
    """
    mode = batch.forward_mode
    if runner.is_draft_worker or not (mode.is_decode() or mode.is_extend_without_speculative()):
        return
    if not runner.pp_group.is_last_rank:
        return
    pool = batch.req_to_token_pool
    penalizer: BatchedLZPenalizer | None = getattr(pool, "lz_penalizer", None)
    handed_over = _handed_over(batch)
    if penalizer is None:
        prefilled, _ = _split(batch)
        if not (handed_over or any(map(_samples_with_penalty, batch.reqs[:prefilled]))):
            return
        penalizer = BatchedLZPenalizer(pool, _max_window_size(), runner.device)
        pool.lz_penalizer = penalizer
    forward_batch.lz_step = penalizer.plan(batch, handed_over)
    if forward_batch.lz_step is None and not penalizer.in_use():
        pool.lz_penalizer = None


def apply_step(logits: Tensor, forward_batch: ForwardBatch) -> None:
    """Apply the penalty that `plan_step` planned, if any (upstream's hook, before sampling)."""
    step: LZStep | None = getattr(forward_batch, "lz_step", None)
    if step is not None:
        step.penalizer.apply(step, logits, forward_batch)


def verify_step(trees: VerifyInput, batch: ScheduleBatch, logits: Tensor) -> LZVerify | None:
    """Apply the penalty to every node of a batch of draft trees (upstream's hook, before sampling).

    Takes what `BatchedLZPenalizer.verify` takes, and returns what `accept_step` takes.
    """
    pool = batch.req_to_token_pool
    penalizer: BatchedLZPenalizer | None = getattr(pool, "lz_penalizer", None)
    handed_over = _handed_over(batch)
    if penalizer is None:
        if not handed_over:
            return None
        penalizer = BatchedLZPenalizer(pool, _max_window_size(), str(logits.device))
        pool.lz_penalizer = penalizer
    verified = penalizer.verify(trees, batch, logits, handed_over)
    if verified is None and not penalizer.in_use():
        pool.lz_penalizer = None
    return verified


def accept_step(
    verified: LZVerify | None, accept_index: Tensor, num_correct_drafts: Tensor
) -> None:
    """Keep the accepted tokens of the trees that `verify_step` judged (upstream's hook)."""
    if verified is not None:
        verified.penalizer.accept(verified, accept_index, num_correct_drafts)


def _samples_with_penalty(req: Req) -> bool:
    """Whether this prefill ends in a sampled token (no middle chunk does) that LZ adjusts."""
    return bool(req.sampling_params.lz_penalty) and req.extend_end == len(
        req.full_untruncated_fill_ids
    )


def _handed_over(batch: ScheduleBatch) -> dict[int, int]:
    """Rows of `batch` with a penalty whose prefill was another server's, each only once.

    A decode server (prefill/decode disaggregation) runs no prefill that announces a request: a row
    whose generation was never looked at is new, so no step loops over all requests.

    Returns:
        How many of each row's tokens come before its newest, on the host. There they are exact only
        now: nothing was sampled here yet, and the newest is the last of `output_ids`.
    """
    if not _is_decode_server():
        return {}
    pool = batch.req_to_token_pool
    looked_at: Tensor | None = getattr(pool, "lz_looked_at", None)
    if looked_at is None:
        looked_at = pool.lz_looked_at = torch.full_like(pool.req_generation, NO_GENERATION)
    rows_cpu = batch.req_pool_indices_cpu[: len(batch.reqs)]
    generation = pool.req_generation[rows_cpu]
    unknown = (looked_at[rows_cpu] != generation).nonzero().squeeze(1).tolist()
    looked_at[rows_cpu] = generation
    new = [i for i in unknown if batch.reqs[i].sampling_params.lz_penalty]
    return {i: len(batch.reqs[i].full_untruncated_fill_ids) - 1 for i in new}


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


def _max_window_size() -> int:
    from sglang.srt.runtime_context import get_exec

    size: int = get_exec().features.lz_max_window_size
    return size


def _is_decode_server() -> bool:
    from sglang.srt.runtime_context import get_disagg

    # Not the argument of the server's start: a server may change its role.
    mode: str = get_disagg().disaggregation_mode
    return mode == "decode"
