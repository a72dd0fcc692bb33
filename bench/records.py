"""Records on disk that an interrupted benchmark takes up again."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class RecordError(Exception):
    """Why a record cannot be begun or taken up, in a sentence for its user."""


class Lines:
    """A file of JSON lines that one process appends to, each line whole or not at all.

    As a context manager it is closed when the block is left.

    Attributes:
        before: the lines that were there when it was opened.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, made if it is missing, and cut off a last line that a kill left behind.

        Raises:
            RecordError: another process has it open, or a line is no JSON object.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise RecordError(f"another process is writing {path}.") from None
        self._file.seek(0)
        written = self._file.read()
        self._file.truncate(written.rfind(b"\n") + 1)
        self.before = _parse(written, path)

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, line: Mapping[str, Any]) -> None:
        """Append a line; it is on disk when this returns."""
        self._file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; others may then write it."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, without a last line that is cut short.

    Raises:
        OSError: there is no such file.
        RecordError: a whole line is no JSON object.
    """
    return _parse(path.read_bytes(), path)


def require_same(where: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the settings of a record with those of the run that takes it up.

    Args:
        where: what holds the record, as the user names it.
        before: its settings, as JSON has them.
        now: those of this run.

    Raises:
        RecordError: they differ; the message names each setting that does.
    """
    now = json.loads(json.dumps(now))  # lists for tuples
    changed = [
        f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise RecordError(
            f"{where} was begun with other settings: {'; '.join(changed)}. Give another --out, or "
            f"remove {where} to begin anew."
        )


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _parse(written: bytes, path: Path) -> list[dict[str, Any]]:
    found = []
    for number, line in enumerate(written.split(b"\n")[:-1], 1):
        try:
            value = json.loads(line)
        except ValueError as error:
            raise RecordError(f"{path}, line {number} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise RecordError(f"{path}, line {number} is no JSON object.")
        found.append(value)
    return found


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else text[:197] + "..."
