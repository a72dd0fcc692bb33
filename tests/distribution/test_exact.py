"""Exact application: between two blob ids, in any surroundings, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from distribution.world import EDITS, UPSTREAM, World, git, patched
from sglang_lz.distribution.errors import DistError
from sglang_lz.distribution.gitapply import transform
from sglang_lz.distribution.patchset import Patch, PatchSet

FILES = {path: text.encode() for path, text in UPSTREAM.items()}


@pytest.fixture
def patches(world: World) -> PatchSet:
    return PatchSet.load(world.patches)


def test_there_and_back(patches: PatchSet) -> None:
    after = transform(patches, FILES.get, "0.5.23")
    expected = patched(list(EDITS))
    assert after == {path: expected[path].encode() for path in patches.blobs}
    assert b"\r\n    lz()\r\n" in after["sglang/server.py"]
    before = transform(patches, (FILES | after).get, "0.5.23", reverse=True)
    assert before == {path: FILES[path] for path in patches.blobs}


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


def test_line_ends_are_bytes(patches: PatchSet) -> None:
    """A file whose CRLF became LF is another file."""
    files = FILES | {"sglang/server.py": FILES["sglang/server.py"].replace(b"\r\n", b"\n")}
    with pytest.raises(DistError, match=r"sglang/server.py is neither"):
        transform(patches, files.get, "0.5.23")


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


def test_callers_git_does_not_matter(
    tmp_path: Path, patches: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the variables of a git hook nor a hostile configuration change the result."""
    (tmp_path / "config").write_text(
        "[core]\nautocrlf = true\n[apply]\nwhitespace = fix\nignoreWhitespace = change\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path))
    after = transform(patches, FILES.get, "0.5.23")
    assert after["sglang/server.py"] == patched(list(EDITS))["sglang/server.py"].encode()


def test_no_git(patches: PatchSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DistError, match="git is not installed"):
        transform(patches, FILES.get, "0.5.23")
