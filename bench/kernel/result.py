"""The targets, the tables and the environment of a result."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from bench import common
from bench.kernel import host
from bench.kernel.inputs import VOCAB, Case
from bench.kernel.names import EMPTY, LAUNCH_TO_FINISH, OURS


def targets(
    rows: Sequence[dict[str, Any]], host_rows: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """What the rows of a result say of what the step, and a request's start, are to cost.

    Returns:
        One dict a target: its words, the limit, the measured value in the same unit (None if the
        rows do not say) and whether it is met (None likewise).
    """

    def times(name: str, timing: str, **sizes: object) -> list[float]:
        wanted = {"implementation": name, "timing": timing, "nodes": 0, **sizes}
        found = [row for row in rows if wanted.items() <= row.items()]
        return [row["median_us"] for row in found]

    usual = {"window": 512, "buffer": 32}
    full = {**usual, "vocab": VOCAB}
    table: list[tuple[str, float, float | None]] = []
    for batch, limit in ((64, 8.0), (512, 20.0)):
        slowest = max(times(OURS, "graph", rows=batch, **full), default=None)
        table.append((f"GPU time at {batch} rows, worst history, us", limit, slowest))
    for batch in (64, 512):
        one = {**usual, "rows": batch, "history": "text"}
        ends = [times(OURS, "graph", vocab=vocab, **one) for vocab in (32768, 262144)]
        spread = None
        if all(ends):
            every = times(OURS, "graph", **one)
            spread = 100 * (max(every) / min(every) - 1)
        title = f"spread of GPU time over V = 32k to 256k at {batch} rows, per cent"
        table.append((title, 10.0, spread))
    first = times(OURS, LAUNCH_TO_FINISH, rows=1, **full)
    empty = times(EMPTY, LAUNCH_TO_FINISH, rows=1, **full)
    ratio = first[0] / empty[0] if first and empty else None
    table.append(("launch to finish at 1 row, times an empty kernel", 1.3, ratio))
    slowest = max(times(OURS, "CPU", rows=64, **full), default=None)
    table.append(("CPU time at 64 rows, worst history, us", 1000.0, slowest))
    table += host.targets(host_rows)
    return [
        {
            "target": title,
            "at_most": limit,
            "measured": None if value is None else round(value, 3),
            "met": None if value is None else value <= limit,
        }
        for title, limit, value in table
    ]


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of a result, to read on a terminal."""
    lines = []
    title = "{:<24}{:>11}{:>11}{:>11}{:>11}{:>10}{:>13}  {}"
    heads = ("", "median us", "p10", "p90", "wall us", "x ours", "bytes", "time of")
    for case, found in itertools.groupby(rows, key=case_of):
        lines += ["", str(case), title.format(*heads)]
        for row in found:
            if row["median_us"] is None:
                lines.append(f"{row['implementation']:<24}  {row['note']}")
                continue
            numbers = [row[name] for name in ("median_us", "p10_us", "p90_us", "wall_us")]
            cells = ["-" if number is None else f"{number:.2f}" for number in numbers]
            size = "-" if row["bytes"] is None else f"{row['bytes']:,}"
            note = ", ".join(filter(None, (row["timing"], row["note"])))
            line = title.format(row["implementation"], *cells, f"{row['ratio']:.2f}", size, note)
            lines.append(line)
    return "\n".join(lines)


def targets_table(found: Sequence[dict[str, Any]]) -> str:
    """The targets, to read on a terminal."""
    lines = ["", "targets"]
    for target in found:
        met = {True: "met", False: "not met", None: "not measured here"}[target["met"]]
        measured = "" if target["measured"] is None else f"{target['measured']:.2f}"
        line = f"{target['target']:<62}at most{target['at_most']:>8.1f}{measured:>11}  {met}"
        lines.append(line)
    return "\n".join(lines)


def case_of(row: dict[str, Any]) -> Case:
    """The case of a row."""
    return Case(**{name: row[name] for name in Case.__dataclass_fields__})


def environment(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
    is_cuda = device.type == "cuda"
    return {
        "date": common.date(),
        "gpu": torch.cuda.get_device_name(device) if is_cuda else None,
        "driver": common.output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if is_cuda
        else None,
        "cuda": torch.version.cuda,
        **common.machine(),
        "threads": torch.get_num_threads(),
        **common.versions("torch", "triton", "sglang"),
        "commit": common.commit(),
    }
