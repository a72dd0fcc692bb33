"""Patches apply exactly or not at all, and `check` finds each kind of bad patch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distribution.world import EDITS, UPSTREAM, World, git, patched
from patches_tool.gitapply import transform
from patches_tool.lint import LINES_PER_HUNK, lint
from patches_tool.patchset import Patch, PatchSet
from sglang_lz.startup.errors import DistError

FILES = {path: text.encode() for path, text in UPSTREAM.items()}


@pytest.fixture
def patches(world: World) -> PatchSet:
    return PatchSet.load(world.patches)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        # Context that differs in one line would be fuzz for patch(1).
        (" line_7 = 7\n", " line_7 = 70\n", r"does not apply \(patch failed: .*sampler.py:8\)"),
        ("+hook()", "+hook(1)", "did not turn sglang/sampler.py into the blob"),
        ("@@ -8,6 +8,8 @@", "@@ -8,6 +8,9 @@", "does not apply .corrupt patch"),
        ("@@ -8,6 +8,8 @@", "@@ nonsense", "does not apply"),
    ],
)
def test_a_patch_that_is_not_exact(patches: PatchSet, before: str, after: str, words: str) -> None:
    name, data = patches.patches[0].name, patches.patches[0].data
    assert before.encode() in data
    wrong = PatchSet((Patch(name, data.replace(before.encode(), after.encode())),))
    with pytest.raises(DistError, match=words):
        transform(wrong, FILES.get, "0.5.23")


def test_an_untracked_folder_of_a_repository(
    tmp_path: Path, patches: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one, `git apply` by itself changes nothing and exits with 0."""
    git(tmp_path, "init", "-q")
    folder = tmp_path / "inside" / "it"
    folder.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    after = transform(patches, FILES.get, "0.5.23")
    assert after["sglang/sampler.py"] == patched(list(EDITS))["sglang/sampler.py"].encode()
    assert list(folder.iterdir()) == []


def test_callers_git_does_not_matter_but_must_exist(
    tmp_path: Path, patches: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the variables of a git hook nor a hostile configuration change the result."""
    config = "[core]\nautocrlf = true\n[apply]\nwhitespace = fix\nignoreWhitespace = change\n"
    (tmp_path / "config").write_text(config)
    for name, path in (("CONFIG_GLOBAL", "config"), ("DIR", "nowhere"), ("WORK_TREE", "")):
        monkeypatch.setenv(f"GIT_{name}", str(tmp_path / path))
    after = transform(patches, FILES.get, "0.5.23")
    assert after["sglang/server.py"] == patched(list(EDITS))["sglang/server.py"].encode()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DistError, match="git is not installed"):
        transform(patches, FILES.get, "0.5.23")


# What `check` finds before it looks at upstream

CALL = "sampling/call.patch"
LINES = "".join(f"+line {n}\n" for n in range(LINES_PER_HUNK + 1))


@pytest.mark.parametrize(
    ("pattern", "replacement", "words"),
    [
        (r"Subject: .*\n", "", "not an imperative"),
        (r"Why: .*\n .*\n", "", "the field Why: is missing"),
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
        (r"\+hook\(\)\n", LINES, "move the logic into our packages"),
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
