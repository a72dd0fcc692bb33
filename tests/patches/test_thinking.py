"""The end of thoughts that loop, at every place to which a draft tree may go back."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lz_penalty.fields.repetition import RepetitionDetection
from oracle import first_loop

END = [9, 8]
DETECTION = RepetitionDetection(4, 0, 3, "end_thinking")
SIZES = range(1, 5)


def guarded(least: int = 0, **options: Any) -> Any:
    """A guarded grammar of upstream's, inside a thinking section, and what its mask allows."""
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    from sglang_lz.guard.thinking import GuardedThinking

    grammar = ReasonerGrammarObject(None, END, **options)
    grammar.maybe_init_reasoning(True)

    def only(mask: torch.Tensor, tokens: list[int], row: int, *_: Any, **__: Any) -> None:
        mask[row] = tokens[0]

    return GuardedThinking.of(grammar, only, DETECTION, least)


def forced(grammar: Any) -> int | None:
    """The token that its mask leaves, None if it leaves all."""
    mask = torch.full((1,), -1)
    grammar.fill_vocab_mask(mask, 0)
    return None if mask[0] == -1 else int(mask[0])


def state(tokens: list[int], least: int) -> tuple[int | None, int | None, int | None]:
    """By the definition: where a loop ends the thoughts, the answer begins, and what is forced."""
    ends = [k for k in range(2, len(tokens) + 1) if tokens[k - 2 : k] == END]
    answer = ends[0] if ends else None
    # A token that ends the section is no thought any more.
    thought = tokens if answer is None else tokens[: answer - 1]
    loop = first_loop(thought, SIZES, DETECTION.min_count, least)
    if loop is None or answer is not None:
        return loop and loop[0], answer, None
    return loop[0], None, END[tokens[-1:] == END[:1]]


@pytest.mark.parametrize("least", [0, 7])
def test_masks_are_right_after_any_rollback(least: int) -> None:
    rng = random.Random(least)
    ended = forward = 0
    for _ in range(300):
        grammar, tokens = guarded(least), []
        for _ in range(40):
            if rng.random() < 0.3:
                back = rng.randint(0, min(len(tokens), 6))
                grammar.rollback(back)
                del tokens[len(tokens) - back :]
            else:
                token = rng.choice((0, 0, 1, 2, *END))
                grammar.accept_token(token)
                tokens.append(token)
                forward += 1
            if rng.random() < 0.1:
                grammar = grammar.copy()
            loop = grammar.loop and grammar.loop.end
            assert (loop, grammar.answer_begin, forced(grammar)) == state(tokens, least), tokens
            ended += loop is not None
    assert 0 < ended < forward


def test_thoughts_that_differ_by_their_numbers_are_ended() -> None:
    from sglang_lz.guard.thinking import GuardedThinking

    detection = RepetitionDetection(7, 0, 3, "end_thinking", ignore_numbers=True)
    is_number = np.array([0, 0, 0, 0, 1, 1, 1], dtype=np.uint8)
    bare = guarded()
    grammar = GuardedThinking.of(bare, bare.token_filter_fn, detection, 0, is_number)
    for token in [token for n in (4, 5, 6) for token in (0, 1, 2, 3, 2, 1, n)]:
        grammar = grammar.copy()
        assert grammar.loop is None
        grammar.accept_token(token)
    assert grammar.loop.end == 21
    assert forced(grammar) == END[0]
    grammar.rollback(1)
    assert grammar.loop is None


def test_a_thinking_budget_counts_with_strict_thinking_only() -> None:
    free = guarded(max_think_tokens=2)
    strict = guarded(max_think_tokens=2, enable_token_filter=True)
    for token in (0, 1, 2):
        free.accept_token(token)
        strict.accept_token(token)
    assert forced(free) is None
    assert forced(strict) == END[0]


def request(**fields: Any) -> Any:
    aborted: list[str] = []
    params = SimpleNamespace(repetition_detection=DETECTION, min_new_tokens=0)
    request = SimpleNamespace(
        sampling_params=params,
        require_reasoning=True,
        grammar=None,
        to_finish=None,
        aborted=aborted,
    )
    request.set_finish_with_abort = aborted.append
    vars(request).update(fields)
    return request


def test_a_grammar_that_describes_the_thoughts_is_refused() -> None:
    from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject
    from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject

    from sglang_lz.guard.thinking import guard_thinking

    manager = SimpleNamespace(grammar_backend=None)
    whole = ReasonerGrammarObject(BaseGrammarObject(), END)
    whole.maybe_init_reasoning(True)
    whole.reasoning_in_grammar = True
    for grammar in (None, object(), whole):
        asked = request(grammar=grammar)
        guard_thinking(asked, manager)
        (message,) = asked.aborted
        assert message == (
            "repetition_detection.action must be \"stop\" here, got 'end_thinking': this grammar "
            "describes the thinking section itself."
        )


def test_requests_without_thinking_have_no_grammar() -> None:
    from sglang_lz.guard.thinking import guard_thinking

    manager = SimpleNamespace(grammar_backend=None)
    stops = SimpleNamespace(repetition_detection=RepetitionDetection(4, 0, 3), min_new_tokens=0)
    for fields in ({"require_reasoning": False}, {"sampling_params": stops}, {"to_finish": "x"}):
        asked = request(**fields)
        guard_thinking(asked, manager)
        assert asked.grammar is None
        assert not asked.aborted
