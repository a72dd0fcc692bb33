"""The tables of docs/PROPER_TOKENS.md, from the committed results.

python -m bench.constraints.tables
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import median
from typing import Any

from bench.common import RESULTS
from bench.constraints.cases import ANY_JSON, RECURSIVE

TOKENIZER = ("llama3", 100_000)
"""Whose figures stand in the page; the result has the others."""

SHOWN = ("date", "JSON of 10 fields", "free text to 200")
"""The constraints whose figures stand in the page for published tokenizers."""


WARM_US, WARM_P99_US, NEW_STATE_MS = 50, 300, 5
"""What a mask and a new state may take: of a known state the median and the 99th percentile in
microseconds, of a new one the median in milliseconds."""


def load(name: str) -> Any:
    """A committed result."""
    return json.loads((RESULTS / "constraints" / f"{name}.json").read_text())


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def exact() -> str:
    """What differs from the tokenizers themselves."""
    rows = load("exact")["rows"]
    lines = [
        (
            f"{row['tokenizer']}, {row['tokens']:,}",
            f"{row['pairs']:,} ({row['wrong_pairs']})",
            f"{row['sequences']:,} ({row['wrong_sequences']})",
            f"{row['walks']:,} ({row['dead_walks'] + row['improper_walks']})",
        )
        for row in rows
    ]
    head = (
        "pre-tokenizer, tokens",
        "pairs (wrong)",
        "sequences (wrong)",
        "walks (dead or improper)",
    )
    return table(head, lines)


def published_exact() -> str:
    """What differs from published tokenizers, and which are refused."""
    lines = []
    for row in load("published")["rows"]:
        cells: tuple[str, ...] = ("refused", "", "")
        if "refused" not in row:
            cells = (
                f"{row['pairs']:,} ({row['wrong_pairs']})",
                f"{row['sequences']:,} ({row['wrong_sequences']})",
                f"{row['walks']:,} ({row['dead_walks'] + row['improper_walks']})",
            )
        lines.append((row["tokenizer"], row["models"], f"{row['tokens']:,}", *cells))
    head = ("pairs (wrong)", "sequences (wrong)", "walks (dead or improper)")
    return table(("tokenizer", "models", "tokens", *head), lines)


def published_speed() -> str:
    """What published tokenizers cost."""
    lines = []
    for row in load("published")["rows"]:
        if "refused" not in row:
            by_case = {one["case"]: one for one in row["cases"]}
            cells = (
                f"{one['compile_ms']:,.0f} ms; {one['warm_us_median']:,.0f} us; "
                f"{one['new_state_ms_median']:,.1f} / {one['new_state_ms_p99']:,.0f} ms"
                for one in (by_case[case] for case in SHOWN)
            )
            lines.append((row["tokenizer"], f"{row['prepare_seconds']:.1f} s", *cells))
    return table(("tokenizer", "preparing", *SHOWN), lines)


def outputs() -> str:
    """Outputs that are not their text's own encoding."""
    rows = load("served")["outputs"]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    lines = []
    for case in cases:
        own = {row["proper_tokens"]: row for row in rows if row["case"] == case}
        lines.append(
            (case, *(f"{own[kind]['respelt']} of {own[kind]['ended']}" for kind in (False, True)))
        )
    return table(("constraint", "XGrammar", "proper tokens"), lines)


def fidelity() -> str:
    """The share of the first of two texts."""
    lines = [
        (
            row["model"],
            " or ".join(f"`{text}`" for text in row["texts"]),
            *(f"{row[name]:.3f}" for name in ("model_share", "stock_share", "proper_share")),
            f"{row['sampling_error']:.3f}",
        )
        for row in load("served")["fidelity"]
    ]
    return table(("", "texts", "model", "XGrammar", "proper tokens", "+-"), lines)


def speed() -> str:
    """Milliseconds to the first mask, and microseconds of a mask."""
    result = load("speed")
    rows = [row for row in result["rows"] if (row["tokenizer"], row["tokens"]) == TOKENIZER]
    cases = list(dict.fromkeys(row["case"] for row in rows))
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    lines = []
    for case in cases:
        own = {row["engine"]: row for row in rows if row["case"] == case}
        lines.append((case, *(_cell(own.get(engine)) for engine in engines)))
    (facts,) = [
        one for one in result["tokenizers"] if (one["tokenizer"], one["tokens"]) == TOKENIZER
    ]
    ours = [row for row in rows if row["engine"] == "proper tokens"]
    states = [
        (
            row["case"],
            f"{row['forced_share']:.0%}",
            row["new_states"],
            f"{row['new_state_ms_median']} / {row['new_state_ms_p99']}",
            row["megabytes"],
        )
        for row in ours
    ]
    return (
        f"Preparing the tokenizer took {facts['prepare_seconds']:.1f} s, reading it again "
        f"{facts['prepare_again_seconds']:.2f} s. Milliseconds to the first mask, then "
        "microseconds of a mask where its state is known, median / 99th percentile:\n\n"
        + table(("constraint", *engines), lines)
        + "\nStates that were not known yet, each computed once:\n\n"
        + table(
            ("constraint", "forced steps", "states", "ms, median / 99th percentile", "MB"), states
        )
    )


def schemas() -> str:
    """Any JSON, a recursive schema and schemas of applications, on a published tokenizer."""
    result = load("schemas")
    (facts,) = result["tokenizers"]
    engines = list(dict.fromkeys(row["engine"] for row in result["rows"]))
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

    lines = [
        (group, *(_cell(figures(engine, group) or {"error": ""}, True) for engine in engines))
        for group in groups
    ]
    failed = {
        engine: {case: row["error"] for case, row in rows.items() if "error" in row}
        for engine, rows in by_engine.items()
    }
    counts = [
        f"{len([name for name in names if name in rows and 'error' not in rows[name]])} of "
        f"{len(names)}"
        for rows in by_engine.values()
    ]
    lines.append(("schemas served", *counts))
    own = {group: found for group in groups if (found := figures(engines[0], group))}
    states = [
        (
            group,
            f"{found['new_state_ms_median']:.1f} / {found['new_state_ms_p99']:.0f}",
            f"{found['all_megabytes']:.0f}",
        )
        for group, found in own.items()
    ]
    reasons = "".join(
        f"- {engine}: {_reasons(errors)}.\n" for engine, errors in failed.items() if errors
    )
    worst = {
        key: max(found[key] for found in own.values())
        for key in ("warm_us_median", "warm_us_p99", "new_state_ms_median")
    }
    middle = own["schemas, median"]["new_state_ms_median"]
    return (
        f"On the tokenizer {facts['tokenizer']} with {facts['tokens']:,} tokens, {len(names)} "
        "schemas. Milliseconds to the first mask; microseconds of a mask where its state is "
        "known, median / 99th percentile; MB that the process holds more in the end:\n\n"
        + table(("", *engines), lines)
        + "\nStates of our engine that were not known yet, each computed once:\n\n"
        + table(("", "ms, median / 99th percentile", "MB in all"), states)
        + "\nThe targets, and what the worst of all these cases takes:\n\n"
        + table(
            ("target", "measured", ""),
            [
                (
                    f"a known state takes at most {WARM_US} us, median",
                    f"{worst['warm_us_median']:.0f} us",
                    _met(worst["warm_us_median"], WARM_US),
                ),
                (
                    f"a known state takes at most {WARM_P99_US} us, 99th percentile",
                    f"{worst['warm_us_p99']:.0f} us",
                    _met(worst["warm_us_p99"], WARM_P99_US),
                ),
                (
                    f"a new state takes at most {NEW_STATE_MS} ms, median, in half of the schemas",
                    f"{middle:.1f} ms",
                    _met(middle, NEW_STATE_MS),
                ),
                (
                    f"a new state takes at most {NEW_STATE_MS} ms, median, in every case",
                    f"{worst['new_state_ms_median']:.1f} ms",
                    _met(worst["new_state_ms_median"], NEW_STATE_MS),
                ),
            ],
        )
        + "\nWhat is not served:\n\n"
        + reasons
    )


def _met(measured: float, most: float) -> str:
    return "met" if measured <= most else "not met"


def _reasons(errors: dict[str, str]) -> str:
    """The names of what fails for each reason."""
    by_reason: dict[str, list[str]] = {}
    for case, reason in errors.items():
        by_reason.setdefault(" ".join(reason.split()), []).append(case)
    return "; ".join(f"{', '.join(cases)} (`{reason}`)" for reason, cases in by_reason.items())


def verify_steps() -> str:
    """Tokens of JSON for each forward pass under NGRAM speculation."""
    lines = [
        (
            "proper tokens" if row["proper_tokens"] else "XGrammar",
            f"{row['tokens']:,}",
            f"{row['verify_steps']:,}",
            f"{row['tokens'] / row['verify_steps']:.2f}",
        )
        for row in load("served")["verify_steps"]
    ]
    return table(("compact JSON", "tokens", "forward passes", "tokens a pass"), lines)


def _cell(row: dict[str, Any] | None, with_memory: bool = False) -> str:
    if row is None:
        return "not waited for"
    if "error" in row:
        return "fails"
    memory = f"; {max(row['held_megabytes'], 0.0):,.1f} MB" if with_memory else ""
    return (
        f"{row['compile_ms']:,.0f} ms; {row['warm_us_median']:,.0f} / {row['warm_us_p99']:,.0f} us"
        f"{memory}"
    )


def batch() -> str:
    """What the masks of a batch cost in a step."""
    rows = {(row["batch"], row["way"]): row["us"][0] for row in load("batch")["rows"]}
    ways = ("proper tokens", "xgrammar")
    lines = [
        (size, *(f"{rows[size, way] / 1000:.2f} ms" for way in ways))
        for size in sorted({size for size, _ in rows})
    ]
    return table(("requests in the batch", "proper tokens", "xgrammar, any tokens"), lines)


TABLES = {
    "exact": exact,
    "published-exact": published_exact,
    "published-speed": published_speed,
    "outputs": outputs,
    "fidelity": fidelity,
    "verify-steps": verify_steps,
    "speed": speed,
    "schemas": schemas,
    "batch": batch,
}


if __name__ == "__main__":
    for name, make in TABLES.items():
        print(f"<!-- proper-{name} -->\n{make()}<!-- /proper-{name} -->\n")
