"""False alarms: text that is right as it stands, which the guard would stop."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from bench.harm import corpora
from bench.harm.vocabulary import Vocabulary
from bench.published import BOTH
from sglang_lz.fields.repetition import RECOMMENDED
from sglang_lz.loops.detector import Detector, Loop

COUNTS = (3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64)
LONGEST_PIECE = 4096
SHOWN = 60
"""Characters of a pattern that the list of alarms shows."""


def measure() -> dict[str, Any]:
    """The texts of `bench.harm` that are stopped, by tokenizer, kind and `min_count`."""
    texts = corpora.texts()
    found: dict[str, Any] = {
        "measures": "right texts that repetition_detection would stop, by min_count",
        "recommended": dataclasses.asdict(RECOMMENDED),
        "longest": LONGEST_PIECE,
        "corpora": {
            kind: {
                "texts": sum(text.kind == kind for text in texts),
                "sha256": corpora.digest([text for text in texts if text.kind == kind]),
            }
            for kind in dict.fromkeys(text.kind for text in texts)
        },
        "columns": ["kind", "pieces", *map(str, COUNTS)],
        "stopped": {},
        "alarms": [],
    }
    for name in BOTH:
        vocabulary = Vocabulary(name)
        pieces = corpora.pieces(texts, vocabulary, LONGEST_PIECE)
        counted = {count: Counter[str]() for count in COUNTS}
        for piece in pieces:
            output = array("q", piece.tokens.tolist())
            for count in COUNTS:
                loop = first_loop(output, count)
                counted[count][piece.kind] += loop is not None
                if loop is not None and count == RECOMMENDED.min_count:
                    begin = loop.end - loop.pattern_size
                    pattern = vocabulary.decode(output[begin : loop.end])
                    found["alarms"].append([name, piece.kind, piece.name, *_told(loop, pattern)])
        totals = Counter(piece.kind for piece in pieces)
        found["stopped"][name] = [
            [kind, total, *(counted[count][kind] for count in COUNTS)]
            for kind, total in totals.items()
        ]
    return found


def first_loop(output: array[int], count: int) -> Loop | None:
    """The first loop of the recommended setting with another `min_count`."""
    return Detector(dataclasses.replace(RECOMMENDED, min_count=count)).find(output)


def table(found: dict[str, Any]) -> str:
    """Texts that are stopped of those of each kind, for every `min_count`, in Markdown."""
    lines = [f"| kind | texts | {' | '.join(map(str, COUNTS))} |", "|---" * (len(COUNTS) + 2) + "|"]
    for rows in zip(*found["stopped"].values(), strict=True):
        kind = rows[0][0]
        sums = [sum(row[i] for row in rows) for i in range(1, len(rows[0]))]
        lines.append(f"| {kind} | {' | '.join(map(str, sums))} |")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw the share of texts of each kind that are stopped, over `min_count`."""
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set_prop_cycle(color=[plt.get_cmap("tab20")(i) for i in range(20)])
    for rows in zip(*found["stopped"].values(), strict=True):
        total = sum(row[1] for row in rows)
        shares = [100 * sum(row[i] for row in rows) / total for i in range(2, len(rows[0]))]
        if any(shares):
            axes.plot(COUNTS, shares, marker="o", label=rows[0][0])
    axes.axvline(RECOMMENDED.min_count, color="grey", linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(COUNTS, list(map(str, COUNTS)))
    axes.minorticks_off()
    axes.set_xlabel("min_count (dotted: recommended)")
    axes.set_ylabel("right texts stopped, per cent")
    axes.legend(title="kinds with any", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _told(loop: Loop, pattern: str) -> tuple[int, int, str]:
    shown = pattern if len(pattern) <= SHOWN else f"{pattern[:SHOWN]}..."
    return loop.pattern_size, loop.begin, shown
