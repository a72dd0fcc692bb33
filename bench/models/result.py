"""The result of a run: result.json, from its samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from bench import common, records
from bench.models.answers import judge
from bench.models.grid import Grid, Item, Key, Variant, task_of
from bench.models.run_directory import ITEMS, RESULT, RUN, SAMPLES
from bench.models.scores import DRAWS, INTERVAL, SCORES, Scored, collect, difference, score, summary
from bench.records import RecordError


def result(
    run: dict[str, Any], items: Mapping[str, Item], samples: Sequence[Scored]
) -> dict[str, Any]:
    """The content of result.json.

    Of a run that was stopped, only what precedes the first missing sample counts, at each
    temperature: variants are compared on the same items, and long outputs are not left out.

    Args:
        run: run.json.
        items: the run's items by id.
        samples: all of them, scored.
    """
    variants = [Variant(**variant) for variant in run["variants"]]
    wanted = list(Grid(variants, run["temperatures"], run["seeds"]).keys(list(items.values())))
    done, counting = {sample.key for sample in samples}, set[Key]()
    for temperature in run["temperatures"]:
        of_temperature = (key for key in wanted if key.temperature == temperature)
        first = list(takewhile(done.__contains__, of_temperature))
        counting.update(first[: len(first) // len(variants) * len(variants)])
    samples = [sample for sample in samples if sample.key in counting]
    cells: dict[tuple[str, str, float], list[Scored]] = {}
    # In the order of their keys, since they are written down in the order of their arrival.
    for sample in sorted(samples, key=lambda sample: sample.key):
        key = sample.key
        cells.setdefault((task_of(key.item), key.variant, key.temperature), []).append(sample)
    found = []
    for task in dict.fromkeys(task_of(item) for item in items):
        for variant in run["variants"]:
            for temperature in run["temperatures"]:
                if here := cells.get((task, variant["name"], temperature)):
                    base = cells.get((task, "none", temperature))
                    about = {
                        "model": run["endpoint_model"],
                        "task": task,
                        "variant": variant["name"],
                        "temperature": temperature,
                    }
                    found.append(about | cell(here, base, items))
    return {
        "command": run["command"],
        "run": run,
        "bootstrap": {"draws": DRAWS, "percentiles": INTERVAL, "over": "items"},
        "cells": found,
    }


def cell(
    samples: Sequence[Scored], base: Sequence[Scored] | None, items: Mapping[str, Item]
) -> dict[str, Any]:
    """The scores of the samples of one variant at one temperature.

    Args:
        samples: those samples.
        base: the samples without a penalty at the same temperature; None if there are none.
        items: the run's items by id.
    """
    against: dict[str, Any] | None = None
    if base is not None and base is not samples:
        against = {name: difference(collect(samples, name), collect(base, name)) for name in SCORES}
        against = {name: delta for name, delta in against.items() if delta}
        against["ended_loops"] = ended_loops(samples, base)
        against["unchanged"] = unchanged(samples, base)
    parts: dict[str, list[Scored]] = {}
    for sample in samples:
        parts.setdefault(items[sample.key.item].group, []).append(sample)
    parts.pop("", None)
    return {
        "items": len({sample.key.item for sample in samples}),
        "samples": len(samples),
        **_summaries(samples),
        "most_copies": max(sample.copies for sample in samples),
        "finish": dict(sorted(Counter(sample.finish for sample in samples).items())),
        "against_none": against,
        "groups": {
            name: {
                "items": len({sample.key.item for sample in part}),
                **{score: found["mean"] for score, found in _summaries(part).items()},
                "most_copies": max(sample.copies for sample in part),
            }
            for name, part in sorted(parts.items())
        },
    }


def _summaries(samples: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """The scores that these samples have."""
    found = {name: summary(collect(samples, name)) for name in SCORES}
    return {name: of_name for name, of_name in found.items() if of_name}


def ended_loops(samples: Sequence[Scored], base: Sequence[Scored]) -> dict[str, int]:
    """Of the samples that loop without a penalty: how many do not here, and are right here."""
    here = {(sample.key.item, sample.key.seed): sample for sample in samples}
    keys = [(s.key.item, s.key.seed) for s in base if s.values["degenerate"]]
    ended = [here[key] for key in keys if key in here and not here[key].values["degenerate"]]
    right = sum(sample.values.get("accuracy", 0) == 1 for sample in ended)
    return {"ended": len(ended), "right": right}


def unchanged(samples: Sequence[Scored], base: Sequence[Scored]) -> dict[str, Any] | None:
    """The share that says what the sample without a penalty says, of the same item and seed."""
    texts = {(sample.key.item, sample.key.seed): sample.text for sample in base}
    values: dict[str, dict[int, float]] = {}
    for sample in samples:
        item, seed = sample.key.item, sample.key.seed
        if (item, seed) in texts:
            values.setdefault(item, {})[seed] = float(texts[item, seed] == sample.text)
    return summary(values)


def load(directory: Path) -> tuple[dict[str, Any], dict[str, Item], list[Scored]]:
    """Read a run directory: run.json, the items by id, and the samples with their scores.

    Answers that nobody has judged yet are judged, which runs programs in a sandbox.

    Raises:
        OSError: it holds no run.
        RecordError: a file is damaged.
        SandboxError: a program must be run, and this machine has no sandbox.
        ValueError: reasoning-gym is needed and missing.
    """
    run = json.loads((directory / RUN).read_text())
    try:
        items = {item.id: item for item in (Item(**line) for line in _lines(directory / ITEMS))}
        lines = _lines(directory / SAMPLES)
        asked = [(items[line["item"]], line["text"]) for line in lines]
        samples = [
            score(line, right, code="function" in item.check)
            for line, (item, _), right in zip(lines, asked, judge(directory, asked), strict=True)
        ]
    except (LookupError, TypeError) as error:
        raise RecordError(f"{directory} is damaged: {type(error).__name__}: {error}") from None
    if len({sample.key for sample in samples}) < len(samples):
        raise RecordError(f"{directory / SAMPLES} has a sample twice.")
    return run, items, samples


def write_result(directory: Path) -> dict[str, Any]:
    """Score a run directory and write its result.json; the same samples give the same bytes.

    Raises what `load` raises.
    """
    found = result(*load(directory))
    common.write_result(directory / RESULT, found)
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return records.read_lines(path) if path.exists() else []
