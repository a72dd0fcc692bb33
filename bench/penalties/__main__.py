"""Measure a step of the penalties over a whole history beside upstream's, and the memory of a row.

    python -m bench.penalties --out bench/results/penalties-cpu.json

All take the same histories of Zipf-distributed tokens and the same logits, in one run, and each
call appends a token, as decoding does:

- upstream's frequency and repetition penalty (its own classes if sglang is installed, else the same
  operators), which keep and write tables of rows x V;
- ours with the same two;
- ours with DRY over the whole history and its default breakers;
- ours with all of them, n-grams and the LZ penalty, in one step.

Ours and upstream's must agree before anything is timed (upstream's repetition penalty counts the
output only, so the histories are all output). Times are taken in turn, one round of each after the
other, on one thread of a CPU, or with events around launches on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from array import array
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.common import command, write_result
from bench.kernel.implementations import (
    FREQUENCY_PENALTY,
    REPETITION_PENALTY,
    upstream_penalties,
)
from bench.kernel.inputs import LZ_PENALTY
from bench.kernel.result import environment
from sglang_lz.fields.histories import HistoryParams
from sglang_lz.fields.lz import DEFAULT_MAX_WINDOW_SIZE, DEFAULT_WINDOW_SIZE, LZParams
from sglang_lz.penalty.breakers import Vocabulary, tables_of
from sglang_lz.penalty.history import HistoryRoom
from sglang_lz.penalty.history_penalizer import HistoryPenalizer, RowHistory
from sglang_lz.penalty.kernels import import_for
from sglang_lz.penalty.window import (
    RowWindow,
    StepInputs,
    WindowState,
    bytes_of_row,
)

UPSTREAM = "upstream: frequency + repetition"
OURS = "ours: frequency + repetition"
DRY = "ours: DRY"
ALL = "ours: all, LZ included"
COLUMNS = (
    "implementation",
    "rows",
    "vocab",
    "history",
    "median_us",
    "p10_us",
    "p90_us",
    "row_bytes",
)

ROUNDS = 25
TOLERANCE = 1e-3


class Case(NamedTuple):
    """Requests in a batch, V, and tokens that each has."""

    rows: int
    vocab: int = 152064
    history: int = 2048


CASES = (
    *(Case(rows) for rows in (1, 4, 16, 64, 256)),
    *(Case(64, vocab) for vocab in (32768, 65536, 262144)),
    *(Case(16, history=history) for history in (256, 16384)),
)


class Ours:
    """Our histories of a batch, and windows if the LZ penalty is on."""

    def __init__(self, case: Case, text: Tensor, device: torch.device, **penalties: Any) -> None:
        self.case, self.kernels = case, import_for(device)
        has_lz = penalties.pop("lz", False)
        params = penalties.get("params")
        if params is not None and params.has_dry:
            # As the default breakers are of one character, nothing is encoded.
            breakers = params.dry_sequence_breakers
            penalties["tables"] = lambda: tables_of(
                breakers, Vocabulary([]), lambda text: [], case.vocab
            )
        room = HistoryRoom(case.vocab, nodes=int(device.type != "cpu"), logits=case.rows)
        generation = np.ones(case.rows, dtype=np.int64)
        histories = {
            i: RowHistory(own, 0, 2 * case.history, **penalties)
            for i, own in enumerate(text.tolist())
        }
        words = [own.need(room).words for own in histories.values()]
        room.words = sum(words)
        penalizer = HistoryPenalizer(case.rows, device, self.kernels, room)
        step = penalizer.plan(np.arange(case.rows), generation, histories, generation, list)
        assert step is not None
        self.history = penalizer.write(step)
        self.windows = WindowState(case.rows, DEFAULT_MAX_WINDOW_SIZE, device)
        if has_lz:
            self._seed_windows(text)
        self.width = DEFAULT_WINDOW_SIZE if has_lz else 0
        self.row_bytes = 4 * max(words) + has_lz * bytes_of_row(DEFAULT_MAX_WINDOW_SIZE)

    def _seed_windows(self, text: Tensor) -> None:
        seen = text[:, -DEFAULT_WINDOW_SIZE:]
        lz = LZParams(LZ_PENALTY)
        windows = {
            row: RowWindow(array("q", own), len(own), text.shape[1], lz=lz)
            for row, own in enumerate(seen.tolist())
        }
        self.kernels.seed(self.windows, windows)

    def call(self, logits: Tensor, newest: Tensor, seq_lens: Tensor, rows: Tensor) -> None:
        """Append the newest tokens and change the logits."""
        self.kernels.step(
            self.windows,
            logits,
            StepInputs(
                request_rows=rows, seq_lens=seq_lens, input_ids=newest, prefilled=0, offset=0
            ),
            width=self.width,
            history=self.history,
        )


class Upstream:
    """Upstream's frequency and repetition penalty, as a server with overlap runs them."""

    def __init__(self, case: Case, text: Tensor, device: torch.device) -> None:
        make, self.scale, self.is_own = upstream_penalties()
        self.penalties = make(case.rows, case.vocab, device)
        for column in text.T:
            self.penalties.cumulate_output_tokens(column.contiguous())
        # Two states and, at each step, the sum that is subtracted and the product that scales.
        self.row_bytes = 4 * torch.float32.itemsize * case.vocab

    def call(self, logits: Tensor, newest: Tensor, seq_lens: Tensor, rows: Tensor) -> None:
        """Count the newest tokens and change the logits."""
        self.penalties.cumulate_output_tokens(newest)
        additive = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
        self.penalties.accumulate_additive_penalties(additive)
        scaling = self.penalties.accumulate_scaling_penalties()
        logits.add_(additive)
        self.scale(logits, scaling)


def measure(case: Case, device: torch.device, rounds: int) -> list[dict[str, Any]]:
    """Check and time a case."""
    generator = torch.Generator().manual_seed(0)
    rank = case.vocab ** torch.rand(case.rows, case.history + rounds + 2, generator=generator) - 1
    text = torch.randperm(case.vocab, generator=generator)[rank.long().clamp_(max=case.vocab - 1)]
    text = text.to(device)
    before, after = text[:, : case.history], text[:, case.history :]
    counts = {"frequency": FREQUENCY_PENALTY, "repetition": REPETITION_PENALTY}
    dry = HistoryParams(dry_multiplier=0.8)
    everything = HistoryParams(dry_multiplier=0.8, no_repeat_ngram_size=30)
    ways: dict[str, Any] = {
        UPSTREAM: Upstream(case, before, device),
        OURS: Ours(case, before, device, **counts),
        DRY: Ours(case, before, device, params=dry),
        ALL: Ours(case, before, device, **counts, presence=0.1, params=everything, lz=True),
    }
    fresh = torch.randn(case.rows, case.vocab, generator=generator).to(device)
    logits = {name: fresh.clone() for name in ways}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    rows = torch.arange(case.rows, device=device)
    for turn in range(rounds + 2):
        newest = after[:, turn].contiguous()
        seq_lens = torch.full((case.rows,), case.history + turn + 1, device=device)
        for name, way in ways.items():
            logits[name].copy_(fresh)
            took = timed(way, (logits[name], newest, seq_lens, rows), device)
            if turn >= 2:  # the first ones compile, and meet cold caches
                samples[name].append(took)
        off = float((logits[OURS] - logits[UPSTREAM]).abs().max())
        if off > TOLERANCE:
            raise SystemExit(f"{case}: {OURS} is off by {off:.2e}; nothing more is timed")
    found = []
    for name, way in ways.items():
        tenths = statistics.quantiles(samples[name], n=10, method="inclusive")
        times = (statistics.median(samples[name]), tenths[0], tenths[-1])
        values = (name, *case, *(round(us, 1) for us in times), way.row_bytes)
        found.append(dict(zip(COLUMNS, values, strict=True)))
    return found


def timed(way: Ours | Upstream, batch: tuple[Tensor, ...], device: torch.device) -> float:
    """Microseconds of a call: CPU time of this thread, or GPU time between two events."""
    if device.type == "cpu":
        start = time.thread_time()
        way.call(*batch)
        return 1e6 * (time.thread_time() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    way.call(*batch)
    end.record()
    torch.cuda.synchronize()
    return 1e3 * float(begin.elapsed_time(end))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.penalties",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    parser.add_argument("--quick", action="store_true", help="two small cases")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    cases = (Case(2, 4096, 64), Case(4, 8192, 300)) if arguments.quick else CASES
    rows: list[dict[str, Any]] = []
    result = {
        "measures": f"{device.type.upper()} time of a step, microseconds; bytes of a row's state",
        "command": command("bench.penalties"),
        **environment(device),
        "upstream": "upstream's own" if upstream_penalties()[2] else "a stand-in",
        "rounds": ROUNDS,
        "row_columns": COLUMNS,
    }
    for case in cases:
        print(case, file=sys.stderr, flush=True)
        found = measure(case, device, 3 if arguments.quick else ROUNDS)
        rows += found
        for row in found:
            print(*row.values(), sep="\t")
        result["rows"] = [[row[column] for column in COLUMNS] for row in rows]
        if arguments.out:
            write_result(arguments.out, result)


if __name__ == "__main__":
    main()
