"""The slowdown of a block of runs, and the statistics of several blocks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Metric:
    """A field of upstream's result lines, and which way is worse.

    Attributes:
        key: upstream's name.
        title: what a slowdown in it is called.
        higher_is_better: whether a slowdown is a loss, or an increase.
    """

    key: str
    title: str
    higher_is_better: bool


METRICS = {
    "static": (
        Metric("overall_throughput", "throughput lost", True),
        Metric("median_decode_throughput", "decode throughput lost", True),
    ),
    "live": (
        Metric("output_throughput", "throughput lost", True),
        Metric("median_ttft_ms", "time to first token added", False),
        # The mean: a client that is late reads several tokens at once, most with no gap at all.
        Metric("mean_itl_ms", "inter-token latency added", False),
    ),
}


def order(variants: Sequence[T], blocks: int) -> list[T]:
    """The runs of so many blocks: the variants and the same backwards, off, on, on, off for two."""
    return [*variants, *reversed(variants)] * blocks


def slowdown(runs: list[dict[str, Any]], metric: Metric) -> float:
    """What a block lost or added in a metric, in per cent; negative if the penalty was faster.

    Args:
        runs: the result lines of the block: off, on, on, off.
    """
    off, on = (sum(run[metric.key] for run in pair) for pair in off_and_on(runs))
    return 100 * (1 - on / off if metric.higher_is_better else on / off - 1)


def off_and_on(runs: list[T]) -> tuple[list[T], list[T]]:
    """The runs of a block without the penalty, and those with it."""
    return [runs[0], runs[3]], runs[1:3]


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


def summary(blocks: list[list[dict[str, Any]]], metrics: tuple[Metric, ...]) -> dict[str, Any]:
    """Of each metric: its median off and on, the median slowdown in per cent and its interval."""
    off, on = ([run for block in blocks for run in off_and_on(block)[i]] for i in (0, 1))
    found = {}
    for metric in metrics:
        losses = [slowdown(block, metric) for block in blocks]
        interval = median_interval(losses)
        found[metric.key] = {
            "slowdown": metric.title,
            "off": statistics.median(run[metric.key] for run in off),
            "on": statistics.median(run[metric.key] for run in on),
            "percent": round(statistics.median(losses), 4),
            "interval": interval and [round(end, 4) for end in interval],
        }
    return found
