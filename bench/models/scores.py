"""Scores of the samples and their statistics."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.models.answers import correct
from bench.models.detector import (
    DEGENERATE_REPEATS,
    Repetition,
    final_loop,
    longest_repetition,
)
from bench.models.grid import Key
from bench.models.items import Item
from bench.models.run_directory import key_of

DRAWS = 2000
INTERVAL = (2.5, 97.5)

Values = dict[str, dict[int, float]]
"""One score of a cell's samples: by item, then by seed. Samples without that score are left out."""


@dataclass(frozen=True)
class Scored:
    """One sample and its scores.

    Attributes:
        key: which it is.
        text: the output.
        finish: why it ended.
        loop: the longest repetition in it, of token ids or characters.
        cut_off: the loop in which it ran to its token limit, None if it did not.
        values: each score that it has, by name; shares are 0 or 1.
    """

    key: Key
    text: str
    finish: str
    loop: Repetition
    cut_off: Repetition | None
    values: dict[str, float]


def score(item: Item, sample: dict[str, Any]) -> Scored:
    """Score one sample.

    Args:
        item: what was asked.
        sample: a line of samples.jsonl.
    """
    text: str = sample["text"]
    ids: Sequence[int] | None = sample["token_ids"]
    symbols = text if ids is None else ids
    loop = longest_repetition(symbols)
    finish = str(sample["finish_reason"])
    cut_off = final_loop(symbols) if finish == "length" else None
    right = correct(item, text)
    found = {
        "accuracy": right,
        "degenerate": loop.repeats >= DEGENERATE_REPEATS,
        "tokens": sample["completion_tokens"],
        "rep_4_gram": rep_n_gram(text.split() if ids is None else ids, 4),
        "compression_ratio": compression_ratio(text),
    }
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Scored(key_of(sample), text, finish, loop, cut_off, values)


def rep_n_gram(tokens: Sequence[int] | Sequence[str], n: int) -> float | None:
    """The share, in [0, 1], of the n-grams of `tokens` that stood before; None if it has none."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def compression_ratio(text: str) -> float | None:
    """Bytes of the zlib-compressed text for each byte of its UTF-8; None for an empty text."""
    raw = text.encode()
    return len(zlib.compress(raw, 9)) / len(raw) if raw else None


def collect(samples: Sequence[Scored], name: str) -> Values:
    """One score of these samples, by item and seed."""
    values: Values = {}
    for sample in samples:
        if name in sample.values:
            values.setdefault(sample.key.item, {})[sample.key.seed] = sample.values[name]
    return values


def summary(values: Values) -> dict[str, Any] | None:
    """Mean, standard deviation over seeds and bootstrap interval; None without a value.

    An item counts once, by the mean of its seeds. The standard deviation is that of the seeds'
    means (n - 1 in the denominator; None with one seed): how much another seed would move the
    figure. The interval is over items: how much other problems of the same kind would.
    """
    if not values:
        return None
    items = _item_means(values)
    by_seed: dict[int, list[float]] = {}
    for seeds in values.values():
        for seed, value in seeds.items():
            by_seed.setdefault(seed, []).append(value)
    means = [float(np.mean(of_seed)) for of_seed in by_seed.values()]
    std = float(np.std(means, ddof=1)) if len(means) > 1 else None
    return {
        "mean": _rounded(float(items.mean())),
        "std": None if std is None else _rounded(std),
        "ci": bootstrap(items),
    }


def difference(values: Values, base: Values) -> dict[str, Any] | None:
    """How much higher a score is than in another cell, paired by item; None without a pair."""
    both = [item for item in values if item in base]
    if not both:
        return None
    delta = _item_means({item: values[item] for item in both}) - _item_means(
        {item: base[item] for item in both}
    )
    return {"mean": _rounded(float(delta.mean())), "ci": bootstrap(delta)}


def bootstrap(means: NDArray[np.float64]) -> list[float]:
    """The 95 % percentile interval of the mean of these items' values, float64 [items].

    Items are drawn with replacement, `DRAWS` times, all seeds of an item together. The same draws
    for every score of as many items, whatever was asked before.
    """
    low, high = np.percentile(_drawn_shares(len(means)) @ means, INTERVAL)
    return [_rounded(float(low)), _rounded(float(high))]


@functools.cache
def _drawn_shares(items: int) -> NDArray[np.float64]:
    """Which share of a draw each item is, float64 [DRAWS, items]."""
    drawn = np.random.default_rng(0).multinomial(items, np.full(items, 1 / items), size=DRAWS)
    return drawn / items


def _item_means(values: Values) -> NDArray[np.float64]:
    return np.array([np.mean(list(seeds.values())) for seeds in values.values()])


def _rounded(value: float) -> float:
    return round(value, 4) + 0.0  # never -0.0
