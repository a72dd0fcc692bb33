"""XGrammar's matchers, with a limit on the time that a token may take.

Some constraints are extremely ambiguous, such as `((a?(.*){0,100}b?){3})`. XGrammar tracks all
parses at once, so a single token may take minutes, and XGrammar cannot be interrupted. Its calls
therefore run in a thread of their own, and the scheduler waits for them for a limited time. After
that the matcher is stopped: its request ends with an error, and the thread is abandoned. An
abandoned thread uses only processors that are idle, and ends with its call.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import cache, partial
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from xgrammar import GrammarMatcher

from proper_tokens.time_limits import ORDINARY, Allowance, Stopwatch
from sglang_lz.constraints.dead_ends import MOST_SECONDS, is_pipeline
from sglang_lz.constraints.end_tokens import allow

SEARCHES = Allowance(0.5, 0.1)
"""How long all matchers together may delay a scheduler beyond the ordinary: half a second at once,
and a tenth of the time in the long run."""
MOST_ABANDONED = 64
"""How many abandoned threads there may be. While there are more, new matchers are stopped."""

_T = TypeVar("_T")


class TimedMatcher(GrammarMatcher):
    """A matcher that is stopped when a call takes too long.

    When it is stopped, it allows everything until its request has ended. Ranks that run a request
    together must end it at the same token, but a call may be slow on one rank and not on another,
    so they decide together (`dead_ends`). In a pipeline only the last stage asks for masks, and no
    other call is limited. A mask that is not found in time allows `end_token` alone, which every
    stage then rejects.
    """

    is_slow = False
    """Whether the request has to end, on all ranks (`dead_ends`)."""

    end_token: int | None = None
    """In a pipeline, a token that no constraint allows; None elsewhere. In a pipeline whose
    tokenizer has no such token, no call is limited."""

    def __init__(self, compiled: Any, **options: Any) -> None:
        super().__init__(compiled, **options)
        self._shared = compiled  # shared by all requests with this constraint
        self._more_ends: tuple[int, ...] = ()
        self.is_stopped = _abandoned() >= MOST_ABANDONED or hasattr(compiled, "lz_is_slow")
        """Whether a call took too long on this rank."""

    def accept_token(self, *args: Any, **options: Any) -> bool:
        """Like XGrammar's, but limited."""
        if args[0] == self.end_token:
            self.is_stopped = self.is_slow = True
            return False
        if args[0] in self._more_ends:
            args = (self.stop_token_ids[0], *args[1:])
        return self._limited(partial(super().accept_token, *args, **options), True)

    def end_at(self, tokens: Sequence[int]) -> None:
        """End the output at these tokens too, where it may end. They then stand for nothing else.

        XGrammar's own `override_stop_tokens` leaves them out of its masks.
        """
        self._more_ends = tuple(sorted(set(tokens) - set(self.stop_token_ids)))

    def fill_next_token_bitmask(  # type: ignore[override]  # only upstream calls it
        self, bitmask: torch.Tensor, index: int = 0
    ) -> bool:
        """Like XGrammar's, but limited."""
        row = bitmask[index]
        own = torch.empty_like(row[None])  # an abandoned call must not write into a batch's mask
        fill = partial(super().fill_next_token_bitmask, own)
        if self._limited(fill, None, self.end_token is not None) is None:
            self.fill_without_mask(row)
        else:
            row.copy_(own[0])
            if self._more_ends:
                end = self.stop_token_ids[0]
                may_end = bool(int(row[end // 32]) >> end % 32 & 1)
                allow(row.numpy().view(np.uint32), self._more_ends, is_allowed=may_end)
            if self.end_token is not None:  # some constraints allow any byte
                allow(row.numpy().view(np.uint32), (self.end_token,), is_allowed=False)
        return True

    @classmethod
    def fill_without_mask(cls, row: torch.Tensor) -> None:
        """Fill a row, int32 [ceil(V / 32)], so that the next token ends its request."""
        if cls.end_token is None:
            row.fill_(-1)
        else:
            row.zero_()
            allow(row.numpy().view(np.uint32), (cls.end_token,), is_allowed=True)

    def rollback(self, *args: Any, **options: Any) -> None:
        """Like XGrammar's, but limited."""
        self._limited(partial(super().rollback, *args, **options), None)

    def is_terminated(self) -> bool:
        """Like XGrammar's."""
        return not self.is_stopped and super().is_terminated()

    def stop(self) -> None:
        """End the request, on this rank too if it was another one that found it slow.

        In a pipeline it ends on all stages at once, when they reject `end_token`.
        """
        self.is_stopped = True
        self.is_slow = self.end_token is None

    def _limited(self, call: Callable[[], _T], otherwise: _T, in_a_pipeline: bool = False) -> _T:
        """The result of a call, or `otherwise` if the matcher is stopped. In a pipeline, only calls
        that say so are limited."""
        if self.is_stopped:
            return otherwise
        if is_pipeline() and not in_a_pipeline:
            return call()
        try:
            return _worker().run(call)
        except _TooSlow as error:
            self.is_stopped = True
            if error.seconds >= MOST_SECONDS:  # or other constraints left it less time
                self._shared.lz_is_slow = True
            _worker.cache_clear()
            return otherwise


def end_token(vocabulary: Sequence[bytes]) -> int | None:
    """A token whose single byte never occurs in UTF-8; None if there is none.

    Args:
        vocabulary: the bytes of each token.
    """
    return next((token for token, text in enumerate(vocabulary) if text == b"\xff"), None)


class _TooSlow(Exception):
    """A call took longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds


class _Worker:
    """A thread that runs one call at a time while the scheduler's thread waits."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="lz-matcher", daemon=True)
        self._thread.start()
        assert self._thread.ident is not None
        self._clock = time.pthread_getcpuclockid(self._thread.ident)

    def run(self, call: Callable[[], _T]) -> _T:
        """The result of a call.

        Raises:
            _TooSlow: it takes too long, and this worker is abandoned.
        """
        watch = Stopwatch(used=lambda: time.clock_gettime(self._clock))
        limit = min(MOST_SECONDS, max(ORDINARY, SEARCHES.left()))
        answer: Future[_T] = Future()
        self._calls.put(partial(_answer, answer, call))
        spent = 0.0  # a thread that is abandoned may end, and then has no clock
        try:
            while not wait([answer], max(0.001, limit - spent)).done:
                spent = watch.seconds()
                if spent >= limit:
                    self._abandon()
                    raise _TooSlow(limit)
            spent = watch.seconds()
        finally:
            if spent >= ORDINARY:
                SEARCHES.spend(spent)
        return answer.result()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # it holds a matcher

    def _abandon(self) -> None:
        self._thread.name = _ABANDONED
        self._calls.put(None)  # it ends after its call
        assert self._thread.native_id is not None
        with contextlib.suppress(OSError):  # the thread may have ended by now
            os.sched_setscheduler(self._thread.native_id, os.SCHED_IDLE, os.sched_param(0))


def _answer(answer: Future[_T], call: Callable[[], _T]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:
        answer.set_exception(error)


_ABANDONED = "lz-matcher-abandoned"
"""The name of abandoned threads."""


def _abandoned() -> int:
    """How many abandoned threads still run."""
    return sum(thread.name == _ABANDONED for thread in threading.enumerate())


@cache
def _worker() -> _Worker:
    """The worker of the scheduler's thread, which is the only one that calls matchers."""
    return _Worker()
