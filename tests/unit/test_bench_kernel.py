"""The implementations of bench.kernel against the oracle; no time is asserted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import oracle
from bench.kernel import host, implementations, timing
from bench.kernel.inputs import HISTORIES, LZ_PENALTY, Case, Inputs
from lz_penalty.kernels import cpu as cpu_kernels
from lz_penalty.reference import steps as reference
from lz_penalty.window import EXACT

VOCAB = 24
CPU = torch.device("cpu")


def penalised(case: Case, seen: Sequence[int]) -> list[float]:
    """The oracle's loss of each token after a row's history, oldest first."""
    delta = oracle.delta_bits(seen, case.vocab, case.window, case.buffer, oracle.MARGINAL)
    literal = max(oracle.delta_bits([], case.vocab, 1, 1, oracle.MARGINAL))
    return [LZ_PENALTY * (literal - bits) for bits in delta]


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("kernels", [cpu_kernels, reference], ids=["ours", "reference"])
def test_every_step_equals_the_oracle(kernels: Any, history: str) -> None:
    case = Case(rows=2, vocab=VOCAB, window=9, buffer=4, history=history)
    inputs = Inputs(case, CPU, sets=2, steps=4)
    got = timing.outputs(implementations.Step(inputs, kernels, None), inputs)
    for step in range(timing.CHECKED_STEPS):
        for row in range(2):
            seen = inputs.history[row, : case.window + step + 1].tolist()
            expected = inputs.fresh[row] - torch.tensor(penalised(case, seen))
            torch.testing.assert_close(got[step, row], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("seen", [0, 5])
def test_a_measured_prefill_fills_the_windows(seen: int) -> None:
    pool = host.pool_of(4, 16, CPU)
    tokens = [1, 2, 1, 2, 1, 2, 1]
    with host.unified_server():
        host.start(host.batch_of(pool, range(1, 3), tokens, seen))
    state = pool.lz_penalizer.state
    assert state.params[:, 0].tolist() == pytest.approx([0, 0.15, 0.15, 0])
    runs = [0, *oracle.run_lengths(tokens[-seen:], seen).values()] if seen else []
    assert state.run[2, EXACT, :seen].tolist() == runs
