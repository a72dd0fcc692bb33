"""Replaces several files together: either all of them or none."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sglang_lz.startup.errors import DistError

GENERATED = re.compile(r".+\.(pyc(\.\d+)?|nb[ic](\.tmp\.[0-9a-f]+)?)")
"""The names of the files that Python (bytecode) and numba (machine code) keep in ``__pycache__``,
and of those that they leave there when they are killed while writing."""


def replace_all(root: Path, changes: Mapping[str, bytes | None]) -> None:
    """Write (bytes) or delete (None) files below ``root``, creating folders as needed.

    All new contents and backups of all old ones are on disk before the first file changes, and each
    change is one rename. After a failure or an interrupt, the backups are renamed back. A replaced
    file keeps its permissions. Raises DistError if the file system refuses; all files are then
    unchanged.
    """
    made: list[Path] = []
    done: list[tuple[Path, Path]] = []  # a file and its backup
    stage = None
    try:
        stage = Path(tempfile.mkdtemp(prefix=".sglang-lz-", dir=root))
        for number, (path, data) in enumerate(changes.items()):
            new, old, target = stage / f"{number}.new", stage / f"{number}.old", root / path
            if target.exists():
                shutil.copy2(target, old)
            if data is not None:
                new.write_bytes(data)
                new.chmod(old.stat().st_mode & 0o777 if old.exists() else 0o644)
        for number, (path, data) in enumerate(changes.items()):
            target = root / path
            if data is not None:
                for folder in reversed([p for p in target.parents if not p.exists()]):
                    folder.mkdir()
                    made.append(folder)
            done.append((target, stage / f"{number}.old"))
            if data is not None:
                os.replace(stage / f"{number}.new", target)
            else:
                target.unlink(missing_ok=True)
    except BaseException as error:
        for target, old in done:
            if old.exists():
                os.replace(old, target)
            else:
                target.unlink(missing_ok=True)
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


def is_generated(file: Path) -> bool:
    """Whether ``file`` is a cache file that Python or numba can regenerate."""
    return file.parent.name == "__pycache__" and bool(GENERATED.fullmatch(file.name))


def first_file(folder: Path) -> Path | None:
    """Return a file below ``folder`` that is not a generated cache; None if there is none."""
    files = (path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink())
    return next((file for file in files if not is_generated(file)), None)


def remove_empty(folder: Path) -> None:
    """Remove the generated caches below ``folder``, and the folders that are then empty."""
    for path in [*sorted(folder.rglob("*"), reverse=True), folder]:  # contents before their folder
        if is_generated(path):
            path.unlink()
        elif path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()
