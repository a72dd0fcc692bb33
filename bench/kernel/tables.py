"""The tables of the documents about the time of a step, from the result files."""

from __future__ import annotations

import json
import statistics
from typing import Any

from bench.common import RESULTS
from bench.kernel import host
from bench.kernel.names import (
    COPY,
    DENSE,
    DRY,
    EMPTY,
    LAUNCH_TO_FINISH,
    MEMORY,
    ONSET_2,
    OURS,
    REFERENCE,
    UPSTREAM,
)

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
ON_H200 = "kernel-h200"
"""The result file of a GPU."""
USUAL = {"rows": 64, "vocab": 152064, "window": 512, "buffer": 32, "nodes": 0, "history": "text"}
"""The case that the tables vary."""


class Times:
    """The steps of one result file.

    Attributes:
        rows: the steps that were timed by themselves, each by the result's columns.
    """

    def __init__(self, name: str) -> None:
        """Read a result file by its name."""
        result = json.loads((RESULTS / f"{name}.json").read_text())
        rows = (dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"])
        self.rows = [row for row in rows if row["timing"] != LAUNCH_TO_FINISH]

    def microseconds(self, way: str, **case: object) -> float | None:
        """The median of a step in the usual case but for `case`; None if it was not timed."""
        wanted = USUAL | {"implementation": way} | case
        (found,) = (row for row in self.rows if wanted.items() <= row.items())
        return None if found["median_us"] is None else float(found["median_us"])


def step_on_gpu() -> str:
    """The median of a step in microseconds, over rows and over histories."""
    times = Times(ON_H200)
    size = {name: value for name, value in USUAL.items() if name not in ("rows", "history")}
    usual = (row for row in times.rows if size.items() <= row.items())
    cases = dict.fromkeys((row["rows"], row["history"]) for row in usual)
    body = [
        [str(rows), HISTORIES[history]]
        + [_shown(times.microseconds(way, rows=rows, history=history)) for way in ON_GPU]
        for rows, history in cases
    ]
    return _table(["rows", "history", *(WAYS[way] for way in ON_GPU)], body)


def step_in_other_cases_on_gpu() -> str:
    """Our step and upstream's in text on a GPU, over vocabularies, windows and draft trees."""
    times = Times(ON_H200)
    cases: list[tuple[str, dict[str, object]]] = [
        (f"{rows} rows, V = {vocab:,}", {"rows": rows, "vocab": vocab})
        for rows in (64, 512)
        for vocab in (32768, 262144)
    ]
    cases += [
        (f"64 rows, window {window:,}", {"window": window}) for window in (128, 1024, 2048, 8192)
    ]
    cases += [("64 draft trees of 8 nodes", {"nodes": 8})]
    body = []
    for title, case in cases:
        ours = (_shown(times.microseconds(way, **case)) for way in (OURS, ONSET_2))
        upstream = "-" if "nodes" in case else _shown(times.microseconds(UPSTREAM, **case))
        body.append([title, *ours, upstream])
    return _table(["step", *(WAYS[way] for way in (OURS, ONSET_2, UPSTREAM))], body)


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
        ("H200", ON_H200, (1, 64, 512)),
        ("one CPU core", "kernel-cpu", (64,)),
    ):
        times = Times(name)
        for rows in counts:
            shown = (_shown(times.microseconds(way, rows=rows)) for way in IN_SUMMARY)
            body.append([device, str(rows), *shown])
    return _table(["device", "rows", *(WAYS[way] for way in IN_SUMMARY)], body)


def starts_of_requests(name: str) -> str:
    """What the scheduler's thread spends on the start of each request of a batch, microseconds.

    Args:
        name: the result file.
    """
    _, rows = _host(name)

    def slowest(**case: object) -> str:
        found = [row["median_us"] for row in rows if case.items() <= row.items()]
        return f"{max(found):.1f}" if found else "-"

    body = []
    for seen, most, most_together in zip(
        host.WINDOWS, host.MOST_ALONE, host.MOST_TOGETHER, strict=True
    ):
        times = (slowest(what=host.PREFILL, seen=seen, requests=n) for n in host.BATCHES)
        body.append([f"{seen:,} tokens seen", *times, f"{most:.0f}; {most_together:.0f}"])
    resumed = (slowest(what=host.RESUMED, requests=n) for n in host.BATCHES)
    title = f"resumed after {host.OUTPUTS:,} outputs, `lz_onset` {host.ONSET}"
    body.append([title, *resumed, f"{host.MOST_RESUMED:.0f}"])
    alone, *others = host.BATCHES
    heads = (f"{alone} request", *(f"each of {n}" for n in others))
    return _table(["start of a request", *heads, "targets: alone; together"], body)


def batches_without_a_penalty() -> str:
    """What both hooks spend on a batch without a penalty, in microseconds."""
    _, rows = _host("host-cpu")
    found = {(row["what"], row["pool"]): row["median_us"] for row in rows}
    whats = (host.NO_PENALTY, host.PREFILL_NO_PENALTY)
    body = [
        [held, *(f"{found[f'{what}, {held}', pool]:.1f}" for what in whats for pool in host.POOLS)]
        for held in ("no window held", "a window held elsewhere")
    ]
    pools = [f"{pool:,} request rows" for pool in host.POOLS]
    heads = [f"{kind}, {pool}" for kind in ("decode", "prefill") for pool in pools]
    return _table(["", *heads], body)


def _host(name: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result = json.loads((RESULTS / f"{name}.json").read_text())
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


def decode_on_gpu() -> str:
    """What penalties add to a decode step, in microseconds."""
    result = json.loads((RESULTS / "step-h200.json").read_text())
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


def bursts_on_gpu() -> str:
    """What bursts of prefills take on a GPU, in milliseconds: without / with the penalty."""
    found = json.loads((RESULTS / "gpu-check-h200.json").read_text())["burst"]["seconds"]
    body = []
    # Each burst was sent without the penalty and then with it.
    for without, with_penalty in zip(found[::2], found[1::2], strict=True):
        wall, gap = (
            f"{1e3 * without[name]:.0f} / {1e3 * with_penalty[name]:.0f}"
            if name in without
            else "-"
            for name in ("wall", "gap")
        )
        host_times = (f"{1e3 * with_penalty[name]:.1f}" for name in ("plan", "apply"))
        body.append([str(without["running"]), str(without["requests"]), wall, gap, *host_times])
    return _table(["streams", "prefills", "all answered", "longest gap", "plan", "apply"], body)
