"""`check` finds each kind of bad patch before it looks at upstream, and only that."""

from __future__ import annotations

import re

import pytest

from distribution.world import World
from sglang_lz.distribution.lint import BUDGET, LINES_PER_HUNK, lint

CALL = "sampling/call.patch"
LINES = "".join(f"+line {n}\n" for n in range(LINES_PER_HUNK + 1))


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"Subject: .*\n", "", "not an imperative"),
        (r"(Subject: .*)\n", r"\1\n and more\n", "the Subject is longer"),
        (r"(Subject: .*)\n", r"\1.\n", "not an imperative"),
        (r"Why: .*\n .*\n", "", "the field Why: is missing"),
        (r"Why: .*\n .*\n", "Why:\n", "the field Why: is missing"),
        (r"From 0+ ", "From 1234 ", "--zero-commit"),
        (r"\+hook\(\)\n", "+hook()\t\r\n", "ends with a blank"),
        (r"(\.\.[0-9a-f]{7})[0-9a-f]+", r"\1", "lacks full blob ids"),
        (r"(index .{40}\.\.)\w{4}", r"\g<1>beef", "call-again.patch does not start at"),
        (r"(diff .*\n)", r"\1new file mode 100644\n", "does not just modify"),
        (r"b/python/sglang/sampler", "b/python/sglang/other", "does not just modify"),
        (r"a/python/sglang/sampler", "a/sglang/sampler", "does not just modify"),
        (r"sampler\.py", "sampler.json", "does not just modify one .py"),
        (r"--- a/.*\n", "", "does not just modify"),
        (r"(?s)diff --git.*", "", "there is no diff"),
        (r"\+hook\(\)\n", LINES, "move the logic into sglang_lz"),
    ],
)
def test_bad_patch(world: World, pattern: str, replacement: str, words: str) -> None:
    assert lint(world.patches) == []
    path = world.patches / CALL
    text, count = re.subn(pattern, replacement, path.read_text())
    assert count
    path.write_text(text, newline="")
    problems = lint(world.patches)
    assert len(problems) == 1, problems
    assert words in problems[0]
    done = world.run("check")
    assert (done.returncode, done.stdout) == (1, f"{problems[0]}\n")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("server/check.patch\n", "", "server/check.patch is not in series; list it or remove it."),
        (f"{CALL}\n", f"{CALL}\n{CALL}\n", f"lists {CALL} twice"),
        (f"{CALL}\nsampling/call-again.patch", f"sampling/call-again.patch\n{CALL}", "not start"),
        ("cpu/stand-in", "cpu/gone", "cpu/gone.patch is missing"),
        ("cpu/stand-in", "cpu/../gone", "is not group/name.patch"),
    ],
)
def test_bad_series(world: World, before: str, after: str, words: str) -> None:
    series = world.patches / "series"
    assert before in series.read_text()
    series.write_text(series.read_text().replace(before, after))
    assert words in lint(world.patches)[0]


@pytest.mark.parametrize(
    ("what", "number"), [("patches", 5), ("changed files", 4), ("added lines", 8)]
)
def test_budget(world: World, monkeypatch: pytest.MonkeyPatch, what: str, number: int) -> None:
    monkeypatch.setitem(BUDGET, what, number)
    assert lint(world.patches) == []
    monkeypatch.setitem(BUDGET, what, number - 1)
    assert lint(world.patches)[0].startswith(f"{number} {what} are more than the budget")
