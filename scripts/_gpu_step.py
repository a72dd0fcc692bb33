"""Measure what a decode step of the static benchmark takes, with penalties and without.

Run by scripts/gpu-check. One process decodes the same batch with every way in turn, forwards and
back, as `bench.serving static` does, but measures each step: with the penalty, waiting for a loop,
with upstream's frequency penalty, with a plan made anew for each step, and with none. The host's
time is that of upstream's calls into ours. The process does other work between them, so its caches
are cold there, unlike in `bench.kernel`, which measures the host in a loop. Torch's profiler,
afterwards and apart from that, gives the time of our kernels.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from sglang.benchmark import one_batch

import _checkout  # noqa: F401, for the imports below
import _gpu_one_batch
from bench.common import date, write_result
from bench.serving import hardware
from bench.serving.models import MODELS, write_model
from sglang_lz import sampling
from sglang_lz.penalty.penalizer import Penalizer
from sglang_lz.upstream_benchmarks import penalize

WAYS: dict[str, dict[str, Any]] = {
    "off": {},
    "LZ, planned anew": {"lz_penalty": 0.15},
    "LZ": {"lz_penalty": 0.15},
    "LZ waiting, lz_onset 2": {"lz_penalty": 0.15, "lz_onset": 2},
    "frequency penalty 0.1": {"frequency_penalty": 0.1},
}
PROFILED = ("LZ", "frequency penalty 0.1")
STEPS, FIRST, PROFILED_STEPS = 60, 5, 5
"""Steps of a run, how many of them, the first, do not count, and how many are profiled."""
COLUMNS = ("way", "step_us", "plan_us", "apply_us")


class Decoding:
    """A loaded model that decodes one batch again and again.

    Attributes:
        spent: seconds of each call of `plan_step` and `apply_step` in the current run.
    """

    def __init__(self, runner: Any, batch_size: int, input_len: int) -> None:
        self.runner = runner
        generator = torch.Generator().manual_seed(0)
        shape = (batch_size, input_len)
        # Upstream's tool draws its own input ids below 10000, too.
        self.prompts = torch.randint(0, 10_000, shape, generator=generator).tolist()
        self.spent: dict[str, list[float]] = {"plan_step": [], "apply_step": []}
        for name, times in self.spent.items():
            setattr(sampling, name, _timed(getattr(sampling, name), times))

    def run(self, way: str) -> tuple[str, float, float, float]:
        """Decode `STEPS` tokens; returns medians in microseconds, as COLUMNS names them."""
        tokens, batch = self._prefilled(way)
        steps = []
        for _ in range(STEPS):
            began = time.perf_counter()
            tokens, _ = self.runner.decode(tokens, batch)
            _synchronize()
            steps.append(time.perf_counter() - began)
        step, plan, apply = (
            round(1e6 * statistics.median(times[-STEPS:][FIRST:]), 1)
            for times in (steps, *self.spent.values())
        )
        return way, step, plan, apply

    def kernels(self, way: str) -> dict[str, list[float]]:
        """The times of our kernels in some steps, by name, in microseconds."""
        from torch.profiler import ProfilerActivity, profile

        tokens, batch = self._prefilled(way)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED_STEPS):
                tokens, _ = self.runner.decode(tokens, batch)
                _synchronize()
        found: dict[str, list[float]] = {}
        for event in profiler.events():
            if event.name in ("_step_kernel", "_forbid_kernel"):
                found.setdefault(event.name, []).append(round(event.time_range.elapsed_us(), 2))
        return found

    def _prefilled(self, way: str) -> tuple[Any, Any]:
        from sglang.srt.sampling.sampling_params import SamplingParams

        reqs: list[Any] = one_batch.prepare_synthetic_inputs_for_latency_test(
            len(self.prompts), len(self.prompts[0]), self.prompts
        )
        for req in reqs:
            req.sampling_params = SamplingParams(temperature=0, max_new_tokens=STEPS + 1)
        penalize(reqs, WAYS[way])
        self.runner.clear()
        tokens, _, batch = self.runner.extend(reqs)
        _synchronize()
        for times in self.spent.values():
            times.clear()
        return tokens, batch


def measure(decoding: Decoding, rounds: int) -> list[tuple[str, float, float, float]]:
    """All ways in turn and back, `rounds` times, after one run of each that does not count."""
    order = [*WAYS, *reversed(WAYS)]
    found = []
    for turn in range(rounds + 1):
        for way in order if turn else WAYS:
            with mock.patch.object(
                Penalizer,
                "plan_again",
                (lambda *_: None) if "anew" in way else Penalizer.plan_again,
            ):
                row = decoding.run(way)
            if turn:
                found.append(row)
    return found


def differences(runs: list[tuple[str, float, float, float]]) -> dict[str, list[float]]:
    """By how many microseconds each way's steps took longer than those without, per round."""
    size = 2 * len(WAYS)
    rounds = [runs[start : start + size] for start in range(0, len(runs), size)]
    return {
        way: [
            round(statistics.mean(_steps_of(one, way)) - statistics.mean(_steps_of(one, "off")), 1)
            for one in rounds
        ]
        for way in WAYS
        if way != "off"
    }


def _steps_of(runs: list[tuple[str, float, float, float]], way: str) -> list[float]:
    return [step for name, step, *_ in runs if name == way]


def _timed(function: Callable[..., Any], times: list[float]) -> Callable[..., Any]:
    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        found = function(*args)
        times.append(time.perf_counter() - began)
        return found

    return timed


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    """Run the command line; what follows `--` goes to sglang."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the result, JSON")
    parser.add_argument("--model", choices=MODELS, default="qwen2.5-1.5b")
    parser.add_argument("--input-len", type=int, default=1024, help="tokens")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("sglang", nargs="*")
    given = parser.parse_args()

    def write(runner: Any) -> None:
        decoding = Decoding(runner, MODELS[given.model].batch_size, given.input_len)
        runs = measure(decoding, given.rounds)
        result = {
            "measures": "a decode step of upstream's one_batch, medians of the steps of a run, "
            "microseconds: by the clock, and on the host in our calls that plan and apply",
            "date": date(),
            "command": shlex.join([f"scripts/{Path(__file__).name}", *sys.argv[1:]]),
            **hardware.environment(),
            "model": given.model,
            "batch_size": MODELS[given.model].batch_size,
            "input_len": given.input_len,
            "steps": STEPS,
            "ways": WAYS,
            "longer_than_off_us": differences(runs),
            "kernels_us": {way: decoding.kernels(way) for way in PROFILED},
            "columns": COLUMNS,
            "runs": runs,
        }
        write_result(given.out, result)
        for way, longer in result["longer_than_off_us"].items():
            print(f"{way}: {statistics.median(longer):.1f} us longer, {longer}")

    with tempfile.TemporaryDirectory(prefix="gpu-step-") as work:
        model = Path(work, given.model)
        write_model(MODELS[given.model].config, model)
        flags = ["--model-path", str(model), "--load-format", "dummy", *given.sglang]
        _gpu_one_batch.run(flags, MODELS[given.model].batch_size, write)


if __name__ == "__main__":
    main()
