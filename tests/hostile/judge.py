"""The effects of an attack, compared with the promises, and the tables of both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.common import RESULTS

LIMIT = 2.0
"""Of another client's wait, as a multiple of what it was just before the attack, or beside as many
ordinary requests where that is more: on a CPU each makes a step longer."""
SLOW_SECONDS = 1.0
"""For so long in sum another client may wait longer than that, and than as many ordinary requests
make it wait."""
KEPT_MB = 256.0
"""So much memory may be kept."""
NOISE_SECONDS = 0.05
"""A shorter wait is never too long: other processes of the machine cost as much."""
BUSY_SECONDS = 0.5
"""Where a token takes so long without an attack, waits say nothing about one."""
OUT = RESULTS / "hostile.json"
ITEMS = {
    "-": "ordinary requests, to compare with",
    "1": "token ids out of range",
    "2": "penalties that forbid what a constraint asks for",
    "3": "values at the edges of their fields",
    "4": "searches of many constraints at once",
    "5": "constraints on characters that compose",
    "6": "counted repetitions",
    "7": "rules in lists, and refused ones",
    "8": "sequence breakers",
    "9": "histories",
    "13": "schemas, grammars and structural tags",
    "14": "fewest outputs",
    "15": "malformed requests of every route",
    "new": "what is large, and stop regexes",
    "random": "drawn constraints and values",
}
"""What the attacks of an item try."""

Row = dict[str, Any]


def usual(waits: Sequence[float]) -> float:
    """What a wait comes to without an attack: longer than 99 of 100."""
    ordered = sorted(waits)
    return ordered[-(-99 * (len(ordered) - 1) // 100)] if ordered else 0.0


def slow(waits: Sequence[float], before: float) -> float:
    """The seconds in sum of waits that are too long beside what they were before."""
    most = max(LIMIT * before, NOISE_SECONDS)
    return sum(wait for wait in waits if wait > most)


def harmed(row: Row) -> bool:
    """Whether the server must be started again: an attack ended it, or may still go on in it."""
    unanswered = any(one["answer"].startswith("no answer") for one in row["wrong"])
    searches = unanswered and row["item"] != "-"
    return bool(row["stopped"] or not row["lived"] or not row["streams"] or searches)


def breaches(row: Row) -> list[str]:
    """The promises that an attack broke, in a few words each; empty for none."""
    found = []
    if row["stopped"]:
        found.append(row["stopped"])
    elif not row["lived"]:
        found.append("the server ended")
    elif not row["streams"]:
        found.append("no more tokens")
    elif row["failed"]:
        found.append(f"{row['failed']} requests of others failed")
    if row["quiet"] > BUSY_SECONDS:
        found.append("the machine is too busy to tell")
    if row["slow"] - row["held_to"]["slow"] > SLOW_SECONDS:
        found.append(f"waits of {row['slow']:.1f} s")
    for name, longest in row["longest"].items():
        if name != "token" and longest - LIMIT * row["held_to"][name] > SLOW_SECONDS:
            found.append(f"{name} {longest:.1f} s")
    if row["lived"] and (kept := row["mb_after"] - row["mb_before"]) > KEPT_MB:
        found.append(f"kept {kept:.0f} MB")
    if row["wrong"]:
        found.append(f"{sum(one['times'] for one in row['wrong'])} wrong answers")
    return found


def answered(row: Row) -> str:
    """How many requests were answered how, without what was said."""
    counted: Counter[str] = Counter()
    for one in (*row["answers"], *row["wrong"]):
        counted[one["answer"].split(":", 1)[0]] += one["times"]
    return ", ".join(f"{times} x {answer}" for answer, times in counted.most_common())


def markdown(result: Row) -> str:
    """A line for each attack, those that broke the promise marked by what they did."""
    lines = [
        "| server | item | attack | answered | waits, ms | too long, s | memory, MB | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        waits = f"{1e3 * row['held_to']['token']:.0f} / {1e3 * row['longest']['token']:.0f}"
        memory = f"{row['mb_peak'] - row['mb_before']:+.0f} / "
        memory += f"{row['mb_after'] - row['mb_before']:+.0f}" if row["lived"] else "-"
        lines.append(
            f"| {row['server']} | {row['item']} | {row['attack']} | {answered(row)} | "
            f"{waits} | {row['slow']:.1f} | {memory} | {'; '.join(breaches(row)) or 'held'} |"
        )
    return "".join(f"{line}\n" for line in lines)


def summary(result: Row) -> str:
    """What all attacks came to, in a sentence."""
    rows = [row for row in result["rows"] if row["item"] != "-"]
    lost = [row for row in rows if breaches(row)]
    kept = len(rows) - len(lost)
    return (
        f"{len(rows)} attacks of {sum(map(_requests, rows)):,} requests: {kept} kept the promise, "
        f"{len(lost)} did not. All of them together, a server grew by "
        f"{grown(result['rows']):.0f} MB at most since its start."
    )


def grown(rows: Sequence[Row]) -> float:
    """By how many MB a server was larger after an attack than at the first one since its start."""
    most = first = 0.0
    before: Row | None = None
    for row in rows:
        if before is None or before["server"] != row["server"] or harmed(before):
            first = row["mb_before"]
        if row["lived"]:
            most = max(most, row["mb_after"] - first)
        before = row
    return most


def items(result: Row) -> str:
    """A line for what each item tried."""
    lines = [
        "| tried | attacks | requests | kept the promise | longest wait for a token, ms | "
        "most memory kept, MB | servers ended |",
        "|---|---|---|---|---|---|---|",
    ]
    for item, title in ITEMS.items():
        rows = [row for row in result["rows"] if row["item"] == item]
        if rows:
            kept = max(row["mb_after"] - row["mb_before"] for row in rows)
            lines.append(
                f"| {title} | {len(rows)} | {sum(map(_requests, rows)):,} | "
                f"{sum(not breaches(row) for row in rows)} | "
                f"{1e3 * max(row['longest']['token'] for row in rows):.0f} | "
                f"{max(kept, 0):.0f} | {sum(not row['lived'] for row in rows)} |"
            )
    return "".join(f"{line}\n" for line in lines)


def section(path: Path = OUT) -> str:
    """What stands in bench/README.md about the committed result."""
    if not path.is_file():
        return "No result is committed yet.\n"
    result = json.loads(path.read_text())
    return f"{summary(result)}\n\n{items(result)}"


def _requests(row: Row) -> int:
    return sum(one["times"] for one in (*row["answers"], *row["wrong"]))
