"""The answers that are read off outputs, on outputs as models write them."""

from __future__ import annotations

import time

import pytest

from bench.repetition.answers import correct, extract
from bench.repetition.items import Item, Kind

INTEGERS = [
    ("Adding up, the total is $\\boxed{204}$.", "204"),
    ("**Final Answer**\n\n\\[\n\\boxed{\\mathbf{204}}\n\\]", "204"),
    ("So $m+n = 7 + 66 = \\boxed{073}$.", "73"),
    ("\\boxed{000}", "0"),
    ("\\boxed{\\text{\\textbf{204}}}", "204"),
    ("The time is \\boxed{204\\text{ minutes}} in all.", "204"),
    ("The angle is \\boxed{336^\\circ}.", "336"),
    ("The angle is \\boxed{336^{\\circ}}.", "336"),
    ("\\boxed{m + n = 110}", "110"),
    ("\\boxed{ 540 }\\\\", "540"),
    ("\\fbox{12}", "12"),
    ("I first thought \\boxed{25}. But no: \\boxed{197}", "197"),
    ("I must put it in \\boxed{}. It is \\boxed{45}; done, in \\boxed{}.", "45"),
    ("We get \\boxed{45}. Checking again gives \\boxed{4", "45"),
    ("\\boxed{1024}", None),
    ("\\boxed{1,024}", None),
    ("\\boxed{1{,}024}", None),
    ("\\boxed{-5}", None),
    ("\\boxed{\\frac{1}{2}}", None),
    ("\\boxed{3.5}", None),
    ("\\boxed{12.0}", "12"),
    ("Answer: 12, or rather \\boxed{x}", None),
    ("\\boxed{1, 2, 3}", None),
    ("Thus the sum is 809.\n\nAnswer: 809", "809"),
    ("**Answer:** 809", "809"),
    ("**Answer: 809.**", "809"),
    ("ANSWER: $073$", "73"),
    ("The final answer is: $\\mathbf{113}$.", "113"),
    ("the answer is therefore 321, as was to be shown.", "321"),
    ("The answer is 5. No, wait. The answer is 6.", "6"),
    ("Answer: 204 + 3 = 207", "207"),
    ("Answer: m + n = 4 + 5 = 9.", "9"),
    ("The answer is 204 + 3", None),
    ("The answer is 204 \\times 3", None),
    ("The answer is m + n, where m = 4 and n = 5", None),
    ("Answer: 17/3", None),
    ("Answer: 1024", None),
    ("Answer: -12", None),
    ("Answer: 2.5", None),
    ("The answer is not 204.", None),
    ("The answer is positive and 204 is a multiple of 12.", None),
    ("There are 204 ways.", None),
    ("The answer is \u22125.", None),
    ("The answer is \u20135.", None),
    ("The answer is 5. No: the answer is \u22125.", None),
    ("The answer is $73\\sqrt{2}$", None),
    ("The answer is $73\\pi$", None),
    ("The answer is 73π.", None),
    ("The answer is 73 √2.", None),
    ("The answer is 73x", None),
    ("The answer is 2.5 + 3", None),
    ("The answer is 73cm.", "73"),
    ("Answer: 73\n\\begin{align}", "73"),
    ("## Final Answer\n\n**27**", "27"),
    ("Answer:\n\n73", "73"),
    ("Answer:\n\n-73", None),
    ("Here is how to the answer:\n\n1. Add 5.", None),
    ("The answer should be 73.", "73"),
    ("The answer must be 73.", "73"),
    ("The answer would be 73.", "73"),
    ("\\boxed{\\$204}", "204"),
    ("\\boxed{(73)}", "73"),
    ("\\boxed{\\left(73\\right)}", "73"),
    ("\\boxed{(7, 3)}", None),
    ("", None),
    ("Answer: 33\n" * 400, "33"),
    ("Wait, let me check. " * 900, None),
    ("<think>Maybe \\boxed{1}.</think>\n\nIt is **\\boxed{2}**.", "2"),
    ("<think>It is \\boxed{1}.</think>\n\nAs found above.", "1"),
    ("<think>So \\boxed{7}. Wait, wait, wait, wait, wait, wait,", "7"),
]

LETTERS = [
    ("Answer: (B)", "B"),
    ("**Answer: B**", "B"),
    ("**Answer:** C) 3.2 eV", "C"),
    ("Final answer: $\\boxed{C}$", "C"),
    ("\\[\\boxed{\\text{(D)}}\\]", "D"),
    ("\\boxed{\\mathrm{A}}", "A"),
    ("\\boxed{B. 10^{-4} eV}", "B"),
    ("The energies differ by 10 eV.\n\n**B**", "B"),
    ("Therefore I choose **(C)**.", "C"),
    ("The correct answer is D.", "D"),
    ("The correct answer is **D**, since the others violate parity.", "D"),
    ("The correct option is (A).", "A"),
    ("So the answer must be C... no. The right choice is option B.", "B"),
    ("Answer: A because the spin is conserved", "A"),
    ("Option B is correct.", "B"),
    ("(C) is the right answer, not (D).", "C"),
    ("**A**: too low. **B**: fits. **C**: too high. **D**: absurd.\n\nAnswer: B", "B"),
    ("Answer: C\n\n**A** was tempting.", "C"),
    ("Answer: C\n\nNote that A is right only if it is cold.", "C"),
    ("**Answer:** C. Option A is correct only for ideal gases.", "C"),
    ("If the answer was A, charge would be lost. So B is correct.", "B"),
    ("The answer should be C.", "C"),
    ("The field does the work.\n\n**B. 5 eV**", "B"),
    ("The field does the work.\n\nB. 5 eV", None),
    ("We compare the terms.\n\nB", "B"),
    ("\\boxed{A} at first, then the correct answer is B", "B"),
    ("The answer is A careful balance of both effects.", None),
    ("A careful look at the spectrum shows three lines.", None),
    ("The answer is D-glucose.", None),
    ("The answer is B cells, which make antibodies.", None),
    ("the answer is a matter of taste", None),
    ("Option A is wrong and (B) is not correct.", None),
    ("**A**: too low. **B**: fits. **C**: too high. **D**: absurd.", None),
    ("Answer: E", None),
    ("Answer:", None),
    ("The answer is \\boxed{3.2}", None),
    ("", None),
    ("The answer is B. " * 300, "B"),
    ("But the answer, but the answer, but the answer, but", None),
    ("<think>Answer: A?</think>Answer: D", "D"),
    ("<think>The answer is A.</think>I hope this helps!", "A"),
]

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
    ("Answer: **", None),
    ("", None),
]

TABLE: list[tuple[Kind, str, str | None]] = [
    *(("integer", text, answer) for text, answer in INTEGERS),
    *(("letter", text, answer) for text, answer in LETTERS),
    *(("text", text, answer) for text, answer in TEXTS),
]


@pytest.mark.parametrize(("kind", "text", "answer"), TABLE, ids=lambda value: str(value)[:40])
def test_extract(kind: Kind, text: str, answer: str | None) -> None:
    assert extract(kind, text) == answer


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
    assert correct(Item("jsonl/1", "?", answer, "text"), text) is expected


def test_an_integer_or_a_letter_must_be_the_same() -> None:
    assert correct(Item("aime2024/1", "?", "73", "integer"), "\\boxed{073}") is True
    assert correct(Item("aime2024/1", "?", "73", "integer"), "\\boxed{7}") is False
    assert correct(Item("aime2024/1", "?", "24", "integer"), "\\boxed{1024}") is False
    assert correct(Item("gpqa/1", "?", "B", "letter"), "Answer: B") is True
    assert correct(Item("gpqa/1", "?", "B", "letter"), "Answer: C") is False
    assert correct(Item("gpqa/1", "?", "B", "letter"), "B, C, B, C, B, C,") is False


def test_without_an_answer_nothing_is_graded() -> None:
    assert correct(Item("jsonl/1", "?", None, None), "Answer: 5") is None


@pytest.mark.parametrize("unit", ["\\boxed{", "{", "Answer: ", "**B", "\\text{", "answer is ", "="])
def test_long_loops_are_read_in_no_time(unit: str) -> None:
    """An expression that reads on to the end from each of these would take minutes."""
    started = time.monotonic()
    for kind in ("integer", "letter", "text"):
        extract(kind, unit * 20000)
    assert time.monotonic() - started < 10
