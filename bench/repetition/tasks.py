"""The problems that are asked, from local files or the Hugging Face hub."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import httpx
import pyarrow
import pyarrow.parquet

from bench.repetition.answers import as_integer
from bench.repetition.endpoint import OWN_FIELDS
from bench.repetition.items import Item

POCKET = Path(__file__).with_name("pocket.jsonl")
"""The held-out problems of the pocket reasoner."""
PROMPTS = Path(__file__).with_name("prompts.jsonl")
"""Prompts for the demo model, without answers."""
SUFFIXES = (".jsonl", ".csv", ".parquet")
AIME_PROMPT = """\
Solve this problem. Reason step by step, then give the answer, an integer from 0 to 999, on the \
last line in \\boxed{{}}.

{problem}"""
GPQA_PROMPT = """\
{question}

(A) {A}
(B) {B}
(C) {C}
(D) {D}

One of the choices is right. Reason step by step, then end with the line "Answer: X", where X is \
its letter."""


class Row:
    """A row of a file, with its place for an error; columns are found in any case."""

    def __init__(self, path: Path, number: int, fields: dict[str, object]) -> None:
        self.path, self.number = path, number
        self._fields = {name.lower(): value for name, value in fields.items()}

    def get(self, *columns: str) -> str:
        """Return the first of the columns that is there and not empty, "" if none is."""
        for column in columns:
            value = self._fields.get(column)
            if isinstance(value, bool | list | dict):
                raise self.error(f"{column!r} is neither text nor a number")
            if value is not None and (text := str(value).strip()):
                return text
        return ""

    def need(self, *columns: str) -> str:
        """As `get`, but an error if none is there."""
        text = self.get(*columns)
        if not text:
            names = " or ".join(map(repr, columns))
            raise self.error(f"{names} is missing or empty; it has {', '.join(self._fields)}")
        return text

    def object(self, column: str) -> dict[str, object]:
        """Return the JSON object of a column, {} if it is not there."""
        found = self._fields.get(column, {})
        if not isinstance(found, dict):
            raise self.error(f"{column!r} is no object")
        return found

    def error(self, message: str) -> ValueError:
        """Return a complaint about this row."""
        return ValueError(f"{self.path}, row {self.number}: {message}")


def load(spec: str, limit: int | None = None, skip: int = 0) -> list[Item]:
    """Return the items of a task, in the file's order.

    The first `skip` are left out, and `limit` of the others are taken if it is given.

    `spec` is `pocket`, or `TASK=SOURCE` with TASK one of `aime2024`, `aime2025`, `gpqa`, `jsonl`
    and SOURCE a path (.jsonl, .csv, .parquet) or `hub:OWNER/NAME@COMMIT[:FILE]`, a dataset of the
    Hugging Face hub at a full commit hash. A gated one (GPQA is) needs the token of `hf auth login`
    or of HF_TOKEN. Columns are those of the well-known public datasets; a jsonl task has `prompt`
    and may have `answer`, `id`, `group`, `level` and `fields`, an object of request fields. Text is
    trimmed.

    Raises ValueError, in one line, for what is wrong with the spec or a row; OSError for a file or
    dataset that cannot be had.
    """
    task, _, source = spec.partition("=")
    if task not in _READERS or bool(source) == (task == "pocket"):
        raise ValueError(
            f"{spec!r} is no task; a task is pocket, aime2024=SOURCE, aime2025=SOURCE, gpqa=SOURCE "
            "or jsonl=SOURCE"
        )
    path = POCKET if task == "pocket" else _local(source)
    try:
        rows = list(islice(_rows(path), skip, None if limit is None else skip + limit))
    except (csv.Error, UnicodeDecodeError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: {error}") from error
    items = [_READERS[task](task, row) for row in rows]
    if not items:
        raise ValueError(f"{path} has no row")
    name, count = Counter(item.id for item in items).most_common(1)[0]
    if count > 1:
        raise ValueError(f"{path} has {count} rows with the id {name!r}")
    return items


def _local(source: str) -> Path:
    """Return the path of a source, downloaded if it is of the hub."""
    if not source.startswith("hub:"):
        return _checked(Path(source))
    try:
        return _downloaded(source)
    except (httpx.HTTPError, OSError) as error:  # the hub's client lets httpx's through
        raise OSError(f"{source!r}: {error}") from error


def _downloaded(source: str) -> Path:
    found = re.fullmatch(r"hub:([^/@:]+/[^/@:]+)@([^:]*)(?::(.+))?", source)
    if not found:
        raise ValueError(f"{source!r} is not of the form hub:OWNER/NAME@COMMIT[:FILE]")
    name, commit, file = found.groups()
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise ValueError(
            f"{source!r}: {commit!r} is not a commit of 40 hexadecimal digits; what a branch or a "
            "tag names can change, and results would not be comparable"
        )
    import huggingface_hub

    if file is None:
        api = huggingface_hub.HfApi()
        files = api.list_repo_files(name, repo_type="dataset", revision=commit)
        data = [file for file in files if file.endswith(SUFFIXES)]
        if len(data) != 1:
            choices = ", ".join(data) or "none"
            raise ValueError(f"{source!r}: name one of its data files after a colon: {choices}")
        file = data[0]
    _checked(Path(file))
    return Path(huggingface_hub.hf_hub_download(name, file, repo_type="dataset", revision=commit))


def _checked(path: Path) -> Path:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path} is none of {', '.join(SUFFIXES)}")
    return path


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, numbered from 1; in a .jsonl, by line."""
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path).to_pylist()
        yield from (Row(path, number, fields) for number, fields in enumerate(table, 1))
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, fields in enumerate(csv.DictReader(file, strict=True), 1):
                if None in fields:
                    raise Row(path, number, {}).error("more fields than the header")
                yield Row(path, number, fields)
    else:
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


def _aime(task: str, row: Row) -> Item:
    year = task.removeprefix("aime")
    if row.get("year") not in ("", year):
        raise row.error(f"'year' is {row.get('year')}, not {year}")
    answer = as_integer(written := row.need("answer"))
    if answer is None:
        raise row.error(f"'answer' is no integer from 0 to 999: {written!r}")
    prompt = AIME_PROMPT.format(problem=row.need("problem", "question"))
    return Item(_id(task, row), prompt, answer, "integer", f"AIME {year}")


def _gpqa(task: str, row: Row) -> Item:
    question, right = row.need("question"), row.need("correct answer")
    choices = [right, *(row.need(f"incorrect answer {i}") for i in (1, 2, 3))]
    # The same order in every run, and none that a model could learn.
    choices.sort(key=lambda choice: hashlib.sha256(f"{question}\0{choice}".encode()).digest())
    prompt = GPQA_PROMPT.format(question=question, **dict(zip("ABCD", choices, strict=True)))
    letter = "ABCD"[choices.index(right)]
    return Item(_id(task, row), prompt, letter, "letter", row.get("high-level domain") or "GPQA")


def _plain(task: str, row: Row) -> Item:
    answer = row.get("answer") or None
    return Item(
        id=_id(task, row),
        prompt=row.need("prompt"),
        answer=answer,
        kind=None if answer is None else "text",
        group=row.get("group"),
        level=row.get("level"),
        fields=_request_fields(row),
    )


def _request_fields(row: Row) -> dict[str, object]:
    fields = row.object("fields")
    if own := sorted(OWN_FIELDS & fields.keys()):
        raise row.error(f"'fields' must leave out {', '.join(own)}: the run sets it")
    return fields


def _id(task: str, row: Row) -> str:
    """The row's own id; without one its file and number, for a task may have several files."""
    return f"{task}/{row.get('id', 'record id') or f'{row.path.stem}-{row.number}'}"


_READERS: dict[str, Callable[[str, Row], Item]] = {
    "aime2024": _aime,
    "aime2025": _aime,
    "gpqa": _gpqa,
    "jsonl": _plain,
    "pocket": _plain,
}
