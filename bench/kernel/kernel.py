"""Measure a step of the LZ penalty beside other ways to compute it and beside the machine's limit.

All take the same histories and logits, in one run:

- ours: `lz_penalty.kernels`, `cuda` (Triton) on CUDA and `cpu` (numba) on a CPU;
- reference: `lz_penalty.reference.steps`, the same in torch operators;
- frequency + repetition: what upstream's own penalties run at each step;
- the limit: a copy of as many bytes as ours must touch.

It also measures the work of the scheduler's thread for the penalty (`host.py`): when a request
starts, and for batches without the penalty.

Ours and the reference must agree before anything is timed. Each row of the result serves several
batches in turn (`sets`), so that no cache holds their logits, and every call appends one token to
its windows: a steady state of decoding. Logits are restored outside of what is timed.

    python -m bench.kernel --out bench/results/kernel-cpu.json
    python -m bench.kernel --host --out bench/results/host-cpu.json

GPU time is measured with events around a CUDA graph of one call for each set. An implementation
that cannot be captured, because it waits for the device, is timed call after call ("stream"). On a
CPU one thread runs, and the time is the CPU time of that thread, which other programs on the
machine disturb less than wall-clock time.

What it does not say: what a server loses (`bench.serving`), or how well a penalty works.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench import common
from bench.common import command, write_result
from bench.kernel import host
from bench.kernel.cases import COLUMNS, Bench, cases
from bench.kernel.implementations import FREQUENCY_PENALTY, REPETITION_PENALTY
from bench.kernel.inputs import LZ_PENALTY
from bench.kernel.names import OURS
from bench.kernel.timing import EFFORTS


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.kernel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    parser.add_argument("--quick", action="store_true", help="a few small cases")
    parser.add_argument("--host", action="store_true", help="only what the host does, no step")
    parser.add_argument("--device", choices=EFFORTS, help="default: cuda if there is one")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU.")
    torch.set_num_threads(1)
    run(arguments)


def run(arguments: argparse.Namespace) -> None:
    """Measure, print each row, and write the result after each case."""
    name = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    effort = EFFORTS[name]
    if arguments.quick:
        effort = replace(effort, sets=2, repeats=5, seconds=0.1)
    bench = Bench(device, effort, arguments.quick)
    rows: list[dict[str, Any]] = []
    result = header(bench)
    host_rows: list[dict[str, Any]] = []

    def keep(found: Iterator[dict[str, Any]], kept: list[dict[str, Any]] = rows) -> None:
        for row in found:
            kept.append(row)
            print(*row.values(), sep="\t", flush=True)
        result["host"] = [[row[column] for column in host.COLUMNS] for row in host_rows]
        result["rows"] = [[row[column] for column in COLUMNS] for row in rows]
        if arguments.out:
            write_result(arguments.out, result)

    print("what the host does", file=sys.stderr, flush=True)
    keep(host.measure(device, effort.repeats, arguments.quick), host_rows)
    chosen = [] if arguments.host else cases(name, arguments.quick)
    for number, case in enumerate(chosen, 1):
        print(f"{number}/{len(chosen)}: {case}", file=sys.stderr, flush=True)
        keep(bench.measure(case))


def header(bench: Bench) -> dict[str, Any]:
    """The facts of a result that hold for all its rows."""
    is_cuda = bench.device.type == "cuda"
    return {
        "measures": f"{'GPU' if is_cuda else 'CPU'} time of a step, and CPU time of the "
        "scheduler's thread, microseconds",
        "command": command("bench.kernel"),
        **environment(bench.device),
        "implementations": {OURS: bench.kernels.__name__},
        "settings": {
            "lz_penalty": LZ_PENALTY,
            "lz_cost": "marginal",
            "frequency_penalty": FREQUENCY_PENALTY,
            "repetition_penalty": REPETITION_PENALTY,
            **asdict(bench.effort),
        },
        "host_columns": host.COLUMNS,
        "row_columns": COLUMNS,
    }


def environment(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
    is_cuda = device.type == "cuda"
    return {
        "date": common.date(),
        "gpu": torch.cuda.get_device_name(device) if is_cuda else None,
        "driver": common.output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        if is_cuda
        else None,
        "cuda": torch.version.cuda,
        **common.machine(),
        "threads": torch.get_num_threads(),
        **common.versions("torch", "triton", "sglang"),
        "commit": common.commit(),
    }
