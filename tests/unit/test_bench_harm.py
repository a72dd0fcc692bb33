"""bench.harm against the oracle and plain definitions, on small texts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import numpy as np
import pytest

import oracle
from bench.harm import penalties
from bench.harm.penalties import LZ_PENALTY

VOCAB = 24


def looping_text(seed: int, length: int) -> list[int]:
    """Random tokens, with units that stand several times in a row."""
    rng = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        unit = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        text += unit * rng.choice((1, 1, 2, 4, 9))
    return text[:length]


def as_tokens(texts: Sequence[Sequence[int]]) -> list[penalties.Tokens]:
    return [np.array(text, dtype=np.int64) for text in texts]


@pytest.mark.parametrize("onset", [0, 3])
def test_lz_equals_the_oracle(onset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(penalties, "ROWS", 3)  # several batches
    texts = [looping_text(seed, length) for seed, length in enumerate((40, 70, 1, 60, 70))]
    numbers = frozenset({0, 2})
    is_number = np.isin(range(VOCAB), [*numbers]).astype(np.uint8)
    outcomes = penalties.lz_outcomes(as_tokens(texts), VOCAB, onset, is_number)
    assert any(outcome.lowered.any() for outcome in outcomes)
    for text, outcome in zip(texts, outcomes, strict=True):
        expected, reached = [], []
        memory = oracle.memory_of_steps([], text, False, 512, onset, numbers=numbers)
        for position, token in enumerate(text):
            seen = text[:position]
            if onset and oracle.looped_tokens(tuple(seen), 512, onset, numbers):
                reached.append(position)
            waits = {"onset": onset, "memory": memory[position], "numbers": numbers}
            delta = oracle.delta_bits(seen, VOCAB, 512, 32, "marginal", **waits)
            expected.append(LZ_PENALTY * (math.log2(VOCAB) - delta[token]))
        capped = np.minimum(expected, penalties.MOST_NATS)
        np.testing.assert_allclose(outcome.lowered, capped, atol=1e-4)
        assert (outcome.onset and outcome.onset.position) == next(iter(reached), None)


def test_dry_lowers_tokens_that_extend_a_repetition() -> None:
    breaker = VOCAB - 1
    is_breaker = np.arange(VOCAB) == breaker

    def lowered(*text: int) -> list[float]:
        return penalties.dry_lowered(np.array(text), is_breaker).tolist()

    assert lowered(1, 2, 3, 9, 1, 2, 3) == [0, 0, 0, 0, 0, 0, 0.8]
    assert lowered(1, 2, 3, 4, 9, 1, 2, 3, 4)[-2:] == pytest.approx([0.8, 0.8 * 1.75])
    assert lowered(1, breaker, 3, 9, 1, breaker, 3)[-1] == 0
    assert lowered(1, 2, breaker, 9, 1, 2, breaker)[-1] == 0
    # Repetitions may overlap; the longest counts.
    assert lowered(4, 4, 4, 4) == [0, 0, 0, 0.8]
    assert lowered(1, 2, 3, 7, 9, 8, 2, 3, 7, 9, 1, 2, 3, 7)[-1] == pytest.approx(0.8 * 1.75)
