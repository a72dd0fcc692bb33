"""The repairs of upstream that its patches call."""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.prefill_budget import PrefillBudget
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
    from torch import Tensor


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
    """Abort the requests of nodes and of their descendants, and forget them (upstream's hook).

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


def keep_min_p(probs: Tensor, sampling_info: SamplingBatchInfo, nodes: int) -> Tensor:
    """The probabilities of the nodes of draft trees under their requests' min_p (upstream's hook).

    As in plain decoding, tokens less likely than min_p times the likeliest are removed.

    Args:
        probs: float32 [batch x nodes, V], after top_k and top_p.
        sampling_info: upstream's, with one row per tree.
        nodes: how many nodes a tree has.
    """
    # DSPARK's stand-in, which knows the temperature only, lacks it.
    if not getattr(sampling_info, "need_min_p_sampling", False):
        return probs
    least = probs.amax(dim=-1, keepdim=True)
    least *= sampling_info.min_ps.repeat_interleave(nodes)[:, None]
    kept = probs.masked_fill(probs < least, 0)
    return kept / kept.sum(dim=-1, keepdim=True)


@functools.cache
def samples_on_cpu() -> bool:
    """Whether a CPU can sample during verification (upstream's hook).

    Only the CPU flavour has the operators for it. Upstream takes the likeliest token instead.
    """
    return find_spec("sglang_lz.cpu") is not None


def unlink_padding(tokens: Tensor, next_sibling: Tensor) -> None:
    """Remove the padding of n-gram trees from the candidates for acceptance (upstream's hook).

    If a tree has too few drafts, upstream pads it with children of the root whose token is 0. Its
    sampling sums the probabilities of rejected siblings, so it would count token 0 once for each of
    them and accept it far too often. A real draft of token 0 may be cut off together with the
    siblings after it; it is then sampled instead of accepted.

    Args:
        tokens: integer [trees x nodes].
        next_sibling: int64 [trees, nodes], -1 for none; changed in place.
    """
    of_sibling = tokens.view_as(next_sibling).gather(1, next_sibling.clamp_min(0))
    next_sibling.masked_fill_(of_sibling == 0, -1)
