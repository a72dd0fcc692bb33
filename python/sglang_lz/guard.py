"""The loop guard: ends an output at the first token that makes it a loop.

Upstream decides every stop in `Req.update_finish_state`, once a step, whether the step brought one
token or those of a verify step. What it cuts, in tokens, KV cache and answer, goes by
`finished_len`, and so does the guard. It reads tokens that are on the host: it never waits for a
device.
"""

from __future__ import annotations

from array import array
from typing import Any

from sglang_lz import metrics
from sglang_lz.repetition import END_THINKING, RECOMMENDED, Detector, Loop

FINISH_REASON = "repetition"
"""As vLLM says it."""


class FinishRepetition:
    """The finish reason of an output that ended in a loop, in the form of upstream's."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def to_json(self) -> dict[str, Any]:
        """What `/generate` answers; other APIs show `type` and `matched`."""
        loop = self.loop
        evidence = {"pattern_size": loop.pattern_size, "count": loop.count, "begin": loop.begin}
        matched = " ".join(f"{name}={value}" for name, value in evidence.items())
        return {"type": FINISH_REASON, "matched": f"repetition_detected {matched}", **evidence}


class LoopGuard:
    """Looks for a loop in the output of one request.

    Attributes:
        next_look: the output's length from which on `look` may find one; upstream's step compares
            it, so that most steps call nothing.
    """

    __slots__ = ("_detector", "_ends_thinking", "next_look")

    def __init__(self, sampling_params: Any) -> None:
        """Read `repetition_detection` and `min_new_tokens` of upstream's SamplingParams."""
        detection = sampling_params.repetition_detection
        self._detector = Detector(detection, sampling_params.min_new_tokens)
        self._ends_thinking = detection.action == END_THINKING
        self.next_look = self._detector.next_look

    def look(self, req: Any) -> None:
        """Finish a request whose output has become a loop, unless it ended before that token."""
        output = req.output_ids
        if self._ends_thinking and req.require_reasoning:
            # Of a verify step upstream's grammar has accepted all tokens by now; a single token it
            # accepts later, and an answer of no token is no loop.
            begin = req.grammar.answer_begin if req.grammar is not None else None
            self._detector.skip(len(output) if begin is None else begin)
        loop = self._detector.find(output)
        self.next_look = self._detector.next_look
        if loop is None:
            return
        reason = req.finished_reason
        if reason is not None:
            end = len(output) if req.finished_len is None else req.finished_len
            if loop.end >= end or reason.to_json()["type"] == "abort":
                return
        req.finished_reason = FinishRepetition(loop)
        req.finished_len = loop.end


def prepare() -> None:
    """Compile the detector and make the counters, before a server serves."""
    Detector(RECOMMENDED).find(array("q", [0]))
    metrics.start()


def guard_of(sampling_params: Any) -> LoopGuard | None:
    """The guard of a request with these SamplingParams of upstream's; None if it asked for none."""
    return None if sampling_params.repetition_detection is None else LoopGuard(sampling_params)


def after_step(req: Any) -> None:
    """Look at what a step added to a request's output, and count one that ended (upstream's hook).

    Args:
        req: upstream's Req, once upstream has decided whether it is finished.
    """
    if req.loop_guard is not None:
        req.loop_guard.look(req)
    reason = req.finished_reason
    if reason is not None:
        stopped = reason.loop if isinstance(reason, FinishRepetition) else None
        ended = getattr(req.grammar, "loop", None)
        if ended is not None and ended.end >= len(req.output_ids_through_stop):
            ended = None  # the output ended with that token
        metrics.finished(req, stopped, ended)


def complete(response: Any, finish_reason: Any) -> None:
    """Say in an answer of the Responses API why it is incomplete (upstream's hook).

    Args:
        response: upstream's ResponsesResponse, which takes every incomplete answer for a long one.
        finish_reason: upstream's, as a dict, a string or None.
    """
    kind = finish_reason.get("type") if isinstance(finish_reason, dict) else finish_reason
    if kind == FINISH_REASON:
        response.incomplete_details = {"reason": FINISH_REASON}
