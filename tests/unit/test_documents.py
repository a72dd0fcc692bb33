"""The documents say what the patches, the code and the result files say, and links resolve."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from _docs import BLOCKS, with_blocks
from bench.guard import tables as guard_tables
from bench.penalties import tables as penalty_tables
from releases import PATCHES
from sglang_lz.distribution.patchset import FLAVOUR_GROUPS, PatchSet
from sglang_lz.fields.lz import LZParams
from sglang_lz.fields.repetition import RECOMMENDED
from sglang_lz.server.hooks import HOOKS
from soak import tables as soak_tables

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "python/sglang_lz"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
)
DOCUMENTS = (*PAGES, ROOT / "CHANGELOG.md", *sorted(ROOT.glob("python/**/*.md")))


@cache
def anchors(page: Path) -> set[str]:
    """The anchors that a forge gives a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ +(.+?) *$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
    assert len(set(plain)) == len(plain), f"{page.name}: a forge numbers headings that are alike"
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    for link in links:
        if link.startswith(("https://", "http://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_commit_that_a_document_names_exists(page: Path) -> None:
    """Commits are written with seven digits; the sha256 of files with eight."""
    commits = re.findall(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7}\b", page.read_text())
    if not commits:
        return
    if _git("rev-parse", "--show-prefix") != "":
        pytest.skip("this folder is no git checkout, so the commits that it names cannot be found")
    if _git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("this clone is shallow, so older commits cannot be found")
    missing = [commit for commit in commits if _git("cat-file", "-t", commit) != "commit"]
    assert not missing


def _git(*arguments: str) -> str | None:
    """What git prints of this checkout; None if it fails or is not installed."""
    try:
        done = subprocess.run(
            ("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)\s:]+)\)", page.read_text())
    }
    found_by_forges = {ROOT / "README.md", ROOT / "SECURITY.md"}
    assert set(PAGES) - linked <= found_by_forges


@pytest.mark.parametrize("page", sorted({page for page, _ in BLOCKS}))
def test_generated_blocks_are_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == with_blocks(page), "run scripts/format"


def test_every_hook_is_in_the_list_of_patches() -> None:
    page = (ROOT / "docs/PATCHES.md").read_text()
    listed = re.findall(r"`([\w.]+)` calls ((?:`\w+`(?:, )?)+)", page)
    named = {(name, call) for name, calls in listed for call in re.findall(r"\w+", calls)}
    assert named == {(name, call) for (_, name), calls in HOOKS.items() for call in calls}


def test_every_attribute_of_ours_is_in_the_list_of_attributes() -> None:
    code = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    found = set(re.findall(r"\.(lz_\w+) = |__dict__\.setdefault\(\"(lz_\w+)\"", code))
    page = (ROOT / "docs/PATCHES.md").read_text().partition("## Attributes")[2]
    listed = set(re.findall(r"^\|[^|]*\| `(lz_\w+)` \|", page, re.M))
    assert found
    assert {"".join(names) for names in found} <= listed


def test_notice_lists_every_changed_file() -> None:
    patches = PatchSet.load(PATCHES).patches
    both = FLAVOUR_GROUPS["cuda"]
    lz = {c.path for p in patches if p.group in both for c in p.changes}
    cpu = {c.path for p in patches if p.group not in both for c in p.changes}
    notice = (ROOT / "NOTICE").read_text()
    before, after = notice.split("CPU flavour only:")
    assert set(re.findall(r"^    (\S+)$", before, re.M)) == lz
    assert set(re.findall(r"^    (\S+)$", after, re.M)) == cpu


def test_spec_defines_every_field_and_its_default() -> None:
    rows = re.findall(
        r"^\| `(lz_\w+)` \|.*?\| (\S+?),? .*\|$", (ROOT / "docs/SPEC.md").read_text(), re.M
    )
    defaults = {f"lz_{field.name}": field.default for field in dataclasses.fields(LZParams)}
    assert {name: json.loads(default) for name, default in rows} == defaults


def cells(name: str) -> dict[tuple[str, float], dict[str, Any]]:
    """A committed repetition run's cells, by variant and temperature."""
    result = json.loads((ROOT / "bench/results" / name / "result.json").read_text())
    return {(cell["variant"], cell["temperature"]): cell for cell in result["cells"]}


@pytest.mark.parametrize("name", ["pocket", "demo"])
def test_no_output_with_an_onset_is_degenerate(name: str) -> None:
    found = [cell for (variant, _), cell in cells(name).items() if "onset" in variant]
    assert found
    assert not any(cell["degenerate"]["mean"] for cell in found)
    assert any(cell["degenerate"]["mean"] for cell in cells(name).values())


def test_no_kind_of_puzzle_loses_answers_to_the_recommended_setting() -> None:
    pocket = cells("pocket")
    for (variant, temperature), cell in pocket.items():
        if variant == "lz 0.15, onset 3":
            for kind, part in cell["groups"].items():
                plain = pocket["none", temperature]["groups"][kind]
                assert part["accuracy"]["mean"] >= plain["accuracy"]["mean"]


def test_the_recommended_setting_leaves_most_kinds_of_right_text_alone() -> None:
    rows = json.loads((ROOT / "bench/results/harm.json").read_text())["rows"]
    waiting = {tuple(row[:3]): row[6] for row in rows if row[3] == "lz 0.15, onset 3"}
    touched = {kind for (_, _, kind), lowered in waiting.items() if lowered > 0}
    assert touched == {"C headers", "reST", "CSV", "tables", "numbers"}
    assert all(lowered < 50 for lowered in waiting.values())


def test_other_windows_and_buffers_end_every_loop_too() -> None:
    found = {variant: cell for (variant, _), cell in cells("pocket-sizes").items()}
    names = [name for name in found if "window" in name or "buffer" in name]
    ends = [found[name] for name in (*names, "lz 0.15", "lz 0.15, prompt")]
    assert not any(cell["degenerate"]["mean"] for cell in ends)


def test_stock_sglang_gets_every_request_with_a_frequency_penalty_wrong() -> None:
    wrong = {
        row["server"]: (row["wrong"], row["requests"])
        for row in penalty_tables.load("exactness.json")["rows"]
        if row["penalty"] == {"frequency_penalty": 0.5}
    }
    _, requests = wrong["stock"]
    assert wrong == {"stock": (requests, requests), "ours": (0, requests)}


def test_the_soak_found_nothing() -> None:
    result = soak_tables.load()
    assert result["positions"] >= 1_000_000
    assert result["largest"] <= result["tolerance"]
    assert result["deviations"] == result["errors"] == 0
    assert not any(row["beyond"] for row in result["configurations"].values())


def test_the_guard_stops_no_right_text_but_data_that_repeats() -> None:
    alarms = guard_tables.load("alarms")
    assert alarms["recommended"] == dataclasses.asdict(RECOMMENDED)
    assert {alarm[1] for alarm in alarms["alarms"]} <= {"tables", "numbers", "CSV"}


def test_the_guard_takes_less_than_a_hundredth_of_a_step() -> None:
    cost = guard_tables.load("cost")
    (row,) = (
        row
        for row in cost["table"]
        if (row["text"], row["min_count"]) == ("varied tokens", RECOMMENDED.min_count)
    )
    assert row["detector"][0] < 0.01 * cost["step_microseconds"]


def test_every_result_of_the_guard_is_shown() -> None:
    names = {path.stem for path in (ROOT / "bench/results/guard").glob("*.json")}
    assert names == {"cost", "alarms", "clients", *guard_tables.MODELS}


@pytest.mark.parametrize("model", guard_tables.MODELS)
def test_the_recommended_guard_makes_no_answer_wrong(model: str) -> None:
    variants = guard_tables.load(model)["variants"]
    recommended = [v for variant, v in variants.items() if "4 copies" not in variant]
    assert not any(v.get("right without, wrong now", 0) for v in recommended)


def test_a_step_on_a_cpu_meets_its_target() -> None:
    result = json.loads((ROOT / "bench/results/kernel-cpu.json").read_text())
    (target,) = (row for row in result["targets"] if row["target"].startswith("CPU time"))
    assert target["met"]


def test_the_start_of_a_request_meets_its_targets_on_a_cpu() -> None:
    result = json.loads((ROOT / "bench/results/host-cpu.json").read_text())
    met = {row["target"]: row["met"] for row in result["targets"] if "prefill" in row["target"]}
    assert len(met) == 6
    assert all(met.values())
