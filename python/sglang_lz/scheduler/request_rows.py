"""Builds the initial state of a row from `Req`."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from lz_penalty import breakers
from lz_penalty.fields.histories import UPSTREAM, HistoryParams
from lz_penalty.history import HistoryNeed, HistoryRoom
from lz_penalty.history_penalizer import RowHistory
from lz_penalty.penalizer import RowStart
from lz_penalty.window import RowWindow, tokens_to_seed
from sglang_lz.constraints.end_tokens import request_end_tokens

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.sampling.sampling_params import SamplingParams

    from lz_penalty.fields.lz import LZParams


def has_history(params: SamplingParams) -> bool:
    """Whether a request has a penalty over its whole history, by its admitted parameters."""
    own: HistoryParams | None = params.history_params
    is_upstreams = any(getattr(params, name) != off for name, off in UPSTREAM.items())
    return is_upstreams or (own is not None and own.is_used)


def generates_with_penalty(req: Req) -> bool:
    """Whether a request has a penalty and may still generate tokens.

    Upstream may have reduced its `max_new_tokens` to 0. Such a request is only sampled if it shares
    a batch with others, and the penalty must not depend on that.
    """
    params = req.sampling_params
    return params.max_new_tokens != 0 and (params.lz_params is not None or has_history(params))


def samples_with_penalty(req: Req) -> bool:
    """Whether this prefill samples a token with a penalty; a chunk in the middle samples none."""
    return generates_with_penalty(req) and req.extend_end == len(req.full_untruncated_fill_ids)


def start_of(req: Req, end: int, room: HistoryRoom) -> RowStart:
    """The initial state of a request's row. A request with a history becomes a holder of room.

    Args:
        req: a request with a penalty.
        end: how many tokens it has.
        room: the memory for histories.
    """
    window = None if req.sampling_params.lz_params is None else _window(req, end)
    need = need_of(req, room)
    if not need.words:
        return RowStart(window)
    room.holders[id(req)] = req, need
    return RowStart(window, _history(req, end, room.vocab_size))


def need_of(req: Req, room: HistoryRoom) -> HistoryNeed:
    """The room that the history of a request needs."""
    need: HistoryNeed | None = getattr(req, "lz_need", None)
    if need is None:
        need = HistoryNeed()
        params = req.sampling_params
        if params.max_new_tokens != 0 and has_history(params):
            need = _history(req, 0, room.vocab_size).need(room)
        req.lz_need = need
    return need


def _window(req: Req, end: int) -> RowWindow:
    """The first `end` tokens of a request, as its window sees them.

    They are copied because upstream may change them before they reach the device.
    """
    lz: LZParams = req.sampling_params.lz_params
    prompt = len(req.origin_input_ids)
    first = 0 if lz.include_prompt else prompt
    start = end - tokens_to_seed(lz.window_size, lz.onset)
    if start < first:  # noqa: PLR1730 -- `max` takes longer
        start = first
    return RowWindow(
        req.full_untruncated_fill_ids[start:end],
        prompt - start if start < prompt else 0,
        end,
        first,
        lz,
    )


def _history(req: Req, end: int, vocab_size: int) -> RowHistory:
    """The first `end` tokens of a request, or its prompt, and its penalties over all of them."""
    params = req.sampling_params
    own: HistoryParams | None = params.history_params
    tables = None
    if own is not None and own.has_dry and own.dry_sequence_breakers:
        tables = functools.partial(
            breakers.tables_for, req.tokenizer, vocab_size, own.dry_sequence_breakers
        )
    prompt = len(req.origin_input_ids)
    return RowHistory(
        req.full_untruncated_fill_ids[:end] if end else req.origin_input_ids,
        prompt,
        prompt + params.max_new_tokens,
        {name: getattr(params, name) for name in UPSTREAM},
        own,
        request_end_tokens(req, vocab_size) if params.min_new_tokens else (),
        tables,
    )
