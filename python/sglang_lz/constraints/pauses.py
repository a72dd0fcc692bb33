"""Requests with proper tokens that pause while the mask of their next token is computed.

All rows of a batch wait for a mask that is not ready. After some milliseconds the scheduler
continues without it. The token that it samples for that row is discarded, and the request returns
to the queue, with its KV cache in the prefix cache. When the mask is known, the request resumes
with a prefill of its last token. Ranks agree on which masks are late and which are ready, so they
pause and resume the same requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sglang_lz.constraints import ranks

if TYPE_CHECKING:
    from sglang_lz.constraints.grammar import ProperGrammar

_NAP = 0.001
"""Seconds that a scheduler sleeps if all its requests have paused."""


def admitted(waiting: Iterable[Any], adder: Any) -> Iterator[Any]:
    """Yield the requests of a queue that have not paused (upstream's hook).

    Also decides, for each request, whether it may pause later.

    Args:
        waiting: upstream's requests.
        adder: upstream's PrefillAdder, with its prefix cache.
    """
    for req in waiting:
        walk = _walk(req)
        if walk is None:
            yield req
        elif not walk.is_paused:
            walk.may_pause = _may_pause(req, adder.tree_cache)
            yield req


def pause_late(scheduler: Any, batch: Any) -> None:
    """Let the requests pause whose masks were late in the last step (upstream's hook).

    Args:
        scheduler: upstream's Scheduler.
        batch: its running batch; the requests are removed from it.
    """
    paused = scheduler.__dict__.setdefault("lz_paused", {})
    if paused:
        _resume(scheduler, paused)
        if paused and batch.is_empty():
            time.sleep(_NAP)
    late = {req: walk for req in batch.reqs if (walk := _walk(req)) is not None and walk.is_late}
    if not late:
        return
    from sglang.srt.mem_cache.common import release_kv_cache

    for req, walk in late.items():
        walk.pause(len(req.output_ids))
        release_kv_cache(req, scheduler.tree_cache, checkpoint=True)
        req.reset_for_retract()
    batch.filter_batch(reqs_to_exclude=list(late))
    batch.batch_is_full = False
    for req in late:
        scheduler._add_request_to_queue(req, is_retracted=True)
    paused.update(late)


def _resume(scheduler: Any, paused: dict[Any, ProperGrammar]) -> None:
    """Resume the requests whose masks are known, before all others in the queue.

    Args:
        scheduler: upstream's Scheduler.
        paused: its paused requests and their walks; those that resume or were aborted are removed.
    """
    queued = set(scheduler.waiting_queue)
    for req in [req for req in paused if req not in queued]:  # it was aborted
        del paused[req]
    ready = ranks.least(
        [walk.is_ready or req.to_finish is not None for req, walk in paused.items()]
    )
    resumed = [req for req, is_ready in zip(paused, ready, strict=True) if is_ready]
    for req in resumed:
        paused.pop(req).resume()
    if resumed:
        others = [req for req in scheduler.waiting_queue if req not in resumed]
        scheduler.waiting_queue = resumed + others


def discard_late(scheduler: Any, batch: Any) -> None:
    """Discard what a step sampled without a mask (upstream's hook, before it handles the result).

    If a scheduler overlaps steps, `pause_late` has already run.

    Args:
        scheduler: upstream's Scheduler.
        batch: the batch of the step.
    """
    if scheduler.enable_overlap:
        return
    for req in batch.reqs:
        walk = _walk(req)
        if walk is None or not walk.is_late:
            continue
        if req.inflight_middle_chunks > 0:
            walk.resume()  # the step samples nothing
        else:
            req.is_retracted = True  # upstream then skips it


def _walk(req: Any) -> ProperGrammar | None:
    """The walk of a request whose masks may be late; None if it has none."""
    if req.grammar is None or not req.sampling_params.proper_tokens:
        return None
    from sglang_lz.constraints.grammar import walk_of

    return walk_of(req.grammar)


def _may_pause(req: Any, cache: Any) -> bool:
    """Whether a request can be computed again from its tokens at any time, and on this server.

    Without a prefix cache that keeps all of it, each pause would cost its whole prefill. In a
    pipeline only the last stage has masks, but the first decides which requests run. A server that
    only decodes cannot prefill. Upstream cannot repeat the other kinds of requests without changing
    what they return.
    """
    from sglang.srt.runtime_context import get_disagg, get_memory, get_parallel

    return (
        cache.supports_prefix_sharing()
        and not cache.supports_mamba()
        and get_parallel().pp_size == 1
        and get_disagg().disaggregation_mode == "null"
        and not get_memory().enable_hisparse
        and (req.session is None or not req.session.streaming)
        and req.beam_group is None
        and req.input_embeds is None
        and not req.return_hidden_states
        and not req.return_sampling_mask
    )
