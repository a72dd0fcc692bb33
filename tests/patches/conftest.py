"""Upstream's model runner in this process, without a server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest
import torch

from inprocess import Runner


@pytest.fixture(scope="session")
def model_path() -> str:
    return os.environ.get("LZ_TEST_MODEL") or str(files("sglang_lz") / "demo" / "model")


@pytest.fixture(scope="session")
def bench_runner(model_path: str) -> Any:
    """The object that upstream's one-batch benchmark drives: a model with its memory pools."""
    from sglang.benchmark import one_batch
    from sglang.srt.server_args import PortArgs, ServerArgs

    from bench.serving.turns import load

    server_args = ServerArgs(
        model_path=model_path,
        device="cpu",
        dtype="float32",
        max_total_tokens=4096,
        max_running_requests=8,
        log_level="error",
    )
    server_args.resolve_once()
    one_batch._set_envs_and_config(server_args)
    ports = PortArgs.init_new(server_args)
    return load(server_args, ports)[0]


@pytest.fixture
def runner(bench_runner: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    from sglang_lz.scheduler import sampling

    made = Runner(bench_runner)
    apply_step = sampling.apply_step

    def recorded(logits: torch.Tensor, forward_batch: Any) -> None:
        before = logits.clone()
        apply_step(logits, forward_batch)
        made.seen.append((before, logits.clone()))

    monkeypatch.setattr(sampling, "apply_step", recorded)
    bench_runner.clear()
    yield made
    bench_runner.clear()
