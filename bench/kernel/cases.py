"""The cases that are measured, and their rows of the result."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch

from bench.kernel.implementations import (
    Copy,
    Dense,
    Dry,
    Empty,
    Implementation,
    Penalties,
    Step,
    Upstream,
    Verify,
    scale,
    upstream_penalties,
)
from bench.kernel.inputs import HISTORIES, PARENTS, Case, Inputs, touched_bytes
from bench.kernel.names import COPY, DENSE, DRY, EMPTY, MEMORY, ONSET_2, OURS, REFERENCE, UPSTREAM
from bench.kernel.timing import (
    Effort,
    Times,
    amount,
    check,
    cpu_times,
    gpu_times,
    outputs,
    single_calls,
)
from sglang_lz.penalty.kernels import import_for
from sglang_lz.penalty.reference import steps as reference

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


COLUMNS = ("implementation", *Case.__dataclass_fields__, *MEASURED, "note")


def cases(device: str, quick: bool) -> list[Case]:
    """What is measured, each once."""
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
        *(replace(usual, nodes=len(PARENTS), history=name) for name in ("text", "loop")),
    ]
    return list(dict.fromkeys(chosen))


class Bench:
    """The implementations on one device."""

    def __init__(self, device: torch.device, effort: Effort, quick: bool) -> None:
        self.device, self.effort = device, effort
        self.kernels = import_for(device)
        # Upstream's takes longer to import and compile than a quick run may last.
        self.make_penalties: Callable[..., Any] = Penalties
        self.scale, self.is_upstream = scale, False
        if not quick:
            self.make_penalties, self.scale, self.is_upstream = upstream_penalties()

    def measure(self, case: Case) -> Iterator[dict[str, Any]]:
        """Check and time a case; yield one row of the result for each implementation."""
        effort = self.effort
        logits = case.logits_rows * case.vocab * torch.float32.itemsize
        sets = min(max(effort.logits_bytes // logits, 1), effort.sets)
        inputs = Inputs(case, self.device, sets, steps=effort.repeats + 2)
        inputs.advance()
        size = touched_bytes(case, inputs.judged_windows())
        self._check(case, inputs)
        ours_us = None
        for name, make in self._ways(case, inputs, size).items():
            row = {"implementation": name, **asdict(case)}
            skipped = self._skipped(case, name)
            if skipped:
                yield {**row, **dict.fromkeys(MEASURED), "note": f"skipped: {skipped}"}
                continue
            calls, rounds = amount(make(), inputs, effort)
            implementation = make()
            measure = gpu_times if self.device.type == "cuda" else cpu_times
            times = measure(implementation, inputs, calls, rounds)
            ours_us = ours_us or statistics.median(times.samples)
            note = "stand-in" if name == UPSTREAM and not self.is_upstream else None
            yield {**row, **measured(times, implementation.bytes, ours_us), "note": note}

    def measure_single_calls(self, case: Case, repeats: int) -> Iterator[dict[str, Any]]:
        """Yield the rows of single calls, on CUDA."""
        times = single_calls(case, self.device, self.kernels, repeats)
        ours_us = statistics.median(times[OURS].samples)
        for name, found in times.items():
            row = {"implementation": name, **asdict(case)}
            yield {**row, **measured(found, None, ours_us), "note": None}

    def _ways(
        self, case: Case, inputs: Inputs, size: int
    ) -> dict[str, Callable[[], Implementation]]:
        """What makes each implementation of a case, by name; ours is first."""
        ours = Verify if case.nodes else Step
        ways: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: ours(inputs, self.kernels, size),
            # It waits where the history holds no loop. What such a row moves is not counted.
            ONSET_2: lambda: ours(inputs, self.kernels, None, onset=2),
            MEMORY: lambda: ours(inputs, self.kernels, None, onset=2, memory=True),
            REFERENCE: lambda: ours(inputs, reference, None),
        }
        if not case.nodes:
            ways[DENSE] = lambda: Dense(inputs, case.rows, self.effort.slice_bytes)
            ways[UPSTREAM] = lambda: Upstream(inputs, self.make_penalties, self.scale)
            ways[DRY] = lambda: Dry(inputs)
        if self.device.type == "cuda":
            ways[EMPTY] = lambda: Empty(inputs)
        ways[COPY] = lambda: Copy(inputs, size)
        return ways

    def _check(self, case: Case, inputs: Inputs) -> None:
        way = Verify if case.nodes else Step
        expected = outputs(way(inputs, reference, None), inputs)
        check(case, OURS, outputs(way(inputs, self.kernels, None), inputs), expected)
        if case.nodes or case.rows * case.window * case.buffer >= 2**31:
            return
        rows = int(self.effort.checked_cells // (case.vocab * case.window))
        dense = Dense(inputs, min(max(rows, 1), case.rows), self.effort.slice_bytes)
        check(case, DENSE, outputs(dense, inputs)[:, : dense.rows], expected)

    def _skipped(self, case: Case, name: str) -> str | None:
        matches = case.rows * case.window * case.buffer
        if name in (DENSE, DRY) and matches >= 2**31:
            return f"{matches:.1e} comparisons for the matches"
        cells = case.rows * case.vocab * case.window
        if name == DENSE and cells > self.effort.cells:
            return f"{cells:.1e} comparisons"
        return None
