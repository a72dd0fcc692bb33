"""`proper.pauses`: which requests pause and resume, and in which order they come back."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache import common

from proper_tokens.product import START
from sglang_lz.constraints import ranks
from sglang_lz.constraints.grammar import ProperGrammar
from sglang_lz.constraints.pauses import admitted, discard_late, pause_late


class Product:
    """A product that nobody asks for a mask."""

    def begin(self) -> None:
        """There is nothing to keep."""

    end = begin


class Request:
    """The part of upstream's Req that pauses touch."""

    def __init__(self) -> None:
        self.grammar: Any = ProperGrammar(Product(), [0])  # type: ignore[arg-type]
        self.sampling_params = SimpleNamespace(proper_tokens=True)
        self.output_ids = [5, 6]
        self.to_finish: str | None = None
        self.is_retracted = False
        self.inflight_middle_chunks = 0
        self.released: bool | None = None

    def late(self) -> Request:
        self.masks: Future[None] = Future()
        self.grammar._late.append((START, self.masks))
        return self

    def reset_for_retract(self) -> None:
        self.is_retracted = True


class Batch:
    """The part of upstream's ScheduleBatch that pauses touch."""

    def __init__(self, *reqs: Request) -> None:
        self.reqs = list(reqs)
        self.batch_is_full = True

    def is_empty(self) -> bool:
        return not self.reqs

    def filter_batch(self, reqs_to_exclude: list[Request]) -> None:
        self.reqs = [req for req in self.reqs if req not in reqs_to_exclude]


class Scheduler:
    """The part of upstream's Scheduler that pauses touch."""

    def __init__(self, *, enable_overlap: bool = True) -> None:
        self.enable_overlap = enable_overlap
        self.waiting_queue: list[Request] = []
        self.tree_cache = SimpleNamespace()

    def _add_request_to_queue(self, req: Request, is_retracted: bool) -> None:
        assert is_retracted
        self.waiting_queue.append(req)


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    def release_kv_cache(req: Request, cache: Any, *, checkpoint: bool) -> None:
        req.released = checkpoint

    monkeypatch.setattr(common, "release_kv_cache", release_kv_cache)


def test_late_requests_leave_the_batch_and_come_back_first() -> None:
    scheduler = Scheduler()
    plain, other = Request(), Request()
    plain.grammar = None
    late = [Request().late() for _ in range(3)]
    batch = Batch(late[0], plain, late[1], other, late[2])
    scheduler.waiting_queue = [new := Request()]
    new.grammar = None
    pause_late(scheduler, batch)
    assert batch.reqs == [plain, other]
    assert not batch.batch_is_full
    assert all(req.released and req.is_retracted for req in late)
    assert scheduler.waiting_queue == [new, *late]
    assert list(admitted(scheduler.waiting_queue, None)) == [new]
    late[1].masks.set_result(None)
    scheduler.waiting_queue.remove(late[0])  # it was aborted
    pause_late(scheduler, batch)
    assert scheduler.waiting_queue == [late[1], new, late[2]]
    assert [req.grammar.is_paused for req in late[1:]] == [False, True]
    late[2].to_finish = "aborted"
    pause_late(scheduler, batch)
    assert scheduler.waiting_queue == [late[2], late[1], new]
    assert not late[2].grammar.is_paused
    assert not late[2].grammar.is_late
    assert batch.reqs == [plain, other]


def test_ranks_resume_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask that another rank lacks counts as lacking here."""
    scheduler, req = Scheduler(), Request().late()
    pause_late(scheduler, Batch(req))
    req.masks.set_result(None)
    monkeypatch.setattr(ranks, "GROUPS", ["group"])
    others = 0

    def all_reduce(least: torch.Tensor, operation: Any, group: str) -> None:
        least.fill_(min(int(least), others))

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    pause_late(scheduler, Batch())
    assert req.grammar.is_paused
    others = 1
    pause_late(scheduler, Batch())
    assert not req.grammar.is_paused


def test_tokens_sampled_without_a_mask_are_discarded() -> None:
    """With overlap the requests have paused before upstream handles the result."""
    late, chunk, other = Request().late(), Request().late(), Request()
    chunk.inflight_middle_chunks = 1  # it sampled nothing
    discard_late(Scheduler(), Batch(late, chunk, other))
    assert late.grammar.is_late
    assert not late.is_retracted
    discard_late(Scheduler(enable_overlap=False), Batch(late, chunk, other))
    assert [req.is_retracted for req in (late, chunk, other)] == [True, False, False]
    assert not chunk.grammar.is_late
