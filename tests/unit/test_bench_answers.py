"""The answers that are read off outputs, on outputs as models write them."""

from __future__ import annotations

import time

import pytest

from bench.repetition.answers import correct, extract
from bench.repetition.items import Item

TEXTS = [
    ("one, two.\nAnswer: 42", "42"),
    ("Answer: 1\nno\nAnswer: 2 3 5", "2 3 5"),
    ("**Answer:** Tuesday.", "Tuesday."),
    ("**Answer**: `abc`", "abc"),
    ("Answer: \\boxed{12 \\text{ May}}", "12  May"),
    ("so \\boxed{x} it is", "x"),
    ("Answer: 5\nAnswer:", "5"),
    ("Answer: 5\nAnswer: ", "5"),
    ("answer: snake_case", "snake_case"),
    ("The reply is 5", None),
    ("I first thought \\boxed{25}. But no: \\boxed{197}", "197"),
    ("I must put it in \\boxed{}. It is \\boxed{45}; done, in \\boxed{}.", "45"),
    ("We get \\boxed{45}. Checking again gives \\boxed{4", "45"),
    ("Answer: 12, or rather \\boxed{x}", "12, or rather x"),
    ("<think>Maybe \\boxed{1}.</think>\n\nIt is **\\boxed{2}**.", "2"),
    ("<think>It is \\boxed{1}.</think>\n\nAs found above.", "1"),
    ("<think>So \\boxed{7}. Wait, wait, wait, wait, wait, wait,", "7"),
    ("Answer: **", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), TEXTS, ids=lambda value: str(value)[:40])
def test_extract(text: str, answer: str | None) -> None:
    assert extract(text) == answer


@pytest.mark.parametrize(
    ("answer", "text", "expected"),
    [
        ("Tuesday", "Answer: tuesday.", True),
        ("2 3 5", "Answer:  2  3 5 ", True),
        ("2 3 5", "Answer: 2 3", False),
        ("2 3 5", "Answer: 2 3 5 5 5 5", False),
        ("5", "I do not know.", False),
    ],
)
def test_text_is_compared_without_case_white_space_and_final_period(
    answer: str, text: str, expected: bool
) -> None:
    assert correct(Item("jsonl/1", "?", answer), text) is expected


def test_without_an_answer_nothing_is_graded() -> None:
    assert correct(Item("jsonl/1", "?", None), "Answer: 5") is None


@pytest.mark.parametrize("unit", ["\\boxed{", "{", "Answer: ", "**B", "\\text{", "="])
def test_long_loops_are_read_in_no_time(unit: str) -> None:
    """An expression that reads on to the end from each of these would take minutes."""
    started = time.monotonic()
    extract(unit * 20000)
    assert time.monotonic() - started < 10
