"""How many copies a loop can reach: `python -m bench.onset`.

A model that wants nothing but its loop goes through the product's CPU step. At every position it
puts the token that goes on with the loop `margin` nats above all others. The loop ends where the
penalty has lowered that token below one that it leaves alone.

The bound, for a loop of period k < W, k < V. Once its run is s_k tokens or more (16 for k = 1, else
24) and has c >= n whole periods, the token that goes on with it is lowered by at least

    alpha * (c - n + 1) * (log2 V - cost),    cost <= log2 k.

cost <= log2 k: a token coded alone costs log2 of its distance, k; one that extends the longest
match costs log2((l + 1) / l) - 1 + log2(k / d), which is no more, since l >= 1 and d >= 2. Where
the loop's own match is the longest and the nearest, d = k + 1, l = min(run, B, W - k), and the cost
is log2((l + 1) / l * k / (k + 1)) - 1, below 0. So the loop ends at the latest where c is the
smallest integer with alpha (c - n + 1) (log2 V - cost) > margin.

Memory only lowers more: the strength at a position is the larger of growth's and its own, so the
token that goes on loses no less, and a token outside the window still loses nothing. Nothing here
depends on what stood before, so it holds for every loop of an output, with memory on or off. Runs
saturate at 32,767 tokens, and so c at 32,767 / k: a model that is surer than that is not stopped by
growth.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from bench.repetition.detector import longest_repetition
from sglang_lz.fields.lz import LZParams
from sglang_lz.penalty.kernels import cpu
from sglang_lz.penalty.window import (
    LEAST_COVER,
    LONGEST_RUN,
    MEMORY,
    REMEMBERED_STRENGTH,
    RowWindow,
    StepInputs,
    WindowState,
    shortest_loop,
)

WINDOW, BUFFER = 512, 32
PERIODS = (1, 2, 3, 5, 8, 15, 16, 17, 33, 100, 480, 481, 511)
VOCAB_SIZES = (2048, 151_936)
ALPHAS = (0.15, 0.5)
ONSETS = (2, 3)
MARGINS = (0, 20)
LARGE_MARGINS = ((151_936, 0.05, 2, 10), (151_936, 0.15, 2, 50))
FREE_TOKENS = 1500
"""Of a model that comes back to its loop."""
BEFORE = 160
"""Tokens of the loop that turns the memory on; more than any onset here asks for."""


def longest_run(period: int, vocab_size: int, alpha: float, onset: int, margin: float) -> float:
    """The longest run of a loop, in tokens; inf where it may saturate before it ends.

    Args:
        period: k, in tokens.
        vocab_size: V.
        alpha: strength, nats per bit.
        onset: n.
        margin: how far above all others the model puts the token that goes on, in nats.
    """
    saved = math.log2(vocab_size) - math.log2(period)
    # A margin that is just met is not overcome; the product computes in float32.
    copies = onset + math.floor(margin / (alpha * saved) * (1 + 1e-6))
    run = max(copies * period, shortest_loop(period))
    return run if run <= LONGEST_RUN else math.inf


def run_of_plain_loop(
    period: int, vocab_size: int, alpha: float, onset: int, margin: float
) -> float:
    """The run at which a loop of distinct tokens ends, whose own match is the longest and nearest.

    Nothing looped before it, but its first copies may turn the memory on. Arguments as
    `longest_run`.
    """
    has_memory = False
    for run in range(1, LONGEST_RUN + 1):
        copies = run // period if run >= shortest_loop(period) else 0
        has_memory = has_memory or (copies >= onset and run + period >= LEAST_COVER)
        remembered = REMEMBERED_STRENGTH if has_memory else 0
        length = min(run, BUFFER, WINDOW - period)
        cost = math.log2((length + 1) / length * period / (period + 1)) - 1
        lowered = alpha * max(copies - onset + 1, remembered) * (math.log2(vocab_size) - cost)
        if lowered > margin * (1 + 1e-6):
            return run
    return math.inf


def copies_of(run: float, period: int) -> int | None:
    """The copies of a unit in a row, the first included, as the detector counts them; None: inf."""
    return None if run == math.inf else int(run) // period + 1


def stuck(
    units: Sequence[Sequence[int]],
    vocab_size: int,
    alpha: float,
    onset: int,
    margin: float,
    *,
    memory: bool = False,
) -> list[int]:
    """The run of each loop when it ends; one that saturates is cut there.

    Args:
        units: the tokens of each loop, below V - 2, no unit a repetition of a shorter one.
        vocab_size: V.
        alpha: strength, nats per bit.
        onset: n.
        margin: how far above all others the model puts the token that goes on, in nats.
        memory: whether another loop stands before, which has turned the memory on.
    """
    rows = len(units)
    before = [vocab_size - 2] * (BEFORE if memory else 0)
    state = _state(rows, alpha, onset, before)
    assert not memory or (state.cover[:, MEMORY] > 0).all()
    logits = np.zeros((rows, vocab_size), dtype=np.float32)
    ended = np.zeros(rows, dtype=np.int64)
    seen = [sorted(set(unit)) for unit in units]
    step = 0
    while not ended.all():
        step += 1
        live = (ended == 0).nonzero()[0]
        newest = np.array([units[i][(step - 1) % len(units[i])] for i in live])
        wanted = np.array([units[i][step % len(units[i])] for i in live])
        room = logits[: len(live)]
        room[np.arange(len(live)), wanted] = margin
        _step(state, room, live, len(before) + step, newest)
        for row, i in enumerate(live):
            period = len(units[i])
            untouched = room[row, vocab_size - 1]
            if room[row, wanted[row]] < untouched:
                ended[i] = step - period
            elif step - period >= LONGEST_RUN:
                ended[i] = LONGEST_RUN
            room[row, seen[i]] = 0
    return ended.tolist()


def returning(
    unit: Sequence[int], vocab_size: int, alpha: float, onset: int, margin: float
) -> list[int]:
    """The output of a model that goes back to its loop after every token that is forced on it.

    What the penalty forces is the first token of all others that it lowers least.
    """
    state = _state(1, alpha, onset)
    after = dict(zip(unit, [*unit[1:], unit[0]], strict=True))
    output = [unit[0]]
    while len(output) < FREE_TOKENS:
        logits = np.zeros((1, vocab_size), dtype=np.float32)
        logits[0, after.get(output[-1], unit[0])] = margin
        _step(state, logits, np.array([0]), len(output), np.array(output[-1:]))
        output.append(int(logits[0].argmax()))
    return output


def measure() -> dict[str, Any]:
    """Run the models that want their loop, and compare every run with its bound."""
    grid = itertools.product(VOCAB_SIZES, ALPHAS, ONSETS, MARGINS)
    return {
        "window": WINDOW,
        "buffer": BUFFER,
        "periods": list(PERIODS),
        "cases": [_case(*given) for given in [*grid, *LARGE_MARGINS]],
        "returning": [
            _returning(*given) for given in itertools.product((1, 3, 17), (1, 2, 3), (10.0, 50.0))
        ],
        "largest_margin": {
            str(alpha): {
                str(period): _largest_margin(period, 151_936, alpha, 2) for period in PERIODS
            }
            for alpha in ALPHAS
        },
    }


def _case(vocab_size: int, alpha: float, onset: int, margin: float) -> dict[str, Any]:
    given = (vocab_size, alpha, onset, margin)
    units = [list(range(period)) for period in PERIODS]
    runs, remembered = stuck(units, *given), stuck(units, *given, memory=True)
    exact = [run_of_plain_loop(period, *given) for period in PERIODS]
    bounds = [longest_run(period, *given) for period in PERIODS]
    return {
        "vocab_size": vocab_size,
        "alpha": alpha,
        "onset": onset,
        "margin": margin,
        "copies": [copies_of(*pair) for pair in zip(runs, PERIODS, strict=True)],
        "copies_with_memory": [copies_of(*pair) for pair in zip(remembered, PERIODS, strict=True)],
        "bound": [copies_of(*pair) for pair in zip(bounds, PERIODS, strict=True)],
        "as_a_plain_loop": runs == exact,
        "within_bound": all(
            max(pair) <= bound for *pair, bound in zip(runs, remembered, bounds, strict=True)
        ),
    }


def _returning(period: int, onset: int, margin: float) -> dict[str, Any]:
    given = (4096, 0.15, onset, margin)
    loop = longest_repetition(returning(range(period), *given))
    return {
        "period": period,
        "onset": onset,
        "margin": margin,
        "most_copies": loop.repeats,
        "of_period": loop.period,
        "bound": copies_of(longest_run(loop.period, *given), loop.period),
    }


def _largest_margin(period: int, vocab_size: int, alpha: float, onset: int) -> float:
    """The margin in nats below which a loop ends for certain before its run saturates."""
    copies = LONGEST_RUN // period
    saved = math.log2(vocab_size) - math.log2(period)
    return round(alpha * (copies - onset + 1) * saved, 1)


def _state(rows: int, alpha: float, onset: int, before: Sequence[int] = ()) -> WindowState:
    """The windows of so many rows whose outputs begin with these tokens."""
    state = WindowState(rows, WINDOW, "cpu")
    tokens = array("q", before)
    window = RowWindow(tokens, 0, len(tokens), lz=LZParams(alpha, WINDOW, BUFFER, onset=onset))
    cpu.seed(state, dict.fromkeys(range(rows), window))
    return state


def _step(state: WindowState, logits: Any, rows: Any, length: int, newest: Any) -> None:
    """The product's decode step: append the newest token of each row, lower its logits."""
    cpu.step(
        state,
        torch.from_numpy(logits),
        StepInputs(
            request_rows=torch.from_numpy(rows),
            seq_lens=torch.full((len(rows),), length),
            input_ids=torch.from_numpy(newest),
            prefilled=0,
            offset=0,
        ),
        width=WINDOW,
    )
