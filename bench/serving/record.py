"""The finished blocks of a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.records import Lines, RecordError, require_same

Block = list[dict[str, Any]]


class Record:
    """The finished blocks of a measurement, so that it can be interrupted and taken up again.

    As a context manager it is closed when the block is left.

    Attributes:
        blocks: those of each row of the table, in order.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        """Read `path` if it is there, else begin it.

        Args:
            path: JSON lines: the settings, then one block a line.
            settings: everything that two runs must share to be compared.

        Raises:
            RecordError: the file was measured with other settings, or another process writes it.
        """
        self._lines = Lines(path)
        self.blocks: dict[str, list[Block]] = {}
        if not self._lines.before:
            self._lines.add(settings)
            return
        before, *blocks = self._lines.before
        try:
            require_same(path, before, settings)
        except RecordError:
            self.close()
            raise
        for block in blocks:
            self.finished(block["row"]).append(block["runs"])

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def finished(self, row: str) -> list[Block]:
        """The blocks of a row of the table, in order."""
        return self.blocks.setdefault(row, [])

    def add(self, row: str, runs: Block) -> None:
        """Keep a finished block; it is on disk when this returns."""
        self.finished(row).append(runs)
        self._lines.add({"row": row, "runs": runs})

    def close(self) -> None:
        """Close the file; others may then write it."""
        self._lines.close()
