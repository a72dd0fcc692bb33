"""The judgement of tests/hostile: what breaks the promise is said, what does not is not."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import hostile  # noqa: F401
from hostile import judge
from hostile.answers import is_right, said
from hostile.attacks import BOTH, ORDINARY, Attack, attacks, random_fields, sampled
from hostile.watch import Wait, Watch

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


def test_an_attack_that_keeps_the_promise_holds() -> None:
    assert judge.breaches(HELD) == []
    assert not judge.harmed(HELD)


@pytest.mark.parametrize("breach", BROKEN)
def test_what_breaks_the_promise_is_said(breach: str) -> None:
    changed, harmed = BROKEN[breach]
    row = HELD | changed
    assert judge.breaches(row) == [breach]
    assert judge.harmed(row) == harmed
    assert judge.markdown({"rows": [row]}).endswith(f"| {breach} |\n")


def test_a_search_that_may_go_on_harms_the_server() -> None:
    wrong = [{"answer": "no answer", "times": 1, "request": "x"}]
    assert judge.harmed(HELD | {"wrong": wrong})


def test_the_table_has_every_attack_and_the_summary_counts_them() -> None:
    result = {"rows": [HELD, HELD | {"lived": False}]}
    *_, first, second = judge.markdown(result).splitlines()
    assert first.startswith(
        '| demo | 4 | many searches | 3 x 400, 1 x 200 "stop" | 10 / 900 | 1.1 |'
    )
    assert first.endswith("| +900 / +250 | held |")
    assert second.endswith("| +900 / - | the server ended |")
    assert judge.summary(result).startswith(
        "2 attacks of 8 requests: 1 kept the promise, 1 did not. All"
    )
    assert judge.items(result).endswith("| 2 | 8 | 1 | 900 | 250 | 1 |\n")
    found = {attack.item for server in BOTH for attack in attacks(server, 0)}
    assert found | {ORDINARY} == set(judge.ITEMS)


def test_what_attacks_keep_together_is_counted_from_a_server_s_start() -> None:
    rows = [HELD | {"mb_before": 100.0 * i, "mb_after": 100.0 * i + 50} for i in range(4)]
    assert judge.grown(rows) == 350
    rows[1] |= {"lived": False, "mb_after": 0.0}
    assert judge.grown(rows) == 150
    rows[3] |= {"server": "large"}
    assert judge.grown(rows) == 50


def test_waits_are_too_long_beside_what_they_were() -> None:
    assert judge.usual([0.01] * 200 + [5.0]) == 0.01
    assert judge.usual([0.01, 5.0]) == 5.0
    assert judge.slow([0.1, 0.19, 0.21, 3.0], 0.1) == pytest.approx(3.21)
    assert judge.slow([judge.NOISE_SECONDS] * 99, 0.001) == 0.0


def test_a_wait_that_goes_on_or_failed_counts_to_the_end() -> None:
    watch = Watch("http://127.0.0.1:1")
    watch.waits = [Wait("token", 1.0, 0.5, True), Wait("token", 7.0, 6.0, False)]
    assert watch.between("token", 0.5, 9.0) == [0.5, 8.0]
    assert watch.failed(0.0, 9.0) == 1
    assert watch.token_since(0.9)
    assert not watch.token_since(1.0)


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


def test_an_error_in_a_stream_is_one() -> None:
    events = [{"text": "a"}, {"error": {"message": "no room", "code": 503}}]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    assert said(200, stream.encode()) == "503: no room"


@pytest.mark.parametrize("answer", ["cut off: ConnectionError", "no answer", "500: oh"])
def test_what_is_no_answer_is_wrong(answer: str) -> None:
    assert not is_right(answer, ATTACK)
    assert is_right("left", ATTACK)


@pytest.mark.parametrize("server", BOTH)
def test_a_seed_gives_the_same_attacks_again(server: str) -> None:
    def sent(seed: int) -> list[Any]:
        return [
            (one.how, one.content)
            for attack in attacks(server, seed)
            for one in attack.requests
            if attack.item == "random"
        ]

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)
    names = [attack.name for attack in attacks(server, 0)]
    assert len(set(names)) == len(names)
    assert {attack.item for attack in attacks("demo", 0)} >= {*"123456789", "13", "14", "15"}
    assert sampled(**random_fields(random.Random(0))) == sampled(**random_fields(random.Random(0)))
