"""The detector of degenerate repetitions against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from bench.models.detector import Repetition, final_loop, is_degenerate, longest_repetition


def naive(tokens: list[int]) -> Repetition:
    """Try every unit at every start and count its copies by comparing slices."""
    best = Repetition(0, 0, 0)
    for period in range(1, len(tokens) + 1):
        for start in range(len(tokens) - period + 1):
            unit = tokens[start : start + period]
            repeats, end = 0, start
            while tokens[end : end + period] == unit:
                repeats, end = repeats + 1, end + period
            if repeats > best.repeats:
                best = Repetition(start, period, repeats)
    return best


few_tokens = st.lists(st.integers(0, 2), max_size=60)


@st.composite
def looping(draw: st.DrawFn) -> list[int]:
    """Noise, then a unit some times over with an unfinished copy, then noise."""
    unit = draw(st.lists(st.integers(0, 3), min_size=1, max_size=5))
    cut = draw(st.integers(0, len(unit) - 1))
    repeats = draw(st.integers(1, 25))
    return draw(few_tokens) + unit * repeats + unit[:cut] + draw(few_tokens)


@given(few_tokens | looping())
def test_equals_the_definition(tokens: list[int]) -> None:
    assert longest_repetition(tokens) == naive(tokens)


@given(looping(), st.integers(1, 25))
def test_degenerate_is_the_longest_repetition_against_a_threshold(
    tokens: list[int], repeats: int
) -> None:
    assert is_degenerate(tokens, repeats) == (naive(tokens).repeats >= repeats)


def naive_final_loop(tokens: list[int]) -> Repetition | None:
    """Count back from the end for every period, as SPEC section 9 counts runs."""
    for period in range(1, len(tokens)):
        run = 0
        while run + period < len(tokens) and tokens[-1 - run] == tokens[-1 - run - period]:
            run += 1
        if run >= 16 and run // period >= 2:
            return Repetition(len(tokens) - run - period, period, run // period + 1)
    return None


@given(looping() | few_tokens.map(lambda tokens: tokens * 4))
def test_the_final_loop_equals_its_definition(tokens: list[int]) -> None:
    assert final_loop(tokens) == naive_final_loop(tokens)


def test_the_final_loop_is_of_three_copies_and_sixteen_tokens() -> None:
    assert final_loop([9] + [1] * 16) is None  # a run of 15
    assert final_loop([9] + [1] * 17) == Repetition(1, 1, 17)
    line = [*range(40)]
    assert final_loop(line * 3 + [77]) is None
    assert final_loop(line * 3) == final_loop("".join(map(chr, line * 3))) == Repetition(0, 40, 3)
    assert final_loop(line * 2) is None
