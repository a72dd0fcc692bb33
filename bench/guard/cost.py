"""What the detector costs a scheduler's step, beside the same definition in plain Python."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from sglang_lz import guard
from sglang_lz.fields.repetition import RECOMMENDED, RepetitionDetection
from sglang_lz.loops.detector import loops

ROWS = 256
STEPS = 400
BEFORE = 1600
"""Tokens of each output before the first step."""
PLAIN_STEPS = 3
ROUNDS = 7
COUNTS = (4, 8, 16, 20)
CACHE_BYTES = 64 * 2**20
OBSERVED = 32_768
"""Tokens of a long output that is looked at as a whole."""
STEP_MICROSECONDS = 5000
VOCABULARY = 150_000

Outputs = list[list[int]]


def texts(count: int) -> dict[str, Outputs]:
    """Outputs of ROWS requests: by kind, token ids, BEFORE + STEPS of each.

    Args:
        count: `min_count`; none of the loops has so many copies.
    """
    rng = random.Random(0)
    length = BEFORE + STEPS

    def varied(kinds: int) -> list[int]:
        return [int(kinds * rng.random() ** 3) for _ in range(length)]

    def near(period: int) -> list[int]:
        """Loops that break off in the last copy before the guard would stop them."""
        found: list[int] = []
        while len(found) < length:
            pattern = [rng.randrange(VOCABULARY) for _ in range(period)]
            found += (pattern * count)[:-1]
        return found[:length]

    return {
        "varied tokens": [varied(VOCABULARY) for _ in range(ROWS)],
        "50 different tokens": [varied(50) for _ in range(ROWS)],
        "loops of 1 that break off": [near(1) for _ in range(ROWS)],
        "loops of 7 that break off": [near(7) for _ in range(ROWS)],
        "loops of 60 that break off": [near(60) for _ in range(ROWS)],
    }


def measure() -> dict[str, Any]:
    """Microseconds of a step of ROWS requests that all have the guard, on one core."""
    found: dict[str, Any] = {
        "measures": "microseconds of a step of all rows: median, and the worst, of the rounds",
        "rows": ROWS,
        "steps": STEPS,
        "step_microseconds": STEP_MICROSECONDS,
        "max_pattern_size": RECOMMENDED.max_pattern_size,
        "table": [],
        "scanned_tokens": OBSERVED,
        "scan_milliseconds": {
            f"{kinds:,} different tokens": scan_milliseconds(kinds) for kinds in (VOCABULARY, 50, 2)
        },
    }
    evicted = array("q", bytes(CACHE_BYTES))
    for count in COUNTS:
        detection = dataclasses.replace(RECOMMENDED, min_count=count)
        for kind, outputs in texts(count).items():
            ours, cold, plain = [], [], []
            for _ in range(ROUNDS):  # side by side: the machine is not always as fast
                ours.append(microseconds(outputs, detection))
                cold.append(microseconds(outputs, detection, evicted))
                plain.append(plain_microseconds(outputs, detection))
            found["table"].append(
                {
                    "text": kind,
                    "min_count": count,
                    "detector": [statistics.median(ours), max(ours)],
                    "cold": [statistics.median(cold), max(cold)],
                    "plain": [statistics.median(plain), max(plain)],
                }
            )
    return found


def scan_milliseconds(kinds: int) -> float:
    """Time to look at a whole output, as --lz-observe-loops does: the median of the rounds.

    Args:
        kinds: how many different tokens it has.
    """
    rng = random.Random(0)
    output = array("q", (int(kinds * rng.random() ** 3) for _ in range(OBSERVED)))
    spent = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        list(loops(output, RECOMMENDED))
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent) * 1e3


def microseconds(
    outputs: Outputs, detection: RepetitionDetection, evicted: array[int] | None = None
) -> float:
    """Time of a step: each row's comparison, and its look where one is due.

    Args:
        outputs: token ids of each row.
        detection: what counts as a loop.
        evicted: written before each step, so that the caches hold nothing of the last one.
    """
    params = SimpleNamespace(repetition_detection=detection, min_new_tokens=0)
    rows = [_request(array("q", tokens[:BEFORE]), params) for tokens in outputs]
    spent = 0.0
    for step in range(BEFORE, BEFORE + STEPS):
        for row, tokens in zip(rows, outputs, strict=True):
            row.output_ids.append(tokens[step])
        if evicted is not None:
            np.frombuffer(evicted, np.int64)[:] += 1
        begun = time.perf_counter()
        for row in rows:
            loop_guard = row.loop_guard
            if loop_guard is not None and len(row.output_ids) >= loop_guard.next_check:
                loop_guard.check(row)
        spent += time.perf_counter() - begun
    return spent / STEPS * 1e6


def plain_microseconds(outputs: Outputs, detection: RepetitionDetection) -> float:
    """The same by the definition: at each step every pattern size is compared with the tail."""
    spent = 0.0
    for step in range(BEFORE, BEFORE + PLAIN_STEPS):
        rows = [tokens[: step + 1] for tokens in outputs]
        begun = time.perf_counter()
        for row in rows:
            is_loop(row, detection)
        spent += time.perf_counter() - begun
    return spent / PLAIN_STEPS * 1e6


def is_loop(tokens: Sequence[int], detection: RepetitionDetection) -> bool:
    """Whether tokens end in a loop, in plain Python, at the first difference of each size."""
    count, length = detection.min_count, len(tokens)
    for size in range(detection.shortest, detection.max_pattern_size + 1):
        if size * count > length:
            return False
        if all(
            tokens[length - 1 - i] == tokens[length - 1 - i - size]
            for i in range(size * (count - 1))
        ):
            return True
    return False


def table(found: dict[str, Any]) -> str:
    """The result in Markdown."""
    lines = [
        "| outputs | min_count | detector, us per step | of a 5 ms step | caches emptied, us | "
        "plain Python, us per step |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["table"]:
        median, worst = row["detector"]
        lines.append(
            f"| {row['text']} | {row['min_count']} | {median:.0f} ({worst:.0f}) | "
            f"{100 * median / found['step_microseconds']:.2f} % | {row['cold'][0]:.0f} | "
            f"{row['plain'][0]:,.0f} |"
        )
    return "\n".join(lines)


def _request(output: array[int], params: Any) -> Any:
    """What the guard reads of upstream's request."""
    row = SimpleNamespace(output_ids=output, finished_reason=None, finished_len=None, grammar=None)
    row.loop_guard = guard.guard_of(params)
    row.loop_guard.check(row)
    row.finished_reason = row.finished_len = None
    return row
