"""Scores of the samples and their statistics."""

from __future__ import annotations

import functools
import re
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.models.answers import code_of
from bench.models.detector import DEGENERATE_REPEATS, final_loop, longest_repetition
from bench.models.grid import Key
from bench.models.run_directory import key_of

DRAWS = 2000
INTERVAL = (2.5, 97.5)
NEWEST, COPIED = 400, 0.7
"""Near-copies: more than this share of so many tokens."""
LINE_CHARACTERS, TEMPLATE = 8, 0.5
"""A template: more than this share of the lines that are as long as that."""
SIMILAR = 0.8

SHARES = ("accuracy", "degenerate", "final_loop", "near_copies", "template", "cut_off")
SCORES = (
    *SHARES,
    *("copied", "templated", "rep_4_gram", "compression_ratio", "tokens"),
    *("rep_3", "rep_line", "sim_line"),
)
"""All scores; of a share, each sample is 0 or 1."""

Values = dict[str, dict[int, float]]
"""One score of a cell's samples: by item, then by seed. Samples without that score are left out."""


@dataclass(frozen=True)
class Scored:
    """One sample and its scores.

    Attributes:
        key: which it is.
        text: the output.
        finish: why it ended.
        copies: the most copies in a row of anything in it.
        values: each score that it has, by name.
    """

    key: Key
    text: str
    finish: str
    copies: int
    values: dict[str, float]


def score(sample: dict[str, Any], right: bool | None, *, code: bool) -> Scored:
    """Score one sample.

    Args:
        sample: a line of samples.jsonl.
        right: whether its answer is right, if that is known.
        code: whether it is to be code.
    """
    text: str = sample["text"]
    ids: Sequence[int] | None = sample["token_ids"]
    symbols = text if ids is None else ids
    tokens = text.split() if ids is None else ids
    copies = longest_repetition(symbols).repeats
    finish = str(sample["finish_reason"])
    near, alike = copied(tokens), templated(text)
    found = {
        "accuracy": right,
        "degenerate": copies >= DEGENERATE_REPEATS,
        "final_loop": final_loop(symbols) is not None,
        "near_copies": near > COPIED,
        "template": alike > TEMPLATE,
        "cut_off": finish == "length",
        "copied": near,
        "templated": alike,
        "rep_4_gram": rep_n_gram(tokens, 4),
        "compression_ratio": compression_ratio(text),
        "tokens": sample["completion_tokens"],
        **(repetition_of_code(code_of(text)) if code else {}),
    }
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Scored(key_of(sample), text, finish, copies, values)


def rep_n_gram(tokens: Sequence[int] | Sequence[str], n: int) -> float | None:
    """The share, in [0, 1], of the n-grams of `tokens` that stood before; None if it has none."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def copied(tokens: Sequence[int] | Sequence[str]) -> float:
    """Of the newest 400 tokens, the share that ends an 8-gram which stood before; 0 without one."""
    seen: set[tuple[object, ...]] = set()
    before = []
    for end in range(8, len(tokens) + 1):
        gram = tuple(tokens[end - 8 : end])
        before.append(gram in seen)
        seen.add(gram)
    newest = before[-NEWEST:]
    return sum(newest) / len(newest) if newest else 0.0


def templated(text: str) -> float:
    """The share of the lines that were there three times before, but for their numbers.

    White space and case make no difference, and lines of fewer than 8 characters do not count. 0
    without a line.
    """
    forms = (
        " ".join(re.sub(r"\d+(\.\d+)?", "0", line).lower().split()) for line in text.split("\n")
    )
    seen: Counter[str] = Counter()
    again = 0
    for form in forms:
        if len(form) >= LINE_CHARACTERS:
            again += seen[form] >= 3
            seen[form] += 1
    return again / seen.total() if seen else 0.0


def compression_ratio(text: str) -> float | None:
    """Bytes of the zlib-compressed text for each byte of its UTF-8; None for an empty text."""
    raw = text.encode()
    return len(zlib.compress(raw, 9)) / len(raw) if raw else None


def repetition_of_code(code: str) -> dict[str, float | None]:
    """The metrics of arXiv 2504.12608, as shares: rep-3, rep-line and sim-line.

    A token is a word or another character that is no white space; a line has a token. Lines are
    similar if their edit distance in tokens is less than a fifth of the longer one's tokens. A
    line joins the first earlier set whose first line is similar to it. None without code.
    """
    lines = [tuple(re.findall(r"\w+|[^\w\s]", line)) for line in code.splitlines()]
    lines = list(filter(None, lines))
    if not lines:
        return {"rep_3": None, "rep_line": None, "sim_line": None}
    distinct = dict.fromkeys(lines)
    sets: list[tuple[str, ...]] = []
    for line in distinct:
        if not any(_similar(line, first) for first in sets):
            sets.append(line)
    return {
        "rep_3": rep_n_gram([token for line in lines for token in line], 3),
        "rep_line": 1 - len(distinct) / len(lines),
        "sim_line": 1 - len(sets) / len(lines),
    }


def _similar(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether the edit distance over the longer length is less than 1 - `SIMILAR`."""
    longer = max(len(one), len(other))
    most = int(np.ceil(longer * (1 - SIMILAR) - 1e-9)) - 1
    if longer - (Counter(one) & Counter(other)).total() > most:
        return False
    row = list(range(len(other) + 1))
    for i, token in enumerate(one, 1):
        before, row[0] = row[0], i
        for j, its in enumerate(other, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (token != its))
    return row[-1] <= most


def collect(samples: Sequence[Scored], name: str) -> Values:
    """One score of these samples, by item and seed."""
    values: Values = {}
    for sample in samples:
        if name in sample.values:
            values.setdefault(sample.key.item, {})[sample.key.seed] = sample.values[name]
    return values


def summary(values: Values) -> dict[str, Any] | None:
    """Mean and bootstrap interval; None without a value.

    An item counts once, by the mean of its seeds. The interval is over items: how much other
    problems of the same kind would move the figure. Where a share is none or all, a bootstrap
    knows no other, and the interval is the exact one (Clopper & Pearson 1934).
    """
    if not values:
        return None
    items = _item_means(values)
    mean = float(items.mean())
    if mean in (0, 1) and (items == mean).all():
        most = 1 - (INTERVAL[0] / 100) ** (1 / len(items))
        return {
            "mean": mean,
            "ci": [0.0, _rounded(most)] if mean == 0 else [_rounded(1 - most), 1.0],
        }
    return {"mean": _rounded(mean), "ci": bootstrap(items)}


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
