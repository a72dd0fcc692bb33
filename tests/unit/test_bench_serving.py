"""bench.serving on upstream's result lines, without upstream's tools."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from bench.serving import hardware
from bench.serving.arguments import parse
from bench.serving.models import MODELS
from bench.serving.result import paper_percent
from bench.serving.runs import sglang_arguments
from bench.serving.slowdowns import Metric, slowdown, summary

THROUGHPUT = Metric("throughput", "throughput lost", True)
LATENCY = Metric("latency", "latency added", False)


def block(*values: float, key: str = "throughput") -> list[dict[str, Any]]:
    return [{key: value} for value in values]


class TestSlowdown:
    def test_a_slower_penalty_is_positive_in_throughput_and_in_latency(self) -> None:
        assert slowdown(block(100, 99, 99, 100), THROUGHPUT) == pytest.approx(1)
        slower = block(100, 101, 101, 100, key="latency")
        assert slowdown(slower, LATENCY) == pytest.approx(1)
        assert slowdown(block(99, 100, 100, 99), THROUGHPUT) < 0

    def test_a_steady_drift_cancels(self) -> None:
        drifting = block(*(100 + 5 * i for i in range(4)))
        assert slowdown(drifting, THROUGHPUT) == pytest.approx(0)


class TestSummary:
    def test_the_median_and_the_interval_are_over_blocks(self) -> None:
        blocks = [block(100, 100 - lost, 100 - lost, 100) for lost in range(1, 10)]
        found = summary(blocks, (THROUGHPUT,))["throughput"]
        losses = [slowdown(runs, THROUGHPUT) for runs in blocks]
        assert found["percent"] == round(statistics.median(losses), 4) == 5
        assert found["interval"] == [2, 8]
        assert (found["off"], found["on"]) == (100, 95)


def parsed(monkeypatch: pytest.MonkeyPatch, gpus: list[str], *arguments: str) -> Any:
    monkeypatch.setattr(hardware, "torch_facts", lambda: {"gpus": gpus})
    return parse(["static", "--out", "x.json", *arguments])


class TestCommandLine:
    def test_with_a_gpu_it_is_the_papers_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = parsed(monkeypatch, ["H100"], "--", "--attention-backend", "triton")
        assert not found.smoke
        assert found.models == ["qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"]
        assert (found.input_len, found.output_len, found.fields) == (1024, 64, {"lz_penalty": 0.15})
        sizes = [MODELS[name].batch_size for name in found.models]
        rows = [f"{name}, batch {size}" for name, size in zip(found.models, sizes, strict=True)]
        assert sizes == [64, 32, 8]
        assert [paper_percent(row, found) for row in rows] == [0.55, 0.14, 0.03]
        assert [MODELS[name].tp(8) for name in found.models] == [4, 4, 8]
        assert [MODELS[name].tp(7) for name in found.models] == [4, 4, 4]
        assert sglang_arguments(found) == ["--attention-backend", "triton"]
