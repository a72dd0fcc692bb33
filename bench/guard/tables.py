"""The tables of the documents about the loop guard, from the committed results."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from bench.common import RESULTS
from bench.guard import cost, outputs
from sglang_lz.fields.repetition import RECOMMENDED

MODELS = ("pocket", "demo", "code", "prose")


def load(name: str) -> Any:
    """A committed result of `python -m bench.guard`."""
    return json.loads((RESULTS / "guard" / f"{name}.json").read_text())


def step() -> str:
    """What the detector costs a step with the recommended number of copies."""
    found = load("cost")
    rows = [row for row in found["table"] if row["min_count"] == RECOMMENDED.min_count]
    return cost.table(found | {"table": rows}) + "\n"


def observed() -> str:
    """How long it takes to search one whole output, as `--lz-observe-loops` does."""
    found = load("cost")
    lines = [f"| an output of {found['scanned_tokens']:,} tokens | ms |", "|---|---|"]
    lines += [f"| {kind} | {ms:.1f} |" for kind, ms in found["scan_milliseconds"].items()]
    return "\n".join(lines) + "\n"


def alarms() -> str:
    """Correct texts that the recommended setting stops, for both tokenizers together."""
    found = load("alarms")
    column = found["columns"].index(str(RECOMMENDED.min_count))
    patterns: dict[str, dict[str, None]] = defaultdict(dict)
    for _, kind, _, _, _, pattern in found["alarms"]:
        patterns[kind][f"`{pattern.replace(chr(10), chr(92) + 'n')}`".replace("|", r"\|")] = None
    lines = ["| kind | texts | stopped | their patterns |", "|---|---|---|---|"]
    for rows in zip(*found["stopped"].values(), strict=True):
        kind = rows[0][0]
        texts, stopped = (sum(row[i] for row in rows) for i in (1, column))
        lines.append(f"| {kind} | {texts} | {stopped} | {', '.join(patterns[kind])} |")
    return "\n".join(lines) + "\n"


def models() -> str:
    """What the guard and the penalty do with the outputs of each model."""
    return "\n\n".join(outputs.table(load(name)) for name in MODELS) + "\n"
