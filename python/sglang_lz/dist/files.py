"""Replacing several files together: all of them, or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from .errors import DistError


def replace_all(root: Path, changes: Mapping[str, bytes | None]) -> None:
    """Write (bytes) or delete (None) files below ``root``, creating folders as needed.

    All new contents and a backup of all old ones are on the disk before the first file changes, and
    each change is one rename; a failure or an interrupt half-way renames the backups back. A file
    that is replaced keeps its permissions. DistError if the file system refuses; it is then as it
    was.
    """
    made: list[Path] = []
    done: list[str] = []
    stage: Path | None = None
    try:
        stage = Path(tempfile.mkdtemp(prefix=".sglang-lz-", dir=root))
        for number, (path, data) in enumerate(changes.items()):
            if (root / path).exists():
                shutil.copy2(root / path, stage / f"{number}.old")
            if data is not None:
                new = stage / f"{number}.new"
                new.write_bytes(data)
                mode = (root / path).stat().st_mode if (root / path).exists() else 0o644
                new.chmod(mode & 0o777)
        for number, (path, data) in enumerate(changes.items()):
            target = root / path
            if data is not None:
                _make_parents(target, made)
            done.append(path)
            if data is not None:
                os.replace(stage / f"{number}.new", target)
            else:
                target.unlink(missing_ok=True)
    except BaseException as error:
        for number, path in enumerate(done):
            old = stage / f"{number}.old" if stage else Path()
            if old.exists():
                os.replace(old, root / path)
            else:
                (root / path).unlink(missing_ok=True)
        for folder in reversed(made):
            folder.rmdir()
        if isinstance(error, OSError):
            raise DistError(
                f"{error.filename or root} cannot be written ({error.strerror}), nothing was "
                "changed; fix that and run again."
            ) from error
        raise
    finally:
        if stage:
            shutil.rmtree(stage, ignore_errors=True)


def remove_empty(folder: Path) -> None:
    """Remove ``folder`` with its bytecode caches, as far as nothing else is in it."""
    for cache in list(folder.rglob("__pycache__")):
        if all(file.suffix == ".pyc" for file in cache.iterdir()):
            shutil.rmtree(cache)
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _make_parents(target: Path, made: list[Path]) -> None:
    missing = [p for p in target.parents if not p.exists()]
    for folder in reversed(missing):
        folder.mkdir()
        made.append(folder)
