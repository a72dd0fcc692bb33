"""The functions that upstream's sampling calls (patches/sampling); they read its batches.

`reserve_windows` allocates a server's windows at startup. For a batch that samples one token per
row, `plan_step` reads host data while the forward batch is being prepared, and `apply_step` applies
the penalty right before sampling. For a batch that verifies draft trees, `verify_step` applies it
to every node, and `accept_step` appends the accepted tokens; `verify_block` and `accept_block` do
the same for blocks, which are trees with one branch. `forbid_step` and `forbid_nodes` run
after the grammar's mask, because they must not forbid every token that it allows.
`request_rows` reads upstream's requests, and `history_room` knows which of them have room. The rest
is in `lz_penalty.penalizer`, which is independent of upstream's classes.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lz_penalty import kernels
from lz_penalty.draft_tree import DraftTrees
from lz_penalty.history import HistoryNeed, HistoryRoom
from lz_penalty.penalizer import Penalizer, StepPlan, VerifiedTrees
from lz_penalty.window import bytes_of_row
from sglang_lz.bounds.modes import unsupported_modes
from sglang_lz.constraints.pauses import admitted
from sglang_lz.guard import guard
from sglang_lz.scheduler import history_room, hooks
from sglang_lz.scheduler.request_rows import generates_with_penalty, samples_with_penalty, start_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import ModuleType

    from sglang.srt.constrained.base_grammar_backend import GrammarMask
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    from lz_penalty.penalizer import RowStart

    VerifyInput: TypeAlias = EagleVerifyInput | NgramVerifyInput

logger = logging.getLogger(__name__)


def reserve_windows(runner: ModelRunner) -> None:
    """Reserve the windows and histories of a model's requests (upstream's hook).

    Upstream calls it after creating the pool of request rows, and before it captures CUDA graphs or
    allocates the remaining memory. It also compiles the kernels and the loop guard's detector, so
    that no request waits for them.

    Args:
        runner: upstream's model runner, with its pool.

    Raises:
        RuntimeError: the memory cannot be allocated.
        ValueError: a function that calls ours has been replaced.
    """
    if _samples(runner):
        guard.prepare()
    if not _serves(runner) or any(unsupported_modes(_config_of_any_role)):
        return
    hooks.check()
    pool, capacity = runner.req_to_token_pool, _max_window_size()
    rows = pool.req_to_token.shape[0]
    room = history_room.room_for(runner, rows, _most_nodes())
    # On every rank of a pipeline, because all must agree on which requests wait.
    pool.lz_room = room
    if not _samples(runner):
        return
    size = f"{rows} request rows of {bytes_of_row(capacity)} bytes"
    histories = f"{room.bytes} bytes for the histories of other penalties"
    kernels.import_for(torch.device(runner.device))  # outside the try: not a memory error
    try:
        penalizer = Penalizer(
            pool.req_generation,
            capacity,
            runner.device,
            room,
            live_rows=functools.partial(history_room.live_rows, room),
        )
    except (RuntimeError, MemoryError) as error:
        cause = (str(error).splitlines() or ["no memory"])[0]
        raise RuntimeError(
            f"the LZ penalty cannot reserve {rows * bytes_of_row(capacity)} bytes on "
            f"{runner.device} ({size}) and {histories} ({cause}): lower --lz-max-window-size, "
            f"which is {capacity}, --lz-history-memory, which is {history_room.memory()} MiB, or "
            "--max-running-requests."
        ) from None
    kernels.warm_up(penalizer.kernels, capacity, penalizer.device, _tree_sizes())
    pool.lz_penalizer = penalizer
    logger.info(
        "LZ penalty: %s, %.1f MiB in all, and %.1f MiB for the histories of other penalties, "
        "reserved",
        size, rows * bytes_of_row(capacity) / 2**20, room.bytes / 2**20,
    )  # fmt: skip


def abort_unservable(req: Req, pool: ReqToTokenPool) -> None:
    """Abort a new request that this server can never run (upstream's hook).

    Either its history would not fit, or its custom logit processor cannot be loaded. A request that
    is aborted, for whatever reason, still passes the queue, but needs no history.

    Args:
        req: upstream's request, with its final `max_new_tokens`.
        pool: upstream's pool of request rows.
    """
    _refuse_processor(req)
    room: HistoryRoom | None = getattr(pool, "lz_room", None)
    if room is None:
        return
    if req.to_finish is None:
        message = history_room.refusal_of(req, room)
        if message is None:
            return
        req.set_finish_with_abort(message)
    req.lz_need = HistoryNeed()
    req.sampling_params.max_new_tokens = 0


def _refuse_processor(req: Req) -> None:
    """Abort a request whose custom logit processor upstream would fail to load for a batch."""
    if req.custom_logit_processor is None:
        return
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    try:
        processor = CustomLogitProcessor.from_str(req.custom_logit_processor)
        if not callable(processor):
            raise TypeError(f"{type(processor).__name__} is not callable")
    except Exception as error:
        req.custom_logit_processor = None
        req.set_finish_with_abort(f"custom_logit_processor cannot be loaded: {error!r:.200}")


def with_room(waiting: Sequence[Req], adder: PrefillAdder, pool: ReqToTokenPool) -> Iterable[Req]:
    """The waiting requests whose histories have room now, without paused ones (upstream's hook).

    Args:
        waiting: upstream's queue.
        adder: admits the requests yielded here, or not.
        pool: upstream's pool of request rows.
    """
    unpaused = list(admitted(waiting, adder))
    room: HistoryRoom | None = getattr(pool, "lz_room", None)
    return unpaused if room is None else history_room.waiting_with_room(unpaused, adder, room)


def takes_room(req: Req, pool: ReqToTokenPool) -> bool:
    """Whether a request that another server prefilled may begin (upstream's hook): if its history
    fits, this reserves room for it.

    Args:
        req: upstream's request, which already has its row.
        pool: upstream's pool of request rows.
    """
    room: HistoryRoom | None = getattr(pool, "lz_room", None)
    return room is None or history_room.takes_room(req, room)


def plan_step(batch: ScheduleBatch, runner: ModelRunner, forward_batch: ForwardBatch) -> None:
    """Plan the batch's penalties and store the plan on `forward_batch`, for `apply_step`
    (upstream's hook).

    It only reads data on the host. It loops over requests only when their tokens are on the host:
    at prefill, and when they are handed over.
    """
    _check_hooks_again()
    room: HistoryRoom | None = getattr(batch.req_to_token_pool, "lz_room", None)
    penalizer = _penalizer(batch)
    if room is not None and not room.is_prepared:
        windows = None if penalizer is None else penalizer.state
        history_room.prepare_vocabulary(batch.reqs, room, windows)
    # A draft worker has the same pool as the model that samples, and so the same penalizer.
    split = None if runner.is_draft_worker else _split(batch)
    if split is None:
        return
    if penalizer is not None:
        forward_batch.lz_step = _plan(penalizer, batch, *split)
    elif _samples(runner):
        ignored = any(map(samples_with_penalty, batch.reqs[: split[0]]))
        assert not ignored, "a penalty was admitted in a mode that is refused"


def apply_step(logits: Tensor, forward_batch: ForwardBatch) -> None:
    """Apply the penalty that `plan_step` planned, if any (upstream's hook, before sampling)."""
    _check_hooks_again()
    plan: StepPlan | None = getattr(forward_batch, "lz_step", None)
    if plan is not None:
        plan.penalizer.apply(
            plan,
            logits,
            request_rows=forward_batch.req_pool_indices,
            seq_lens=forward_batch.seq_lens,
            input_ids=forward_batch.input_ids,
            is_masked=bool(forward_batch.sampling_info.grammars),
        )


def forbid_step(logits: Tensor, forward_batch: ForwardBatch) -> None:
    """Forbid the tokens that `apply_step` deferred (upstream's hook, after the grammar's mask)."""
    plan: StepPlan | None = getattr(forward_batch, "lz_step", None)
    if plan is not None:
        plan.penalizer.forbid(plan, logits)


def verify_step(
    trees: VerifyInput, batch: ScheduleBatch, logits: Tensor, grammar_mask: GrammarMask | None
) -> VerifiedTrees | None:
    """Apply the penalty to every node of a batch of draft trees (upstream's hook, before sampling).

    Args:
        trees: upstream's draft trees, one per batch row; node 0 of each is the newest token.
        batch: has the request row of each batch row and the position of its root.
        logits: next-token logits, float32 [batch x nodes, V]; changed in place.
        grammar_mask: the mask that is applied to them later, if any.

    Returns:
        What `forbid_nodes` and `accept_step` need; None if no row has a penalty.

    Raises:
        TypeError: the logits have another dtype.
    """
    plan = _plan_verified(batch)
    if plan is None:
        return None
    drafts = DraftTrees(
        batch.req_pool_indices,
        batch.seq_lens,
        trees.draft_token.view(-1, trees.draft_token_num),
        trees.retrieve_next_token,
        trees.retrieve_next_sibling,
        trees.max_tree_depth,
    )
    return plan.penalizer.verify(plan, logits, drafts, is_masked=grammar_mask is not None)


def verify_block(
    tokens: Tensor, batch: ScheduleBatch, logits: Tensor | None, grammar_mask: GrammarMask | None
) -> VerifiedTrees | None:
    """Apply the penalty to every token of a batch of blocks (upstream's hook, before sampling).

    Args:
        tokens: integer [batch, nodes]; the first of each row is its newest token, the others are
            drafts, each the child of the one before.
        batch: as in `verify_step`.
        logits: as in `verify_step`; None only where `has_penalty` is false.
        grammar_mask: as in `verify_step`.

    Returns:
        What `forbid_nodes` and `accept_block` need; None if no row has a penalty.

    Raises:
        TypeError: the logits have another dtype.
    """
    plan = _plan_verified(batch) if has_penalty(batch) else None
    if plan is None:
        return None
    assert logits is not None, "logits were not gathered for a batch with a penalty"
    rows, nodes = tokens.shape
    first_child = torch.arange(1, nodes + 1, device=tokens.device)
    first_child[-1] = -1
    drafts = DraftTrees(
        batch.req_pool_indices,
        batch.seq_lens,
        tokens,
        first_child.repeat(rows, 1),
        torch.full_like(tokens, -1, dtype=torch.int64),
        nodes,
    )
    return plan.penalizer.verify(plan, logits, drafts, is_masked=grammar_mask is not None)


def has_penalty(batch: ScheduleBatch) -> bool:
    """Whether a request of a batch has a penalty (upstream's hook, before it takes a short cut)."""
    return any(map(generates_with_penalty, batch.reqs))


def forbid_nodes(verified: VerifiedTrees | None, logits: Tensor) -> None:
    """Forbid the tokens that `verify_step` deferred (upstream's hook, after the grammar's mask).

    Args:
        verified: the result of `verify_step`.
        logits: the same logits; changed in place.
    """
    if verified is not None:
        verified.plan.penalizer.forbid(verified.plan, logits)


def accept_step(
    verified: VerifiedTrees | None, accept_index: Tensor, num_correct_drafts: Tensor
) -> None:
    """Append the accepted tokens of the trees that `verify_step` processed (upstream's hook).

    Args:
        verified: the result of `verify_step`.
        accept_index: accepted nodes of each row, root first, as rows of the logits, integer
            [batch, depth].
        num_correct_drafts: how many nodes besides the root are accepted, integer [batch].
    """
    if verified is not None:
        verified.plan.penalizer.accept(verified, accept_index, num_correct_drafts)


def accept_block(
    verified: VerifiedTrees | None, tokens: Tensor, num_correct_drafts: Tensor
) -> None:
    """Append the accepted tokens of the blocks that `verify_block` processed (upstream's hook).

    Args:
        verified: the result of `verify_block`.
        tokens: as in `verify_block`.
        num_correct_drafts: how many drafts of each block are accepted, integer [batch].
    """
    if verified is not None:  # int32, for which `reserve_windows` compiled
        nodes = torch.arange(tokens.numel(), dtype=torch.int32, device=tokens.device)
        accept_step(verified, nodes.view(tokens.shape), num_correct_drafts.int())


def _plan_verified(batch: ScheduleBatch) -> StepPlan | None:
    """The plan of a batch that verifies drafts; None if no row has a penalty."""
    penalizer = _penalizer(batch)
    return None if penalizer is None else _plan(penalizer, batch, is_verified=True)


def _plan(
    penalizer: Penalizer,
    batch: ScheduleBatch,
    prefilled: int = 0,
    offset: int = 0,
    is_verified: bool = False,
) -> StepPlan | None:
    """Plan a batch; None if it has no row with a penalty.

    A decode server (prefill/decode disaggregation) runs no prefill that would announce a request.
    Instead, a row with an unseen generation is new, so no step loops over all requests. Only now
    are the tokens on the host complete: nothing was sampled here yet, so the newest is the last.
    Where rows are prefilled, the server's role need not be looked up.

    Args:
        prefilled: as in `StepPlan`.
        offset: as in `StepPlan`.
        is_verified: whether the batch verifies draft trees, instead of sampling a token a row.
    """
    if not prefilled:
        again = penalizer.plan_again(batch.req_pool_indices_cpu, len(batch.reqs), offset)
        if again is not None:
            return again
    reqs, room = batch.reqs, penalizer.histories.room
    starts: dict[int, RowStart] = {}
    for i in range(prefilled):
        if samples_with_penalty(reqs[i]):
            starts[i] = start_of(reqs[i], reqs[i].extend_end, room)
    if not prefilled and _is_decode_server():
        for i in penalizer.new_rows(batch.req_pool_indices_cpu, len(reqs)):
            if generates_with_penalty(reqs[i]):
                end = len(reqs[i].full_untruncated_fill_ids) - 1
                complete = is_verified or int(batch.seq_lens_cpu[i]) == end + 1
                assert complete, "not all of a new row's tokens are here"
                starts[i] = start_of(reqs[i], end, room)
    if not (starts or penalizer.has_users):
        return None
    plan = penalizer.plan(
        batch.req_pool_indices_cpu, len(reqs), starts, prefilled=prefilled, offset=offset
    )
    if plan is not None and plan.history is not None:
        for i in plan.history.refused:
            _end_without_room(reqs[i])
    return plan


def _end_without_room(req: Req) -> None:
    """End a request that was admitted although its history has no room. This cannot happen, because
    admission uses the same numbers, but no request may crash the server."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    logger.error("no room for the history of request %s", req.rid)
    req.to_finish = FINISH_ABORT(
        "This server has no room for the history that the request's penalties need: try again.",
        503,
        "ServiceUnavailableError",
    )


@functools.cache
def _check_hooks_again() -> None:
    """Run `hooks.check` at the first batch: --forward-hooks run later than `reserve_windows`."""
    hooks.check()


def _serves(runner: ModelRunner) -> bool:
    """Whether a runner's model generates tokens for requests, here or on another rank."""
    return bool(not runner.is_draft_worker and runner.is_generation)


def _samples(runner: ModelRunner) -> bool:
    """Whether a runner samples tokens. Draft models and embedding models do not, and in a pipeline
    only the last rank does."""
    return _serves(runner) and runner.pp_group.is_last_rank


def _penalizer(batch: ScheduleBatch) -> Penalizer | None:
    """The penalizer of a batch; None if the server's mode is unsupported (`reserve_windows`)."""
    penalizer: Penalizer | None = getattr(batch.req_to_token_pool, "lz_penalizer", None)
    return penalizer


def _split(batch: ScheduleBatch) -> tuple[int, int] | None:
    """How many leading rows are prefills, and the offset from a later row to its input_ids index.
    None for a batch that does not sample one token per row.

    In an extend batch, a decode row is a single input token: upstream appends decode rows to a
    chunk (mixed chunk), or runs a whole decode batch as an extend (`decoding_reqs`). The host does
    not know those tokens yet, so the device appends them to these rows.
    """
    mode = batch.forward_mode
    if mode.is_decode():
        return 0, 0
    if not mode.is_extend_without_speculative():
        return None
    if mode.is_mixed():
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


def _tree_sizes() -> set[int]:
    """The possible numbers of nodes in a draft tree; empty without speculation."""
    from sglang.srt.runtime_context import get_spec
    from sglang.srt.speculative.adaptive_spec_params import resolve_candidate_steps_from_config

    spec = get_spec()
    sizes = {spec.speculative_num_draft_tokens or 0} - {0}
    if spec.speculative_adaptive:
        steps = resolve_candidate_steps_from_config(spec.speculative_adaptive_config)
        sizes |= {step + 1 for step in steps}
    return sizes


def _most_nodes() -> int:
    """The most nodes in a draft tree, on one path or in total; 1 without speculation."""
    from sglang.srt.runtime_context import get_spec

    return max({1, *_tree_sizes(), (get_spec().speculative_num_steps or 0) + 1})


def _config_of_any_role(name: str) -> Any:
    from sglang.srt.runtime_context import get_context

    # A server may switch between prefill and decode, and then receives what it would have rejected.
    return "null" if name == "disaggregation_mode" else get_context().config_leaf(name)


def _is_decode_server() -> bool:
    # This is not the startup argument, because a server may change its role.
    mode: str = _runtime_context().get_disagg().disaggregation_mode
    return mode == "decode"


@functools.cache
def _runtime_context() -> ModuleType:
    """Upstream's module, which imports this one. Even an import that has run before takes most of a
    microsecond, and this runs at every step."""
    from sglang.srt import runtime_context

    return runtime_context
