"""The table of what clients make of a loop, from the committed result of test_clients.py."""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS

CLIENTS = RESULTS / "clients.json"
"""By `--lz-loop-finish-reason`."""
BY_CHOICE = ("repetition", "length")
"""The settings that can be recommended, the better one first; `stop` calls a loop a success."""
SUCCESSES = ("stop", "end_turn", "stop_sequence", "completed", "tool_calls", "tool_use")
"""The reasons that programs take for a complete answer."""


def clients(found: Any = None) -> str:
    """How clients report a loop with each setting, and which setting suits them.

    Args:
        found: the result; the committed one if None.
    """
    found = found or json.loads(CLIENTS.read_text())
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
