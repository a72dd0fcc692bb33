"""The plot of a result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.kernel.inputs import Case
from bench.kernel.names import COPY, DENSE, DRY, EMPTY, OURS, REFERENCE, UPSTREAM
from bench.kernel.result import case_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    OURS: "#c2693d",
    REFERENCE: "#dba283",
    DENSE: "#7a5195",
    UPSTREAM: "#3b6ea5",
    DRY: "#5b9a5b",
    EMPTY: "#999999",
    COPY: "#444444",
}


def plot(result: dict[str, Any], out: Path) -> None:
    """Draw the times over the rows and over the vocabulary of a result file."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    rows = [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]
    usual = Case(rows=64)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 4.6), constrained_layout=True, sharey=True
    )
    for axes, swept, label in ((left, "rows", "rows"), (right, "vocab", "vocabulary V")):
        _draw_sweep(axes, rows, usual, swept, label)
    left.set_ylabel(
        "GPU time of a step, us" if result["gpu"] else "CPU time of a step, one thread, us"
    )
    left.set_title(f"V = {usual.vocab:,}", fontsize=10)
    right.set_title(f"{usual.rows} rows", fontsize=10)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    machine = result["gpu"] or result["cpu"]
    figure.suptitle(
        f"{machine}: window {usual.window}, buffer {usual.buffer}, float32 logits", fontsize=11
    )
    figure.savefig(out, dpi=160)


def _draw_sweep(
    axes: Axes, rows: Sequence[dict[str, Any]], usual: Case, swept: str, label: str
) -> None:
    """Draw the times of each implementation over one size, the others as in `usual`."""
    ticks: set[int] = set()
    for name, colour in COLOURS.items():
        points = sorted(
            (row[swept], row["median_us"], row["p10_us"], row["p90_us"])
            for row in rows
            if row["implementation"] == name
            and row["timing"] in ("graph", "stream", "CPU")
            and replace(case_of(row), **{swept: getattr(usual, swept)}) == usual
        )
        if not points:
            continue
        x, middle, low, high = zip(*points, strict=True)
        ticks.update(x)
        is_limit = name in (EMPTY, COPY)
        style = "--" if is_limit else "-"
        title = f"{name} (limit)" if is_limit else name
        axes.plot(x, middle, style, marker="o", ms=4, color=colour, label=title)
        axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    labels = [f"{tick / 1024:.0f}k" if tick >= 1024 else str(tick) for tick in sorted(ticks)]
    axes.set_xticks(sorted(ticks), labels, fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel(label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
