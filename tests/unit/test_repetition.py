"""The loop detector against its definition, and the request field's ranges."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lz_penalty import detector as finding
from lz_penalty.detector import NO_NUMBERS, Detector, Loop
from lz_penalty.fields.repetition import LARGEST_COUNT, LARGEST_PATTERN_SIZE, RepetitionDetection
from lz_penalty.fields.table import FieldError
from oracle import first_loop

Tokens = list[int]
NUMBERS = frozenset({0, 3})
IS_NUMBER = np.isin(range(4), [*NUMBERS]).astype(np.uint8)


def blocks(*block: int) -> Tokens:
    """Six copies of a block, where every other one has another number for each 3."""
    return [token * (n % 2 or token != 3) for n in range(6) for token in block]


@st.composite
def texts(draw: st.DrawFn) -> Tokens:
    """Texts of few different tokens in which runs, loops and loops of loops are common."""
    pieces = draw(
        st.lists(
            st.tuples(
                st.lists(st.sampled_from((1, 1, 2, 0)), min_size=1, max_size=9),
                st.integers(1, 9),
                st.integers(0, 8),
            ),
            min_size=1,
            max_size=6,
        )
    )
    text = [token for unit, times, cut in pieces for token in (unit * times)[cut:]]
    other = itertools.cycle(draw(st.lists(st.sampled_from(sorted(NUMBERS)), min_size=1)))
    return [next(other) if token == 0 else token for token in text]


@given(
    texts(),
    st.builds(range, st.integers(1, 12), st.integers(13, 24)),
    st.integers(2, 9),
    st.integers(0, 40),
    st.lists(st.integers(1, 7), min_size=1),
)
@example([1] * 5, range(1, 2), 5, 0, [1])
@example([1] * 5, range(1, 2), 5, 0, [5])
@example([0, *([1, 2] * 4)], range(2, 4), 4, 0, [3])
@example(blocks(1, 2, 1, 1, 1, 2, 3), range(1, 9), 6, 0, [1])
@example(blocks(1, 2, 1, 1, 1, 3), range(6, 9), 6, 0, [1])
@example(blocks(*[1, 2, 1, 1, 2, 3] * 3, 1, 2), range(20, 24), 5, 0, [4])
def test_the_first_loop_is_found_whatever_the_steps(
    tokens: Tokens, sizes: range, count: int, first_check: int, steps: list[int]
) -> None:
    for numbers in (frozenset[int](), NUMBERS):
        detection = RepetitionDetection(sizes[-1], sizes[0], count, ignore_numbers=bool(numbers))
        wanted = first_loop(tokens, sizes, count, first_check, numbers)
        detector = Detector(detection, first_check)
        output = array("q")
        found, step = None, 0
        while found is None and len(output) < len(tokens):
            output.extend(tokens[len(output) : len(output) + steps[step % len(steps)]])
            found = detector.find(output, IS_NUMBER)
            step += 1
        assert (found and (found.end, found.pattern_size, found.begin)) == wanted


def test_evidence_counts_whole_copies() -> None:
    detector = Detector(RepetitionDetection(8, 0, 3), first_check=11)
    found = detector.find(array("q", [9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]))
    assert found == Loop(pattern_size=3, begin=1, end=11)
    assert found.count == 3


@given(texts(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2)), min_size=1))
def test_the_detector_can_roll_back(tokens: Tokens, edits: list[tuple[int, int]]) -> None:
    """As on the paths of a draft tree: after going back, the first loop is that of the text."""
    detector = Detector(RepetitionDetection(8, 0, 3, ignore_numbers=True), first_check=5)
    output = array("q")
    for token, (back, other) in zip(tokens, itertools.cycle(edits), strict=False):
        length = len(output)
        output.extend([other] * back)
        detector.find(output, IS_NUMBER)
        del output[length:]
        detector.rollback(length)
        output.append(token)
        found = detector.find(output, IS_NUMBER)
        wanted = first_loop(output, range(1, 9), 3, 5)
        assert (found and (found.end, found.pattern_size, found.begin)) == wanted
        if found:
            return


@pytest.mark.parametrize("numbers", [NO_NUMBERS, np.ones(2, dtype=np.uint8)])
@pytest.mark.parametrize(("shortest", "count"), [(1, 4000), (100, 20), (1, 20)])
def test_a_check_compares_few_tokens(
    monkeypatch: pytest.MonkeyPatch, shortest: int, count: int, numbers: np.ndarray
) -> None:
    """Whatever a client asks for, and whatever its output: here, many patterns have long runs."""
    compared, is_alike = 0, finding._is_alike

    def counted(*given: object) -> bool:
        nonlocal compared
        compared += 1
        return is_alike(*given)

    monkeypatch.setattr(finding, "_is_alike", counted)
    monkeypatch.setattr(finding, "_runs", finding._runs.py_func)
    tokens = np.array([*range(2, 2000), *[1] * 1999], dtype=np.int64)
    finding.first_loop.py_func(tokens, len(tokens), (shortest, 2000), count, numbers)
    assert 0 < compared < 4 * len(tokens)


@pytest.mark.parametrize("others", [0, 1, 5])
def test_text_without_loops_is_seldom_checked(others: int) -> None:
    """Among distinct tokens, or in columns of distinct numbers, which are too many."""
    detector = Detector(RepetitionDetection(512, 1, 20, ignore_numbers=True))
    is_number = np.full(2000, others > 0, dtype=np.uint8)
    output = array("q")
    looks = 0
    for token in range(2000):
        column = token % (others + 1)
        output.append(-column if column else token)
        looks += len(output) >= detector.next_check
        assert detector.find(output, is_number) is None
    assert looks <= 2000 // 19 + 1


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ({}, None),
        ({"max_pattern_size": 0, "min_count": 4}, None),
        ({"max_pattern_size": 9, "min_count": 4}, RepetitionDetection(9, 0, 4)),
        (
            {"max_pattern_size": 9, "min_pattern_size": 9, "min_count": 2, "action": None},
            RepetitionDetection(9, 9, 2, "stop"),
        ),
        (
            {"max_pattern_size": 1, "min_count": 2, "action": "end_thinking"},
            RepetitionDetection(1, 0, 2, "end_thinking"),
        ),
    ],
)
def test_values_that_are_taken(value: Any, wanted: RepetitionDetection | None) -> None:
    assert RepetitionDetection.parse(value) == wanted


SIZE = {"max_pattern_size": 4}
ONLY = " must hold max_pattern_size, min_pattern_size, min_count, action, ignore_numbers only"
COUNT = ".min_count must be an integer in [2, 32767]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, " must be an object, got True."),
        ([], " must be an object, got []."),
        ({"max_pattern": 3}, f"{ONLY}, got 'max_pattern'."),
        ({"": 3}, f"{ONLY}, got ''."),
        (
            {"max_pattern_size": LARGEST_PATTERN_SIZE + 1, "min_count": 2},
            ".max_pattern_size must be an integer in [0, 8192], got 8193.",
        ),
        (
            {**SIZE, "min_pattern_size": 5, "min_count": 2},
            ".min_pattern_size must be an integer in [0, 4], the upper end being "
            "repetition_detection.max_pattern_size, got 5.",
        ),
        (SIZE, f"{COUNT}, got nothing."),
        ({**SIZE, "min_count": 1}, f"{COUNT}, got 1."),
        ({"min_count": LARGEST_COUNT + 1}, f"{COUNT}, got 32768."),
        ({**SIZE, "min_count": 2.5}, f"{COUNT}, got 2.5."),
        (
            {**SIZE, "min_count": 2, "action": "abort"},
            '.action must be "stop" or "end_thinking", got \'abort\'.',
        ),
        (
            {**SIZE, "min_count": 2, "ignore_numbers": 1},
            ".ignore_numbers must be true or false, got 1.",
        ),
    ],
)
def test_values_that_are_refused(value: Any, message: str) -> None:
    with pytest.raises(FieldError) as error:
        RepetitionDetection.parse(value)
    assert str(error.value) == f"repetition_detection{message}"
    assert error.value.field == "repetition_detection"
