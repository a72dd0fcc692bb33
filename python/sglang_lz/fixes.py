"""Small repairs of upstream that its patches call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.prefill_budget import PrefillBudget


def decodes_fit(decodes: ScheduleBatch, budget: PrefillBudget, chunked: Req | None) -> bool:
    """Whether decodes beside a chunk leave the prompt enough room (upstream's hook).

    A prompt is admitted when there is room for all of it. Upstream then lets other requests decode
    beside each chunk if that one decode step fits, and retracts none of them. They can thus use up
    the prompt's room in the KV cache, so that its next chunk finds none and the server crashes
    (`--enable-mixed-chunk`). Here the decodes wait until the prompt is finished; the decode step
    after that retracts requests that do not fit.

    Args:
        decodes: the requests that would decode; may be empty.
        budget: the budget that admitted the step's chunk. Its slots are already allocated.
        chunked: the request whose prompt continues after this step, if any.
    """
    if decodes.is_empty() or not decodes.check_decode_mem():
        return False
    if chunked is None:
        return True
    rest = len(chunked.full_untruncated_fill_ids) - chunked.extend_end
    free = budget.remaining_current + budget.current_offset
    return bool(decodes.new_tokens_required_next_decode() + rest <= free)


def forget(nodes: list[Any], known: dict[str, Any]) -> None:
    """Abort the requests of nodes and of all their descendants, and remove them from a session.

    Upstream removes them recursively, which overflows the stack for a long chain of turns, and it
    modifies a session's requests while iterating over them. Both raise on the scheduler's thread.

    Args:
        nodes: upstream's `SessionReqNode`s.
        known: the session's nodes, by request id; if a client reused an id, the newer node.
    """
    left = list(nodes)
    while left:
        node = left.pop()
        left += node.children
        node.children = []
        node.abort()
        rid = node.req.rid
        if known.get(rid) is node:
            del known[rid]
