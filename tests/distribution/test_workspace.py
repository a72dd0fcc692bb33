"""Patches as commits and back: `checkout`, `export`, `check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from distribution.world import EDITS, UPSTREAM, World, git

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
        (NEW.replace("Why: to see\n", ""), "the field Why: is missing or empty"),
        (NEW.replace("server/", "misc/"), "'misc' is not a group"),
    ],
)
def test_commit_that_is_no_patch(world: World, tree: Path, message: str, words: str) -> None:
    commit(tree, message)
    assert words in world.fails("export", "tree")


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
