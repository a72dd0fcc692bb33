"""The result of a run: result.json, from its samples."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import records
from bench.models.detector import DEGENERATE_REPEATS
from bench.models.items import Item, task_of
from bench.models.run_directory import ITEMS, RESULT, RUN, SAMPLES
from bench.models.scores import DRAWS, INTERVAL, Scored, collect, difference, score, summary
from bench.records import RecordError

MEASURES = (
    "share of right answers and of degenerate outputs (some unit of {unit} at least "
    f"{DEGENERATE_REPEATS} times in a row), over temperatures and penalties"
)


def result(
    run: dict[str, Any], items: dict[str, Item], samples: Sequence[Scored]
) -> dict[str, Any]:
    """The content of result.json.

    Args:
        run: run.json.
        items: the run's items by id.
        samples: all of them, scored.
    """
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
                        "task": task,
                        "variant": variant["name"],
                        "temperature": temperature,
                    }
                    found.append(about | cell(here, base, items))
    return {
        "measures": MEASURES.format(unit=run["unit"]),
        "command": run["command"],
        "run": run,
        "bootstrap": {"draws": DRAWS, "percentiles": INTERVAL, "over": "items"},
        "cells": found,
    }


def cell(
    samples: Sequence[Scored], base: Sequence[Scored] | None, items: dict[str, Item]
) -> dict[str, Any]:
    """The scores of the samples of one variant at one temperature.

    Args:
        samples: those samples.
        base: the samples without a penalty at the same temperature; None if there are none.
        items: the run's items by id.
    """
    names = ("accuracy", "degenerate", "tokens", "rep_4_gram", "compression_ratio")
    values = {name: collect(samples, name) for name in names}
    against: dict[str, Any] | None = None
    if base is not None and base is not samples:
        against = {
            name: difference(values[name], collect(base, name))
            for name in ("accuracy", "degenerate")
        }
        against["ended_loops"] = ended_loops(samples, base)
        against["unchanged"] = unchanged(samples, base)
    return {
        "items": len({sample.key.item for sample in samples}),
        "samples": len(samples),
        **{name: summary(of_name) for name, of_name in values.items()},
        "loops": loops(samples),
        "finish": dict(sorted(Counter(sample.finish for sample in samples).items())),
        "against_none": against,
        "groups": {
            name: {**_part(part, *names[:2], *names[3:]), "loops": loops(part)}
            for name, part in _split(samples, items)
        },
    }


def ended_loops(samples: Sequence[Scored], base: Sequence[Scored]) -> dict[str, int]:
    """Of the samples that loop without a penalty: how many do not here, and are right here."""
    here = {(sample.key.item, sample.key.seed): sample for sample in samples}
    keys = [(s.key.item, s.key.seed) for s in base if s.values["degenerate"]]
    ended = [here[key] for key in keys if key in here and not here[key].values["degenerate"]]
    right = sum(sample.values.get("accuracy", 0) == 1 for sample in ended)
    return {"ended": len(ended), "right": right}


def unchanged(samples: Sequence[Scored], base: Sequence[Scored]) -> int:
    """How many of the samples say what the one without a penalty says, of their item and seed."""
    texts = {(sample.key.item, sample.key.seed): sample.text for sample in base}
    return sum(texts.get((s.key.item, s.key.seed)) == s.text for s in samples)


def loops(samples: Sequence[Scored]) -> dict[str, int]:
    """The most copies in a row in any of these outputs, and those cut off inside a loop.

    most_copies and its period; cut_off: how many outputs ran to their token limit inside a loop
    (`detector.final_loop`); longest_period: the longest of those loops' periods, 0 without any.
    """
    worst = max((sample.loop for sample in samples), key=lambda loop: loop.repeats)
    ends = [sample.cut_off for sample in samples if sample.cut_off]
    return {
        "most_copies": worst.repeats,
        "period": worst.period,
        "cut_off": len(ends),
        "longest_period": max((loop.period for loop in ends), default=0),
    }


def _split(samples: Sequence[Scored], items: dict[str, Item]) -> list[tuple[str, list[Scored]]]:
    """The samples by their items' group, in order; nothing if they have none."""
    parts: dict[str, list[Scored]] = {}
    for sample in samples:
        parts.setdefault(items[sample.key.item].group, []).append(sample)
    parts.pop("", None)
    return sorted(parts.items())


def _part(samples: Sequence[Scored], *names: str) -> dict[str, Any]:
    """Some scores of a part of the samples."""
    return {
        "items": len({sample.key.item for sample in samples}),
        **{name: summary(collect(samples, name)) for name in names},
    }


def load(directory: Path) -> tuple[dict[str, Any], dict[str, Item], list[Scored]]:
    """Read a run directory: run.json, the items by id, and the samples with their scores.

    Raises:
        OSError: it holds no run.
        RecordError: a file is damaged.
    """
    run = json.loads((directory / RUN).read_text())
    try:
        items = {item.id: item for item in (Item(**line) for line in _lines(directory / ITEMS))}
        samples = [score(items[line["item"]], line) for line in _lines(directory / SAMPLES)]
    except (LookupError, TypeError) as error:
        raise RecordError(f"{directory} is damaged: {type(error).__name__}: {error}") from None
    if len({sample.key for sample in samples}) < len(samples):
        raise RecordError(f"{directory / SAMPLES} has a sample twice.")
    return run, items, samples


def write_result(directory: Path) -> dict[str, Any]:
    """Score a run directory and write its result.json; the same samples give the same bytes.

    Raises:
        OSError: it holds no run.
        RecordError: a file is damaged.
    """
    found = result(*load(directory))
    records.write(directory / RESULT, json.dumps(found, indent=1) + "\n")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return records.read_lines(path) if path.exists() else []
