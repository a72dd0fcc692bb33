"""Tables of runs in Markdown; `scripts/format` writes those of the documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from bench.common import RESULTS
from bench.models.scores import SHARES, summary

Cell = dict[str, Any]

GREEDY = ("smollm2-135m", "smollm2-135m-rest")
SAMPLED = tuple(f"smollm2-135m-temperatures{part}" for part in ("", "-rest", "-0.3", "-0.6"))
"""The runs of the real model, above temperature 0 too: each of other prompts."""
FEWER = "smollm2-135m-sampled"
"""More penalties above temperature 0, on fewer prompts."""
SOLVED = tuple(f"qwen2.5-coder-{size}b{t}" for size in (0.5, 1.5) for t in ("", "-sampled"))
"""The runs on HumanEval."""
IN_README = ("degenerate", "near_copies", "cut_off", "unchanged")

COLUMNS = {
    "degenerate": "degenerate",
    "final_loop": "ends in a loop",
    "near_copies": "near-copies",
    "template": "template",
    "cut_off": "cut off",
    "unchanged": "unchanged",
    "accuracy": "accuracy",
    "change": "against none",
    "rep_4_gram": "distinct 4-grams",
    "compression_ratio": "compressed to",
    "tokens": "tokens",
    "rep_3": "rep-3",
    "rep_line": "rep-line",
    "sim_line": "sim-line",
}
INTERVALS = (*SHARES, "unchanged", "change")
ONSET = "lz 0.15, onset 3"
PLOTTED = ("none", ONSET, "lz 0.15", "repetition 1.1")


def of_runs(found: Sequence[Cell]) -> Iterator[str]:
    """A table for each task: models, penalties and temperatures; shares in percent."""
    for task in dict.fromkeys(cell["task"] for cell in found):
        of_task = [cell for cell in found if cell["task"] == task]
        head, *rows = _of_cells(of_task)
        lines = [
            [
                cell.get("model", "-"),
                row[0],
                f"{cell['temperature']:g}",
                str(cell["samples"]),
                *row[1:],
            ]
            for cell, row in zip(of_task, rows, strict=True)
        ]
        head = ["model", head[0], "T", "outputs", *head[1:]]
        yield f"{task}\n\n{_table(head, lines)}"


def pooled(names: Sequence[str]) -> list[Cell]:
    """The cells of committed runs as if they were one: of other prompts each, one output of each.

    The means of all columns, and the intervals of shares.
    """
    alike: dict[tuple[str, float], list[Cell]] = {}
    for cell in _cells(*names):
        alike.setdefault((cell["variant"], cell["temperature"]), []).append(cell)
    return [as_one(cells) for cells in alike.values()]


def plotted() -> list[Cell]:
    """What the plot of the documents shows, at all temperatures."""
    more = [cell for cell in _cells(FEWER) if cell["variant"] in PLOTTED[2:]]
    found = [*pooled(GREEDY), *pooled(SAMPLED), *more]
    return [{**c, "model": "SmolLM2"} for name in PLOTTED for c in found if c["variant"] == name]


def _cells(*names: str) -> list[Cell]:
    """The cells of committed runs."""
    paths = [RESULTS / "models" / name / "result.json" for name in names]
    return [cell for path in paths for cell in json.loads(path.read_text())["cells"]]


def as_one(cells: Sequence[Cell]) -> Cell:
    """One cell of runs over different prompts, one output of each."""
    sizes = [cell["items"] for cell in cells]
    items = sum(sizes)

    def score(name: str, found: Sequence[Cell]) -> dict[str, Any]:
        total = sum(one[name]["mean"] * size for one, size in zip(found, sizes, strict=True))
        if name not in INTERVALS:
            return {"mean": total / items}
        total = round(total)  # each output counts as 0 or 1
        pooled_score = summary({str(i): {0: float(i < total)} for i in range(items)})
        return {**(pooled_score or {}), "mean": total / items}

    one = {name: score(name, cells) for name in COLUMNS if name in cells[0]}
    against = [cell["against_none"] for cell in cells]
    changed = {"unchanged": score("unchanged", against)} if all(against) else None
    return {**cells[0], **one, "items": items, "samples": items, "against_none": changed}


def real() -> str:
    """All scores of the real model's greedy outputs."""
    head, *rows = _of_cells(pooled(GREEDY))
    return _table(head, rows)


def readme() -> str:
    """The scores of the real model's greedy outputs that README shows, without intervals."""
    rows = [[cell["variant"], *_brief(cell)] for cell in pooled(GREEDY)]
    return _table(["penalty", *(f"{COLUMNS[name]}, %" for name in IN_README)], rows)


def temperatures() -> str:
    """What no penalty and the recommended one do to the real model, by temperature."""
    cells = pooled(GREEDY) + pooled(SAMPLED)
    by = {(cell["variant"], cell["temperature"]): _brief(cell) for cell in cells}
    rows = []
    for cell in cells:
        if cell["variant"] == "none":
            *both, unchanged = zip(_brief(cell), by[ONSET, cell["temperature"]], strict=True)
            shown = [*map(", ".join, both), unchanged[1]]
            rows.append([f"{cell['temperature']:g}", str(cell["items"]), *shown])
    names = [f"{COLUMNS[name]}, %" for name in IN_README]
    return _table(["temperature", "prompts", *names], rows)


def solved() -> str:
    """Which problems of HumanEval are solved, in percent; the paper's figure 4."""
    by: dict[tuple[str, float], dict[str, str]] = {}
    for cell in _cells(*SOLVED):
        model = cell["model"].rpartition("coder-")[2].partition("-")[0]
        row = by.setdefault((model, cell["temperature"]), {})
        row[cell["variant"]] = _scores(cell)["accuracy"]
    variants = list(dict.fromkeys(name for row in by.values() for name in row))
    rows = [
        [model, f"{temperature:g}", *(row.get(name, "-") for name in variants)]
        for (model, temperature), row in sorted(by.items())
    ]
    return _table(["parameters", "temperature", *variants], rows)


def _brief(cell: Cell) -> list[str]:
    """What README's columns show, in whole percent."""
    found = {**cell, **(cell["against_none"] or {})}
    return [f"{100 * found[name]['mean']:.0f}" if name in found else "-" for name in IN_README]


def _of_cells(found: Sequence[Cell]) -> list[list[str]]:
    """The head and the rows of a table: penalties, and the scores that any of them has."""
    scores = [_scores(cell) for cell in found]
    shown = [name for name in COLUMNS if any(row[name] for row in scores)]
    rows = (
        [cell["variant"], *(row[name] or "-" for name in shown)]
        for cell, row in zip(found, scores, strict=True)
    )
    return [["penalty", *(COLUMNS[name] for name in shown)], *rows]


def _scores(cell: Cell) -> dict[str, str]:
    """What a row shows of each column, "" for a score that it has not."""
    against = cell["against_none"] or {}
    found = {**cell, "unchanged": against.get("unchanged"), "change": against.get("accuracy")}
    return {name: _shown(name, found.get(name)) for name in COLUMNS}


def _shown(name: str, score: object) -> str:
    if not isinstance(score, dict):
        return ""
    mean = score["mean"]
    if name == "tokens":
        return f"{mean:.0f}"
    if name == "rep_4_gram":
        return f"{100 * (1 - mean):.0f}"
    if name in INTERVALS:
        low, high = score["ci"]
        sign = "+" if name == "change" else ""
        return f"{100 * mean:{sign}.1f} ({100 * low:{sign}.1f} to {100 * high:{sign}.1f})"
    return f"{100 * mean:.1f}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines) + "\n"
