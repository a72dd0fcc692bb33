"""Writes the blocks of the documents that come from the code, the patches and result files.

A block stands between `<!-- name -->` and `<!-- /name -->`. `scripts/format` writes all of them,
and a test compares them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.common import RESULTS
from bench.constraints import tables as constraints
from bench.harm import result as harm
from bench.kernel import names as steps
from bench.kernel import tables as kernel
from bench.repetition import tables as repetition
from hostile import judge
from server import clients_table
from sglang_lz.distribution.patchset import GROUPS, Patch, PatchSet
from sglang_lz.distribution.sources import release
from sglang_lz.fields import histories
from sglang_lz.fields.lz import markdown_table
from sglang_lz.proper import request_field
from sglang_lz.server.hooks import HOOKS

ROOT = Path(__file__).resolve().parents[1]
PATCHES = ROOT / "patches"
RELEASE = release(PATCHES)

TITLES = {
    "sampling": "The penalties, where upstream samples",
    "requests": "The request fields",
    "guard": "The loop guard",
    "proper": "Proper tokens",
    "server": "Arguments and the start of a server",
    "bench": "Upstream's benchmarks",
    "fixes": "Repairs of upstream, for requests without a penalty too",
    "cpu": "The CPU flavour",
}
"""What the patches of each group are for."""


def patches() -> str:
    """All patches, and which of our functions upstream's functions call."""
    by_group: dict[str, list[str]] = {group: [] for group in GROUPS}
    for patch in PatchSet.load(PATCHES / RELEASE).patches:
        link = f"[{Path(patch.name).stem}](../patches/{RELEASE}/{patch.name})"
        row = f"| {link} | {patch.subject} | {'<br>'.join(_calls(patch))} |"
        by_group[patch.group].append(row)
    head = "| patch | what it does | calls of ours that a server checks |\n|---|---|---|"
    parts = ["\n".join((f"## {TITLES[group]}\n", head, *rows)) for group, rows in by_group.items()]
    return "\n\n".join(parts) + "\n"


def _calls(patch: Patch) -> list[str]:
    """The calls of `HOOKS` that a patch adds."""
    changed = {change.path: b"\n".join(sum(change.hunks, ())) for change in patch.changes}
    found = []
    for (module, function), calls in HOOKS.items():
        lines = changed.get(f"{module.replace('.', '/')}.py", b"").decode()
        added = "\n".join(re.findall(r"^\+(.*)$", lines, re.M))
        made = [call for call in calls if re.search(rf"\b{call}\(", added)]
        if made:
            found.append(f"`{function}` calls {', '.join(f'`{call}`' for call in made)}")
    return found


def imports() -> str:
    """What the patches import from the package, by module; the doors first."""
    found: dict[str, set[str]] = {}
    for patch in PatchSet.load(PATCHES / RELEASE).patches:
        lines = (line for line in patch.changed_lines if line.startswith(b"+"))
        added = b"\n".join(lines).decode()
        for module, names in re.findall(r"\bfrom sglang_lz(\S*) import (.+)$", added, re.M):
            for name in (part.split()[0] for part in names.split(",")):
                if module:
                    found.setdefault(module[1:], set()).add(name)
                else:
                    used = re.findall(rf"\b{name}\.(\w+)", added)
                    found.setdefault(name, set()).update(used)
    rows = [
        f"| `{module}` | {', '.join(f'`{name}`' for name in sorted(found[module]))} |"
        for module in sorted(found, key=lambda module: ("." in module, module))
    ]
    return "\n".join(("| module | what patches import |", "|---|---|", *rows)) + "\n"


def changes() -> str:
    """Every file of upstream that the patches change, as git shows it."""
    changed: dict[str, list[int]] = {}
    for patch in PatchSet.load(PATCHES / RELEASE).patches:
        for change in patch.changes:
            lines = [line for hunk in change.hunks for line in hunk]
            plus = sum(line.startswith(b"+") for line in lines)
            counts = changed.setdefault(f"python/{change.path}", [0, 0])
            counts[0] += plus
            counts[1] += len(lines) - plus
    width = max(map(len, changed))
    rows = [
        f" {path:{width}} | {plus + minus:2} {'+' * plus}{'-' * minus}"
        for path, (plus, minus) in sorted(changed.items())
    ]
    added, removed = map(sum, zip(*changed.values(), strict=True))
    end = f" {len(changed)} files changed, {added} insertions(+), {removed} deletions(-)"
    return "\n".join(("```", *rows, end, "```")) + "\n"


def time_of_tests() -> str:
    """The minutes of the test commands; what continuous integration runs, in parts."""
    found = _result("tests")
    head = f"| on two cores, at commit {found['commit']} | minutes |"
    rows = [f"| {part} | {seconds / 60:.0f} |" for part, seconds in found["seconds"].items()]
    return "\n".join((head, "|---|---|", *rows)) + "\n"


def seconds_of_tests() -> str:
    """The test files that took longest of what continuous integration runs; on two workers."""
    files = _result("tests")["files"]
    rows = [f"| [{name}]({name}) | {seconds} |" for name, (_, seconds) in files.items()]
    return "\n".join(("| tests | seconds |", "|---|---|", *rows[:12])) + "\n"


def _result(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def table_one() -> str:
    """The paper's table 1: its losses beside ours, and the time of a step of each kind."""
    found = _result("serving-static-h200")
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
    lines += [
        "",
        "| a step's time on the same GPU, microseconds | 1 request | 64 | 512 |",
        "|---|---|---|---|",
    ]
    for title, way in (
        ("LZ penalty, always on", steps.OURS),
        ("LZ penalty, waiting (`lz_onset`)", steps.ONSET_2),
        ("stock SGLang's frequency and repetition penalty", steps.UPSTREAM),
    ):
        shown = (f"{times.microseconds(way, rows=rows):.1f}" for rows in (1, 64, 512))
        lines.append(f"| {title} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


BLOCKS: dict[tuple[str, str], Callable[[], str]] = {
    ("CONTRIBUTING.md", "changes"): changes,
    ("CONTRIBUTING.md", "time-of-tests"): time_of_tests,
    ("CONTRIBUTING.md", "seconds-of-tests"): seconds_of_tests,
    ("README.md", "fields"): markdown_table,
    ("README.md", "puzzles"): repetition.readme,
    ("README.md", "table-one"): table_one,
    ("docs/RESULTS.md", "puzzles"): repetition.puzzles,
    ("docs/RESULTS.md", "step-summary"): kernel.step_summary,
    ("docs/PATCHES.md", "patches"): patches,
    ("docs/PATCHES.md", "imports"): imports,
    ("docs/PROPER_TOKENS.md", "fields"): lambda: markdown_table(request_field.ENTRIES),
    ("docs/PENALTIES.md", "fields"): lambda: markdown_table(histories.FIELDS),
    **{("docs/PROPER_TOKENS.md", f"proper-{name}"): of for name, of in constraints.TABLES.items()},
    ("docs/GUARD.md", "clients"): clients_table.clients,
    ("bench/README.md", "harm"): harm.lowered,
    ("bench/README.md", "hostile"): judge.section,
    ("bench/README.md", "step-on-a-gpu"): kernel.step_on_gpu,
    ("bench/README.md", "starts-of-requests"): kernel.starts_of_requests,
}
"""What makes each block, by its page and name."""


def with_blocks(page: str) -> str:
    """The text of a page with its blocks as they should be.

    Raises:
        ValueError: the page has no place for one of its blocks.
    """
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
