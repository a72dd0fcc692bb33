"""docs/SPEC.md section 9 with its constants as variables, compiled, apart from the product.

All that is compiled with it stands here: numba does not notice a change in another file. With the
defaults of `Setting` it is the product's rule (tests/unit/test_bench_onset.py). Only the
`marginal` cost is here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

WINDOW, BUFFER = 512, 32
LOG2 = np.log2(np.arange(WINDOW + 2).clip(1))

Tokens = NDArray[np.int32]
Floats = NDArray[np.float64]


class Setting(NamedTuple):
    """The constants of a penalty, by default the shipped ones; in the order of `table`'s columns.

    Attributes:
        alpha: strength, nats per bit.
        onset: n, copies beside the first; 0 for always on.
        shortest: a run of fewer tokens is no loop,
        times: unless it has so many copies beside the first.
        growth: how many alphas each copy after the n-th adds.
        half_life: tokens after the last loop in which the strength elsewhere falls by half: inf
            keeps it for good, 0 presses only on what goes on with a loop, while it lasts.
        forget: tokens after the last loop from which on nothing is lowered.
        looped: whether, elsewhere, only tokens that stood in a loop are lowered.
        growing: as `shortest`, for what grows once the onset is reached; 0 for the same.
    """

    alpha: float = 0.15
    onset: float = 2
    shortest: float = 16
    times: float = math.inf
    growth: float = 1
    half_life: float = math.inf
    forget: float = math.inf
    looped: float = 0
    growing: float = 0


ALPHA, ONSET, SHORTEST, TIMES, GROWTH, HALF_LIFE, FORGET, LOOPED, GROWING = range(
    len(Setting._fields)
)


def table(settings: Sequence[Setting]) -> Floats:
    """The settings as float64 [settings, fields], for the compiled functions."""
    return np.array(settings, dtype=np.float64).reshape(len(settings), len(Setting._fields))


@numba.njit(cache=True)
def advance(x: Tokens, runs: Tokens) -> None:
    """Bring `runs`, int32 [WINDOW + 1], from all but the newest token of `x` up to date."""
    newest = len(x) - 1
    for period in range(1, min(WINDOW, len(x))):
        runs[period] = runs[period] + 1 if x[newest] == x[newest - period] else 0


@numba.njit(cache=True)
def loop(runs: Tokens, setting: Floats) -> int:
    """The smallest period whose run is a loop, 0 without."""
    for period in range(1, WINDOW):
        run = runs[period]
        if run >= setting[ONSET] * period and run >= _shortest(setting, period):
            return period
    return 0


@numba.njit(cache=True)
def remember(x: Tokens, runs: Tokens, setting: Floats, since: int, seen: NDArray[np.bool_]) -> int:
    """Return the tokens since the last loop, -1 before the first; mark those of one in `seen`."""
    period = loop(runs, setting)
    if period:
        if setting[LOOPED]:
            for token in x[len(x) - period :]:
                seen[token] = True
        return 0
    return since + 1 if since >= 0 else -1


@numba.njit(cache=True)
def lower(
    x: Tokens, runs: Tokens, setting: Floats, since: int, seen: NDArray[np.bool_], out: Floats
) -> None:
    """Write to `out`, float64 [V], by how much each token in the window is lowered; 0 before."""
    length = min(len(x), WINDOW)
    always = setting[ONSET] == 0
    strength = 1.0 if always else _strength(setting, since)
    literal = np.log2(len(out))
    longest, nearest = 0, 1
    for period in range(1, length):
        match = min(runs[period], BUFFER, length - period)
        if match > longest:
            longest, nearest = match, period + 1
    gained = LOG2[longest + 1] - LOG2[max(longest, 1)] - LOG2[nearest] - 1
    for distance in range(1, length + 1):
        token = x[len(x) - distance]
        run = runs[distance] if distance < WINDOW else 0
        factor = strength if not setting[LOOPED] or seen[token] else 0.0
        if run >= (setting[GROWING] or _shortest(setting, distance)) and not always:
            copies = run // distance
            if copies >= setting[ONSET]:
                factor = max(factor, 1 + setting[GROWTH] * (copies - setting[ONSET]))
        cost = LOG2[distance]
        if longest >= 1 and min(run, BUFFER, length - distance) == longest:
            cost += gained
        out[token] = max(out[token], setting[ALPHA] * factor * max(literal - cost, 0.0))


@numba.njit(cache=True)
def _shortest(setting: Floats, period: int) -> float:
    return min(setting[SHORTEST], setting[TIMES] * period)


@numba.njit(cache=True)
def _strength(setting: Floats, since: int) -> float:
    if since < 0 or since >= setting[FORGET] or setting[HALF_LIFE] == 0:
        return 0.0
    return 0.5 ** (since / setting[HALF_LIFE])


@numba.njit(cache=True)
def harm(x: Tokens, vocab_size: int, setting: Floats) -> tuple[int, float, int, int]:
    """Run a penalty teacher-forced over a text that is right.

    Args:
        x: its tokens.
        vocab_size: V.
        setting: a row of `table`.

    Returns:
        Positions where the true next token is lowered; by how much in all, in nats; the position
        where the first loop stood, -1 without; and its period.
    """
    runs = np.zeros(WINDOW + 1, np.int32)
    seen, out = np.zeros(vocab_size, np.bool_), np.zeros(vocab_size)
    since, lowered, nats, first, period = -1, 0, 0.0, -1, 0
    for count in range(1, len(x)):
        history = x[:count]
        advance(history, runs)
        since = remember(history, runs, setting, since, seen)
        if since == 0 and first < 0:
            first, period = count, loop(runs, setting)
        if since < 0 and setting[ONSET]:
            continue
        lower(history, runs, setting, since, seen, out)
        if out[x[count]] > 0:
            lowered += 1
            nats += out[x[count]]
        for token in history[max(count - WINDOW, 0) :]:
            out[token] = 0
    return lowered, nats, first, period


@numba.njit(cache=True)
def lower_rows(
    logits: NDArray[np.float32],
    histories: Tokens,
    counts: Tokens,
    runs: Tokens,
    settings: Floats,
    since: Tokens,
    seen: NDArray[np.bool_],
) -> None:
    """Bring each row up to date with the newest token of its history, and lower its logits.

    Args:
        logits: float32 [rows, V].
        histories: the visible tokens of each row, oldest first, int32 [rows, most].
        counts: how many each has, int32 [rows].
        runs: int32 [rows, WINDOW + 1].
        settings: a row of `table` for each row.
        since: as `remember` returns it, int32 [rows].
        seen: bool [rows, V].
    """
    out = np.zeros(logits.shape[1])
    for row in range(len(logits)):
        x = histories[row, : counts[row]]
        if len(x) == 0 or settings[row, ALPHA] == 0:
            continue
        advance(x, runs[row])
        since[row] = remember(x, runs[row], settings[row], since[row], seen[row])
        if since[row] >= 0 or settings[row, ONSET] == 0:
            lower(x, runs[row], settings[row], since[row], seen[row], out)
            for token in x[max(len(x) - WINDOW, 0) :]:
                logits[row, token] -= np.float32(out[token])
                out[token] = 0


@numba.njit(cache=True)
def replay(
    histories: Tokens,
    counts: Tokens,
    runs: Tokens,
    settings: Floats,
    since: Tokens,
    seen: NDArray[np.bool_],
) -> None:
    """Bring the rows' state up to all but the newest of their known tokens."""
    for row in range(len(counts)):
        for count in range(1, counts[row]):
            x = histories[row, :count]
            advance(x, runs[row])
            since[row] = remember(x, runs[row], settings[row], since[row], seen[row])


@numba.njit(cache=True)
def first_loop(x: Tokens, setting: Floats) -> int:
    """The number of tokens of a text before the penalty may lower anything; -1 for never."""
    if setting[ONSET] == 0:
        return 0
    runs = np.zeros(WINDOW + 1, np.int32)
    for count in range(1, len(x)):
        advance(x[:count], runs)
        if loop(runs, setting):
            return count
    return -1
