"""The onset's guarantee against the product's step, and the study's rule against the oracle."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest

from bench import common
from bench.onset import guarantee, rule
from bench.onset.rule import LATCH, Setting
from bench.repetition.detector import longest_repetition
from oracle import COSTS, MARGINAL, RATE, delta_bits, memory_of_steps

PERIODS = [1, 5, 16, 40, 500, 511]


@pytest.mark.parametrize("onset", [1, 3])
@pytest.mark.parametrize("margin", [0, 20])
def test_a_loop_ends_within_the_bound(onset: int, margin: float) -> None:
    units, given = [list(range(period)) for period in PERIODS], (2048, 0.3, onset, margin)
    runs = guarantee.stuck(units, *given)
    assert runs == [guarantee.run_of_plain_loop(period, *given) for period in PERIODS]
    bounds = [guarantee.longest_run(period, *given) for period in PERIODS]
    assert all(run <= bound for run, bound in zip(runs, bounds, strict=True))
    sooner = guarantee.stuck(units, *given, memory=True)
    assert (sooner != runs) == (margin == 0)
    assert all(run <= other for run, other in zip(sooner, runs, strict=True))


def test_a_saturated_run_grows_no_more() -> None:
    assert guarantee.longest_run(511, 2048, 0.05, 2, 100) == math.inf
    assert guarantee.copies_of(math.inf, 511) is None


def test_a_model_that_returns_to_its_loop_stays_within_the_bound() -> None:
    output = guarantee.returning(range(3), 64, 0.3, 2, 10)
    loop = longest_repetition(output)
    bound = guarantee.longest_run(loop.period, 64, 0.3, 2, 10)
    assert 3 < loop.repeats <= guarantee.copies_of(bound, loop.period)


def test_the_committed_result_is_within_the_bound() -> None:
    guaranteed = json.loads((common.RESULTS / "onset" / "guarantee.json").read_text())
    assert all(case["within_bound"] and case["as_a_plain_loop"] for case in guaranteed["cases"])
    assert all(case["most_copies"] <= case["bound"] for case in guaranteed["returning"])


V = 16


def looping(seed: int, length: int) -> list[int]:
    """A text of random tokens that now and then goes round."""
    rng, text = random.Random(seed), list[int]()
    while len(text) < length:
        text += [rng.randrange(V) for _ in range(rng.randint(1, 6))] * rng.choice([1, 1, 4, 20])
    return text[:length]


def lowerings(text: list[int], setting: Setting) -> np.ndarray[Any, Any]:
    """What `lower_rows` takes off after each prefix of a text, float64 [tokens + 1, V]."""
    x, row = np.array([text], dtype=np.int32), rule.table([setting])
    runs, looped = np.zeros((1, rule.MOST_WINDOW + 1), np.int32), np.zeros((1, len(text)), bool)
    state, found = rule.new_state(1), []
    for count in range(len(text) + 1):
        logits = np.zeros((1, V), np.float32)
        rule.lower_rows(logits, x, np.array([count], np.int32), runs, looped, row, state)
        found.append(-logits[0].astype(np.float64))
    return np.array(found)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(("onset", "window"), [(0, 512), (1, 512), (2, 40), (3, 512)])
@pytest.mark.parametrize("seed", range(3))
def test_the_defaults_are_those_of_the_spec(seed: int, onset: int, window: int, cost: str) -> None:
    text, alpha = looping(seed, 300), 0.3
    found = lowerings(text, Setting(alpha=alpha, onset=onset, window=window, rate=cost == RATE))
    memory = memory_of_steps([], text, False, window, onset)
    assert onset == 0 or {False, True} == set(memory)
    for count in range(0, len(text) + 1, 7):
        seen = text[:count]
        bits = delta_bits(seen, V, window, 32, cost, onset=onset, memory=memory[count])
        expected = alpha * (math.log2(V) - np.array(bits))
        np.testing.assert_allclose(found[count], expected, atol=1e-5)


def test_the_latch_is_the_penalty_of_the_paper_after_a_loop() -> None:
    text = [*[1, 2, 3, 4] * 8, *range(16)]
    found = lowerings(text, LATCH)
    assert not found[:20].any()
    assert found[20].any()
    bits = delta_bits(text, V, 512, 32, MARGINAL)
    np.testing.assert_allclose(found[-1], 0.15 * (math.log2(V) - np.array(bits)), atol=1e-5)
