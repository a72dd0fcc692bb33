"""Time what launching a decode step takes the host: `python tests/ptx/time_launch.py --out FILE`.

Triton's launcher runs over a driver that does nothing (stub.c), so this is the host's time without
that of CUDA's driver. It calls the kernel through Triton's search for a binary, as it was launched
before, and as `sglang_lz.penalty.kernels.launch` does, in turn. CPU time of this thread.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "python")]

import emulator  # noqa: E402
import torch  # noqa: E402

from bench import common  # noqa: E402

ROWS, VOCAB, CAPACITY, WIDTH = 64, 2048, 1024, 512
CALLS, ROUNDS = 200, 41


def microseconds(call: Callable[[], object]) -> float:
    began = time.thread_time()
    for _ in range(CALLS):
        call()
    return 1e6 * (time.thread_time() - began) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the result, JSON")
    given = parser.parse_args()
    emulator.be_the_driver()
    torch.set_num_threads(1)
    from sglang_lz.penalty.kernels import cuda
    from sglang_lz.penalty.window import StepInputs, WindowState

    state = WindowState(ROWS + 1, CAPACITY, "cpu")
    logits = torch.zeros(ROWS, VOCAB)
    rows = torch.arange(1, ROWS + 1)
    kernel = cuda._step

    inputs = StepInputs(request_rows=rows, seq_lens=rows, input_ids=rows, prefilled=0, offset=0)

    def step() -> None:
        cuda.step(state, logits, inputs, width=WIDTH)

    def searching() -> None:
        kernel._binaries.clear()
        step()

    def empty() -> None:
        pass

    ways = {"searched by Triton": searching, "ours": step, "an empty function": empty}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, call in ways.items():
            took = microseconds(call)
            if turn:  # the first one compiles
                samples[name].append(took)
    result = {
        "measures": "CPU time of this thread for launching a decode step over a driver that does "
        "nothing, microseconds: median, 10th and 90th percentile of the rounds",
        "date": common.date(),
        "command": shlex.join(["python", *sys.argv]),
        **common.machine(),
        **common.versions("torch", "triton"),
        "commit": common.commit(),
        "rows": ROWS,
        "calls": CALLS,
        "rounds": ROUNDS,
        "us": {
            name: [round(value, 2) for value in (statistics.median(times), *_tenths(times))]
            for name, times in samples.items()
        },
    }
    common.write_result(given.out, result)
    print(result["us"])


def _tenths(times: list[float]) -> tuple[float, float]:
    found = statistics.quantiles(times, n=10, method="inclusive")
    return found[0], found[-1]


if __name__ == "__main__":
    main()
