"""The tables of bench/README.md about a GPU, from the result files."""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench.common import RESULTS
from bench.kernel.names import COPY, DRY, EMPTY, MEMORY, ONSET_2, OURS, UPSTREAM

HISTORIES = {
    "text": "text",
    "loop": "one token for ever",
    "alternating": "two tokens in turn",
    "distinct": "no token twice",
}
WAYS = {
    OURS: "ours",
    ONSET_2: "ours, onset 2",
    MEMORY: "with memory on",
    UPSTREAM: "frequency + repetition (upstream's)",
    DRY: "DRY style",
    EMPTY: "empty kernel",
    COPY: "copy of the touched bytes",
}


def step_on_gpu() -> str:
    """The median of a step in microseconds, over rows and over histories."""
    result = json.loads((RESULTS / "kernel-h100.json").read_text())
    rows = [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]
    cases = dict.fromkeys((row["rows"], row["history"]) for row in rows)
    found = {(row["implementation"], row["rows"], row["history"]): row["median_us"] for row in rows}
    lines = [f"| rows | history | {' | '.join(WAYS.values())} |", "|---" * (2 + len(WAYS)) + "|"]
    for count, history in cases:
        times = (f"{found[way, count, history]:.1f}" for way in WAYS)
        lines.append(f"| {count} | {HISTORIES[history]} | {' | '.join(times)} |")
    return "\n".join(lines) + "\n"


BUDGET = RESULTS.parents[1] / "tests" / "unit" / "kernel_budget.json"
CHAIN_THEN = 9
"""Loads that waited for one another in the step that kernel-h100.json timed (Triton 3.6)."""


def step_estimated() -> str:
    """Microseconds of a step as Triton 3.7 compiles it now, estimated from those of an earlier one.

    empty kernel + loads in a chain * latency + (rows - 1) * bytes of a row / rate

    The latency is that at which the formula gives the time of one row then, and the rate that for
    512 rows; a row's bytes are those of then, in proportion to the window. How many instructions
    there are is not in it.
    """
    result = json.loads((RESULTS / "kernel-h100.json").read_text())
    rows = [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]
    then = {(row["implementation"], row["rows"]): row for row in rows if row["history"] == "text"}
    empty, alone, most = then[EMPTY, 1]["median_us"], then[OURS, 1], then[OURS, 512]
    latency = (alone["median_us"] - empty) / CHAIN_THEN
    rate = (most["bytes"] - alone["bytes"]) / (most["median_us"] - alone["median_us"])
    counts, programs = (json.loads(BUDGET.read_text())[key] for key in ("counts", "3.7"))
    lines = ["| window | bytes of a row | 1 row | 64 rows | 512 rows |", "|---|---|---|---|---|"]
    for window in (512, 1024, 8192):
        chain = dict(zip(counts, programs[f"_step {window}"], strict=True))["chain"]
        size = alone["bytes"] * window // alone["window"]
        estimates = (empty + chain * latency + (n - 1) * size / rate for n in (1, 64, 512))
        lines.append(f"| {window} | {size:,} | {' | '.join(f'{us:.1f}' for us in estimates)} |")
    return "\n".join(lines) + "\n"


def decode_on_gpu() -> str:
    """What penalties add to a decode step, in microseconds."""
    result = json.loads((RESULTS / "step-h100.json").read_text())
    runs = [dict(zip(result["columns"], run, strict=True)) for run in result["runs"]]
    off = statistics.median(run["step_us"] for run in runs if run["way"] == "off")

    def host(way: str, column: str) -> str:
        return f"{statistics.median(run[column] for run in runs if run['way'] == way):.0f}"

    lines = [
        "| way | step longer by, each round | median | of a step | plan | launch | kernel |",
        "|---|---|---|---|---|---|---|",
        f"| no penalty | | | {off:,.0f} us | {host('off', 'plan_us')} us | "
        f"{host('off', 'apply_us')} us | |",
    ]
    for way, longer in result["longer_than_off_us"].items():
        median = statistics.median(longer)
        kernels: dict[str, Any] = result["kernels_us"].get(way, {})
        times = [f"{statistics.median(found):.1f} us" for found in kernels.values()]
        each = ", ".join(f"{one:.0f}" for one in longer)
        lines.append(
            f"| {way} | {each} us | {median:.0f} us | {100 * median / off:.1f} % | "
            f"{host(way, 'plan_us')} us | {host(way, 'apply_us')} us | {', '.join(times)} |"
        )
    return "\n".join(lines) + "\n"


def served_on_gpu() -> str:
    """Throughput lost, as `bench.serving static` measured it."""
    lines = [
        "| row | blocks | throughput lost (95 % interval) | decode throughput lost (95 % interval) "
        "| throughput lost in the paper | commit |",
        "|---|---|---|---|---|---|",
    ]
    for size in ("1.5b", "7b"):
        result = json.loads((RESULTS / f"serving-static-h100-{size}.json").read_text())
        for row, found in result["table"].items():
            lost = map(_percent, (found["overall_throughput"], found["median_decode_throughput"]))
            paper = f"{found['paper_percent']} %"
            cells = (row, str(found["blocks"]), *lost, paper, result["commit"][:7])
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _percent(found: dict[str, Any]) -> str:
    interval = found["interval"]
    words = "too few blocks" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
    return f"{found['percent']:.2f} % ({words})"
