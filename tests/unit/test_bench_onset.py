"""The guarantee of the onset: its bound against the product's step."""

from __future__ import annotations

import json
import math

import pytest

from bench import common
from bench.onset import guarantee
from bench.repetition.detector import longest_repetition

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
