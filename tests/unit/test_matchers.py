"""XGrammar's matchers, with a bound for the time of a token."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from transformers import AutoTokenizer
from xgrammar import GrammarMatcher

from proper_tokens.time_limits import Allowance
from sglang_lz.bounds.limits import CONSTRAINTS
from sglang_lz.constraints import dead_ends, grammar_cache, matchers, ranks
from sglang_lz.constraints.dead_ends import end_constrained, open_dead_ends
from sglang_lz.demo import MODEL_PATH

SLOW = r"((\w?(\n{0,9}é[a-z]{0,100})(.*){0,100}([^\n]{0,9}é?)){3})"
TEXT = "aé" + "b" * 60  # each takes longer than the one before
TOO_SLOW = r"(([^\n]?){0,9}|([\s\S]+|.?|\n{1000}){0,9}){20}c{0,9}"
"""Its first mask takes about half a second. `{20,300}` in place of `{20}` takes minutes, but the
abandoned threads of these tests have to end before Python may."""


@pytest.fixture(scope="module", autouse=True)
def abandoned_threads_end() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name == matchers._ABANDONED:
            # Or they would wait for an idle processor, while other tests keep all of them busy.
            with contextlib.suppress(OSError):  # it has ended, or we may not
                os.sched_setscheduler(thread.native_id or 0, os.SCHED_OTHER, os.sched_param(0))
            thread.join()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(MODEL_PATH)


@pytest.fixture
def backend(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    from sglang.srt.constrained import xgrammar_backend

    monkeypatch.setattr(xgrammar_backend, "GrammarMatcher", xgrammar_backend.GrammarMatcher)
    for module in (matchers, dead_ends):
        monkeypatch.setattr(module, "is_pipeline", lambda: False)
    found = xgrammar_backend.XGrammarGrammarBackend(
        tokenizer, vocab_size=len(tokenizer), model_eos_token_ids=[0]
    )
    grammar_cache.bound(found, found)
    return found


def follow(grammar: Any, tokenizer: Any, text: str) -> None:
    """Accept a text, character by character, until the grammar is slow."""
    for character in text:
        for token in tokenizer.encode(character):
            if not grammar.matcher.is_stopped:
                grammar.accept_token(token)


def ended(grammar: Any) -> Any:
    """Whether a request with a grammar ends at its next mask, and how."""
    grammars = [None, grammar]
    open_dead_ends(torch.ones((2, 1), dtype=torch.int32), grammars)
    req = SimpleNamespace(
        grammar=grammar,
        to_finish=None,
        bootstrap_room=None,
        output_ids=[5, 6],
        sampling_params=SimpleNamespace(regex="x", json_schema=None),
    )
    end_constrained(req, 1)
    return req.to_finish


def test_a_too_ambiguous_constraint_ends_its_requests(backend: Any, tokenizer: Any) -> None:
    grammar = backend.dispatch_regex(SLOW)
    assert ended(grammar) is None
    follow(grammar, tokenizer, TEXT)
    reason = ended(grammar)
    assert reason.to_json()["status_code"] == 400
    assert reason.message.startswith("regex must have next tokens that are found within 0.1 s")
    assert ended(SimpleNamespace(grammar=grammar)) is not None  # one for thinking sections
    # Another request with it need not find that out again.
    assert ended(grammar.copy()) is not None
    assert ended(backend.dispatch_regex("a+b")) is None


def test_a_call_that_does_not_end_is_abandoned(backend: Any, tokenizer: Any) -> None:
    """The first call may be slow already. What is left of it uses idle processors."""
    grammar = backend.dispatch_regex(TOO_SLOW)
    mask = grammar.allocate_vocab_mask(len(tokenizer), 2, "cpu")
    mask.zero_()
    began = time.monotonic()
    grammar.fill_vocab_mask(mask, 1)
    assert time.monotonic() - began < 30  # it takes longer than the test may
    assert (mask[0] == 0).all()
    assert (mask[1] == -1).all()
    assert ended(grammar).to_json()["status_code"] == 400
    grammar.accept_token(5)
    grammar.rollback(1)
    assert not grammar.is_terminated()
    abandoned = [one for one in threading.enumerate() if one.name == matchers._ABANDONED][-1]
    assert os.sched_getscheduler(abandoned.native_id or 0) == os.SCHED_IDLE
    other = backend.dispatch_regex("a+b")
    other.fill_vocab_mask(mask, 0)
    assert 0 < mask[0].count_nonzero() < len(mask[0])


def test_masks_equal_xgrammars(backend: Any, tokenizer: Any) -> None:
    grammar = backend.dispatch_regex("[a-zé]*( 日本)?")
    stock = GrammarMatcher(grammar.ctx)
    masks = grammar.allocate_vocab_mask(len(tokenizer), 2, "cpu")
    for token in tokenizer.encode("aé 日"):
        grammar.fill_vocab_mask(masks, 0)
        stock.fill_next_token_bitmask(masks, 1)
        assert (masks[0] == masks[1]).all()
        grammar.accept_token(token)
        assert stock.accept_token(token)
    with pytest.raises(ValueError, match="not accepted"):
        grammar.accept_token(tokenizer.encode("a")[0])


def test_an_abandoned_thread_ends_with_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the call ends just when the scheduler stops waiting."""
    worker = matchers._Worker()
    assert worker.run(lambda: 5) == 5
    worker._abandon()
    worker._thread.join(30)
    assert not worker._thread.is_alive()

    monkeypatch.setattr(matchers, "MOST_SECONDS", 0.01)  # it uses no processor, so it takes longer
    held, worker = threading.Event(), matchers._Worker()
    with pytest.raises(matchers._TooSlow):
        worker.run(held.wait)
    assert matchers._abandoned() > 0
    held.set()
    worker._thread.join(30)
    assert not worker._thread.is_alive()


@pytest.mark.parametrize(
    ("problem", "status"),
    [("Tokens not accepted: 7", 400), ("Token not accepted by proper tokens: 7", 500)],
)
def test_a_token_that_the_mask_allows_and_the_matcher_rejects(problem: str, status: int) -> None:
    """XGrammar's masks sometimes contradict its matcher; for proper tokens that is our error."""
    message = f"Grammar accept_token failed for req x with token 7: {problem}"
    req = SimpleNamespace(
        grammar=SimpleNamespace(),
        to_finish=FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"),
        output_ids=[5, 7],
        bootstrap_room=None,
        sampling_params=SimpleNamespace(regex=None, json_schema="{}"),
    )
    end_constrained(req, 1)
    answer = req.to_finish.to_json()
    assert answer["status_code"] == status
    assert answer["message"].startswith("json_schema must not contradict") == (status == 400)


@pytest.mark.slow
def test_slow_calls_share_an_allowance(
    backend: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many slow constraints at once delay the others no longer than a few do."""
    now = [0.0]
    monkeypatch.setattr(matchers, "SEARCHES", Allowance(0.7, 0.5, lambda: now[0]))
    for i in range(12):
        grammar = backend.dispatch_regex(TOO_SLOW + str(i))
        grammar.fill_vocab_mask(grammar.allocate_vocab_mask(len(tokenizer), 1, "cpu"), 0)
        assert ended(grammar) is not None
    assert -1 < matchers.SEARCHES.left() < matchers.MOST_SECONDS
    # The last of them had little time, which says nothing about its constraint.
    assert grammar.matcher.is_slow
    assert not grammar.copy().matcher.is_slow


def test_many_abandoned_threads_block_new_calls(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matchers, "MOST_ABANDONED", 0)
    assert ended(backend.dispatch_regex("a+b")) is not None


def test_ordinary_constraints_are_not_stopped(backend: Any, tokenizer: Any) -> None:
    grammar = backend.dispatch_regex("[a-zé]*")
    follow(grammar, tokenizer, TEXT * 20)
    assert ended(grammar) is None


@pytest.fixture
def pipeline(backend: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The token that ends a request on all stages; its last stage alone sees masks."""
    for module in (matchers, dead_ends):
        monkeypatch.setattr(module, "is_pipeline", lambda: True)
    monkeypatch.setattr(matchers.TimedMatcher, "end_token", None)
    grammar_cache.bound(backend, backend, is_pipeline=True)
    token = matchers.TimedMatcher.end_token
    assert token is not None
    return token


def allowed(row: torch.Tensor) -> list[int]:
    """The tokens of a row of a mask."""
    return np.unpackbits(row.numpy().view(np.uint8), bitorder="little").nonzero()[0].tolist()


@pytest.mark.parametrize(("kind", "text"), [("regex", TOO_SLOW), ("ebnf", "root ::= root")])
def test_every_stage_of_a_pipeline_ends_a_request_without_a_mask(
    backend: Any, pipeline: int, kind: str, text: str
) -> None:
    """The last stage has no mask, or not in time, and the other stages never ask for one."""
    dispatch = getattr(backend, f"dispatch_{kind}")
    first, last = dispatch(text), dispatch(text)
    mask = last.allocate_vocab_mask(2048, 1, "cpu")
    last.fill_vocab_mask(mask, 0)
    open_dead_ends(mask, [last])
    assert allowed(mask[0]) == [pipeline]
    for grammar in (first, last):
        with pytest.raises(ValueError, match="not accepted") as error:
            grammar.accept_token(pipeline)
        req = SimpleNamespace(
            grammar=grammar,
            to_finish=FINISH_ABORT(
                f"Grammar accept_token failed: {error.value}",
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "InternalServerError",
            ),
            output_ids=[pipeline],
            bootstrap_room=None,
            sampling_params=SimpleNamespace(**dict.fromkeys(CONSTRAINTS) | {kind: text}),
        )
        end_constrained(req, 1)
        answer = req.to_finish.to_json()
        assert answer["status_code"] == 400
        assert answer["message"].startswith(f"{kind} must allow some token wherever")


def test_a_pipeline_limits_only_masks(
    backend: Any, tokenizer: Any, pipeline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a single stage stopped its matcher, it would continue a request that the others end."""
    monkeypatch.setattr(matchers, "MOST_SECONDS", 0.0)
    grammar = backend.dispatch_regex("[a-zé]*")
    follow(grammar, tokenizer, TEXT)
    assert not grammar.matcher.is_stopped


def test_no_mask_of_a_pipeline_allows_the_token_that_ends(backend: Any, pipeline: int) -> None:
    tag = {"begin": "<a>", "structure": {"type": "string"}, "end": "</a>"}
    any_text = {"structures": [tag], "triggers": ["<a"]}
    grammar = backend.dispatch_structural_tag(json.dumps(any_text))
    mask = grammar.allocate_vocab_mask(2048, 1, "cpu")
    grammar.fill_vocab_mask(mask, 0)
    assert len(allowed(mask[0])) > 2000
    assert pipeline not in allowed(mask[0])


def test_ranks_end_a_request_together(
    backend: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a rank where its constraint was not slow, and only once all of them know."""
    here, slow_there = backend.dispatch_regex("a+b"), backend.dispatch_regex("a+c")
    monkeypatch.setattr(matchers, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(matchers, "ORDINARY", 0.0)
    slow_here = backend.dispatch_regex(TOO_SLOW)
    grammars = [None, here, slow_here, None, slow_there]
    mask = here.allocate_vocab_mask(len(tokenizer), 5, "cpu")
    slow_here.fill_vocab_mask(mask, 2)
    assert slow_here.matcher.is_stopped
    assert not slow_here.matcher.is_slow
    monkeypatch.setattr(ranks, "GROUPS", ["group"])

    def all_reduce(going_on: torch.Tensor, operation: Any, group: str) -> None:
        assert (operation, group) == (torch.distributed.ReduceOp.MIN, "group")
        assert going_on.tolist() == [1, 0, 1]
        going_on[2] = 0

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    mask[:] = 5
    open_dead_ends(mask, grammars)
    assert [(row == -1).all().item() for row in mask] == [False, False, True, False, True]
    monkeypatch.setattr(ranks, "GROUPS", [])
    assert [ended(one) is not None for one in (here, slow_here, slow_there)] == [False, True, True]
