"""The documents say what the patches, the code and the result files say, and links resolve."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from pathlib import Path

import pytest

from _docs import BLOCKS, with_blocks
from lz_penalty.fields.lz import LZParams
from patches_tool.patchset import FLAVOUR_GROUPS, PatchSet
from releases import PATCHES

ROOT = Path(__file__).parents[2]
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
)
DOCUMENTS = (*PAGES, ROOT / "CHANGELOG.md", *sorted(ROOT.glob("python/**/*.md")))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for file, anchor in re.findall(r"\]\((?!https?://)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), file
        titles = re.findall(r"^#+ +(.+?) *$", target.read_text(), re.M) if anchor else []
        found = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
        assert anchor in ["", *found], anchor


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


@pytest.mark.parametrize("page", sorted({page for page, _ in BLOCKS}))
def test_generated_blocks_are_up_to_date(page: str) -> None:
    assert (ROOT / page).read_text() == with_blocks(page), "run scripts/format"


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
