"""Scores of the samples, and what they come to: result.json."""

from __future__ import annotations

import functools
import json
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loops.answers import correct
from loops.detector import DEGENERATE_REPEATS, Repetition, longest_repetition
from loops.grid import Key
from loops.sampling import ITEMS, RUN, SAMPLES, RunError, key_of, parse_lines, write
from loops.tasks import Item
from sglang_lz.params import LZParams

RESULT, JUDGE = "result.json", "judge.jsonl"
MEASURES = (
    "share of right answers and of degenerate outputs (some unit of {unit} at least "
    f"{DEGENERATE_REPEATS} times in a row), over temperatures and penalties"
)
DRAWS = 2000
INTERVAL = (2.5, 97.5)
WORST = 12
# What is shown of a text that loops: before the loop, and of the loop.
SHOWN_BEFORE, SHOWN_LOOP = 400, 600

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
        values: each score that it has, by name; shares are 0 or 1.
    """

    key: Key
    text: str
    finish: str
    loop: Repetition
    values: dict[str, float]


def score(item: Item, sample: dict[str, Any], verdict: bool | None) -> Scored:
    """Score one sample.

    Args:
        item: what was asked.
        sample: a line of samples.jsonl.
        verdict: the judge's: whether the output is degenerate, None if there is none.
    """
    text: str = sample["text"]
    ids: Sequence[int] | None = sample["token_ids"]
    loop = longest_repetition(text if ids is None else ids)
    right = correct(item, text)
    found = {
        "accuracy": right,
        "degenerate": loop.repeats >= DEGENERATE_REPEATS,
        "judge": verdict,
        "tokens": sample["completion_tokens"],
        "rep_4_gram": rep_n_gram(text.split() if ids is None else ids, 4),
        "compression_ratio": compression_ratio(text),
    }
    values = {name: float(value) for name, value in found.items() if value is not None}
    return Scored(key_of(sample), text, str(sample["finish_reason"]), loop, values)


def rep_n_gram(tokens: Sequence[int] | Sequence[str], n: int) -> float | None:
    """The share, in [0, 1], of the n-grams of `tokens` that stood before; None if it has none."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def compression_ratio(text: str) -> float | None:
    """Bytes of the zlib-compressed text for each byte of its UTF-8; None for an empty text."""
    raw = text.encode()
    return len(zlib.compress(raw, 9)) / len(raw) if raw else None


# Over the samples of a cell


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


# Over the run


def result(
    run: dict[str, Any], items: dict[str, Item], samples: Sequence[Scored]
) -> dict[str, Any]:
    """What result.json holds.

    Args:
        run: run.json.
        items: the run's items by id.
        samples: all of them, scored.
    """
    cells: dict[tuple[str, str, float], list[Scored]] = {}
    # In the order of their keys, since they are written down in the order of their arrival.
    for sample in sorted(samples, key=lambda sample: sample.key):
        key = sample.key
        cells.setdefault((_task(key.item), key.variant, key.temperature), []).append(sample)
    found = []
    for task in dict.fromkeys(_task(item) for item in items):
        for variant in run["variants"]:
            for temperature in run["temperatures"]:
                if here := cells.get((task, variant["name"], temperature)):
                    base = cells.get((task, "none", temperature))
                    about = {
                        "task": task,
                        "variant": variant["name"],
                        "family": variant["family"],
                        "strength": variant["strength"],
                        "temperature": temperature,
                    }
                    found.append(about | cell(here, base, items))
    return {
        "measures": MEASURES.format(unit=run["unit"]),
        "command": run["command"],
        "run": run,
        "bootstrap": {"draws": DRAWS, "percentiles": INTERVAL, "over": "items"},
        "cells": found,
        "worst": worst(run, items, samples),
    }


def cell(
    samples: Sequence[Scored], base: Sequence[Scored] | None, items: dict[str, Item]
) -> dict[str, Any]:
    """What the samples of one variant at one temperature come to.

    Args:
        samples: those samples.
        base: the samples without a penalty at the same temperature; None if there are none.
        items: the run's items by id.
    """
    names = ("accuracy", "degenerate", "judge", "tokens", "rep_4_gram", "compression_ratio")
    values = {name: collect(samples, name) for name in names}
    against: dict[str, Any] | None = None
    if base is not None and base is not samples:
        against = {
            name: difference(values[name], collect(base, name))
            for name in ("accuracy", "degenerate")
        }
        against["ended_loops"] = ended_loops(samples, base)
    return {
        "items": len({sample.key.item for sample in samples}),
        "samples": len(samples),
        **{name: summary(of_name) for name, of_name in values.items()},
        "agreement": agreement(samples),
        "finish": dict(sorted(Counter(sample.finish for sample in samples).items())),
        "against_none": against,
        "groups": _split(samples, lambda sample: items[sample.key.item].group),
        "levels": _split(samples, lambda sample: items[sample.key.item].level),
    }


def ended_loops(samples: Sequence[Scored], base: Sequence[Scored]) -> dict[str, int]:
    """Of the samples that loop without a penalty: how many do not here, and are right here."""
    here = {(sample.key.item, sample.key.seed): sample for sample in samples}
    keys = [(s.key.item, s.key.seed) for s in base if s.values["degenerate"]]
    ended = [here[key] for key in keys if key in here and not here[key].values["degenerate"]]
    right = sum(sample.values.get("accuracy", 0) == 1 for sample in ended)
    return {"ended": len(ended), "right": right}


def agreement(samples: Sequence[Scored]) -> dict[str, int] | None:
    """How often detector and judge say the same; None without a verdict."""
    pairs = Counter(
        (sample.values["degenerate"] == 1, sample.values["judge"] == 1)
        for sample in samples
        if "judge" in sample.values
    )
    names = {
        "both": (True, True),
        "detector_only": (True, False),
        "judge_only": (False, True),
        "neither": (False, False),
    }
    return {name: pairs[pair] for name, pair in names.items()} if pairs else None


def _split(samples: Sequence[Scored], of: Callable[[Scored], str]) -> dict[str, Any]:
    """The two shares for each group or level, {} if the samples have none."""
    parts: dict[str, list[Scored]] = {}
    for sample in samples:
        parts.setdefault(of(sample), []).append(sample)
    return {
        name: {
            "items": len({sample.key.item for sample in part}),
            "accuracy": summary(collect(part, "accuracy")),
            "degenerate": summary(collect(part, "degenerate")),
        }
        for name, part in sorted(parts.items(), key=lambda part: (len(part[0]), part[0]))
        if name
    }


# The worst examples


def worst(
    run: dict[str, Any], items: dict[str, Item], samples: Sequence[Scored]
) -> list[dict[str, Any]]:
    """The outputs without an LZ penalty that repeat most, beside the same one with it.

    In turn one of each group of items without a penalty and under others, no item twice; at most
    `WORST`.
    """
    lz = _default_lz(run)
    order = {variant["name"]: place for place, variant in enumerate(run["variants"])}
    plain = {
        v["name"] for v in run["variants"] if not any(f.startswith("lz_") for f in v["fields"])
    }
    by_key = {sample.key: sample for sample in samples}
    queues: dict[tuple[bool, str], list[Scored]] = {}
    for sample in sorted(
        (s for s in samples if s.key.variant in plain and s.values["degenerate"]),
        key=lambda s: (-s.loop.repeats, order[s.key.variant], s.key),
    ):
        item = items[sample.key.item]
        group = item.group or _task(item.id)
        queues.setdefault((sample.key.variant != "none", group), []).append(sample)
    chosen: list[Scored] = []
    while len(chosen) < WORST and any(queues.values()):
        for place in sorted(queues):
            taken = {sample.key.item for sample in chosen}
            queues[place] = [s for s in queues[place] if s.key.item not in taken]
            if queues[place] and len(chosen) < WORST:
                chosen.append(queues[place].pop(0))
    return [
        _example(
            sample,
            items[sample.key.item],
            None if lz is None else by_key.get(sample.key._replace(variant=lz)),
        )
        for sample in chosen
    ]


def _default_lz(run: dict[str, Any]) -> str | None:
    """The name of the LZ penalty nearest to the one that users are told to start with, if any."""
    candidates = [v for v in run["variants"] if v["family"].startswith("lz") and v["strength"]]
    default = LZParams().cost

    def distance(variant: dict[str, Any]) -> tuple[bool, int, float]:
        fields = variant["fields"]
        return fields["lz_cost"] != default, len(fields), abs(variant["strength"] - 0.15)

    return min(candidates, key=distance)["name"] if candidates else None


def _example(sample: Scored, item: Item, counterpart: Scored | None) -> dict[str, Any]:
    """One of `worst`: where its loop is, in the detector's unit and in the text."""
    in_text = longest_repetition(sample.text)  # the ids say nothing of where in the text
    begin = max(0, in_text.start - SHOWN_BEFORE)
    return {
        **sample.key._asdict(),
        "prompt": item.prompt,
        "repeats": sample.loop.repeats,
        "period": sample.loop.period,
        "start": sample.loop.start,
        "unit_text": sample.text[in_text.start : in_text.start + in_text.period],
        "text": sample.text[begin : in_text.start + SHOWN_LOOP],
        "text_begin": begin,
        "text_loop": in_text.start,
        "text_length": len(sample.text),
        "correct": _correct(sample),
        "counterpart": counterpart
        and {
            "variant": counterpart.key.variant,
            "text": counterpart.text[: SHOWN_BEFORE + SHOWN_LOOP],
            "text_length": len(counterpart.text),
            "repeats": counterpart.loop.repeats,
            "correct": _correct(counterpart),
        },
    }


def _correct(sample: Scored) -> bool | None:
    return bool(sample.values["accuracy"]) if "accuracy" in sample.values else None


def _task(item: str) -> str:
    return item.split("/", 1)[0]


# On disk


def load(directory: Path) -> tuple[dict[str, Any], dict[str, Item], list[Scored]]:
    """Read a run directory: run.json, the items by id, and the samples with their scores.

    Raises:
        OSError: it holds no run.
        RunError: a file is damaged.
    """
    run = json.loads((directory / RUN).read_text())
    try:
        items = {item.id: item for item in (Item(**line) for line in _lines(directory / ITEMS))}
        verdicts = {key_of(line): line["verdict"] for line in _lines(directory / JUDGE)}
        samples = [
            score(items[line["item"]], line, verdicts.get(key_of(line)))
            for line in _lines(directory / SAMPLES)
        ]
    except (LookupError, TypeError) as error:
        raise RunError(f"{directory} is damaged: {type(error).__name__}: {error}") from None
    if len({sample.key for sample in samples}) < len(samples):
        raise RunError(f"{directory / SAMPLES} has a sample twice.")
    return run, items, samples


def write_result(directory: Path) -> dict[str, Any]:
    """Score a run directory and write its result.json; the same samples give the same bytes.

    Raises:
        OSError: it holds no run.
        RunError: a file is damaged.
    """
    found = result(*load(directory))
    write(directory / RESULT, json.dumps(found, indent=1) + "\n")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return parse_lines(path.read_bytes(), path) if path.exists() else []
