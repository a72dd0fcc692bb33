"""The tables of the documents about the time of a step, from the result files."""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench.common import RESULTS
from bench.kernel import host
from bench.kernel.names import COPY, DENSE, DRY, EMPTY, MEMORY, ONSET_2, OURS, REFERENCE, UPSTREAM

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
    REFERENCE: "reference",
    DENSE: "dense formulation",
    UPSTREAM: "frequency + repetition (upstream's)",
    DRY: "DRY style",
    EMPTY: "empty kernel",
    COPY: "copy of the touched bytes",
}


ON_CPU = (OURS, ONSET_2, MEMORY, REFERENCE, UPSTREAM, DRY, COPY)
ON_GPU = (OURS, ONSET_2, MEMORY, REFERENCE, DENSE, UPSTREAM, DRY, EMPTY, COPY)
IN_SUMMARY = (OURS, ONSET_2, MEMORY, UPSTREAM)
USUAL = {"rows": 64, "vocab": 152064, "window": 512, "buffer": 32, "nodes": 0, "history": "text"}
"""The case that the tables vary."""


class Times:
    """The steps of one result file.

    Attributes:
        rows: what was measured, each by the result's columns.
    """

    def __init__(self, name: str) -> None:
        """Read a result file by its name."""
        result = json.loads((RESULTS / f"{name}.json").read_text())
        self.rows = [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]

    def microseconds(self, way: str, **case: object) -> float | None:
        """The median of a step in the usual case but for `case`; None if it was not timed."""
        wanted = USUAL | {"implementation": way} | case
        (found,) = (row for row in self.rows if wanted.items() <= row.items())
        return None if found["median_us"] is None else float(found["median_us"])


def step_on_gpu() -> str:
    """The median of a step in microseconds, over rows and over histories."""
    times = Times("kernel-h100")
    cases = dict.fromkeys((row["rows"], row["history"]) for row in times.rows)
    body = [
        [str(rows), HISTORIES[history]]
        + [_shown(times.microseconds(way, rows=rows, history=history)) for way in ON_GPU]
        for rows, history in cases
    ]
    return _table(["rows", "history", *(WAYS[way] for way in ON_GPU)], body)


def step_on_cpu() -> str:
    """The median of a step in milliseconds, over histories."""
    times = Times("kernel-cpu")
    body = [
        [title, *(_milliseconds(times.microseconds(way, history=history)) for way in ON_CPU)]
        for history, title in HISTORIES.items()
    ]
    return _table(["history", *(WAYS[way] for way in ON_CPU)], body)


def step_over_vocabularies() -> str:
    """Our step beside upstream's penalties on a CPU, over the size of the vocabulary."""
    times = Times("kernel-cpu")
    body = []
    for size in sorted({row["vocab"] for row in times.rows}):
        ours, upstream = (times.microseconds(way, vocab=size) for way in (OURS, UPSTREAM))
        assert ours is not None
        assert upstream is not None
        shown = (_milliseconds(ours), _milliseconds(upstream), f"{upstream / ours:.0f}")
        body.append([f"{size:,}", *shown])
    return _table(["V", WAYS[OURS], WAYS[UPSTREAM], "times as long as ours"], body)


def step_in_other_forms() -> str:
    """A step of one row beside the dense formulation, and one of draft trees, on a CPU."""
    times = Times("kernel-cpu")
    cases: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("1 row, ours", OURS, {"rows": 1}),
        ("1 row, dense formulation", DENSE, {"rows": 1}),
        ("64 draft trees of 8 nodes, ours", OURS, {"nodes": 8}),
    )
    body = [[name, _milliseconds(times.microseconds(way, **case))] for name, way, case in cases]
    return _table(["step", "time"], body)


def step_summary() -> str:
    """A step in text on both devices, over rows, in microseconds."""
    body = []
    for device, name, counts in (
        ("H100", "kernel-h100", (1, 64, 512)),
        ("one CPU core", "kernel-cpu", (64,)),
    ):
        times = Times(name)
        for rows in counts:
            shown = (_shown(times.microseconds(way, rows=rows)) for way in IN_SUMMARY)
            body.append([device, str(rows), *shown])
    return _table(["device", "rows", *(WAYS[way] for way in IN_SUMMARY)], body)


def starts_of_requests() -> str:
    """What the scheduler's thread spends on the start of each request of a batch, microseconds."""
    result, rows = _host()

    def slowest(**case: object) -> str:
        found = [row["median_us"] for row in rows if case.items() <= row.items()]
        return f"{max(found):.1f}" if found else "-"

    limits = {target["target"]: f"{target['at_most']:.0f}" for target in result["targets"]}
    body = []
    for seen in host.WINDOWS:
        times = (slowest(what=host.PREFILL, seen=seen, requests=n) for n in host.BATCHES)
        limit = limits[f"prefill with {seen} tokens seen, each of {host.BATCHES[-1]}, us"]
        body.append([f"{seen:,} tokens seen", *times, limit])
    resumed = (slowest(what=host.RESUMED, requests=n) for n in host.BATCHES)
    limit = limits[f"resumption after {host.OUTPUTS:,} outputs, lz_onset {host.ONSET}, us"]
    title = f"resumed after {host.OUTPUTS:,} outputs, `lz_onset` {host.ONSET}"
    body.append([title, *resumed, limit])
    alone, *others = host.BATCHES
    heads = (f"{alone} request", *(f"each of {n}" for n in others))
    return _table(["start of a request", *heads, "at most"], body)


def batches_without_a_penalty() -> str:
    """What both hooks spend on a batch without a penalty, in microseconds."""
    _, rows = _host()
    found = {(row["what"], row["pool"]): row["median_us"] for row in rows}
    whats = (host.NO_PENALTY, host.PREFILL_NO_PENALTY)
    body = [
        [held, *(f"{found[f'{what}, {held}', pool]:.1f}" for what in whats for pool in host.POOLS)]
        for held in ("no window held", "a window held elsewhere")
    ]
    pools = [f"{pool:,} request rows" for pool in host.POOLS]
    heads = [f"{kind}, {pool}" for kind in ("decode", "prefill") for pool in pools]
    return _table(["", *heads], body)


def _host() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result = json.loads((RESULTS / "host-cpu.json").read_text())
    return result, [dict(zip(result["host_columns"], row, strict=True)) for row in result["host"]]


def _shown(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds:,.1f}"


def _milliseconds(microseconds: float | None) -> str:
    if microseconds is None:
        return "-"
    milliseconds = microseconds / 1000
    return f"{milliseconds:.{1 if milliseconds >= 10 else 2}f} ms"


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = (head, ["---"] * len(head), *body)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


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
