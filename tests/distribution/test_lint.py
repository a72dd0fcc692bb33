"""`lint` finds each kind of bad patch, and only that."""

from __future__ import annotations

import re

import pytest

from distribution.world import World
from sglang_lz.distribution.lint import BUDGET, lint

CALL = "sampling/call.patch"
LINES = "".join(f"+line {n}\n" for n in range(BUDGET.added_lines_per_hunk + 1))


def test_good_set(world: World) -> None:
    assert lint(world.patches) == []
    assert world.ok("lint") == "lint: sglang 0.5.23: 5 patches are well-formed\n"


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"Subject: .*\n", "", "the Subject is missing"),
        (r"(Subject: .*)\n", r"\1\n and more\n", "the Subject is longer"),
        (r"(Subject: .*)\n", r"\1 %s\n" % ("x" * 72), "the Subject is longer"),
        (r"(Subject: .*)\n", r"\1.\n", "not an imperative"),
        (r"Subject: ", "Subject: [PATCH 1/2] ", "not an imperative"),
        (r"Why: .*\n .*\n", "", "the field Why: is missing"),
        (r"Why: .*\n .*\n", "Why:\n", "the field Why: is missing"),
        (r"Upstream: .*\n", "", "the field Upstream: is missing"),
        (r"Remove-when: .*\n", "", "the field Remove-when: is missing"),
        (r"From 0+ ", "From 1234 ", "--zero-commit"),
        (r"\+hook\(\)\n", "+hook() \n", "ends with a blank"),
        (r"\+hook\(\)\n", "+hook()\t\r\n", "ends with a blank"),
        (r"(\.\.[0-9a-f]{7})[0-9a-f]+", r"\1", "lacks full blob ids"),
        (r"(index .{40}\.\.)\w{4}", r"\g<1>beef", "call-again.patch does not start at"),
        (r"(diff .*\n)", r"\1new file mode 100644\n", "is not just modified"),
        (r"(diff .*\n)", r"\1old mode 100644\nnew mode 100755\n", "is not just modified"),
        (r"b/python/sglang/sampler", "b/python/sglang/other", "not a change of one .py"),
        (r"a/python/sglang/sampler", "a/sglang/sampler", "not a change of one .py"),
        (r"sampler\.py", "sampler.json", "not a change of one .py"),
        (r"--- a/.*\n", "", "bad file names"),
        (r"@@ -8,6 \+8,8 @@", "@@ -8,6 +8,9 @@", "shorter than it claims"),
        (r"@@ -8,6 \+8,8 @@", "@@ -8,6 +8,7 @@", "longer than it claims"),
        (r"@@ .* @@.*\n", "@@ nonsense\n", "has no hunk that parses"),
        (r"(?s)diff --git.*", "", "there is no diff"),
        (r"\+hook\(\)\n", LINES, "move the logic into sglang_lz"),
    ],
)
def test_bad_patch(world: World, pattern: str, replacement: str, words: str) -> None:
    path = world.patches / CALL
    text, count = re.subn(pattern, replacement, path.read_text(), count=0)
    assert count
    if replacement == LINES:
        extra = BUDGET.added_lines_per_hunk + 1
        text = text.replace("+8,8 @@", f"+8,{7 + extra} @@")
    path.write_text(text, newline="")
    problems = lint(world.patches)
    assert len(problems) == 1, problems
    assert words in problems[0]
    done = world.run("lint")
    assert done.returncode == 1
    assert done.stdout == f"{problems[0]}\n"


def test_continued_fields_and_subject(world: World) -> None:
    """A value may go on in lines that begin with a space."""
    path = world.patches / CALL
    path.write_text(path.read_text().replace("Why: because this is\n", "Why:\n because this is\n"))
    assert lint(world.patches) == []


def test_unlisted_patch(world: World) -> None:
    (world.patches / "server" / "extra.patch").write_text("")
    assert lint(world.patches) == ["server/extra.patch is not in series; list it or remove it."]


def test_listed_patch_without_file(world: World) -> None:
    (world.patches / CALL).unlink()
    assert f"lists {CALL}, which does not exist" in lint(world.patches)[0]


def test_listed_twice(world: World) -> None:
    series = world.patches / "series"
    series.write_text(series.read_text() + f"{CALL}\n")
    assert f"lists {CALL} twice" in lint(world.patches)[0]


def test_unknown_group(world: World) -> None:
    (world.patches / "misc").mkdir()
    (world.patches / "cpu/stand-in.patch").rename(world.patches / "misc/stand-in.patch")
    series = world.patches / "series"
    series.write_text(series.read_text().replace("cpu/", "misc/"))
    assert "'misc' is not a group" in lint(world.patches)[0]


def test_order_matters(world: World) -> None:
    series = world.patches / "series"
    names = [line for line in series.read_text().splitlines() if line.endswith(".patch")]
    series.write_text("\n".join(reversed(names)))
    assert "does not start at the sglang/" in lint(world.patches)[0]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"patches": 4}, "5 patches are more than the budget of 4"),
        ({"files": 3}, "4 changed files are more than the budget of 3"),
        ({"added_lines": 7}, "8 added lines are more than the budget of 7"),
    ],
)
def test_budget(
    world: World, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int], words: str
) -> None:
    assert lint(world.patches) == []
    import dataclasses

    monkeypatch.setattr("sglang_lz.distribution.lint.BUDGET", dataclasses.replace(BUDGET, **limit))
    assert words in lint(world.patches)[0]
