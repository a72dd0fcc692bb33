"""The tables of the documents about the loop guard, from the committed results."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from bench.common import RESULTS
from bench.guard import cost, outputs
from sglang_lz.fields.repetition import RECOMMENDED

MODELS = ("pocket", "demo", "code", "prose")
CLIENTS = RESULTS / "guard" / "clients.json"
"""What clients make of a loop, by `--lz-loop-finish-reason`; tests/server/test_clients.py."""
BY_CHOICE = ("repetition", "length")
"""The settings that can be recommended, the better one first; `stop` calls a loop a success."""
SUCCESSES = ("stop", "end_turn", "stop_sequence", "completed", "tool_calls", "tool_use")
"""The reasons that programs take for a complete answer."""


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


def clients(found: Any = None) -> str:
    """What clients make of a loop with each setting, and which setting suits them.

    Args:
        found: the result; the committed one if None.
    """
    found = found or load("clients")
    lines = [
        "| client | request | `repetition` | `length` | `stop` | `repetition_detected` | set |",
        "|---" * 7 + "|",
    ]
    for rows in zip(*(found[setting] for setting in (*BY_CHOICE, "stop")), strict=True):
        choices = [*zip(BY_CHOICE, rows, strict=False)]
        suits = [
            f"`{setting}`{after}"
            for misleads, after in ((_misleads, ""), (_looks_complete, ", and check it"))
            for setting, row in choices
            if not any(misleads(row[way]) for way in ("plain", "stream") if row[way])
        ]
        cells = [rows[0]["client"], rows[0]["request"], *map(_both, rows)]
        named = {
            way: all(row["named"][i] for row in rows)
            for i, way in enumerate(("plain", "stream"))
            if rows[0][way]
        }
        if len(set(named.values())) == 1:
            cells.append("yes" if all(named.values()) else "no")
        else:
            cells.append(f"{next(way for way, is_named in named.items() if is_named)} only")
        lines.append(f"| {' | '.join([*cells, suits[0] if suits else 'none helps'])} |")
    return "\n".join(lines) + "\n"


def _both(row: Any) -> str:
    """A cell: what a client shows plain and in a stream."""
    shown = [
        f"**{said}**" if said and _misleads(said) else said
        for said in (row["plain"], row["stream"])
    ]
    plain, stream = shown
    if None in shown or plain == stream:
        return plain or stream or ""
    return f"{plain}; stream: {stream}"


def _looks_complete(said: str) -> bool:
    """Whether a program takes this for a complete answer, or the client asks again."""
    reason = said.split("`")[1]
    is_retried = " after " in said and not said.endswith("after 1 request")
    return reason in SUCCESSES or said.startswith("gives") or is_retried


def _misleads(said: str) -> bool:
    """Whether it looks complete, or has a call of a tool that the model did not complete."""
    return _looks_complete(said) or "a complete call" in said
