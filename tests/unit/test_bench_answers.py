"""The answers that are read off outputs, on outputs as models write them."""

from __future__ import annotations

import pytest

from bench.models.answers import correct, extract
from bench.models.grid import Item

TEXTS = [
    ("Answer: 1\nno\nAnswer: 2 3 5", "2 3 5"),
    ("**Answer:** Tuesday.", "Tuesday."),
    ("Answer: \\boxed{12 \\text{ May}}", "12  May"),
    ("Answer: 5\nAnswer: ", "5"),
    ("The reply is 5", None),
    ("I first thought \\boxed{25}. But no: \\boxed{197}", "197"),
    ("We get \\boxed{45}. Checking again gives \\boxed{4", "45"),
    ("<think>Maybe \\boxed{1}.</think>\n\nIt is **\\boxed{2}**.", "2"),
    ("<think>It is \\boxed{1}.</think>\n\nAs found above.", "1"),
    ("", None),
]


@pytest.mark.parametrize(("text", "answer"), TEXTS, ids=lambda value: str(value)[:40])
def test_extract(text: str, answer: str | None) -> None:
    assert extract(text) == answer


def test_text_is_compared_without_case_white_space_and_final_period() -> None:
    assert correct(Item("jsonl/1", "?", "Tuesday"), "Answer:  tuesday. ") is True
    assert correct(Item("jsonl/1", "?", "2 3 5"), "Answer: 2 3 5 5 5 5") is False
    assert correct(Item("jsonl/1", "?", None), "Answer: 5") is None
