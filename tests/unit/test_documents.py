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
from bench.guard import cost as guard_cost
from bench.guard import outputs as guard_outputs
from bench.kernel.host import RESUMED
from bench.kernel.names import COPY, DRY, MEMORY, ONSET_2, OURS, REFERENCE
from bench.penalties import tables as penalty_tables
from releases import FOLDER, RELEASES
from sglang_lz.distribution.patchset import FLAVOUR_GROUPS, PatchSet
from sglang_lz.fields.lz import LZParams
from sglang_lz.fields.repetition import RECOMMENDED
from sglang_lz.server.hooks import HOOKS
from soak import tables as soak_tables

ROOT = Path(__file__).parents[2]
GUARD = ROOT / "bench/results/guard"
PACKAGE = ROOT / "python/sglang_lz"
PATCHES = [FOLDER / release for release in RELEASES]
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


def test_notice_lists_every_changed_file() -> None:
    patches = [patch for folder in PATCHES for patch in PatchSet.load(folder).patches]
    both = FLAVOUR_GROUPS["cuda"]
    lz = {c.path for p in patches if p.group in both for c in p.changes}
    cpu = {c.path for p in patches if p.group not in both for c in p.changes}
    notice = (ROOT / "NOTICE").read_text()
    before, after = notice.split("CPU flavour only:")
    assert set(re.findall(r"^    (\S+)$", before, re.M)) == lz
    assert set(re.findall(r"^    (\S+)$", after, re.M)) == cpu


def test_contributing_shows_the_whole_change() -> None:
    changed: dict[str, int] = {}
    for patch in PatchSet.load(PATCHES[0]).patches:
        for change in patch.changes:
            changed[change.path] = changed.get(change.path, 0) + change.added
    text = (ROOT / "CONTRIBUTING.md").read_text()
    shown = dict(re.findall(r"^ python/(\S+) +\|.* (\+*)-*$", text, re.M))
    assert {path: len(plus) for path, plus in shown.items()} == changed


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


def test_results_say_of_the_other_fields_what_the_result_file_says() -> None:
    words = " ".join((ROOT / "docs/RESULTS.md").read_text().split())
    found = {variant: cell for (variant, _), cell in cells("pocket-sizes").items()}
    plain, prompt = (found[name] for name in ("lz 0.15", "lz 0.15, prompt"))
    accuracies = [cell["accuracy"]["mean"] for cell in (plain, prompt)]
    walks = [cell["groups"]["walk"]["accuracy"]["mean"] for cell in (plain, prompt)]
    assert "accuracy from {:.3f} to {:.3f}".format(*accuracies) in words
    assert "all of it in walks ({:.2f} to {:.2f})".format(*walks) in words
    sizes = [cell for name, cell in found.items() if "window" in name or "buffer" in name]
    assert not any(cell["degenerate"]["mean"] for cell in (*sizes, plain, prompt))


def test_readme_says_of_the_other_penalties_what_the_result_file_says() -> None:
    wrong = {
        row["server"]: (row["wrong"], row["requests"])
        for row in penalty_tables.load("exactness.json")["rows"]
        if row["penalty"] == {"frequency_penalty": 0.5}
    }
    readme = " ".join((ROOT / "README.md").read_text().split())
    many, requests = wrong["stock"]
    assert wrong == {"stock": (requests, requests), "ours": (0, requests)}
    assert f"all {many} test requests with `frequency_penalty` wrong" in readme


def test_the_soak_found_nothing() -> None:
    result = soak_tables.load()
    assert result["positions"] >= 1_000_000
    assert result["largest"] <= result["tolerance"]
    assert result["deviations"] == result["errors"] == 0
    assert not any(row["beyond"] for row in result["configurations"].values())


def test_figures_of_the_loop_guard_are_those_of_the_result_files() -> None:
    page = (ROOT / "bench/README.md").read_text()
    words = " ".join(page.split())
    results = {path.stem: json.loads(path.read_text()) for path in GUARD.glob("*.json")}
    assert results.keys() == {"cost", "alarms", "pocket", "demo", "code", "prose"}
    alarms, cost = results.pop("alarms"), results.pop("cost")
    for name, result in results.items():
        assert guard_outputs.table(result) in page, name
    recommended_rows = [row for row in cost["table"] if row["min_count"] == RECOMMENDED.min_count]
    assert guard_cost.table(cost | {"table": recommended_rows}) in page
    assert "results/guard/alarms.png" in page
    assert f"At the recommended 20 they are {len(alarms['alarms'])} texts" in words
    assert alarms["recommended"] == dataclasses.asdict(RECOMMENDED)
    right = {"prose", "documentation", "Python", "C headers", "Markdown", "reST", "HTML", "JSON"}
    assert not {alarm[1] for alarm in alarms["alarms"]} & {*right, "logs", "diagrams"}
    (row,) = (
        row
        for row in cost["table"]
        if (row["text"], row["min_count"]) == ("varied tokens", RECOMMENDED.min_count)
    )
    guide = (ROOT / "docs/GUARD.md").read_text()
    assert f"{row['detector'][0]:.0f} us of a step" in guide
    assert row["detector"][0] < 0.01 * cost["step_microseconds"]
    for name in ("pocket", "demo"):
        variants = results[name]["variants"]
        saved = 1 - variants["guard, stop"]["tokens"] / variants["none"]["tokens"]
        assert f"{100 * saved:.0f} %" in page
        recommended = [v for variant, v in variants.items() if "4 copies" not in variant]
        assert not any(v.get("right without, wrong now", 0) for v in recommended)


@pytest.mark.parametrize("drafter", ["ngram", "dflash", "dspark"])
def test_figures_of_speculation_are_those_of_the_result_file(drafter: str) -> None:
    path = ROOT / f"bench/results/speculation-{drafter}.json"
    result = json.loads(path.read_text())
    page = (ROOT / "docs/RESULTS.md").read_text()
    for name, variant in result["variants"].items():
        _, outside, steps_outside, inside, steps_inside = map(
            sum, zip(*variant["rows"], strict=True)
        )
        lengths = [
            (outside + inside) / (steps_outside + steps_inside),
            outside / steps_outside,
            inside / steps_inside if inside else None,
        ]
        loops = sum(row[0] >= 20 for row in variant["rows"]) / len(variant["rows"])
        cells = [f"{value:.2f}" if value is not None else "-" for value in (loops, *lengths)]
        assert f"| {name} | {' | '.join(cells)} |" in page
    if drafter == "ngram":
        share = result["variants"]["no penalty"]["tokens_inside_share"]
        assert f"{100 * share:.0f} % of all unpenalised tokens" in " ".join(page.split())
        assert path.with_suffix(".png").is_file()


def test_figures_of_a_step_are_those_of_the_result_file() -> None:
    path = ROOT / "bench/results/kernel-cpu.json"
    result = json.loads(path.read_text())
    rows = [dict(zip(result["row_columns"], row, strict=True)) for row in result["rows"]]
    usual = {"rows": 64, "vocab": 152064, "window": 512, "buffer": 32, "nodes": 0}

    def time(name: str, **case: object) -> float:
        wanted = usual | {"implementation": name, "history": "text"} | case
        (row,) = (row for row in rows if wanted.items() <= row.items())
        return row["median_us"] / 1000

    page = (ROOT / "bench/README.md").read_text()
    kinds = {"text": "text", "loop": "one token for ever", "alternating": "two tokens in turn"}
    for kind, title in (kinds | {"distinct": "no token twice"}).items():
        ours, waiting, memory, reference, dry, copy = (
            f"{time(name, history=kind):.2f} ms"
            for name in (OURS, ONSET_2, MEMORY, REFERENCE, DRY, COPY)
        )
        upstream = f"{time('frequency + repetition', history=kind):.1f} ms"
        row = (title, ours, waiting, memory, reference, upstream, dry, copy)
        assert f"| {' | '.join(row)} |" in page
    ratios = (
        time("frequency + repetition", vocab=vocab) / time("ours", vocab=vocab)
        for vocab in (152064, 32768, 262144)
    )
    words = " ".join(page.split())
    for ratio, phrase in zip(
        ratios, ("cost {} times", "from {} times", "to {} times"), strict=True
    ):
        assert phrase.format(f"{ratio:.0f}") in words
    assert f"takes {time('dense B x V x W', rows=1):.0f} ms for a single row" in words
    assert f"ours takes {time('ours', rows=1):.2f} ms" in words
    assert f"takes {time('ours', nodes=8):.1f} ms for 64 trees" in words
    (target,) = (row for row in result["targets"] if row["target"].startswith("CPU time"))
    assert target["met"]
    results = " ".join((ROOT / "docs/RESULTS.md").read_text().split())
    assert f"{time('ours'):.2f} ms of one core" in results
    assert f"take {time('frequency + repetition'):.1f} ms" in results
    assert path.with_suffix(".png").is_file()


def test_figures_of_the_scheduler_s_thread_are_those_of_the_result_file() -> None:
    result = json.loads((ROOT / "bench/results/host-cpu.json").read_text())
    rows = [dict(zip(result["host_columns"], row, strict=True)) for row in result["host"]]
    page = (ROOT / "bench/README.md").read_text()
    results = " ".join((ROOT / "docs/RESULTS.md").read_text().split())

    def slowest(**case: object) -> float:
        return max(row["median_us"] for row in rows if case.items() <= row.items())

    for seen, limit in ((0, 5), (512, 30), (8192, 300)):
        alone, few, many = (slowest(seen=seen, requests=requests) for requests in (1, 16, 64))
        assert f"| {seen} | {alone:.1f} | {few:.1f} | {many:.1f} | {limit} |" in page
        assert (f"{many:.0f} us" if many > 10 else f"{many:.1f} us") in results
    resumed = f"{slowest(what=RESUMED):.0f} us"
    assert f"after 32,768 outputs takes {resumed} at most" in " ".join(page.split())
    assert f"takes at most {resumed} after 32,768 outputs" in results
    met = {row["target"]: row["met"] for row in result["targets"] if "prefill" in row["target"]}
    assert [name for name, is_met in met.items() if not is_met] == [
        "prefill with 0 tokens seen, each of 1, us"
    ]
    for held in ("no window held", "a window held elsewhere"):
        cells = [
            f"{slowest(what=f'{what} without the penalty, {held}', pool=pool):.1f}"
            for what in ("decode", "prefill")
            for pool in (4096, 100_000)
        ]
        assert f"| {held} | {' | '.join(cells)} |" in page


def test_figures_of_a_compiled_step_are_those_of_the_budget() -> None:
    budget = json.loads((ROOT / "tests/unit/kernel_budget.json").read_text())
    step = dict(zip(budget["counts"], budget["3.7"]["_step 512"], strict=True))
    words = " ".join((ROOT / "docs/GPU.md").read_text().split())
    assert (
        f"{step['registers']} registers, {step['instructions']} instructions, {step['barriers']}"
        f" barriers and {step['loads']} loads, {step['chain']} of them in a chain"
    ) in words
    assert f"in {len(budget['3.7'])} shapes" in words
