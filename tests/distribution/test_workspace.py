"""Patches as commits and back: `checkout`, `export`, `check`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from distribution.world import EDITS, UPSTREAM, World, git, snapshot

pytestmark = pytest.mark.slow

NEW = """\
Add a thing

Why: to see
Upstream: not for upstream
Remove-when: seen

Patch: server/thing.patch
"""


@pytest.fixture
def tree(world: World) -> Path:
    world.ok("checkout", "--wheel", world.wheel, "tree")
    return world.root / "tree"


def commit(tree: Path, message: str, text: str = "new = 1\n", file: str = "fields.py") -> None:
    path = tree / "python" / "sglang" / file
    path.write_bytes(path.read_bytes() + text.encode())
    git(tree, "commit", "-qaF-", stdin=message)


def test_checkout_is_one_commit_a_patch(tree: Path) -> None:
    marks = git(tree, "log", "--reverse", "--format=%(trailers:key=Patch,valueonly)", "upstream..")
    assert marks.split() == list(EDITS)
    assert sorted(git(tree, "ls-files").split()) == sorted(
        f"python/{path}" for path in UPSTREAM if path.endswith(".py")
    )
    assert git(tree, "status", "--porcelain") == ""
    assert git(tree, "show", "upstream:python/sglang/server.py") == UPSTREAM["sglang/server.py"]


def test_who_and_when_and_how_do_not_matter(world: World, tree: Path, tmp_path: Path) -> None:
    """Another author, date, hash of the commit and git configuration give the same patches."""
    before = snapshot(world.patches)
    config = tmp_path / "config"
    config.write_text(
        "[diff]\nnoprefix = true\nalgorithm = patience\ncontext = 9\n[format]\nsignature = x\n"
        "[user]\nname = Me\nemail = me@home\n[core]\nautocrlf = true\nabbrev = 4\n"
    )
    world.env |= {"GIT_CONFIG_GLOBAL": str(config), "GIT_CONFIG_NOSYSTEM": "1"}
    rebase = ["git", "rebase", "-q", "--force-rebase", "--reset-author-date", "upstream"]
    subprocess.run(rebase, cwd=tree, env=os.environ | world.env, check=True)
    assert world.ok("export", "tree") == "0 files changed\n"
    assert snapshot(world.patches) == before


def test_new_commit_becomes_a_patch(world: World, tree: Path) -> None:
    commit(tree, NEW)
    wrote = "wrote 0.5.23/series\nwrote 0.5.23/server/thing.patch\n2 files changed\n"
    assert world.ok("export", "tree") == wrote
    text = (world.patches / "server/thing.patch").read_text()
    assert "Patch:" not in text
    assert "+new = 1\n" in text
    series = (world.patches / "series").read_text()
    assert series == "\n".join([*EDITS, "server/thing.patch"]) + "\n"
    world.ok("check", "--wheel", world.wheel)
    world.ok("checkout", "--wheel", world.wheel, "again")
    assert git(world.root / "again", "log", "-1", "--format=%B").strip() == NEW.strip()


def test_dropped_and_reordered_commits(world: World, tree: Path) -> None:
    commits = git(tree, "rev-list", "--reverse", "upstream..").split()
    git(tree, "reset", "-q", "--hard", "upstream")
    git(tree, "cherry-pick", commits[2], commits[0], commits[4])
    assert "deleted 0.5.23/server/check.patch\n" in world.ok("export", "tree")
    names = ["requests/field.patch", "sampling/call.patch", "cpu/stand-in.patch"]
    assert (world.patches / "series").read_text().split() == names
    assert {f"{p.parent.name}/{p.name}" for p in world.patches.rglob("*.patch")} == set(names)
    world.ok("check", "--wheel", world.wheel)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (NEW.replace("Patch: ", "Path: "), "needs one line `Patch: group/name.patch`"),
        (NEW + "Patch: server/other.patch\n", "needs one line"),
        (NEW.replace("server/thing", "sampling/call"), "needs one line"),
        (NEW.replace("Why: to see\n", ""), "the field Why: is missing or empty"),
        (NEW.replace("server/", "misc/"), "'misc' is not a group"),
    ],
)
def test_commit_that_is_no_patch(world: World, tree: Path, message: str, words: str) -> None:
    commit(tree, message)
    assert words in world.fails("export", "tree")


def test_merge(world: World, tree: Path) -> None:
    git(tree, "checkout", "-q", "-b", "side", "upstream")
    commit(tree, NEW, file="kernel.py")
    git(tree, "merge", "-q", "--no-edit", "-s", "ours", "patches")
    assert "is a merge" in world.fails("export", "tree")


def test_new_file_is_no_patch(world: World, tree: Path) -> None:
    (tree / "python" / "sglang" / "new.py").write_text("x = 1\n")
    assert "has uncommitted changes" in world.fails("export", "tree")
    git(tree, "add", "-A")
    git(tree, "commit", "-qF-", stdin=NEW)
    assert "does not just modify" in world.fails("export", "tree")


def test_a_checkout_that_fails_leaves_no_folder(world: World) -> None:
    path = world.patches / "sampling/call.patch"
    path.write_text(path.read_text().replace(" line_9 = 9\n", " line_9 = 8\n"))
    assert "does not apply" in world.fails("checkout", "--wheel", world.wheel, "new")
    assert not (world.root / "new").exists()


@pytest.mark.parametrize(
    ("before", "after"),
    [("Date: Thu, 20 Nov", "Date: Fri, 21 Nov"), ("@@ -8,6 +8,8 @@", "@@ -5,6 +5,8 @@")],
)
def test_check_finds_a_patch_that_export_writes_otherwise(
    world: World, before: str, after: str
) -> None:
    path = world.patches / "sampling/call.patch"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    done = world.run("check", "--wheel", world.wheel)
    assert done.returncode == 1
    assert "sampling/call.patch is not as export writes it" in done.stdout


def test_an_installed_package_does_not_write_its_patches(world: World) -> None:
    site = world.site(world.build())
    for command in (("export", "tree"), ("bump", "0.5.24")):
        assert "in a checkout instead" in world.fails(*command, path=site)
