"""Products of matrices on a CPU that do not depend on the batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.functional import linear

from sglang_lz.cpu.batch_invariance import (
    FEWEST_ROWS,
    disable_batch_invariant_mode,
    enable_batch_invariant_mode,
)

ROWS = 2 * FEWEST_ROWS + 1


@pytest.fixture
def invariant() -> Iterator[None]:
    enable_batch_invariant_mode()
    yield
    disable_batch_invariant_mode()


def factors(inner: int, outer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(inner)
    shapes = ((ROWS, inner), (outer, inner), (outer,))
    left, right, bias = (torch.randn(shape, generator=generator) for shape in shapes)
    return left, right, bias


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("inner", "outer"), [(192, 2048), (512, 192), (3584, 512)])
def test_a_row_is_the_same_in_every_batch(inner: int, outer: int, biased: bool) -> None:
    left, right, bias = factors(inner, outer)
    whole = linear(left, right, bias if biased else None)
    for rows in range(1, ROWS):
        for part in (slice(rows), slice(rows, None)):
            alone = linear(left[part], right, bias if biased else None)
            assert torch.equal(alone, whole[part]), part


@pytest.mark.usefixtures("invariant")
@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_products_of_few_rows_are_correct(rows: int) -> None:
    left, right, bias = (factor.double() for factor in factors(40, 30))
    left = left[:rows]
    expected = (left[:, None] * right).sum(2)
    torch.testing.assert_close(left @ right.T, expected)
    torch.testing.assert_close(
        torch.addmm(bias, left, right.T, beta=0.5, alpha=2), 2 * expected + 0.5 * bias
    )
    sums = torch.addmm(torch.ones(1, 1).double(), left, right.T)
    torch.testing.assert_close(sums, expected + 1)


def test_batch_invariance_can_be_disabled() -> None:
    left, right, _ = factors(192, 2048)
    before = linear(left[:1], right)
    enable_batch_invariant_mode()
    disable_batch_invariant_mode()
    assert torch.equal(linear(left[:1], right), before)
