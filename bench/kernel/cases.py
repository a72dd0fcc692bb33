"""The cases that are measured, and their rows of the result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from bench.kernel.implementations import Copy, Implementation, Step, Upstream
from bench.kernel.inputs import HISTORIES, Case, Inputs, touched_bytes
from bench.kernel.names import COPY, MEMORY, ONSET_2, OURS, REFERENCE, UPSTREAM
from bench.kernel.timing import Effort, Times, amount, check, cpu_times, gpu_times, outputs
from lz_penalty.kernels import import_for
from lz_penalty.reference import steps as reference

MEASURED = ("timing", "median_us", "p10_us", "p90_us", "wall_us", "ratio", "bytes")


def measured(times: Times, size: int | None, ours_us: float) -> dict[str, Any]:
    """The columns MEASURED of a row."""
    median = statistics.median(times.samples)
    tenths = statistics.quantiles(times.samples, n=10, method="inclusive")
    wall = None if times.wall is None else round(statistics.median(times.wall), 3)
    values = (
        times.timing,
        round(median, 3),
        round(tenths[0], 3),
        round(tenths[-1], 3),
        wall,
        round(median / ours_us, 4),
        size,
    )
    return dict(zip(MEASURED, values, strict=True))


COLUMNS = ("implementation", *Case.__dataclass_fields__, *MEASURED)


def cases(device: str, quick: bool) -> list[Case]:
    """The cases that are measured, each once."""
    usual = Case(rows=64)
    if quick:
        usual = Case(rows=16, vocab=32768)
        batches, vocabs, windows, large = [1, 16], [65536], [128], [16]
    elif device == "cuda":
        batches, large = [1, 4, 16, 64, 256, 512], [64, 512]
        vocabs, windows = [32768, 65536, 131072, 262144], [128, 1024, 2048, 8192]
    else:
        batches, large = [1, 4, 16, 64], [64]
        vocabs, windows = [32768, 65536, 262144], [128, 1024]
    worst = [name for name in HISTORIES if name != usual.history]
    chosen = [
        *(replace(usual, rows=rows) for rows in batches),
        *(replace(usual, rows=rows, history=name) for rows in large for name in worst),
        *(replace(usual, rows=rows, vocab=vocab) for rows in large for vocab in vocabs),
        *(
            replace(usual, window=window, buffer=buffer)
            for window in windows
            for buffer in (usual.buffer, window)
        ),
    ]
    return list(dict.fromkeys(chosen))


class Bench:
    """The implementations on one device."""

    def __init__(self, device: torch.device, effort: Effort, quick: bool) -> None:
        self.device, self.effort = device, effort
        self.kernels = import_for(device)
        # Upstream's take longer to import and compile than a quick run may last.
        self.with_upstream = not quick

    def measure(self, case: Case) -> Iterator[dict[str, Any]]:
        """Check and time a case; yield one row of the result for each implementation."""
        effort = self.effort
        logits = case.rows * case.vocab * torch.float32.itemsize
        sets = min(max(effort.logits_bytes // logits, 1), effort.sets)
        inputs = Inputs(case, self.device, sets, steps=effort.repeats + 2)
        inputs.advance()
        size = touched_bytes(case, inputs.judged_windows())
        self._check(case, inputs)
        ours_us = None
        for name, make in self._ways(inputs, size).items():
            row = {"implementation": name, **asdict(case)}
            calls, rounds = amount(make(), inputs, effort)
            implementation = make()
            measure = gpu_times if self.device.type == "cuda" else cpu_times
            times = measure(implementation, inputs, calls, rounds)
            ours_us = ours_us or statistics.median(times.samples)
            yield {**row, **measured(times, implementation.bytes, ours_us)}

    def _ways(self, inputs: Inputs, size: int) -> dict[str, Callable[[], Implementation]]:
        """The factory of each implementation of a case, by name; ours is first."""
        ways: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: Step(inputs, self.kernels, size),
            # It waits where the history holds no loop. What such a row moves is not counted.
            ONSET_2: lambda: Step(inputs, self.kernels, None, onset=2),
            MEMORY: lambda: Step(inputs, self.kernels, None, onset=2, memory=True),
            REFERENCE: lambda: Step(inputs, reference, None),
        }
        if self.with_upstream:
            ways[UPSTREAM] = lambda: Upstream(inputs)
        ways[COPY] = lambda: Copy(inputs, size)
        return ways

    def _check(self, case: Case, inputs: Inputs) -> None:
        expected = outputs(Step(inputs, reference, None), inputs)
        check(case, OURS, outputs(Step(inputs, self.kernels, None), inputs), expected)
