"""How an implementation is checked and timed."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.kernel.implementations import Implementation
from bench.kernel.inputs import Case, Inputs

FLUSH_BYTES = 256 * 2**20  # several times the second-level cache of any GPU
CHECKED_STEPS = 2
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Effort:
    """How much to measure on a device.

    Attributes:
        logits_bytes: of all sets together, which bounds their number.
        sets: how many batches are served in turn, at most.
        repeats: rounds over the sets, at most.
        seconds: of one implementation in one case, about.
    """

    logits_bytes: int
    sets: int
    repeats: int
    seconds: float


EFFORTS = {"cuda": Effort(8 * 2**30, 32, 30, 0.3), "cpu": Effort(160 * 2**20, 8, 30, 0.5)}


@dataclass(frozen=True)
class Times:
    """Microseconds a call.

    Attributes:
        timing: what they are times of.
        samples: one for each round.
        wall: the same by the clock, where `samples` are CPU times.
    """

    timing: str
    samples: list[float]
    wall: list[float] | None = None


def outputs(implementation: Implementation, inputs: Inputs) -> Tensor:
    """The logits of the first set after each of some steps, [steps, rows, V]."""
    inputs.rewind()
    found = []
    for _ in range(CHECKED_STEPS):
        inputs.advance(1)
        implementation.call(0)
        found.append(inputs.logits[0].clone())
    return torch.stack(found)


def check(case: Case, name: str, got: Tensor, expected: Tensor) -> None:
    """Exit unless `got` has the logits [steps, rows, V] of the leading rows of `expected`."""
    expected = expected[:, : got.shape[1]]
    if not torch.allclose(got, expected, atol=TOLERANCE, rtol=TOLERANCE):
        off = (got - expected).abs().max().item()
        raise SystemExit(f"{case}: {name} is off by {off:.2e}; nothing more is timed")


def gpu_times(implementation: Implementation, inputs: Inputs, calls: int, rounds: int) -> Times:
    """Time `rounds` over the first `calls` sets on the GPU."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=inputs.device)

    def run() -> None:
        for k in range(calls):
            implementation.call(k)

    inputs.rewind()
    inputs.advance(calls)
    run()
    if implementation.capturable:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    samples = []
    for _ in range(rounds):
        inputs.advance(calls)
        # Emptying the cache also keeps the GPU busy until the host has launched the calls.
        flush.zero_()
        start.record()
        if implementation.capturable:
            graph.replay()
        else:
            run()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / calls)
    return Times("graph" if implementation.capturable else "stream", samples)


def cpu_times(implementation: Implementation, inputs: Inputs, calls: int, rounds: int) -> Times:
    """Time `rounds` over the first `calls` sets on this thread."""
    samples, wall = [], []
    inputs.rewind()
    for _ in range(rounds + 1):
        inputs.advance(calls)
        clock, cpu = time.perf_counter(), time.thread_time()
        for k in range(calls):
            implementation.call(k)
        samples.append(1e6 * (time.thread_time() - cpu) / calls)
        wall.append(1e6 * (time.perf_counter() - clock) / calls)
    # The first round meets cold caches of its own.
    return Times("CPU", samples[1:], wall[1:])


def amount(implementation: Implementation, inputs: Inputs, effort: Effort) -> tuple[int, int]:
    """How many sets to call in a round, and how many rounds, by how long a call takes."""
    inputs.rewind()
    inputs.advance(1)
    for _ in range(2):  # the first may compile
        synchronize(inputs.device)
        before = time.perf_counter()
        implementation.call(0)
        synchronize(inputs.device)
        seconds = time.perf_counter() - before
    calls = min(max(int(effort.seconds / 20 / seconds), 1), inputs.sets)
    return calls, min(max(int(effort.seconds / (calls * seconds)), 5), effort.repeats)


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
