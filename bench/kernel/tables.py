"""The tables of the documents about the time of a step, from the result files."""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS
from bench.kernel import host
from bench.kernel.names import COPY, MEMORY, ONSET_2, OURS, UPSTREAM

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
    COPY: "copy of the touched bytes",
}

ON_GPU = (OURS, ONSET_2, MEMORY, UPSTREAM, COPY)
IN_SUMMARY = (OURS, ONSET_2, MEMORY, UPSTREAM)
ON_H200 = "kernel-h200"
"""The result file of a GPU."""
USUAL = {"rows": 64, "vocab": 152064, "window": 512, "buffer": 32, "history": "text"}
"""The case that the tables vary."""
TIMINGS = ("graph", "stream", "CPU")
"""Of steps that are timed by themselves."""


class Times:
    """The steps of one result file.

    Attributes:
        rows: the steps that were timed by themselves, each by the result's columns.
    """

    def __init__(self, name: str) -> None:
        """Read a result file by its name."""
        result = json.loads((RESULTS / f"{name}.json").read_text())
        rows = (dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"])
        self.rows = [row for row in rows if row["timing"] in TIMINGS and not row.get("nodes")]

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


def starts_of_requests() -> str:
    """The time of the scheduler's thread for the start of each request of a batch, microseconds."""
    lines = []
    for device, name in (("one CPU core", "host-cpu"), ("the host of the H200", ON_H200)):
        rows = _host(name)

        def slowest(rows: list[dict[str, Any]] = rows, **case: object) -> str:
            found = [row["median_us"] for row in rows if case.items() <= row.items()]
            return f"{max(found):.1f}" if found else "-"

        for seen in host.WINDOWS:
            times = (slowest(what=host.PREFILL, seen=seen, requests=n) for n in host.BATCHES)
            lines.append([device, f"{seen:,} tokens seen", *times])
        resumed = (slowest(what=host.RESUMED, requests=n) for n in host.BATCHES)
        title = f"resumed after {host.OUTPUTS:,} outputs, `lz_onset` {host.ONSET}"
        lines.append([device, title, *resumed])
    alone, *others = host.BATCHES
    heads = (f"{alone} request", *(f"each of {n}" for n in others))
    return _table(["machine", "start of a request", *heads], lines)


def _host(name: str) -> list[dict[str, Any]]:
    result = json.loads((RESULTS / f"{name}.json").read_text())
    return [dict(zip(result["host_columns"], row, strict=True)) for row in result["host"]]


def _shown(microseconds: float | None) -> str:
    return "-" if microseconds is None else f"{microseconds:,.1f}"


def _table(head: list[str], body: list[list[str]]) -> str:
    lines = (head, ["---"] * len(head), *body)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
