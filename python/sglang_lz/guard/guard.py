"""The loop guard: ends an output at the first token that makes it a loop.

Upstream makes every stop decision in `Req.update_finish_state`, once per step, whether the step
added one token or several verified ones. Upstream truncates tokens, KV cache and answer at
`finished_len`, and the guard uses the same mechanism. It reads tokens that are already on the host,
so it never waits for a device.
"""

from __future__ import annotations

from array import array
from functools import cache
from typing import Any

import msgspec

from lz_penalty.detector import FINISH_REASON, NO_NUMBERS, Detector, Loop
from lz_penalty.fields.repetition import END_THINKING, RECOMMENDED
from lz_penalty.numbers import number_tokens
from sglang_lz.constraints.dead_ends import end_constrained
from sglang_lz.guard import metrics

STOP_REASON = "repetition_detected"
"""vLLM's value for `stop_reason`, for clients that check it beside the finish reason."""
REPORTED = (FINISH_REASON, "stop", "length")
"""The finish reasons under which a server can report a loop (--lz-loop-finish-reason)."""


class FinishRepetition:
    """The finish reason of an output that ended in a loop, with the interface of upstream's."""

    def __init__(self, loop: Loop, reported: str) -> None:
        """Report a loop under one of the reasons in `REPORTED`."""
        self.loop = loop
        self.reported = reported

    def to_json(self) -> dict[str, Any]:
        """The finish reason in a `/generate` answer; other APIs show `type` and `matched`."""
        loop = self.loop
        evidence = {"pattern_size": loop.pattern_size, "count": loop.count, "begin": loop.begin}
        matched = " ".join(f"{name}={value}" for name, value in evidence.items())
        length = {"length": loop.end} if self.reported == "length" else {}  # upstream has it too
        return {"type": self.reported, "matched": f"{STOP_REASON} {matched}", **evidence, **length}


class LoopGuard:
    """Looks for a loop in the output of one request.

    Attributes:
        next_check: the shortest output in which `check` may find a loop, in tokens. The patch of
            upstream's step compares the output's length with it, so that most steps call nothing.
    """

    __slots__ = ("_detector", "_ends_thinking", "_ignores_numbers", "next_check")

    def __init__(self, sampling_params: Any) -> None:
        """Read `repetition_detection` and `min_new_tokens` of upstream's SamplingParams."""
        detection = sampling_params.repetition_detection
        self._detector = Detector(detection, sampling_params.min_new_tokens)
        self._ends_thinking = detection.action == END_THINKING
        self._ignores_numbers = detection.ignore_numbers
        self.next_check = self._detector.next_check

    def check(self, req: Any) -> None:
        """Finish a request whose output has become a loop, unless it already ended earlier."""
        output, reason = req.output_ids, req.finished_reason
        if reason is not None and reason.to_json()["type"] == "abort":
            return  # `guard_thinking` made no grammar for a request that was refused
        if self._ends_thinking and req.require_reasoning:
            # After a verify step, upstream's grammar has already accepted all tokens. A single
            # token is accepted later, but an answer of no tokens cannot be a loop.
            begin = req.grammar.answer_begin if req.grammar is not None else None
            self._detector.skip(len(output) if begin is None else begin)
        # Upstream sets a request's tokenizer after it has made the request, and this guard.
        numbers = NO_NUMBERS
        if self._ignores_numbers:
            numbers = number_tokens(req.tokenizer, req.vocab_size)
        loop = self._detector.find(output, numbers)
        self.next_check = self._detector.next_check
        if loop is None:
            return
        if reason is not None:
            end = len(output) if req.finished_len is None else req.finished_len
            if loop.end >= end:
                return
        req.finished_reason = FinishRepetition(loop, _reported())
        req.finished_len = loop.end


def prepare() -> None:
    """Compile the detector and create the counters before the server accepts requests."""
    Detector(RECOMMENDED).find(array("q", [0]))
    metrics.start()


def guard_of(sampling_params: Any) -> LoopGuard | None:
    """The guard for a request with these upstream SamplingParams; None if it requested none."""
    return None if sampling_params.repetition_detection is None else LoopGuard(sampling_params)


def before_finish(req: Any, new_tokens: int) -> int:
    """End a request that cannot continue, before upstream checks whether it is finished (its hook).

    Args:
        req: upstream's Req, with the new tokens of a step.
        new_tokens: the number of new tokens.

    Returns:
        `new_tokens`.
    """
    if req.sampling_params.proper_tokens:
        from sglang_lz.constraints.backend import end_without_mask

        end_without_mask(req, new_tokens)
    if req.grammar is not None:
        end_constrained(req, new_tokens)
    return new_tokens


def after_step(req: Any) -> None:
    """Check a request's new tokens for a loop, and count the output if it ended (upstream's hook).

    Args:
        req: upstream's Req, after upstream has decided whether it is finished.
    """
    if req.loop_guard is not None:
        req.loop_guard.check(req)
    reason = req.finished_reason
    if reason is not None:
        stopped = reason.loop if isinstance(reason, FinishRepetition) else None
        ended = getattr(req.grammar, "loop", None)
        if ended is not None and ended.end >= len(req.output_ids_through_stop):
            ended = None  # the output ended with that same token
        metrics.finished(req, stopped, ended)


@cache
def _reported() -> str:
    from sglang.srt.runtime_context import get_context

    return str(get_context().config_leaf("lz_loop_finish_reason"))


def with_stop_reason(choice: Any) -> Any:
    """Mark a choice in an answer whose output became a loop (upstream's hook).

    Args:
        choice: a dict, or one of upstream's msgspec structs.

    Returns:
        The choice unchanged, or for such an output a dict that includes vLLM's `stop_reason`.
    """
    is_dict = isinstance(choice, dict)
    matched = choice.get("matched_stop") if is_dict else choice.matched_stop
    if not isinstance(matched, str) or not matched.startswith(f"{STOP_REASON} pattern_size="):
        return choice
    fields = choice if is_dict else msgspec.structs.asdict(choice)
    return {**fields, "stop_reason": STOP_REASON}


def complete(response: Any, finish_reason: Any) -> None:
    """Set the reason in an incomplete answer of the Responses API (upstream's hook).

    Args:
        response: upstream's ResponsesResponse, which blames its length for any incomplete answer.
        finish_reason: upstream's, as a dict, a string or None.
    """
    kind = finish_reason.get("type") if isinstance(finish_reason, dict) else finish_reason
    if kind == FINISH_REASON:
        response.incomplete_details = {"reason": FINISH_REASON}
