"""Replacing several files together: whichever step fails, nothing has changed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distribution.world import snapshot
from sglang_lz.distribution import files
from sglang_lz.distribution.errors import DistError

CHANGES: dict[str, bytes | None] = {
    "a/one": b"new",
    "b/c/two": b"made",
    "a/three": None,
    "four": b"new",
    "b/five": b"made",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in ("a/one", "a/three", "four"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_bytes(f"old {path}".encode())
    (tmp_path / "four").chmod(0o755)
    return tmp_path


def test_all(root: Path) -> None:
    files.replace_all(root, CHANGES)
    assert snapshot(root) == {path: data for path, data in CHANGES.items() if data is not None}
    assert (root / "four").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", range(5))
def test_none(root: Path, monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    before = snapshot(root)
    folders = sorted(path for path in root.rglob("*") if path.is_dir())
    steps = iter(range(100))

    def failing(real: object) -> object:
        def call(*args: object, **options: object) -> object:
            if next(steps) == step:
                raise error
            return real(*args, **options)  # type: ignore[operator]

        return call

    monkeypatch.setattr(os, "replace", failing(os.replace))
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink))
    expected = DistError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        files.replace_all(root, CHANGES)
    assert snapshot(root) == before
    assert sorted(path for path in root.rglob("*") if path.is_dir()) == folders


CACHES = (
    "one.cpython-311.pyc",
    "one.cpython-311.pyc.140036812345",
    "one._step-96.py311.nbi",
    "one._step-96.py311.1.nbc",
    "one._step-96.py311.1.nbc.tmp.0123456789abcdef",
)


def test_foreign_files_stay(root: Path) -> None:
    (root / "a" / "__pycache__").mkdir()
    for name in (*CACHES, "notes.txt"):
        (root / "a" / "__pycache__" / name).write_bytes(b"")
    (root / "a" / "mine.nbi").write_bytes(b"")
    (root / "a" / "empty").mkdir()
    files.remove_empty(root / "a")
    mine = {"one", "three", "mine.nbi", "__pycache__/notes.txt"}
    assert snapshot(root / "a", caches=True).keys() == mine
    assert not (root / "a" / "empty").exists()
    for path in mine:
        assert files.first_file(root / "a") is not None
        (root / "a" / path).unlink()
    for name in CACHES:
        (root / "a" / "__pycache__" / name).write_bytes(b"")
    assert files.first_file(root / "a") is None
    files.remove_empty(root / "a")
    assert not (root / "a").exists()
