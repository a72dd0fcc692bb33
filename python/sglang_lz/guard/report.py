"""`sglang-lz loops`: reports whether past outputs loop, and which setting would help."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from lz_penalty.fields.repetition import FIELD, KEYS, RECOMMENDED, RepetitionDetection
from sglang_lz.guard.past_outputs import TOKENS, LoopsError, Output, read, searched

PATTERNS = 10
"""The most patterns that a report lists."""
COUNTS = (
    *("outputs", "outputs_cut_short", "tokens", "outputs_with_a_loop"),
    *("outputs_that_end_in_one", "tokens_in_loops"),
)


def run(files: Sequence[str], asked: Mapping[str, Any], *, as_json: bool) -> str:
    """Report on some files, in words or as JSON.

    Args:
        files: their paths; "-" is standard input.
        asked: holds `KEYS` of `repetition_detection`; None for the recommended value.
        as_json: whether to return JSON.

    Raises:
        ValueError: a value is out of range, or a record is invalid.
        OSError: a file cannot be read.
    """
    given = {name: asked[name] for name in KEYS if asked[name] is not None}
    detection = RepetitionDetection.parse(dataclasses.asdict(RECOMMENDED) | given)
    if detection is None:
        raise LoopsError("--max-pattern-size must be above 0, got 0.")
    found = report(chain.from_iterable(map(read, files)), detection)
    return json.dumps(found, indent=1) if as_json else told(found, detection)


def report(outputs: Iterable[Output], detection: RepetitionDetection) -> dict[str, Any]:
    """Count outputs and their loops.

    Returns:
        A JSON object: the number of outputs and tokens; how many outputs a log truncated; how many
        contain a loop, and how many end in one; the tokens spent in loops (after the first copy);
        how many outputs were counted in each unit (`past_outputs.searched`), which takes the place
        of tokens; and the patterns by size and unit, each with its number of loops, the most copies
        in one of them, and where the first of them is.
    """
    found: dict[str, Any] = dict.fromkeys(COUNTS, 0) | {"counted_in": {}}
    by_size: dict[tuple[int, str], dict[str, Any]] = {}
    for output in outputs:
        unit, length, loops = searched(output, detection)
        found["outputs"] += 1
        found["counted_in"][unit] = found["counted_in"].get(unit, 0) + 1
        found["outputs_cut_short"] += unit != TOKENS and output.has_gap
        found["tokens"] += length
        found["outputs_with_a_loop"] += bool(loops)
        found["outputs_that_end_in_one"] += bool(loops) and loops[-1].end == length
        found["tokens_in_loops"] += sum(loop.repeated for loop in loops)
        for loop in loops:
            size = loop.pattern_size
            new = {"pattern_size": size, "unit": unit, "loops": 0, "copies": 0}
            pattern = by_size.setdefault((size, unit), new | {"first": output.place})
            pattern["loops"] += 1
            pattern["copies"] = max(pattern["copies"], loop.count)
    found["patterns"] = sorted(by_size.values(), key=lambda one: -one["loops"])[:PATTERNS]
    return found


def told(found: dict[str, Any], detection: RepetitionDetection) -> str:
    """A report in words, with a suggested setting."""
    outputs, tokens = found["outputs"], found["tokens"]
    lines = [f"{'outputs':<26}{outputs:>10,}"]
    for name, key, whole in (
        ("cut short in the log", "outputs_cut_short", outputs),
        ("with a loop", "outputs_with_a_loop", outputs),
        ("that end in one", "outputs_that_end_in_one", outputs),
        ("tokens", "tokens", 0),
        ("spent in loops", "tokens_in_loops", tokens),
    ):
        if key == "outputs_cut_short" and not found[key]:
            continue
        share = f"{100 * found[key] / whole:>8.2f} %" if whole else ""
        lines.append(f"{name:<26}{found[key]:>10,}{share}")
    counted = ", ".join(f"{unit} ({n:,} outputs)" for unit, n in found["counted_in"].items())
    lines.append(f"{'counted in':<26}{counted}")
    if not found["outputs_with_a_loop"]:
        return "\n".join([*lines, "", _verdict(found)])
    lines += ["", "pattern size   unit               loops   most copies   first seen in"]
    lines += [
        f"{p['pattern_size']:>12}   {p['unit']:<16}{p['loops']:>8,}{p['copies']:>14}   {p['first']}"
        for p in found["patterns"]
    ]
    setting = {k: v for k, v in dataclasses.asdict(detection).items() if v not in {0, "stop"}}
    return "\n".join(
        [
            *lines,
            "",
            'To end loops, send "lz_penalty": 0.15, "lz_onset": 3.',
            f'To stop what still loops, add "{FIELD}": {json.dumps(setting)}.',
        ]
    )


def _verdict(found: dict[str, Any]) -> str:
    """The conclusion of a report that found no loops."""
    if not found["tokens"]:
        return "The outputs are empty: they tell nothing."
    if found["outputs_cut_short"]:
        return (
            "Nothing that the log holds loops. It does not hold all: take --log-requests-level 3 "
            "for whole outputs."
        )
    return "No output loops: no penalty and no guard is needed."
