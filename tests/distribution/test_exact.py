"""Exact application: between two blob ids, in place, in any surroundings, or not at all."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distribution.world import EDITS, SAMPLER, UPSTREAM, World, git, patched
from sglang_lz.distribution.errors import DistError
from sglang_lz.distribution.gitapply import blob_id, transform, tree_state
from sglang_lz.distribution.patchset import Patch, PatchSet

FILES = {path: text.encode() for path, text in UPSTREAM.items()}


@pytest.fixture
def patches(world: World) -> PatchSet:
    return PatchSet.load(world.patches)


def replaced(patches: PatchSet, name: str, *pairs: tuple[bytes, bytes]) -> PatchSet:
    """Return the patch ``name`` alone, with its text edited."""
    data = next(p.data for p in patches.patches if p.name == name)
    for before, after in pairs:
        assert before in data
        data = data.replace(before, after)
    return PatchSet((Patch(name, data),))


def test_there_and_back(patches: PatchSet) -> None:
    after = transform(patches, FILES.get, "0.5.23")
    expected = patched(list(EDITS))
    assert after == {path: expected[path].encode() for path in patches.blobs}
    assert b"\r\n    lz()\r\n" in after["sglang/server.py"]
    assert tree_state(patches, (FILES | after).get, "0.5.23") == "patched"
    before = transform(patches, (FILES | after).get, "0.5.23", reverse=True)
    assert before == {path: FILES[path] for path in patches.blobs}


def test_offset_is_refused(patches: PatchSet) -> None:
    """The blob ids hold, before and after; only the line number in the hunk is wrong."""
    moved = replaced(patches, "sampling/call.patch", (b"@@ -8,6 +8,8 @@", b"@@ -5,6 +5,8 @@"))
    with pytest.raises(DistError, match=r"applies only out of place .*offset 3 lines"):
        transform(moved, FILES.get, "0.5.23")


def test_fuzz_is_refused(patches: PatchSet) -> None:
    """Context that differs in one line would be fuzz for patch(1)."""
    fuzzy = replaced(patches, "sampling/call.patch", (b" line_7 = 7\n", b" line_7 = 70\n"))
    with pytest.raises(DistError, match=r"does not apply \(patch failed: .*sampler.py:8\)"):
        transform(fuzzy, FILES.get, "0.5.23")


def test_result_must_be_the_named_blob(patches: PatchSet) -> None:
    wrong = replaced(patches, "sampling/call.patch", (b"+hook()", b"+hook(1)"))
    with pytest.raises(DistError, match=r"did not turn sglang/sampler.py into the blob"):
        transform(wrong, FILES.get, "0.5.23")


def test_line_ends_are_bytes(patches: PatchSet) -> None:
    """A file whose CRLF became LF is another file."""
    files = FILES | {"sglang/server.py": FILES["sglang/server.py"].replace(b"\r\n", b"\n")}
    with pytest.raises(DistError, match=r"sglang/server.py is neither"):
        transform(patches, files.get, "0.5.23")


@settings(max_examples=20)
@given(data=st.binary(max_size=300))
def test_blob_id_is_gits(data: bytes) -> None:
    done = subprocess.run(
        ["git", "hash-object", "--stdin"], input=data, capture_output=True, check=True
    )
    assert blob_id(data) == done.stdout.decode().strip()


@pytest.fixture
def untracked(tmp_path: Path) -> Path:
    """An untracked folder inside a git repository."""
    git(tmp_path, "init", "-q")
    folder = tmp_path / "inside" / "it"
    folder.mkdir(parents=True)
    return folder


def test_git_ignores_patches_in_an_untracked_folder(untracked: Path, patches: PatchSet) -> None:
    """If this fails, git no longer ignores patches in such folders and the guard may go."""
    file = untracked / "python" / "sglang" / "sampler.py"
    file.parent.mkdir(parents=True)
    file.write_text(SAMPLER)
    data = patches.patches[0].data
    subprocess.run(["git", "apply", "-"], cwd=untracked, input=data, check=True)
    assert file.read_text() == SAMPLER


def test_patches_apply_in_an_untracked_folder(
    untracked: Path, patches: PatchSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(untracked))
    after = transform(patches, FILES.get, "0.5.23")
    assert after["sglang/sampler.py"] == patched(list(EDITS))["sglang/sampler.py"].encode()
    assert list(untracked.iterdir()) == []


def test_the_callers_git_settings_have_no_effect(
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
