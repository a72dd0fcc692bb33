"""The judgement of tests/hostile: what breaks the promise is said, what does not is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

import hostile  # noqa: F401
from hostile import judge
from hostile.answers import is_right, said
from hostile.attacks import Attack

HELD: dict[str, Any] = {
    "server": "demo",
    "item": "4",
    "attack": "many searches",
    "answers": [{"answer": "400: too much", "times": 3}, {"answer": '200 "stop"', "times": 1}],
    "wrong": [],
    "quiet": 0.01,
    "held_to": {"token": 0.01, "short": 0.1, "health": 0.1, "slow": 0.2},
    "longest": {"token": 0.9, "short": 1.1, "health": 0.3},
    "slow": 1.1,
    "mb_before": 1000.0,
    "mb_peak": 1900.0,
    "mb_after": 1250.0,
    "failed": 0,
    "lived": True,
    "streams": True,
    "stopped": None,
}
BROKEN: dict[str, tuple[dict[str, Any], bool]] = {
    "the server ended": ({"lived": False}, True),
    "no more tokens": ({"streams": False}, True),
    "3 requests of others failed": ({"failed": 3}, False),
    "3000 MB taken": ({"stopped": "3000 MB taken", "lived": False}, True),
    "the machine is too busy to tell": ({"quiet": 0.6}, False),
    "waits of 1.3 s": ({"slow": 1.3}, False),
    "short 1.5 s": ({"longest": {"token": 0.0, "short": 1.5, "health": 0.0}}, False),
    "health 1.5 s": ({"longest": {"token": 0.0, "short": 0.0, "health": 1.5}}, False),
    "kept 300 MB": ({"mb_after": 1300.0}, False),
    "2 wrong answers": ({"wrong": [{"answer": "500: oh", "times": 2, "request": "x"}]}, False),
}


def test_an_attack_without_a_breach_passes() -> None:
    assert judge.breaches(HELD) == []
    assert not judge.harmed(HELD)


@pytest.mark.parametrize("breach", BROKEN)
def test_each_breach_is_reported(breach: str) -> None:
    changed, harmed = BROKEN[breach]
    row = HELD | changed
    assert judge.breaches(row) == [breach]
    assert judge.harmed(row) == harmed
    assert judge.markdown({"rows": [row]}).endswith(f"| {breach} |\n")


def test_waits_are_compared_with_usual_waits() -> None:
    assert judge.usual([0.01] * 200 + [5.0]) == 0.01
    assert judge.usual([0.01, 5.0]) == 5.0
    assert judge.slow([0.1, 0.19, 0.21, 3.0], 0.1) == pytest.approx(3.21)
    assert judge.slow([judge.NOISE_SECONDS] * 99, 0.001) == 0.0


ATTACK = Attack("x", "1", ())


@pytest.mark.parametrize(
    ("status", "content", "answer", "right"),
    [
        (200, {"meta_info": {"finish_reason": {"type": "stop"}}}, '200 "stop"', True),
        (200, {"choices": [{"finish_reason": "length"}]}, '200 "length"', True),
        (400, {"error": {"message": "n must be\nless"}}, "400: n must be", True),
        (400, {"error": {"message": ""}}, "400: ", False),
        (400, {}, "400: {}", True),
        (404, {"detail": "Not Found"}, "404: Not Found", False),
        (500, {"error": {"message": "oh"}}, "500: oh", False),
        (400, {"error": "Traceback (most recent"}, "400: Traceback (most recent", False),
    ],
)
def test_answers_are_told_apart(status: int, content: Any, answer: str, right: bool) -> None:
    assert said(status, json.dumps(content).encode()) == answer
    assert is_right(answer, ATTACK) == right


@pytest.mark.parametrize("answer", ["cut off: ConnectionError", "no answer", "500: oh"])
def test_a_malformed_answer_is_wrong(answer: str) -> None:
    assert not is_right(answer, ATTACK)
    assert is_right("left", ATTACK)
