"""docs/SPEC.md section 9 with its constants as variables, compiled, apart from the product.

All that is compiled with it is in this file: numba does not notice a change in another one. With
the defaults of `Setting` it is the product's rule (tests/unit/test_bench_onset.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

MOST_WINDOW, BUFFER = 4096, 32
LOG2 = np.log2(np.arange(MOST_WINDOW + 2).clip(1))

Tokens = NDArray[np.int32]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """The constants of a penalty, by default those of SPEC with `lz_onset` 3.

    Attributes:
        alpha: strength, nats per bit.
        onset: n; 0 for always on.
        shortest: s_k of periods k above 1.
        shortest_of_one: s_1.
        newest: of how many of the newest positions the looped ones are counted.
        cover: how many of these must be looped to turn the memory on.
        memory: for how many steps it stays on.
        second: if not 0, the memory is turned on by a loop that begins within so many tokens of
            the end of another, instead of by cover.
        strength: g_p of a position with memory and without growth.
        match: the shortest run of such a position.
        window: W.
        rate: whether the cost is `rate`.
    """

    alpha: float = 0.15
    onset: float = 3
    shortest: float = 24
    shortest_of_one: float = 16
    newest: float = 64
    cover: float = 40
    memory: float = 512
    second: float = 0
    strength: float = 2
    match: float = 2
    window: float = 512
    rate: float = 0


LATCH = Setting(shortest=16, cover=1, memory=math.inf, strength=1, match=0)
"""The first edition: the paper's penalty for good once anything has looped."""

(
    ALPHA,
    ONSET,
    SHORTEST,
    SHORTEST_OF_ONE,
    NEWEST,
    COVER,
    MEMORY,
    SECOND,
    STRENGTH,
    MATCH,
    WINDOW,
    COST_IS_RATE,
) = range(len(Setting._fields))

REMEMBERED, AGO, LOOPS, STATE = range(4)
"""What `advance` keeps of a row: steps that the memory stays on, tokens since the last loop (0 in
one, -1 before the first), loops so far; and how many of these there are."""


def table(settings: Sequence[Setting]) -> Floats:
    """The settings as float64 [settings, fields], for the compiled functions."""
    return np.array(settings, dtype=np.float64).reshape(len(settings), len(Setting._fields))


def new_state(rows: int) -> Floats:
    """The state of rows that have no tokens, float64 [rows, STATE]."""
    state = np.zeros((rows, STATE))
    state[:, AGO] = -1
    return state


@numba.njit(cache=True)
def advance(x: Tokens, runs: Tokens, looped: Flags, setting: Floats, state: Floats) -> None:
    """Bring a row from all but the newest token of `x` up to date.

    Args:
        x: its visible tokens, oldest first.
        runs: int32 [MOST_WINDOW + 1], run_k at k.
        looped: bool [at least as many as x], which positions are looped.
        setting: a row of `table`.
        state: a row of `new_state`.
    """
    newest, window = len(x) - 1, int(setting[WINDOW])
    for period in range(1, min(window, len(x))):
        runs[period] = runs[period] + 1 if x[newest] == x[newest - period] else 0
    if setting[ONSET] == 0:
        return
    reach = 0
    for period in range(1, min(window, len(x))):
        if _copies(runs[period], period, setting) >= setting[ONSET]:
            reach = max(reach, runs[period] + period)
    looped[newest] = False
    counted = int(setting[NEWEST])
    looped[len(x) - min(reach, counted, len(x)) : len(x)] = True
    is_second = reach > 0 and 0 < state[AGO] <= setting[SECOND]
    if reach > 0:
        state[LOOPS] += state[AGO] != 0
        state[AGO] = 0
    elif state[AGO] >= 0:
        state[AGO] += 1
    if setting[SECOND] > 0:
        is_on = is_second or (reach > 0 and state[REMEMBERED] > 0)
    else:
        is_on = looped[max(len(x) - counted, 0) : len(x)].sum() >= setting[COVER]
    if is_on:
        state[REMEMBERED] = setting[MEMORY]
    elif state[REMEMBERED] > 0:
        state[REMEMBERED] -= 1


@numba.njit(cache=True)
def _copies(run: int, period: int, setting: Floats) -> int:
    """c_p of a position at this distance."""
    shortest = setting[SHORTEST_OF_ONE] if period == 1 else setting[SHORTEST]
    return run // period if run >= shortest else 0


@numba.njit(cache=True)
def may_lower(state: Floats, setting: Floats) -> bool:
    """Whether a row can lower anything at this step."""
    return setting[ONSET] == 0 or state[REMEMBERED] > 0 or state[AGO] == 0


@numba.njit(cache=True)
def lower(x: Tokens, runs: Tokens, setting: Floats, state: Floats, out: Floats) -> None:
    """Write to `out`, float64 [V], by how much each token in the window is lowered; 0 before."""
    window, onset = int(setting[WINDOW]), setting[ONSET]
    length = min(len(x), window)
    literal = np.log2(len(out))
    longest, nearest = 0, 1
    for period in range(1, length):
        match = min(runs[period], BUFFER, length - period)
        if match > longest:
            longest, nearest = match, period + 1
    gained = LOG2[longest + 1] - LOG2[max(longest, 1)] - LOG2[nearest] - 1
    for distance in range(1, length + 1):
        token = x[len(x) - distance]
        run = runs[distance] if distance < window else 0
        match = min(run, BUFFER, length - distance)
        if onset == 0:
            strength = 1.0
        else:
            strength = max(_copies(run, distance, setting) - onset + 1, 0.0)
            matches = run >= setting[MATCH] and (distance < window or setting[MATCH] == 0)
            if state[REMEMBERED] > 0 and matches:
                strength = max(strength, setting[STRENGTH])
        if setting[COST_IS_RATE]:
            cost = max((LOG2[distance] + LOG2[match + 1]) / (match + 1), 0.0)
        else:
            cost = LOG2[distance]
            if longest >= 1 and match == longest:
                cost += gained
        out[token] = max(out[token], setting[ALPHA] * strength * max(literal - cost, 0.0))


@numba.njit(cache=True)
def harm(x: Tokens, vocab_size: int, setting: Floats, state: Floats) -> tuple[int, float, int]:
    """Run a penalty teacher-forced over a text that is right.

    Args:
        x: its tokens.
        vocab_size: V.
        setting: a row of `table`.
        state: a row of `new_state`.

    Returns:
        Positions where the true next token is lowered; by how much in all, in nats; and positions
        at which the memory is on.
    """
    runs, looped = np.zeros(MOST_WINDOW + 1, np.int32), np.zeros(len(x), np.bool_)
    out = np.zeros(vocab_size)
    lowered, nats, remembered = 0, 0.0, 0
    for count in range(1, len(x)):
        history = x[:count]
        advance(history, runs, looped, setting, state)
        if not may_lower(state, setting):
            continue
        remembered += state[REMEMBERED] > 0
        lower(history, runs, setting, state, out)
        if out[x[count]] > 0:
            lowered += 1
            nats += out[x[count]]
        for token in history[max(count - int(setting[WINDOW]), 0) :]:
            out[token] = 0
    return lowered, nats, remembered


@numba.njit(cache=True)
def lower_rows(
    logits: NDArray[np.float32],
    histories: Tokens,
    counts: Tokens,
    runs: Tokens,
    looped: Flags,
    settings: Floats,
    state: Floats,
) -> None:
    """Bring each row up to date with the newest token of its history, and lower its logits.

    Args:
        logits: float32 [rows, V].
        histories: the visible tokens of each row, oldest first, int32 [rows, most].
        counts: how many each has, int32 [rows].
        runs: int32 [rows, MOST_WINDOW + 1].
        looped: bool [rows, most].
        settings: a row of `table` for each row.
        state: as `new_state` returns it.
    """
    out = np.zeros(logits.shape[1])
    for row in range(len(logits)):
        x = histories[row, : counts[row]]
        if len(x) == 0 or settings[row, ALPHA] == 0:
            continue
        advance(x, runs[row], looped[row], settings[row], state[row])
        if may_lower(state[row], settings[row]):
            lower(x, runs[row], settings[row], state[row], out)
            for token in x[max(len(x) - int(settings[row, WINDOW]), 0) :]:
                logits[row, token] -= np.float32(out[token])
                out[token] = 0


@numba.njit(cache=True)
def replay(
    histories: Tokens,
    counts: Tokens,
    runs: Tokens,
    looped: Flags,
    settings: Floats,
    state: Floats,
) -> None:
    """Bring the rows' state up to all but the newest of their known tokens."""
    for row in range(len(counts)):
        for count in range(1, counts[row]):
            x = histories[row, :count]
            advance(x, runs[row], looped[row], settings[row], state[row])


@numba.njit(cache=True)
def loops(x: Tokens, setting: Floats, state: Floats) -> list[tuple[int, int]]:
    """The loops of a text: the steps at which each began, and before which it had ended.

    Args:
        x: the tokens.
        setting: a row of `table`.
        state: a row of `new_state`.
    """
    runs, looped = np.zeros(MOST_WINDOW + 1, np.int32), np.zeros(len(x), np.bool_)
    found = [(0, 0) for _ in range(0)]
    for count in range(1, len(x) + 1):
        advance(x[:count], runs, looped, setting, state)
        if state[AGO] == 0:
            if state[LOOPS] > len(found):
                found.append((count, count + 1))
            found[-1] = (found[-1][0], count + 1)
    return found


@numba.njit(cache=True)
def first_loop(x: Tokens, setting: Floats, state: Floats) -> int:
    """The number of tokens of a text before the penalty may lower anything; -1 for never."""
    if setting[ONSET] == 0:
        return 0
    runs, looped = np.zeros(MOST_WINDOW + 1, np.int32), np.zeros(len(x), np.bool_)
    for count in range(1, len(x)):
        advance(x[:count], runs, looped, setting, state)
        if may_lower(state, setting):
            return count
    return -1
