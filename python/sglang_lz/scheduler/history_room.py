"""Which requests have room for their histories (docs/SPEC.md section 5 lists the penalties).

A server reserves a fixed memory for the histories of all requests when it starts. A request that
needs more than all of it is refused, and one that needs more than is free waits in the queue.
`sglang_lz.scheduler.sampling` calls these functions where upstream admits requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from lz_penalty.breakers import vocabulary_of
from lz_penalty.fields.histories import MOST_WHITELISTED, HistoryParams
from lz_penalty.history import SPARE, HistoryNeed, HistoryRoom
from lz_penalty.history_penalizer import RowHistory
from lz_penalty.numbers import number_tokens
from sglang_lz.scheduler.request_rows import need_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder
    from sglang.srt.model_executor.model_runner import ModelRunner

    from lz_penalty.window import WindowState

MOST_NEW_LISTS = 4
"""The most lists of sequence breakers that are new in one step: each takes some milliseconds."""


@dataclass(slots=True)
class RoomUse:
    """How much of a `HistoryRoom` some requests use.

    Attributes:
        words: their memory in words of 4 bytes.
        lists: their lists of sequence breakers.
    """

    words: int = 0
    lists: set[tuple[str, ...]] = field(default_factory=set)

    def add(self, need: HistoryNeed) -> None:
        """Count one more request."""
        self.words += need.words
        if need.breakers is not None:
            self.lists.add(need.breakers)

    def fits(self, need: HistoryNeed, words: int, lists: int) -> bool:
        """Whether one more request would keep to this many words and lists."""
        is_new = need.breakers is not None and need.breakers not in self.lists
        return self.words + need.words <= words and len(self.lists) + is_new <= lists


def room_for(runner: ModelRunner, rows: int, nodes: int) -> HistoryRoom:
    """The memory for histories: the size in the server's argument, or less if all request rows at
    their maximum length would need less.

    Args:
        runner: upstream's model runner.
        rows: how many request rows there are.
        nodes: the largest number of logits rows of a request in one step.
    """
    config = runner.model_config
    is_cpu = torch.device(runner.device).type == "cpu"
    room = HistoryRoom(config.vocab_size, nodes=0 if is_cpu else nodes)
    # All tokens may be distinct, including those of images, and any token may stop a request.
    longest, tokens = config.context_len, config.context_len + SPARE
    size = RowHistory((), 0, longest, params=HistoryParams(dry_multiplier=1)).size(tokens)
    most = size.words(room.nodes) + config.vocab_size + MOST_WHITELISTED
    room.words = min(memory() * 2**18, rows * most)
    room.logits = rows * nodes
    return room


def memory() -> int:
    """The memory for histories in MiB, a server argument."""
    from sglang.srt.runtime_context import get_exec

    mebibytes: int = get_exec().features.lz_history_memory
    return mebibytes


def refusal_of(req: Req, room: HistoryRoom) -> str | None:
    """Why this server can never run a request with a history; None if it can."""
    need, params = need_of(req, room), req.sampling_params
    if need.words > room.words:
        longest = len(req.origin_input_ids) + params.max_new_tokens
        return (
            f"max_new_tokens must be lower with these penalties, got {params.max_new_tokens}: the "
            f"history of up to {longest} tokens would take {4 * need.words} bytes, and this "
            f"server has {4 * room.words} (--lz-history-memory)."
        )
    if need.breakers and vocabulary_of(req.tokenizer, room.vocab_size) is None:
        return (
            "dry_sequence_breakers must be [] on this server, which cannot tell the texts of its "
            f"model's tokens, got {len(need.breakers)} texts."
        )
    return None


def waiting_with_room(
    waiting: Iterable[Req], adder: PrefillAdder, room: HistoryRoom
) -> Iterator[Req]:
    """The waiting requests whose histories have room now, in their order.

    A request that must wait also holds back later ones with a history, so that it gets its turn.
    Requests without a history pass it. The decision only uses data that all ranks share, so all
    ranks decide the same.

    Args:
        waiting: upstream's queue.
        adder: admits the requests yielded here, or not.
        room: the memory for histories.
    """
    use = used(room)
    most = min(room.lists, len(use.lists) + MOST_NEW_LISTS)
    must_wait = False
    for req in waiting:
        need = need_of(req, room)
        if need.words:
            must_wait = must_wait or not use.fits(need, room.words, most)
            if must_wait:
                continue
        try:
            yield req
        finally:  # upstream may stop iterating here
            if need.words and adder.can_run_list and adder.can_run_list[-1] is req:
                room.holders[id(req)] = req, need
                use.add(need)


def takes_room(req: Req, room: HistoryRoom) -> bool:
    """Whether a request that already has its row may begin. If its history fits, it gets room."""
    need = need_of(req, room)
    use = used(room)
    if not need.words or id(req) in room.holders:
        return True
    has_room = use.fits(need, room.words, room.lists)
    if has_room:
        room.holders[id(req)] = req, need
    return has_room


def used(room: HistoryRoom) -> RoomUse:
    """The room of the requests that still hold some; the others are forgotten."""
    room.holders = {key: one for key, one in room.holders.items() if holds(one[0])}
    use = RoomUse()
    for _, need in room.holders.values():
        use.add(need)
    return use


def holds(req: Req) -> bool:
    """Whether a request still needs its history; a retracted request gets a new one later."""
    return req.kv.holds_kv and not req.finished()


def live_rows(room: HistoryRoom) -> set[int]:
    """The rows of the requests that still hold room."""
    return {req.kv.req_pool_idx for req, _ in room.holders.values() if holds(req)}


def prepare_vocabulary(reqs: Sequence[Req], room: HistoryRoom, windows: WindowState | None) -> None:
    """Read the texts of tokens with the first batch, which is the server's own if it warms up. It
    takes seconds with 150,000 tokens.

    Args:
        reqs: upstream's requests of the batch; nothing is read if there are none.
        room: the memory for histories.
        windows: receives the tokens that are numbers; None on a rank that samples nothing.
    """
    if not reqs:
        return
    room.is_prepared = True
    tokenizer = reqs[0].tokenizer
    if tokenizer is not None:
        vocabulary_of(tokenizer, room.vocab_size)
    numbers = number_tokens(tokenizer, room.vocab_size)  # kept for the loop guard too
    if windows is not None:
        windows.set_numbers(numbers)
