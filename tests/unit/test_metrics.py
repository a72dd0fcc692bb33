"""Counts of an output that ended, without a server."""

from __future__ import annotations

from array import array
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lz_penalty.detector import FINISH_REASON
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import RepetitionDetection
from sglang_lz.guard import guard, metrics

FINE = list(range(100, 140))
AT_END = [*FINE, *([1, 2] * 25)]
ENDED_EARLY = [*FINE, *([1, 2] * 13), *FINE]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    monkeypatch.setattr(metrics, "_count", lambda *key, by=1: found.update({key: by}))
    monkeypatch.setattr(metrics, "_is_first_rank", lambda: True)
    monkeypatch.setattr(metrics, "_config", {"enable_metrics": True, "lz_observe_loops": 1}.get)
    monkeypatch.setattr(guard, "_reported", lambda: FINISH_REASON)
    for module in (guard, metrics):
        monkeypatch.setattr(module, "number_tokens", lambda _, size: np.ones(size, np.uint8))
    return found


def request(tokens: list[int], reason: Any = None, **fields: Any) -> Any:
    lz_params = LZParams.parse(fields, 1024) if fields else None
    params = SimpleNamespace(lz_params=lz_params, max_new_tokens=4096)
    output = array("q", tokens)
    return SimpleNamespace(
        rid="some-id",
        tokenizer=None,
        vocab_size=9,
        sampling_params=params,
        output_ids=output,
        output_ids_through_stop=output,
        finished_reason=reason or SimpleNamespace(to_json=lambda: {"type": "length"}),
        finished_len=None,
        require_reasoning=False,
        grammar=None,
        loop_guard=None,
    )


def test_loops_ended_by_the_penalty_are_counted(counted: Counter[tuple[str, ...]]) -> None:
    """Too few copies for the detector's setting, enough for the onset; a run of 24 tokens."""
    penalised = {"lz_penalty": 0.15, "lz_onset": 3}
    metrics.finished(request(ENDED_EARLY, **penalised), None, None)
    metrics.finished(request(AT_END, **penalised), None, None)
    assert counted[metrics.OVERCOME,] == 1
    assert [counted[metrics.OBSERVED, place, "onset"] for place in ("nowhere", "end")] == [1, 1]


def test_loops_up_to_numbers_are_counted(counted: Counter[tuple[str, ...]]) -> None:
    """Five copies of a pattern with one number of seven tokens: one more than equal copies need."""
    block = [10, 11, 12, 13, 14, 15]
    numbered = [token for n in range(5) for token in (*block, n)]
    for tokens in (numbered, numbered[:-7]):
        metrics.finished(request([*tokens, 99], lz_penalty=0.15, lz_onset=3), None, None)
    assert counted[metrics.OVERCOME,] == 1
    req = request([*numbered, 99])
    req.sampling_params.min_new_tokens = 0
    req.sampling_params.repetition_detection = RepetitionDetection(7, 0, 5, ignore_numbers=True)
    req.loop_guard = guard.guard_of(req.sampling_params)
    guard.after_step(req)
    assert req.finished_len == len(numbered)
    assert counted[metrics.ENDED, "stop", "off"] == 1
    assert counted[metrics.TOKENS, "off"] == 28


@pytest.mark.parametrize(
    ("reason", "end", "stops"),
    [("stop", 7, False), ("stop", 8, True), ("length", 7, False), ("abort", None, False)],
)
def test_the_first_stop_wins(
    counted: Counter[tuple[str, ...]], reason: str, end: int | None, stops: bool
) -> None:
    """The loop is complete after 7 tokens."""
    req = request([7, *([1, 2] * 4)], SimpleNamespace(to_json=lambda: {"type": reason}))
    req.finished_len = end
    req.sampling_params.min_new_tokens = 0
    req.sampling_params.repetition_detection = RepetitionDetection(4, 0, 3)
    req.loop_guard = guard.guard_of(req.sampling_params)
    guard.after_step(req)
    assert isinstance(req.finished_reason, guard.FinishRepetition) == stops
    assert req.finished_len == (7 if stops else end)
