"""bench.serving on upstream's result lines, without upstream's tools."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bench.serving import hardware
from bench.serving.arguments import parse
from bench.serving.models import MODELS, UPSTREAM, model_of
from bench.serving.result import paper_percent
from bench.serving.runs import batch_sizes, sglang_arguments
from bench.serving.slowdowns import Metric, batches_compared, servers_compared, slowdown, summary

THROUGHPUT = Metric("throughput", "throughput lost", True)
LATENCY = Metric("latency", "latency added", False)
SIZES = {"batch_size": 2, "input_len": 10, "output_len": 5}


def run(prefill: float, *steps: float) -> dict[str, Any]:
    return SIZES | {"prefill_seconds": prefill, "step_seconds": [*steps]}


class TestBlocks:
    def test_a_slower_penalty_is_positive_in_throughput_and_in_latency(self) -> None:
        assert slowdown({"throughput": 100}, {"throughput": 99}, THROUGHPUT) == pytest.approx(1)
        assert slowdown({"latency": 100}, {"latency": 101}, LATENCY) == pytest.approx(1)
        assert slowdown({"latency": 100}, {"latency": 99}, LATENCY) < 0

    def test_a_steady_drift_of_a_server_cancels(self) -> None:
        names = ("output_throughput", "median_ttft_ms", "mean_itl_ms")
        block = [dict.fromkeys(names, 100.0 + 5 * i) for i in range(4)]
        off, on = servers_compared(block)
        assert off == on == dict.fromkeys(names, 107.5)

    def test_a_batch_is_compared_turn_by_turn(self) -> None:
        """The penalty adds 1 to a step of 10 and 2 to a prefill of 20, beside disturbances."""
        block = [
            run(20, 10, 30, 10, 12),
            run(22, 11, 31, 511, 13),
            run(27, 11, 11, 11, 16),
            run(25, 10, 10, 910, 15),
        ]
        off, on = batches_compared(block)
        assert off["decode_throughput"] == pytest.approx(2 / 11)
        assert on["decode_throughput"] == pytest.approx(2 / 12)
        assert off["prefill_throughput"] == pytest.approx(20 / 22.5)
        assert on["overall_throughput"] == pytest.approx(30 / (24.5 + 4 * 12))


class TestSummary:
    def test_the_median_and_the_interval_are_over_blocks(self) -> None:
        pairs = [({"throughput": 100.0}, {"throughput": 100.0 - lost}) for lost in range(1, 10)]
        found = summary(pairs, (THROUGHPUT,))["throughput"]
        assert found["percent"] == 5
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

    def test_another_model_needs_a_path_and_may_have_several_batches(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text('{"num_attention_heads": 9}')
        real = ("--models", "smollm2-135m", "--model-path", f"smollm2-135m={tmp_path}")
        found = parsed(monkeypatch, ["H100"], *real, "--batch-size", "1", "64")
        assert batch_sizes("smollm2-135m", found) == [1, 64]
        assert model_of("smollm2-135m", found.model_path).tp(8) == 1
        for arguments, words in (
            (real[:2], "--models must be of .*, or have a --model-path, got smollm2-135m"),
            ((*real, "--batch-size", "1", "0"), "--batch-size must be at least 1, got 0"),
            ((*real, "--output-len", "1"), "--output-len must be at least 2, got 1"),
        ):
            with pytest.raises(SystemExit):
                parsed(monkeypatch, ["H100"], *arguments)
            assert re.search(words, capsys.readouterr().err)

    def test_beside_the_penalty_are_the_same_waiting_and_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fields = '{"lz_penalty": 0.3}'
        beside = ("--beside", "waiting", "upstream")
        found = parsed(monkeypatch, ["H100"], "--fields", fields, *beside)
        assert [*found.variants.values()] == [
            {"lz_penalty": 0.3},
            {"lz_penalty": 0.3, "lz_onset": 3},
            {UPSTREAM: True},
        ]
