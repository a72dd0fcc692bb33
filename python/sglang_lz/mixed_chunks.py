"""Room in the KV cache for decodes beside a chunk of a prompt (`--enable-mixed-chunk`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.mem_cache.prefill_budget import PrefillBudget


def decodes_fit(decodes: ScheduleBatch, budget: PrefillBudget, chunked: Req | None) -> bool:
    """Whether requests can decode beside a chunk and leave the prompt its room (upstream's hook).

    A prompt is admitted when there is room for all of it. Upstream then lets others decode beside
    each of its chunks as long as that decode fits, and retracts nobody. So they can take the
    prompt's room; its next chunk finds none, and the server ends. Here they wait until the prompt
    is through: the decode step after it retracts what does not fit.

    Args:
        decodes: the requests that would decode; may be empty.
        budget: what the step's chunk was admitted with. Its slots are allocated already.
        chunked: the request whose prompt goes on after this step, if there is one.
    """
    if decodes.is_empty() or not decodes.check_decode_mem():
        return False
    if chunked is None:
        return True
    rest = len(chunked.full_untruncated_fill_ids) - chunked.extend_end
    free = budget.remaining_current + budget.current_offset
    return bool(decodes.new_tokens_required_next_decode() + rest <= free)
