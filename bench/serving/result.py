"""The result file of a measurement, and its table."""

from __future__ import annotations

import argparse
from typing import Any

from bench.common import command, date
from bench.serving.models import MODELS, SERVER, model_of
from bench.serving.record import Record
from bench.serving.slowdowns import COMPARED, CONFIDENCE, METRICS, summary

# Input and output tokens of the paper's table.
PAPER_SIZES = (1024, 64)


def result_of(
    arguments: argparse.Namespace, record: Record, settings: dict[str, Any]
) -> dict[str, Any]:
    """The result file: where and how it was measured, the table, and every run."""
    metrics = METRICS[arguments.mode]
    table = {}
    for row, blocks in record.blocks.items():
        if blocks:
            pairs = [COMPARED[arguments.mode](block) for block in blocks]
            name = row.partition(", ")[0]
            table[row] = {
                "tp": tp_of(name, arguments),
                "paper_percent": paper_percent(row, arguments),
                "blocks": len(blocks),
                **summary(pairs, metrics),
                "pairs": [[figures[m.key] for figures in pair for m in metrics] for pair in pairs],
            }
    return {
        "measures": (
            "what the LZ penalty costs, in per cent, the median of blocks of runs (off, on, on, "
            "off) and the interval of the median; rows of one load share the runs that are off; "
            "paper_percent is the throughput lost in arXiv "
            "2504.20131, table 1, on 8 x H100"
        ),
        "date": date(),
        "command": command("bench.serving"),
        "confidence": CONFIDENCE,
        **settings,
        "pair_columns": [f"{m.key} {when}" for when in ("off", "on") for m in metrics],
        "table": table,
    }


def tp_of(name: str, arguments: argparse.Namespace) -> int | None:
    """The GPUs of a model; None for one of --base-url, which nobody here knows."""
    return None if name == SERVER else model_of(name, arguments.model_path).tp(arguments.tp)


def paper_percent(row: str, arguments: argparse.Namespace) -> float | None:
    """The throughput lost in the paper, in per cent, if it measured what this row does."""
    name, _, load = row.partition(", ")
    sizes = (arguments.input_len, arguments.output_len)
    if name not in MODELS or load != f"batch {MODELS[name].batch_size}" or sizes != PAPER_SIZES:
        return None
    return MODELS[name].paper


def markdown(result: dict[str, Any]) -> str:
    """The result as a table for a README."""
    keys = [metric.key for metric in METRICS[result["mode"]]]
    first = next(iter(result["table"].values()))
    titles = [f"{first[key]['slowdown']} (95 % interval)" for key in keys]
    paper = any(row["paper_percent"] is not None for row in result["table"].values())
    head = ["row", "blocks", *titles, *(["throughput lost in the paper"] if paper else [])]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in result["table"].items():
        cells = [name, str(row["blocks"]), *(_cell(row[key]) for key in keys)]
        if paper:
            cells.append("-" if row["paper_percent"] is None else f"{row['paper_percent']} %")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(found: dict[str, Any]) -> str:
    interval = found["interval"]
    ends = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "too few blocks"
    return f"{found['percent']:.2f} % ({ends})"


def smoke_words(result: dict[str, Any]) -> str:
    """What a smoke test must say of itself; empty for a measurement."""
    if not result["smoke"]:
        return ""
    return "Smoke test: it shows that the benchmark runs, not what the penalty costs on a GPU."
