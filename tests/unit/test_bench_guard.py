"""The benchmarks of the loop guard: what they compare is what they say."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from bench.guard import alarms, cost, outputs, thinker
from bench.repetition.items import Item
from oracle import first_loop
from sglang_lz.demo import REASONER_PATH
from sglang_lz.fields.repetition import RECOMMENDED, RepetitionDetection


def test_the_thinker_ends_its_thoughts_with_one_token(tmp_path: Path) -> None:
    own = AutoTokenizer.from_pretrained(REASONER_PATH)
    made = AutoTokenizer.from_pretrained(thinker.make(tmp_path / "thinker"))
    tokens = own.encode("B A -> A\nB -> B\nAnswer: A B")
    thought, end, content = made.decode(tokens).partition(thinker.THINK_END)
    assert end
    assert thinker.said(thought, content) == own.decode(tokens)
    assert made.encode(thinker.THINK_END) == own.encode(thinker.SPELT)
    puzzle = "Sort: Z R B H"
    assert made.encode(puzzle) == own.encode(puzzle)


@given(st.lists(st.integers(0, 2), max_size=40), st.integers(1, 6), st.integers(2, 5))
def test_the_plain_detector_is_the_definition(tokens: list[int], longest: int, count: int) -> None:
    found = cost.is_loop(tokens, RepetitionDetection(longest, 0, count))
    at_end = first_loop(tokens, range(1, longest + 1), count, len(tokens))
    assert found == (at_end is not None and bool(tokens))


def test_texts_of_the_cost_hold_no_loop_that_stops_them() -> None:
    for kind, rows in cost.texts(4).items():
        if kind != "50 different tokens":
            assert alarms.first_loop(array("q", rows[0]), 4) is None, kind


def test_alarms_are_those_of_the_recommended_setting() -> None:
    rule = array("q", [1, *([2] * RECOMMENDED.min_count)])
    found = alarms.first_loop(rule, RECOMMENDED.min_count)
    assert found is not None
    assert (found.pattern_size, found.begin) == (1, 1)
    assert alarms.first_loop(rule, RECOMMENDED.min_count + 1) is None


def test_answers_are_counted_against_those_without_a_guard() -> None:
    items = [Item(str(i), "", "1 2") for i in range(3)]
    right, wrong = "Answer: 1 2", "Answer: 3"
    none = [
        outputs.Answer([1] * 40, "length", "", thinking=True),
        outputs.Answer([1, 2], "stop", right, thinking=False),
        outputs.Answer([3], "stop", wrong, thinking=False),
    ]
    now = [
        outputs.Answer([1, 5], "stop", right, thinking=False),
        outputs.Answer([1], "repetition", wrong, thinking=False),
        none[2],
    ]
    assert outputs._counted(items, now, none) == {
        "finish": {"repetition": 1, "stop": 2},
        "cut off in a loop": 0,
        "no answer after the thoughts": 0,
        "tokens": 4,
        "unchanged": 1,
        "right": 1,
        "right now, at the limit without": 1,
        "right without, wrong now": 1,
    }
    before = outputs._counted(items, none, none)
    assert before["cut off in a loop"] == before["no answer after the thoughts"] == 1


@pytest.mark.parametrize("name", outputs.VARIANTS | outputs.THINKING)
def test_variants_are_requests_that_servers_take(name: str) -> None:
    fields = (outputs.VARIANTS | outputs.THINKING)[name]
    asked = RepetitionDetection.parse(fields.get("repetition_detection"))
    assert (asked is not None) == ("guard" in name)
    assert asked is None or asked.action == ("end_thinking" if "end_thinking" in name else "stop")
