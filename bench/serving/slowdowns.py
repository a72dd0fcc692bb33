"""The slowdown of a block of runs, and the statistics of several blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
Figures: TypeAlias = dict[str, float]
"""Of a block, by the keys of `METRICS`."""

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """A figure of a block, and which way is worse.

    Attributes:
        key: its name; upstream's, where it is a field of upstream's result lines.
        title: what a slowdown in it is called.
        higher_is_better: whether a slowdown is a loss, or an increase.
    """

    key: str
    title: str
    higher_is_better: bool


METRICS = {
    "static": (
        Metric("overall_throughput", "throughput lost", True),
        Metric("prefill_throughput", "prefill throughput lost", True),
        Metric("decode_throughput", "decode throughput lost", True),
    ),
    "live": (
        Metric("output_throughput", "throughput lost", True),
        Metric("median_ttft_ms", "time to first token added", False),
        # The mean: a client that is late reads several tokens at once, most with no gap at all.
        Metric("mean_itl_ms", "inter-token latency added", False),
    ),
}


def order(variants: Sequence[T]) -> list[T]:
    """The runs of a block: the variants and the same backwards, off, on, on, off for two."""
    return [*variants, *reversed(variants)]


def off_and_on(runs: list[T]) -> tuple[list[T], list[T]]:
    """The runs of a block without the penalty, and those with it, in the order of their passes."""
    return [runs[0], runs[3]], runs[1:3]


def batches_compared(block: list[dict[str, Any]]) -> tuple[Figures, Figures]:
    """The figures of a block of `static`, without the penalty and with it.

    What the penalty adds to a step is the median over the turns, each with the same turn of the
    other batch: single turns are disturbed, by much more than it adds.

    Args:
        block: the lines of `turns.py`.
    """
    off, on = off_and_on(block)
    step = statistics.median(seconds for run in off for seconds in run["step_seconds"])
    added = statistics.median(
        slow - fast
        for pair in zip(off, on, strict=True)
        for fast, slow in zip(*(run["step_seconds"] for run in pair), strict=True)
    )
    return _throughputs(off, step), _throughputs(on, step + added)


def _throughputs(runs: list[dict[str, Any]], step: float) -> Figures:
    prefill = statistics.fmean(run["prefill_seconds"] for run in runs)
    rows, inputs, outputs = (runs[0][key] for key in ("batch_size", "input_len", "output_len"))
    return {
        "overall_throughput": rows * (inputs + outputs) / (prefill + step * (outputs - 1)),
        "prefill_throughput": rows * inputs / prefill,
        "decode_throughput": rows / step,
    }


def servers_compared(block: list[dict[str, Any]]) -> tuple[Figures, Figures]:
    """The figures of a block of `live`, without the penalty and with it.

    Args:
        block: upstream's result lines.
    """
    off, on = (
        {m.key: statistics.fmean(run[m.key] for run in runs) for m in METRICS["live"]}
        for runs in off_and_on(block)
    )
    return off, on


COMPARED = {"static": batches_compared, "live": servers_compared}


def slowdown(off: Figures, on: Figures, metric: Metric) -> float:
    """What a block lost or added in a metric, in per cent; negative if the penalty was faster."""
    ratio = on[metric.key] / off[metric.key]
    return 100 * (1 - ratio if metric.higher_is_better else ratio - 1)


def median_interval(values: list[float], confidence: float = CONFIDENCE) -> list[float] | None:
    """The confidence interval of the median between two order statistics.

    It assumes independent values and nothing of their distribution: the number of values below the
    true median is binomial with 1/2. None if there are too few, fewer than 6 for 95 %.
    """
    count, tail = len(values), 0.0
    for outside in range(count // 2 + 1):
        tail += math.comb(count, outside) / 2**count
        if tail > (1 - confidence) / 2:
            break
    ordered = sorted(values)
    return [ordered[outside - 1], ordered[count - outside]] if outside else None


def summary(pairs: list[tuple[Figures, Figures]], metrics: tuple[Metric, ...]) -> dict[str, Any]:
    """Of each metric: its median off and on, the median slowdown in per cent and its interval.

    Args:
        pairs: the figures of each block, off and on.
        metrics: which.
    """
    found = {}
    for metric in metrics:
        losses = [slowdown(off, on, metric) for off, on in pairs]
        interval = median_interval(losses)
        off, on = (
            statistics.median(figures[metric.key] for figures in of)
            for of in zip(*pairs, strict=True)
        )
        found[metric.key] = {
            "slowdown": metric.title,
            "off": off,
            "on": on,
            "percent": round(statistics.median(losses), 4),
            "interval": interval and [round(end, 4) for end in interval],
        }
    return found
