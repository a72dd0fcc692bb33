"""The tables of the documents about speculation, from the committed results."""

from __future__ import annotations

import json
from typing import Any

from bench.common import RESULTS

ON_THE_DEMO_MODEL = ("ngram", "dflash", "dspark")


def markdown(result: dict[str, Any]) -> str:
    """The accept lengths of each variant and its share of degenerate outputs."""
    lines = [
        "| variant | degenerate outputs | accept length | outside loops | inside loops |",
        "|---|---|---|---|---|",
    ]
    for name, variant in result["variants"].items():
        _, *counts = map(sum, zip(*variant["rows"], strict=True))
        outside, steps_outside, inside, steps_inside = counts
        cells = (
            f"{variant['degenerate_share']:.2f}",
            _length(outside + inside, steps_outside + steps_inside),
            _length(outside, steps_outside),
            _length(inside, steps_inside),
        )
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def variants(name: str) -> str:
    """The table of one committed result."""
    return markdown(_load(name)) + "\n"


def until_onset() -> str:
    """The tokens up to the onset, and the verify steps in which they came, by drafter."""
    lines = [
        "| drafter, prompts | outputs | tokens up to the onset | verify steps | accept length "
        "| accept length after the onset |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*ON_THE_DEMO_MODEL, "pocket"):
        result = _load(name)
        prompts = "puzzles" if name == "pocket" else "demo model"
        for variant in result["variants"].values():
            if found := variant.get("until_onset"):
                tokens, steps, after, steps_after = map(sum, zip(*found["rows"], strict=True))
                cells = (
                    f"{result['server']['speculative_algorithm']}, {prompts}",
                    str(len(found["rows"])),
                    f"{tokens:,}",
                    f"{steps:,}",
                    _length(tokens, steps),
                    _length(after, steps_after),
                )
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _length(tokens: int, steps: int) -> str:
    return f"{tokens / steps:.2f}" if steps else "-"


def _load(name: str) -> Any:
    return json.loads((RESULTS / f"speculation-{name}.json").read_text())


def on_gpu() -> str:
    """What servers with speculation were checked for on a GPU, by shape and by scheduling."""
    found = json.loads((RESULTS / "gpu-check-h200.json").read_text())["speculate"]
    lines = [
        "| drafts | overlap scheduling | sampled positions | nodes | worst node, nats | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for shape, runs in found.items():
        for name, overlap in (("overlap", "on"), ("no overlap", "off")):
            run = runs[name]
            cells = (
                *(shape, overlap, f"{run['positions']:,}", f"{run['nodes']:,}"),
                f"{run['deviation of a node, nats']:.1e}",
                f"{run['drafts accepted']:,} of {run['drafts proposed']:,}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
