"""The tables of docs/PROPER_TOKENS.md, from the committed results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.common import RESULTS
from bench.constraints.cases import ANY_JSON, RECURSIVE


def load(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / "constraints" / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def published_exact() -> str:
    """What differs from published tokenizers, and which are refused."""
    kinds = ("wrong_pairs", "wrong_sequences", "dead_walks", "improper_walks")
    models: dict[str, list[str]] = {}
    for row in load("published")["rows"]:
        wrong = "refused" if "refused" in row else f"{sum(row[kind] for kind in kinds)} wrong"
        models.setdefault(wrong, []).append(row["models"])
    return "".join(f"- {wrong}: {'; '.join(names)}\n" for wrong, names in models.items())


def schemas() -> str:
    """Any JSON, a recursive schema and schemas of applications, on a published tokenizer."""
    result = load("schemas")
    (facts,) = result["tokenizers"]
    engines = list(dict.fromkeys(row["engine"] for row in result["rows"] if "error" not in row))
    by_engine = {
        engine: {row["case"]: row for row in result["rows"] if row["engine"] == engine}
        for engine in engines
    }
    single = [case for case in (ANY_JSON, RECURSIVE) if case in by_engine[engines[0]]]
    names = [case for case in by_engine[engines[0]] if case not in single]
    groups = {case: [case] for case in single} | {"schemas, median": names, "schemas, worst": names}

    def figures(engine: str, group: str) -> dict[str, float] | None:
        """The median or the worst of each figure over the cases that an engine serves."""
        rows = [by_engine[engine].get(case, {"error": ""}) for case in groups[group]]
        served = [row for row in rows if "error" not in row]
        keys = [key for key in served[0] if isinstance(served[0][key], float)] if served else []
        of = max if group.endswith("worst") else median
        return {key: of(row[key] for row in served) for key in keys} if served else None

    lines = [(group, *(_cell(figures(engine, group)) for engine in engines)) for group in groups]
    counts = [
        f"{len([name for name in names if name in rows and 'error' not in rows[name]])} of "
        f"{len(names)}"
        for rows in by_engine.values()
    ]
    lines.append(("schemas served", *counts))
    return (
        f"On the tokenizer {facts['tokenizer']} with {facts['tokens']:,} tokens, {len(names)} "
        "schemas. Milliseconds to the first mask; microseconds of a mask where its state is "
        "known, median / 99th percentile; MB that the process holds more in the end:\n\n"
        + table(("", *engines), lines)
    )


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return "fails"
    return (
        f"{row['compile_ms']:,.0f} ms; {row['warm_us_median']:,.0f} / {row['warm_us_p99']:,.0f} us"
        f"; {max(0.0, row['held_megabytes']):,.1f} MB"
    )


TABLES = {"published-exact": published_exact, "schemas": schemas}
