"""The torch reference against the oracle, over random windows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracle import COSTS, delta_bits, match_lengths
from sglang_lz.penalty.reference import codelength

VOCAB = 6
# float32 against float64; costs stay below 24 bits.
TOLERANCE = 2e-5

# Few tokens, so that matches are long; some ids lie outside the vocabulary.
histories = st.lists(st.integers(-1, VOCAB + 1), max_size=40)


def newest_first(rows: list[list[int]], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    window = torch.full((len(rows), width), -7)
    for i, row in enumerate(rows):
        window[i, : len(row)] = torch.tensor(row[::-1], dtype=torch.long)
    return window, torch.tensor([len(row) for row in rows])


@given(
    rows=st.lists(
        st.tuples(histories, st.integers(1, 40), st.integers(1, 40), st.sampled_from(COSTS)),
        min_size=1,
        max_size=4,
    )
)
def test_batch_of_mixed_rows_equals_the_oracle(
    rows: list[tuple[list[int], int, int, str]],
) -> None:
    window, length = newest_first([h[-w:] for h, w, _, _ in rows], width=40)
    buffer = torch.tensor([b for _, _, b, _ in rows])
    is_rate = torch.tensor([cost == "rate" for *_, cost in rows])
    delta = codelength.delta_codelength(window, length, VOCAB, buffer, is_rate)
    for got, (history, w, b, cost) in zip(delta, rows, strict=True):
        expected = delta_bits(history, VOCAB, w, b, cost)
        np.testing.assert_allclose(got.numpy(), expected, atol=TOLERANCE)


@given(history=st.lists(st.integers(0, 2), min_size=2, max_size=40), buffer=st.integers(1, 40))
def test_match_lengths_equal_the_oracle(history: list[int], buffer: int) -> None:
    window, length = newest_first([history], width=48)
    got = codelength.match_lengths(window, length, torch.tensor([buffer]))
    expected = match_lengths(history, buffer)
    assert got[0, 1 : len(history)].tolist() == expected[::-1]
    assert not got[0, 0]
    assert not got[0, len(history) :].any()


@pytest.mark.parametrize("cost", COSTS)
def test_the_longest_distances_of_the_largest_window_are_exact_enough(cost: str) -> None:
    history = [1] + [2] * 2 + [3] * 4089 + [1, 2, 2]
    window, length = newest_first([history], width=8192)
    delta = codelength.delta_codelength(
        window, length, 200_000, torch.tensor([8192]), torch.tensor([cost == "rate"])
    )
    expected = delta_bits(history, 200_000, 8192, 8192, cost)
    np.testing.assert_allclose(delta[0, :8].numpy(), expected[:8], atol=TOLERANCE)


@given(
    batch=st.integers(1, 4),
    stride=st.integers(VOCAB, VOCAB + 3),
    transposed=st.booleans(),
    data=st.data(),
)
def test_only_seen_tokens_of_the_given_rows_change(
    batch: int, stride: int, transposed: bool, data: st.DataObject
) -> None:
    """Logits may be a slice of a padded vocabulary, or gathered across ranks as their transpose."""
    padded = torch.randn(stride, batch).T if transposed else torch.randn(batch, stride)
    before = padded.clone()
    row = data.draw(st.integers(0, batch - 1))
    window = torch.tensor([data.draw(st.lists(st.integers(-2, VOCAB + 2), min_size=1, max_size=9))])
    savings = torch.rand(window.shape)
    logits = padded[:, :VOCAB]
    codelength.subtract_savings(logits, torch.tensor([row]), window, savings)

    expected = before.clone()
    for token in range(VOCAB):
        of_token = savings[0][window[0] == token]
        if len(of_token):
            expected[row, token] = before[row, token] - of_token.max()
    assert torch.equal(padded, expected)


def test_masked_logits_stay_masked() -> None:
    logits = torch.tensor([[-torch.inf, 1.0]])
    codelength.subtract_savings(
        logits, torch.tensor([0]), torch.tensor([[0, 1]]), torch.tensor([[2.0, 0.25]])
    )
    assert logits.tolist() == [[-torch.inf, 0.75]]
