"""The problems that are asked, from local files of JSON lines."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from bench.models.endpoint import OWN_FIELDS
from bench.models.items import Item

POCKET = Path(__file__).with_name("pocket.jsonl")
"""The held-out problems of the pocket reasoner."""


class Row:
    """A line of a file, with its place for an error."""

    def __init__(self, path: Path, number: int, fields: dict[str, object]) -> None:
        self.path, self.number = path, number
        self._fields = fields

    def get(self, name: str) -> str:
        """Return a value as trimmed text, "" if it is not there."""
        value = self._fields.get(name)
        if isinstance(value, bool | list | dict):
            raise self.error(f"{name!r} is neither text nor a number")
        return "" if value is None else str(value).strip()

    def need(self, name: str) -> str:
        """As `get`, but an error if it is not there or empty."""
        text = self.get(name)
        if not text:
            raise self.error(f"{name!r} is missing or empty; it has {', '.join(self._fields)}")
        return text

    def object(self, name: str) -> dict[str, object]:
        """Return a JSON object, {} if it is not there."""
        found = self._fields.get(name, {})
        if not isinstance(found, dict):
            raise self.error(f"{name!r} is no object")
        return found

    def error(self, message: str) -> ValueError:
        """Return a complaint about this row."""
        return ValueError(f"{self.path}, row {self.number}: {message}")


def load(spec: str, limit: int | None = None, skip: int = 0) -> list[Item]:
    """Return the items of a task, in the file's order.

    The first `skip` are left out, and `limit` of the others are taken if it is given.

    `spec` is `pocket`, or `jsonl=FILE`. A line of the file has `prompt` and may have `answer`,
    `id`, `group`, `level` and `fields`, an object of request fields. Text is trimmed.

    Raises ValueError, in one line, for what is wrong with the spec or a row; OSError for a file
    that cannot be read.
    """
    task, _, source = spec.partition("=")
    if spec != "pocket" and not (task == "jsonl" and source):
        raise ValueError(f"{spec!r} is no task; a task is pocket or jsonl=FILE")
    path = Path(source) if source else POCKET
    try:
        rows = list(islice(_rows(path), skip, None if limit is None else skip + limit))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    items = [_item(task, row) for row in rows]
    if not items:
        raise ValueError(f"{path} has no row")
    name, count = Counter(item.id for item in items).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} rows with the id {name!r}")
    return items


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, numbered by line from 1."""
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Row(path, number, _object(path, number, line))


def _object(path: Path, number: int, line: str) -> dict[str, object]:
    row = Row(path, number, {})
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise row.error(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise row.error("not a JSON object")
    return fields


def _item(task: str, row: Row) -> Item:
    return Item(
        # Without an id its file and number, for a task may have several files.
        id=f"{task}/{row.get('id') or f'{row.path.stem}-{row.number}'}",
        prompt=row.need("prompt"),
        answer=row.get("answer") or None,
        group=row.get("group"),
        level=row.get("level"),
        fields=_request_fields(row),
    )


def _request_fields(row: Row) -> dict[str, object]:
    fields = row.object("fields")
    if own := sorted(OWN_FIELDS & fields.keys()):
        raise row.error(f"'fields' must leave out {', '.join(own)}: the run sets it")
    return fields
