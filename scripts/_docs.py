"""Writes the blocks of the documents that come from the code, the patches and result files.

A block stands between `<!-- name -->` and `<!-- /name -->`. `scripts/format` writes all of them,
and a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from bench.common import RESULTS
from bench.constraints import tables as constraints
from bench.harm import result as harm
from bench.kernel import names as steps
from bench.kernel import tables as kernel
from bench.models import tables as repetition
from hostile import judge
from lz_penalty.fields import histories
from lz_penalty.fields.lz import FIELDS
from lz_penalty.fields.table import markdown_table
from patches_tool.patchset import GROUPS, PatchSet
from patches_tool.upstream import release_dir
from sglang_lz.constraints import request_field

ROOT = Path(__file__).resolve().parents[1]

TITLES = {
    "sampling": "The penalties, where upstream samples",
    "requests": "The request fields",
    "guard": "The loop guard",
    "proper": "Proper tokens",
    "server": "Arguments and the start of a server",
    "fixes": "Repairs of upstream, for requests without a penalty too",
    "cpu": "The CPU flavour",
}
"""The purpose of each group of patches."""


def patches() -> str:
    """All patches by group, with what each does."""
    by_group: dict[str, list[str]] = {group: [] for group in GROUPS}
    for patch in PatchSet.load(release_dir()).patches:
        by_group[patch.group].append(f"- `{Path(patch.name).stem}`: {patch.subject}")
    parts = ["\n".join((f"**{TITLES[group]}**\n", *rows)) for group, rows in by_group.items()]
    return "\n\n".join(parts) + "\n"


def table_one() -> str:
    """The paper's table 1: its losses beside ours, and the time of a step of each kind."""
    found = json.loads((RESULTS / "serving-static-h200.json").read_text())
    times = kernel.Times(kernel.ON_H200)
    lines = [
        f"| model, batch | throughput lost, {len(found['gpus'])} x {found['gpus'][0]} "
        "(95 % interval) | in the paper, 8 x H100 |",
        "|---|---|---|",
    ]
    for name, row in found["table"].items():
        lost = row["overall_throughput"]
        low, high = lost["interval"]
        percent = f"{lost['percent']:.2f} % ({low:.2f} to {high:.2f})"
        lines.append(f"| {name} | {percent} | {row['paper_percent']} % |")
    lines += ["", "| a step's time on the same GPU, microseconds | 1 request | 64 | 512 |"]
    lines += ["|---|---|---|---|"]
    for title, way in (
        ("LZ penalty, always on", steps.OURS),
        ("LZ penalty, waiting (`lz_onset`)", steps.ONSET_2),
        ("stock SGLang's frequency and repetition penalty", steps.UPSTREAM),
    ):
        shown = (f"{times.microseconds(way, rows=rows):.1f}" for rows in (1, 64, 512))
        lines.append(f"| {title} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


BLOCKS: dict[tuple[str, str], Callable[[], str]] = {
    ("README.md", "fields"): lambda: markdown_table(FIELDS),
    ("README.md", "real-model"): repetition.readme,
    ("README.md", "table-one"): table_one,
    ("docs/RESULTS.md", "real-model"): repetition.real,
    ("docs/RESULTS.md", "solved"): repetition.solved,
    ("docs/RESULTS.md", "temperatures"): repetition.temperatures,
    ("docs/RESULTS.md", "step-summary"): kernel.step_summary,
    ("docs/ARCHITECTURE.md", "patches"): patches,
    ("docs/PROPER_TOKENS.md", "fields"): lambda: markdown_table(request_field.ENTRIES),
    ("docs/PENALTIES.md", "fields"): lambda: markdown_table(histories.FIELDS),
    **{("docs/PROPER_TOKENS.md", f"proper-{name}"): of for name, of in constraints.TABLES.items()},
    ("bench/README.md", "harm"): harm.lowered,
    ("bench/README.md", "hostile"): judge.section,
    ("bench/README.md", "step-on-a-gpu"): kernel.step_on_gpu,
    ("bench/README.md", "starts-of-requests"): kernel.starts_of_requests,
}
"""The generator of each block, by its page and name."""


def with_blocks(page: str) -> str:
    """The text of a page with its blocks as they should be; ValueError if it lacks one's place."""
    text = (ROOT / page).read_text()
    for (other, name), make in BLOCKS.items():
        if other == page:
            begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
            before, found, rest = text.partition(begin)
            _, closed, after = rest.partition(end)
            if not found or not closed:
                raise ValueError(f"{page} must have {begin.strip()} and {end}")
            text = f"{before}{begin}{make()}{end}{after}"
    return text


def write() -> None:
    """Write the blocks of all pages."""
    for page in {page for page, _ in BLOCKS}:
        (ROOT / page).write_text(with_blocks(page))


if __name__ == "__main__":
    write()
