"""Measure a step of the LZ penalty beside other ways to compute it and beside the machine's limit.

All take the same histories and logits, in one run:

- ours: `sglang_lz.kernels.cuda` (Triton) on CUDA, `sglang_lz.kernels.cpu` (numba) on a CPU;
- reference: `sglang_lz.reference.steps`, the same in torch operators;
- dense: compares every token of the vocabulary with every window position, B x V x W, as the code
  published with the paper does, in slices of V that fit into memory;
- frequency + repetition: what upstream's penalties run at each step: upstream's own classes if
  sglang is installed, else the same operators (a stand-in, which the result says);
- DRY style: penalises what would extend a repetition, by its length and whatever its distance;
- the limit: an empty kernel with the launch of ours, and a copy that moves as many bytes as ours
  must touch.

Beside the steps it measures what the thread that schedules all requests does for the penalty
(`host.py`): when a request starts, and for batches that have no penalty.

Those that compute the LZ penalty must agree before any is timed. Each row of the result serves
several batches in turn (`sets`), so that no cache holds their logits, and every call appends one
token to its windows: a steady state of decoding. Logits are restored outside of what is timed.

    python bench/kernel.py --out bench/results/kernel-cpu.json
    python bench/kernel.py --plot bench/results/kernel-cpu.png bench/results/kernel-cpu.json
    python bench/kernel.py --host --out bench/results/host-cpu.json

GPU time is that of a CUDA graph of one call for each set, by events; what cannot be captured, since
it waits for the device, is timed call after call ("stream"). On a CPU one thread runs, and the time
is the CPU time of that thread, which other programs on the machine disturb less than the clock.

What it does not say: what a server loses (bench/serving.py), or how well a penalty works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import host
from common import commit, compact_rows, machine, output, versions
from rivals import (
    DRY_ALLOWED_LENGTH,
    DRY_BASE,
    DRY_MULTIPLIER,
    FREQUENCY_PENALTY,
    HISTORIES,
    LZ_PENALTY,
    PARENTS,
    REPETITION_PENALTY,
    VOCAB,
    Case,
    Copy,
    Dense,
    Dry,
    Empty,
    Implementation,
    Inputs,
    Penalties,
    Step,
    Upstream,
    Verify,
    scale,
    touched_bytes,
    upstream_penalties,
)
from sglang_lz.kernels import import_for
from sglang_lz.reference import steps as reference

OURS = "ours"
REFERENCE = "reference"
DENSE = "dense B x V x W"
UPSTREAM = "frequency + repetition"
DRY = "DRY style"
EMPTY = "empty kernel"
COPY = "copy of touched bytes"

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
        cells: B x V x W comparisons beyond which the dense formulation is skipped.
        slice_bytes: memory of a slice of them.
        checked_cells: of a step that is only checked.
    """

    logits_bytes: int
    sets: int
    repeats: int
    seconds: float
    cells: float
    slice_bytes: int
    checked_cells: float


EFFORTS = {
    "cuda": Effort(8 * 2**30, 32, 30, 2.0, 2e11, 8 * 2**30, 2e11),
    "cpu": Effort(160 * 2**20, 8, 30, 0.5, 4e8, 64 * 2**20, 1e8),
}


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
    """The logits of the first set after each of some steps, [steps, logits rows, V]."""
    inputs.rewind()
    found = []
    for _ in range(CHECKED_STEPS):
        inputs.advance(1)
        implementation.call(0)
        found.append(inputs.logits[0].clone())
        implementation.between()
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
    implementation.between()
    if implementation.capturable:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
    samples = []
    for _ in range(rounds):
        inputs.advance(calls)
        # Emptying the cache also keeps the GPU busy until the host has launched what is timed.
        flush.zero_()
        start.record()
        if implementation.capturable:
            graph.replay()
        else:
            run()
        end.record()
        torch.cuda.synchronize()
        samples.append(1e3 * start.elapsed_time(end) / calls)
        implementation.between()
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
        implementation.between()
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


def single_calls(
    case: Case, device: torch.device, kernels: ModuleType, repeats: int
) -> dict[str, Times]:
    """Time single calls by the host's clock, from the launch until the device has finished."""
    inputs = Inputs(case, device, sets=1, steps=repeats)
    both: dict[str, Implementation] = {
        OURS: Step(inputs, kernels, None),
        EMPTY: Empty(inputs, kernels),
    }
    samples: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(repeats):
        inputs.advance()
        for name, implementation in both.items():
            torch.cuda.synchronize()
            before = time.perf_counter()
            implementation.call(0)
            torch.cuda.synchronize()
            samples[name].append(1e6 * (time.perf_counter() - before))
    # The first calls compile.
    return {name: Times("launch to finish", times[10:]) for name, times in samples.items()}


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
        ours = Verify if case.nodes else Step
        self._check(case, inputs)
        ways: dict[str, Callable[[], Implementation]] = {
            OURS: lambda: ours(inputs, self.kernels, size),
            REFERENCE: lambda: ours(inputs, reference, None),
        }
        if not case.nodes:
            ways[DENSE] = lambda: Dense(inputs, case.rows, effort.slice_bytes)
            ways[UPSTREAM] = lambda: Upstream(inputs, self.make_penalties, self.scale)
            ways[DRY] = lambda: Dry(inputs)
        if self.device.type == "cuda":
            ways[EMPTY] = lambda: Empty(inputs, self.kernels)
        ways[COPY] = lambda: Copy(inputs, size)
        ours_us = None
        for name, make in ways.items():
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


# The result


def targets(
    rows: Sequence[dict[str, Any]], host_rows: Sequence[dict[str, Any]] = ()
) -> list[dict[str, Any]]:
    """What the rows of a result say of what the step, and a request's start, are to cost.

    Returns:
        One dict a target: its words, the limit, the measured value in the same unit (None if the
        rows do not say) and whether it is met (None likewise).
    """

    def times(name: str, timing: str, **sizes: object) -> list[float]:
        wanted = {"implementation": name, "timing": timing, "nodes": 0, **sizes}
        found = [row for row in rows if wanted.items() <= row.items()]
        return [row["median_us"] for row in found]

    usual = {"window": 512, "buffer": 32}
    full = {**usual, "vocab": VOCAB}
    table: list[tuple[str, float, float | None]] = []
    for batch, limit in ((64, 8.0), (512, 20.0)):
        slowest = max(times(OURS, "graph", rows=batch, **full), default=None)
        table.append((f"GPU time at {batch} rows, worst history, us", limit, slowest))
    for batch in (64, 512):
        one = {**usual, "rows": batch, "history": "text"}
        ends = [times(OURS, "graph", vocab=vocab, **one) for vocab in (32768, 262144)]
        spread = None
        if all(ends):
            every = times(OURS, "graph", **one)
            spread = 100 * (max(every) / min(every) - 1)
        title = f"spread of GPU time over V = 32k to 256k at {batch} rows, per cent"
        table.append((title, 10.0, spread))
    first = times(OURS, "launch to finish", rows=1, **full)
    empty = times(EMPTY, "launch to finish", rows=1, **full)
    ratio = first[0] / empty[0] if first and empty else None
    table.append(("launch to finish at 1 row, times an empty kernel", 1.3, ratio))
    slowest = max(times(OURS, "CPU", rows=64, **full), default=None)
    table.append(("CPU time at 64 rows, worst history, us", 1000.0, slowest))
    table += host.targets(host_rows)
    return [
        {
            "target": title,
            "at_most": limit,
            "measured": None if value is None else round(value, 3),
            "met": None if value is None else value <= limit,
        }
        for title, limit, value in table
    ]


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of a result, to read on a terminal."""
    lines = []
    title = "{:<24}{:>11}{:>11}{:>11}{:>11}{:>10}{:>13}  {}"
    heads = ("", "median us", "p10", "p90", "wall us", "x ours", "bytes", "time of")
    for case, found in itertools.groupby(rows, key=_case):
        lines += ["", str(case), title.format(*heads)]
        for row in found:
            if row["median_us"] is None:
                lines.append(f"{row['implementation']:<24}  {row['note']}")
                continue
            numbers = [row[name] for name in ("median_us", "p10_us", "p90_us", "wall_us")]
            cells = ["-" if number is None else f"{number:.2f}" for number in numbers]
            size = "-" if row["bytes"] is None else f"{row['bytes']:,}"
            note = ", ".join(filter(None, (row["timing"], row["note"])))
            line = title.format(row["implementation"], *cells, f"{row['ratio']:.2f}", size, note)
            lines.append(line)
    return "\n".join(lines)


def targets_table(found: Sequence[dict[str, Any]]) -> str:
    """The targets, to read on a terminal."""
    lines = ["", "targets"]
    for target in found:
        met = {True: "met", False: "not met", None: "not measured here"}[target["met"]]
        measured = "" if target["measured"] is None else f"{target['measured']:.2f}"
        line = f"{target['target']:<62}at most{target['at_most']:>8.1f}{measured:>11}  {met}"
        lines.append(line)
    return "\n".join(lines)


def _case(row: dict[str, Any]) -> Case:
    return Case(**{name: row[name] for name in Case.__dataclass_fields__})


def environment(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
    is_cuda = device.type == "cuda"
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": torch.cuda.get_device_name(device) if is_cuda else None,
        "driver": output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if is_cuda
        else None,
        "cuda": torch.version.cuda,
        **machine(),
        "threads": torch.get_num_threads(),
        **versions("torch", "triton", "sglang"),
        "commit": commit(),
    }


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
        ticks: set[int] = set()
        for name, colour in COLOURS.items():
            points = sorted(
                (row[swept], row["median_us"], row["p10_us"], row["p90_us"])
                for row in rows
                if row["implementation"] == name
                and row["timing"] in ("graph", "stream", "CPU")
                and replace(_case(row), **{swept: getattr(usual, swept)}) == usual
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


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the table)")
    parser.add_argument("--quick", action="store_true", help="a few small cases")
    parser.add_argument("--host", action="store_true", help="only what the host does, no step")
    parser.add_argument("--device", choices=EFFORTS, help="default: cuda if there is one")
    parser.add_argument("--note", action="append", default=[], help="to keep in the result")
    parser.add_argument("--plot", type=Path, help="draw a result file here and measure nothing")
    parser.add_argument("result", type=Path, nargs="?", help="the result file to draw")
    arguments = parser.parse_args()
    if (arguments.plot is None) != (arguments.result is None):
        parser.error("--plot and a result file go together")
    if arguments.plot:
        plot(json.loads(arguments.result.read_text()), arguments.plot)
        return

    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU.")
    name = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    torch.set_num_threads(1)
    effort = EFFORTS[name]
    if arguments.quick:
        effort = replace(effort, sets=2, repeats=5, seconds=0.1, cells=4e7, checked_cells=2e7)
    bench = Bench(device, effort, arguments.quick)
    rows: list[dict[str, Any]] = []
    result: dict[str, Any] = {
        "measures": f"{'GPU' if name == 'cuda' else 'CPU'} time of a step, and CPU time of the "
        "scheduler's thread, microseconds",
        "command": shlex.join(["python", *sys.argv]),
        **environment(device),
        "notes": arguments.note,
        "implementations": {
            OURS: bench.kernels.__name__,
            UPSTREAM: "upstream's own" if bench.is_upstream else "a stand-in of the same operators",
        },
        "settings": {
            "lz_penalty": LZ_PENALTY,
            "lz_cost": "marginal",
            "frequency_penalty": FREQUENCY_PENALTY,
            "repetition_penalty": REPETITION_PENALTY,
            "dry": [DRY_MULTIPLIER, DRY_BASE, DRY_ALLOWED_LENGTH],
            **asdict(effort),
        },
        "host_columns": host.COLUMNS,
        "row_columns": COLUMNS,
    }
    host_rows: list[dict[str, Any]] = []

    def keep(found: Iterator[dict[str, Any]], kept: list[dict[str, Any]] = rows) -> None:
        kept.extend(found)
        result["targets"] = targets(rows, host_rows)
        result["host"] = [[row[column] for column in host.COLUMNS] for row in host_rows]
        result["rows"] = [[row[column] for column in COLUMNS] for row in rows]
        if arguments.out:
            arguments.out.parent.mkdir(parents=True, exist_ok=True)
            arguments.out.write_text(compact_rows(json.dumps(result, indent=1)))

    print("what the host does", file=sys.stderr, flush=True)
    keep(host.measure(device, effort.repeats, arguments.quick), host_rows)
    chosen = [] if arguments.host else cases(name, arguments.quick)
    for number, case in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)}: {case}", file=sys.stderr, flush=True)
        keep(bench.measure(case))
    if name == "cuda" and not arguments.host:
        repeats = 50 if arguments.quick else 500
        keep(bench.measure_single_calls(Case(rows=1), repeats))
    print(text_table(rows))
    print(host.text_table(host_rows))
    print(targets_table(result["targets"]))


if __name__ == "__main__":
    main()
