"""The oracle against numbers worked out by hand (docs/SPEC.md section 8) and its edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onset_examples import EXAMPLES, FADING, LAST_STEP, NUMBER_EXAMPLES, NUMBERS
from oracle import (
    COSTS,
    delta_bits,
    has_memory,
    log_softmax,
    match_lengths,
    memory_of_steps,
    visible_history,
)

V = 16

WORKED = [
    (
        [0, 1, 2, 0, 1],
        {2: math.log2(9) - math.log2(8) - 1, 1: 0.0, 0: 1.0},
        {2: 2 * math.log2(3) / 3, 1: 0.0, 0: 1.0},
    ),
    ([7], {7: 0.0}, {7: 0.0}),
    ([7, 7], {7: -1.0}, {7: 0.5}),
    (
        [3, 5, 4, 3, 5, 9, 9, 3, 5],
        {9: -0.737, 4: 0.070, 5: 0.0, 3: 1.0},
        {9: 1.195, 4: 1.464, 5: 0.0, 3: 1.0},
    ),
    ([1, 2, 1, 3, 3, 1], {3: -0.415, 2: 0.322, 1: 0.0}, {3: 1.0, 2: 1.661, 1: 0.0}),
]


@pytest.mark.parametrize(("x", "marginal", "rate"), WORKED)
def test_worked_examples(x: list[int], marginal: dict[int, float], rate: dict[int, float]) -> None:
    for cost, stated in (("marginal", marginal), ("rate", rate)):
        expected = [stated.get(token, 4.0) for token in range(V)]
        assert delta_bits(x, V, 512, 32, cost) == pytest.approx(expected, abs=5e-4), cost


@pytest.mark.parametrize("name", [*EXAMPLES, *NUMBER_EXAMPLES])
def test_worked_examples_of_the_onset(name: str) -> None:
    x, lost = (EXAMPLES | NUMBER_EXAMPLES)[name]
    numbers = NUMBERS if name in NUMBER_EXAMPLES else frozenset()
    memory = has_memory([], x, False, 512, 2, numbers=numbers)
    delta = delta_bits(x, V, 512, 32, "marginal", onset=2, memory=memory, numbers=numbers)
    expected = [4 - lost.get(token, 0.0) for token in range(V)]
    assert delta == pytest.approx(expected, abs=5e-4)


def test_the_memory_fades() -> None:
    steps = memory_of_steps([], FADING, False, 64, 2)
    assert [t for t, memory in enumerate(steps) if memory] == list(range(40, LAST_STEP + 1))


def test_a_loop_of_the_prompt_counts_from_the_first_step() -> None:
    assert has_memory([1, 2, 3, 4] * 10, [], True, 512, 2)
    assert not has_memory([1, 2, 3, 4] * 10, [], False, 512, 2)
    assert not has_memory([*[1, 2, 3, 4] * 10, 7], [], True, 512, 2)


@pytest.mark.parametrize("cost", COSTS)
def test_every_token_costs_a_literal_before_the_first_one(cost: str) -> None:
    assert delta_bits([], V, 512, 32, cost) == [4.0] * V


@pytest.mark.parametrize("cost", COSTS)
def test_window_of_one_sees_the_newest_token_only(cost: str) -> None:
    seen = delta_bits([7, 7, 3, 7], V, 1, 1, cost)
    assert seen == [0.0 if token == 7 else 4.0 for token in range(V)]


@pytest.mark.parametrize("cost", COSTS)
def test_window_drops_the_oldest_tokens(cost: str) -> None:
    x = [9, 1, 2, 3, 9, 1, 2]
    assert delta_bits(x, V, 5, 5, cost) == delta_bits(x[2:], V, 512, 5, cost)
    assert delta_bits(x, V, 6, 5, cost) != delta_bits(x, V, 7, 5, cost)


def test_buffer_caps_the_match_and_ties_go_to_the_nearest() -> None:
    x = [1, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3]
    assert match_lengths(x, 32) == [0, 0, 3, 0, 0, 0, 3, 0, 0, 0]
    assert match_lengths(x, 1) == [0, 0, 1, 0, 0, 0, 1, 0, 0, 0]
    # d is the nearer source (distance 5), so 9 (distance 4) and 8 (distance 8) share it.
    for buffer, longest in ((32, 3), (1, 1)):
        delta = delta_bits(x, V, 512, buffer, "marginal")
        code = math.log2((longest + 1) * 4) - math.log2(longest * 5) - 1
        assert delta[9] == pytest.approx(code)
        assert delta[8] == pytest.approx(code + 1)


def test_a_source_may_overlap_the_buffer_but_not_pass_the_window() -> None:
    assert match_lengths([7, 7, 7, 7], 32) == [1, 2, 3]
    assert match_lengths([7, 7, 7, 7], 2) == [1, 2, 2]


def test_the_cheapest_code_of_a_token_wins() -> None:
    # 2 follows the long match far back, and stands at distance 1 on its own as well.
    x = [1, 3, 1, 2, *[4, 5, 6, 8, 9, 10, 11] * 3, 3, 1, 2, 12, 3, 1, 2]
    delta = delta_bits(x, V, 512, 32, "marginal")
    assert delta[2] == 0.0
    # 12 extends the longest match (3 1 2, distance 5) and is nearer than any other offer.
    assert delta[12] == pytest.approx(math.log2(4 * 4) - math.log2(3 * 5) - 1)


@pytest.mark.parametrize("cost", COSTS)
def test_no_code_costs_more_than_a_literal(cost: str) -> None:
    x = [0, *[1, 2] * 30, 3]
    delta = delta_bits(x, 4, 512, 32, cost)
    assert max(delta) <= 2.0
    assert delta[0] == 2.0


def test_rate_never_goes_below_zero_and_marginal_stays_above_minus_two() -> None:
    loop = [5] * 40
    assert delta_bits(loop, V, 512, 32, "rate")[5] == pytest.approx(math.log2(33) / 33)
    assert -2.0 < delta_bits(loop, V, 512, 32, "marginal")[5] < 0.0


@pytest.mark.parametrize("cost", COSTS)
def test_ids_outside_the_vocabulary_match_but_offer_nothing(cost: str) -> None:
    outside = delta_bits([1, 900, -3, 2, 1, 900, -3], V, 512, 32, cost)
    inside = delta_bits([1, 14, 15, 2, 1, 14, 15], V, 512, 32, cost)
    assert outside[:14] == inside[:14]
    assert outside[14:] == [4.0, 4.0]


def test_visible_history() -> None:
    assert visible_history([1, 2], [3], False) == [3]
    assert visible_history([1, 2], [3], True) == [1, 2, 3]


def test_unknown_cost_is_refused() -> None:
    with pytest.raises(ValueError, match="cheap"):
        delta_bits([1], V, 512, 32, "cheap")


def test_log_softmax_keeps_minus_infinity() -> None:
    got = log_softmax(np.array([0.0, -math.inf, 1.0]))
    assert np.exp(got).sum() == pytest.approx(1.0)
    assert got[1] == -math.inf
    assert got[2] - got[0] == pytest.approx(1.0)
