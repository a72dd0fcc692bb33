"""The grammar object of a request with proper tokens."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sglang.srt.constrained.base_grammar_backend import BaseGrammarObject, GrammarStats
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from proper_tokens.product import START, Late, Product, State
from proper_tokens.row_finder import Spent
from proper_tokens.time_limits import Allowance, BriefWaitLimit, WaitLimit
from sglang_lz.constraints import ranks
from sglang_lz.constraints.end_tokens import allow

_ENDED = "proper_tokens: the constraint was given up here"
_TOO_LATE = "its next tokens were not found in time, and other requests wait"
_NEVER, _LATER, _NOW = range(3)
"""When a rank has a mask."""
MOST_PAUSES = 2
"""How often a request may pause at the same length of its output. It may have to pause again,
because the rows that it waited for may not fit into memory at once."""


class ProperGrammar(BaseGrammarObject):  # type: ignore[misc]
    """A request's walk through the proper sequences of its constraint.

    Its mask has the same layout as XGrammar's (packed bits), so both can share a batch.
    """

    allocate_vocab_mask = staticmethod(XGrammarGrammarBackend.allocate_vocab_mask)
    move_vocab_mask = staticmethod(XGrammarGrammarBackend.move_vocab_mask)
    apply_vocab_mask = staticmethod(XGrammarGrammarBackend.apply_vocab_mask)

    def __init__(
        self, product: Product, stop_tokens: Sequence[int], shared: Allowance | None = None
    ) -> None:
        """Begin a walk.

        Args:
            product: the product of the constraint.
            stop_tokens: the tokens that end an output.
            shared: the scheduler's time allowance for all requests; None to wait indefinitely.
        """
        super().__init__()
        self._product = product
        self._stop_tokens = tuple(stop_tokens)
        self._shared = shared
        self._waiting = None if shared is None else WaitLimit(shared)
        self._briefly = None if shared is None else BriefWaitLimit(shared)
        self._states: list[State] = [START]
        self.may_pause = False
        """Whether the request pauses when a mask is late (`pauses`), instead of ending."""
        self.is_paused = False
        self._pauses = self._paused_at = 0
        self._late: list[tuple[State, Future[Any]]] = []
        self.hopeless: dict[State, str] = {}
        """The states whose masks cannot be found, and why."""
        self._stopped = False
        self._problem = _TOO_LATE
        self.failure: str | None = None
        """Why there was no mask for the last token; the request ends then."""
        self.grammar_stats = GrammarStats(dispatch_type="proper_tokens")
        product.begin()
        self._end = weakref.finalize(self, product.end)

    def accept_token(self, token: int) -> None:
        """Advance by one token.

        Raises:
            ValueError: the constraint does not allow it there.
        """
        if self._stopped:
            return
        state = after = self._states[-1]
        if self.failure is None:
            is_end = token in self._stop_tokens
            found = None if is_end else self._product.next(state, token)
            if is_end and self._product.may_end(state):
                self._stopped = True
            elif found is not None:
                after = found
                self._product.expect(after)
            elif token == self._product.impossible(state):
                self.failure = f"{_ENDED}: {self._problem}"
            else:
                raise ValueError(f"Token not accepted by proper tokens: {token}")
        self._states.append(after)
        if self._waiting is not None:
            self._waiting.got_to(len(self._states))
        self.current_token = token

    def rollback(self, k: int) -> None:
        """Go back by k tokens."""
        if k:
            del self._states[-k:]
            self._stopped = False
            self.failure = None

    def is_terminated(self) -> bool:
        """Whether the output has ended, or there is no mask for what comes next."""
        return self._stopped or self.failure is not None

    @property
    def finished(self) -> bool:
        """Whether upstream has finished the request. Its searches are stopped then."""
        return bool(self._finished)

    @finished.setter
    def finished(self, finished: bool) -> None:
        self._finished = finished
        if finished:
            self._end()

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Set a row of a mask, [rows, ceil(V / 32)] int32, to the tokens that may come next.

        If they are not found in time on all ranks, the row allows only a token that cannot come
        next. The request then pauses, or the ranks and pipeline stages all end it when they accept
        that token.
        """
        row = vocab_mask.numpy().view(np.uint32)[idx]  # many times as fast as torch
        state = self._states[-1]
        (when,) = ranks.least([self._ask(state, row)])
        if when == _LATER:
            self._late.append((state, self._product.expected(state)))
        if when != _NOW:
            row[:] = 0
            allow(row, (self._product.impossible(state),), is_allowed=True)
            return
        allow(row, self._stop_tokens, is_allowed=self._product.may_end(state))

    def end_at(self, tokens: Sequence[int]) -> None:
        """End the output at these tokens alone, where it may end; they then stand for no text."""
        self._stop_tokens = tuple(tokens)

    def _ask(self, state: State, row: npt.NDArray[np.uint32]) -> int:
        """Write the mask of a state into a row if it is known. Returns when it becomes known."""
        self._problem = self.hopeless.get(state, self._problem)
        if self.failure is not None or state in self.hopeless:
            return _NEVER
        try:
            self._product.mask(state, self._patience(), row)
        except Spent as error:
            self._problem = str(error)
            return _NEVER
        except Late:
            self._problem = _TOO_LATE
            return _LATER if self._can_pause else _NEVER
        return _NOW

    def _patience(self) -> WaitLimit | None:
        """How long to wait for a mask."""
        return self._briefly if self._can_pause else self._waiting

    @property
    def _can_pause(self) -> bool:
        return self.may_pause and self._pauses < MOST_PAUSES

    @property
    def is_late(self) -> bool:
        """Whether the last step lacked a mask of this request, which can pause."""
        return bool(self._late)

    @property
    def is_ready(self) -> bool:
        """Whether the masks that were late are known by now, or cannot be found."""
        return all(future.done() for _, future in self._late)

    def pause(self, length: int) -> None:
        """Wait until `is_ready`.

        Args:
            length: how many tokens the output has.
        """
        self.is_paused = True
        self._pauses += 1
        self._paused_at = length

    def resume(self) -> None:
        """Continue where the walk paused, and forget which masks were late."""
        self.is_paused = False
        for state, future in self._late:
            if future.done() and not future.cancelled() and future.exception() is not None:
                self.hopeless[state] = str(future.exception())
        self._late.clear()

    def went_on(self, length: int) -> None:
        """Record the length of the output after a step."""
        if length > self._paused_at:
            self._pauses = 0

    def forced_run(self, most: int) -> list[int]:
        """The tokens that are forced next, at most `most` of them, as far as they are known."""
        run: list[int] = []
        state = self._states[-1]
        while not self.is_terminated() and len(run) < most:
            try:
                ends = self._product.may_end(state)
                only = None if ends else self._product.only(state, self._patience())
            except (Late, Spent):  # filling the mask will report it
                break
            if only is None or only in self._stop_tokens:
                break
            after = self._product.next(state, only)
            if after is None:
                break
            run.append(only)
            state = after
        return run[: ranks.least([len(run)])[0]]  # another rank may know fewer


def walk_of(grammar: Any) -> ProperGrammar | None:
    """The walk that constrains the next token of a request; None if there is none."""
    if isinstance(grammar, ReasonerGrammarObject):
        grammar = grammar.grammar if grammar._grammar_active() else None
    return grammar if isinstance(grammar, ProperGrammar) else None
