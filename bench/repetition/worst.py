"""The worst examples of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.repetition.detector import longest_repetition
from bench.repetition.items import Item, task_of
from bench.repetition.scores import Scored
from sglang_lz.params import LZParams

WORST = 12
# How many characters of a looping text are shown: before its loop, and from it.
SHOWN_BEFORE, SHOWN_LOOP = 400, 600


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
        group = item.group or task_of(item.id)
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
