"""`"action": "end_thinking"`: ends a thinking section that has become a loop.

Upstream's reasoning grammar can force the tokens that end a thinking section, and does so exactly.
It masks all other tokens, it knows every token before the next one is sampled (even with overlap
scheduling), and it walks each path of a draft tree forward and back. `GuardedThinking` is that
grammar, but forces those tokens as soon as the section has become a loop.
"""

from __future__ import annotations

import copy
from array import array
from concurrent.futures import Future
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.reasoner_grammar_backend import (
    ReasonerGrammarBackend,
    ReasonerGrammarObject,
)

from lz_penalty.detector import NO_NUMBERS, Detector, Loop
from lz_penalty.fields import repetition
from lz_penalty.fields.repetition import END_THINKING, STOP, RepetitionDetection
from lz_penalty.numbers import number_tokens
from sglang_lz.bounds.refusal import Refusal


class GuardedThinking(ReasonerGrammarObject):  # type: ignore[misc]
    """A reasoning grammar that ends the thinking section once it has become a loop.

    Attributes:
        loop: the loop that ended the section; None without one.
    """

    loop: Loop | None
    _tokens: array[int]
    _detector: Detector
    _numbers: NDArray[np.uint8]

    @classmethod
    def of(
        cls,
        grammar: ReasonerGrammarObject,
        token_filter: Any,
        detection: RepetitionDetection,
        min_new_tokens: int,
        numbers: NDArray[np.uint8] = NO_NUMBERS,
    ) -> GuardedThinking:
        """Guard a reasoning grammar that has seen no token yet; do not use that grammar afterwards.

        Args:
            grammar: upstream's.
            token_filter: the backend's function that restricts a row of the vocabulary mask.
            detection: the definition of a loop.
            min_new_tokens: the shortest output that counts, in tokens.
            numbers: as in `Detector.find`.
        """
        guarded = cls.__new__(cls)
        guarded.__dict__.update(vars(grammar))
        if not guarded.enable_token_filter:
            # Upstream always sets a limit, but only enforces it with strict thinking.
            guarded.max_think_tokens = -1
        guarded.enable_token_filter = True
        guarded.token_filter_fn = token_filter
        guarded.loop = None
        guarded._tokens = array("q")
        guarded._detector = Detector(detection, min_new_tokens)
        guarded._numbers = numbers
        return guarded

    @property
    def answer_begin(self) -> int | None:
        """How many output tokens precede the answer; None while the model thinks."""
        return len(self._tokens) - self.tokens_after_end if self._is_generation() else None

    def accept_token(self, token: int) -> None:
        """Advance by one token."""
        super().accept_token(token)
        self._tokens.append(token)
        if self.loop is None and self._is_thinking():
            self.loop = self._detector.find(self._tokens, self._numbers)

    def rollback(self, k: int) -> None:
        """Go back by k tokens."""
        super().rollback(k)
        length = len(self._tokens) - k
        del self._tokens[length:]
        self._detector.rollback(length)
        if self.loop is not None and self.loop.end > length:
            self.loop = None

    def copy(self) -> GuardedThinking:
        """A grammar in the same state."""
        other = copy.copy(self)
        other.__dict__.update(vars(super().copy()))
        other._tokens = self._tokens[:]
        other._detector = self._detector.copy()
        return other

    def _can_think_more(self) -> bool:
        return self.loop is None and cast("bool", super()._can_think_more())


def guard_thinking(req: Any, manager: Any) -> None:
    """Guard the thinking section of a request that requested it (upstream's hook).

    Args:
        req: upstream's Req, with its grammar, a future for it, or neither.
        manager: upstream's GrammarManager.
    """
    detection = req.sampling_params.repetition_detection
    if detection is None or detection.action != END_THINKING or not req.require_reasoning:
        return
    if isinstance(req.grammar, Future | InvalidGrammarObject) or req.to_finish is not None:
        return
    backend = manager.grammar_backend
    if req.grammar is None and isinstance(backend, ReasonerGrammarBackend):
        req.grammar = backend._make_grammar_object(None, req.require_reasoning)
        manager._apply_request_reasoning_config(req)
    grammar = req.grammar
    if not isinstance(grammar, ReasonerGrammarObject) or (
        # This kind of grammar also covers outputs without a section, and decides what ends it.
        grammar.reasoning_in_grammar and grammar.grammar is not None
    ):
        why = "this grammar describes the thinking section itself"
        refusal = Refusal(f"{repetition.FIELD}.action", f'"{STOP}"', "here", why)
        req.set_finish_with_abort(str(refusal.error(END_THINKING)))
        return
    req.grammar = GuardedThinking.of(
        grammar,
        backend.grammar_backend.set_token_filter,
        detection,
        req.sampling_params.min_new_tokens,
        number_tokens(req.tokenizer, req.vocab_size) if detection.ignore_numbers else NO_NUMBERS,
    )
