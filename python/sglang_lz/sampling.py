"""The functions that upstream's sampling calls (patches/sampling); they read its batches.

`reserve_windows` makes the windows of a server when it starts. Of a batch that samples one token a
row, `plan_step` reads the host's data while the forward batch is made, and `apply_step` applies the
penalty right before sampling. Of a batch that verifies draft trees, `verify_step` applies it to
every node, and `accept_step` appends the accepted tokens. `sglang_lz.penalizer` does the rest and
knows none of upstream's classes.
"""

from __future__ import annotations

import functools
import logging
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from sglang_lz import guard, hooks, kernels
from sglang_lz.breakers import tables_of
from sglang_lz.history_penalizer import HistoryStep, RowHistory
from sglang_lz.penalizer import BatchedLZPenalizer, History, LZStep, LZVerify
from sglang_lz.penalties import is_used
from sglang_lz.support import unsupported_modes
from sglang_lz.window import bytes_of_row

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from sglang.srt.speculative.eagle_info import EagleVerifyInput
    from sglang.srt.speculative.ngram_info import NgramVerifyInput

    from sglang_lz.history_penalizer import Tables
    from sglang_lz.params import LZParams
    from sglang_lz.penalties import HistoryParams
    from sglang_lz.window import Seed

    VerifyInput: TypeAlias = EagleVerifyInput | NgramVerifyInput

logger = logging.getLogger(__name__)


def reserve_windows(runner: ModelRunner) -> None:
    """Reserve the windows of a model's requests for good (upstream's hook).

    Upstream calls it where it has made the pool of request rows, and before it captures CUDA graphs
    or takes what memory is left. The kernels and the loop guard's detector are compiled here too,
    so that no request waits.

    Args:
        runner: upstream's model runner, with its pool.

    Raises:
        RuntimeError: the memory cannot be had.
        ValueError: something replaced a function that calls us.
    """
    if not _samples(runner):
        return
    guard.prepare()
    if any(unsupported_modes(_config_of_any_role)):
        return
    hooks.check()
    pool, capacity = runner.req_to_token_pool, _max_window_size()
    rows = pool.req_to_token.shape[0]
    size = f"{rows} request rows of {bytes_of_row(capacity)} bytes"
    kernels.import_for(torch.device(runner.device))  # an error here is not about memory
    try:
        penalizer = BatchedLZPenalizer(
            rows, capacity, runner.device, runner.model_config.vocab_size
        )
    except (RuntimeError, MemoryError) as error:
        cause = (str(error).splitlines() or ["no memory"])[0]
        raise RuntimeError(
            f"the LZ penalty cannot reserve {rows * bytes_of_row(capacity)} bytes on "
            f"{runner.device} ({size}; {cause}): lower --lz-max-window-size, which is {capacity}, "
            "or --max-running-requests."
        ) from None
    kernels.warm_up(penalizer.kernels, capacity, penalizer.device, _tree_sizes())
    pool.lz_penalizer = penalizer
    logger.info(
        "LZ penalty: %s, %.1f MiB in all, reserved", size, rows * bytes_of_row(capacity) / 2**20
    )


def plan_step(batch: ScheduleBatch, runner: ModelRunner, forward_batch: ForwardBatch) -> None:
    """Attach the LZ rows of `batch` to `forward_batch`, for `apply_step` (upstream's hook).

    Reads host data only. Loops over requests only when their tokens are on the host: at prefill and
    when they are handed over.
    """
    _check_hooks_again()
    mode = batch.forward_mode
    if not _samples(runner) or not (mode.is_decode() or mode.is_extend_without_speculative()):
        return
    penalizer = _penalizer(batch)
    if penalizer is None:
        ignored = not mode.is_decode() and any(map(_samples_with_penalty, batch.reqs))
        assert not ignored, "a penalty was admitted in a mode that is refused"
        return
    forward_batch.lz_step = _plan(penalizer, batch)


def apply_step(logits: Tensor, forward_batch: ForwardBatch) -> None:
    """Apply the penalty that `plan_step` planned, if any (upstream's hook, before sampling)."""
    _check_hooks_again()
    step: LZStep | None = getattr(forward_batch, "lz_step", None)
    if step is not None:
        step.penalizer.apply(
            step,
            logits,
            request_rows=forward_batch.req_pool_indices,
            seq_lens=forward_batch.seq_lens,
            input_ids=forward_batch.input_ids,
        )


def verify_step(trees: VerifyInput, batch: ScheduleBatch, logits: Tensor) -> LZVerify | None:
    """Apply the penalty to every node of a batch of draft trees (upstream's hook, before sampling).

    Args:
        trees: upstream's draft trees, one a batch row; node 0 of each is the newest token.
        batch: gives the request row of each batch row and the position of its root.
        logits: next-token logits, float32 [batch x nodes, V]; changed in place.

    Returns:
        What `accept_step` needs; None if no row has a penalty.

    Raises:
        TypeError: the logits have another dtype.
    """
    penalizer = _penalizer(batch)
    if penalizer is None or not (_has_users(penalizer) or _is_decode_server()):
        return None
    rows, generation = _request_rows(batch)
    ends = _handed_over(penalizer, batch, rows, generation)
    seed, width, history = _admit(penalizer, batch, rows, generation, ends)
    if not width and history is None:
        return None
    return penalizer.verify(
        seed,
        logits,
        request_rows=batch.req_pool_indices,
        root=batch.seq_lens,
        tokens=trees.draft_token.view(-1, trees.draft_token_num),
        first_child=trees.retrieve_next_token,
        next_sibling=trees.retrieve_next_sibling,
        depth=trees.max_tree_depth,
        width=width,
        history=history,
    )


def accept_step(
    verified: LZVerify | None, accept_index: Tensor, num_correct_drafts: Tensor
) -> None:
    """Append the accepted tokens of the trees that `verify_step` saw (upstream's hook).

    Args:
        verified: what `verify_step` returned.
        accept_index: accepted nodes of each row, root first, as rows of the logits, integer
            [batch, depth].
        num_correct_drafts: how many nodes beside the root are accepted, integer [batch].
    """
    if verified is not None:
        verified.penalizer.accept(verified, accept_index, num_correct_drafts)


def keep_min_p(probs: Tensor, sampling_info: SamplingBatchInfo, nodes: int) -> Tensor:
    """The probabilities of the nodes of draft trees under their requests' min_p (upstream's hook).

    As in plain decoding: what is less likely than min_p times the likeliest is out.

    Args:
        probs: float32 [batch x nodes, V], after top_k and top_p.
        sampling_info: upstream's, one row a tree.
        nodes: how many nodes a tree has.
    """
    if not sampling_info.need_min_p_sampling:
        return probs
    least = probs.amax(dim=-1, keepdim=True)
    least *= sampling_info.min_ps.repeat_interleave(nodes)[:, None]
    kept = probs.masked_fill(probs < least, 0)
    return kept / kept.sum(dim=-1, keepdim=True)


@functools.cache
def samples_on_cpu() -> bool:
    """Whether this is the CPU flavour, which has the operators that sample what is accepted."""
    return find_spec("sglang_lz.cpu") is not None


def _plan(penalizer: BatchedLZPenalizer, batch: ScheduleBatch) -> LZStep | None:
    """The rows of `batch` with a penalty, and the seeds of new ones; None if it has none."""
    prefilled, offset = _split(batch)
    ends = {
        i: req.extend_end
        for i, req in enumerate(batch.reqs[:prefilled])
        if _samples_with_penalty(req)
    }
    if not (ends or _has_users(penalizer) or _is_decode_server()):
        return None
    rows, generation = _request_rows(batch)
    penalizer.give_up(rows[:prefilled])
    handed_over = _handed_over(penalizer, batch, rows, generation)
    for i, end in handed_over.items():
        complete = int(batch.seq_lens_cpu[i]) == end + 1
        assert complete, "not all of a new row's tokens are here"
    seed, width, history = _admit(penalizer, batch, rows, generation, ends | handed_over)
    if not width and history is None:
        return None
    return LZStep(penalizer, seed, len(batch.reqs), prefilled, offset, width, history)


def _admit(
    penalizer: BatchedLZPenalizer,
    batch: ScheduleBatch,
    rows: NDArray[np.int64],
    generation: NDArray[np.int64],
    ends: dict[int, int],
) -> tuple[Seed | None, int, HistoryStep | None]:
    """The seed, the width and the step of the histories of a batch.

    Args:
        ends: how many tokens the batch rows have that come with their histories.
        others: as in `BatchedLZPenalizer.admit`.
    """
    reqs, pool = batch.reqs, batch.req_to_token_pool
    history = penalizer.others.admit(
        rows,
        generation,
        {
            i: _row_history(reqs[i], end, batch.model_config.vocab_size)
            for i, end in ends.items()
            if is_used(reqs[i].sampling_params)
        },
        pool.req_generation.numpy(),
        lambda: pool.free_slots,
    )
    windows = {
        i: _history(reqs[i], end)
        for i, end in ends.items()
        if reqs[i].sampling_params.lz_params is not None
    }
    seed, width = penalizer.admit(rows, generation, windows, is_stepped=history is not None)
    return seed, width, history


def _has_users(penalizer: BatchedLZPenalizer) -> bool:
    return bool(penalizer.users or penalizer.others.users)


def _handed_over(
    penalizer: BatchedLZPenalizer,
    batch: ScheduleBatch,
    rows: NDArray[np.int64],
    generation: NDArray[np.int64],
) -> dict[int, int]:
    """The rows with a penalty whose prefill was another server's, each only once, and how many
    tokens they have.

    A decode server (prefill/decode disaggregation) runs no prefill that announces a request: a row
    whose generation was never looked at is new, so no step loops over all requests. Their tokens on
    the host are complete only now: nothing was sampled here yet, and the newest is the last.
    """
    if not _is_decode_server():
        return {}
    new = penalizer.look_at(rows, generation)
    reqs = {i: batch.reqs[i] for i in new if _generates_with_penalty(batch.reqs[i])}
    return {i: len(req.full_untruncated_fill_ids) - 1 for i, req in reqs.items()}


def _history(req: Req, end: int) -> History:
    """The first `end` tokens of a request, as its window sees them.

    They are copied here: upstream may change them before the device has them.
    """
    lz: LZParams = req.sampling_params.lz_params
    first = 0 if lz.include_prompt else len(req.origin_input_ids)
    # What is always on needs no run that reaches past its window.
    start = first if lz.onset else max(first, end - lz.window_size)
    return History(
        req.full_untruncated_fill_ids[start:end] if start < end else (),
        max(len(req.origin_input_ids) - start, 0),
        end,
        first,
        lz.penalty,
        lz.window_size,
        lz.buffer_size,
        lz.cost == "rate",
        lz.onset,
    )


def _row_history(req: Req, end: int, vocab_size: int) -> RowHistory:
    """The first `end` tokens of a request and its penalties over all of them."""
    params = req.sampling_params
    own: HistoryParams | None = params.history_params
    tables = None
    if own is not None and own.has_dry and own.dry_sequence_breakers:
        tables = _tables(req.tokenizer, vocab_size, own.dry_sequence_breakers)
    prompt = len(req.origin_input_ids)
    return RowHistory(
        req.full_untruncated_fill_ids[:end],
        prompt,
        prompt + params.max_new_tokens,
        params.frequency_penalty,
        params.presence_penalty,
        params.repetition_penalty,
        params.min_new_tokens,
        _stops(req, vocab_size) if params.min_new_tokens else (),
        own,
        tables,
    )


def _stops(req: Req, vocab_size: int) -> set[int]:
    """The tokens that may not come before `min_new_tokens` others, as upstream has them. A client
    may send any number as one."""
    own = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    if req.tokenizer is not None:
        own |= set(req.tokenizer.additional_stop_token_ids or ()) | {req.tokenizer.eos_token_id}
    return {token for token in own if token is not None and 0 <= token < vocab_size}


@functools.lru_cache(64)
def _tables(tokenizer: Any, vocab_size: int, breakers: tuple[str, ...]) -> Tables:
    """The tables of DRY's sequence breakers."""
    encode = functools.partial(tokenizer.encode, add_special_tokens=False)
    return tables_of(breakers, _vocab(tokenizer, vocab_size), encode, vocab_size)


@functools.lru_cache(1)
def _vocab(tokenizer: Any, vocab_size: int) -> list[bytes]:
    """The bytes of every token."""
    from xgrammar import TokenizerInfo

    if hasattr(tokenizer, "init_xgrammar"):  # upstream's own tokenizers
        info, _ = tokenizer.init_xgrammar()
    else:
        info = TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    vocab: list[bytes] = info.decoded_vocab
    return vocab


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
    """Whether this prefill ends in a sampled token (no middle chunk does) that we adjust."""
    return _generates_with_penalty(req) and req.extend_end == len(req.full_untruncated_fill_ids)


def _generates_with_penalty(req: Req) -> bool:
    """Whether a request has a penalty, and room to generate: upstream may have left it none.

    What then generates nothing is sampled only in company, and the penalty must not depend on that.
    """
    params = req.sampling_params
    return params.max_new_tokens != 0 and (params.lz_params is not None or is_used(params))


def _request_rows(batch: ScheduleBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The request row of each batch row and its generation, on the host, int64 [rows]."""
    rows = batch.req_pool_indices_cpu.numpy()[: len(batch.reqs)]
    return rows, batch.req_to_token_pool.req_generation.numpy()[rows]


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
