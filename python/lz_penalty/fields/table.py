"""Tables of request fields: what an entry says, and what is derived from it.

A table is a frozen dataclass with an entry for each field, such as `lz.LZParams`. Everything that
depends on which fields exist is derived from it: parsing of requests, the request models and their
OpenAPI schemas, and the tables of the documentation.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import reprlib
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from lz_penalty.fields.kinds import Kind

PREFIXES = ("lz_", "dry_", "no_repeat_ngram_")
"""A name with one of these prefixes must be a known field, so that typos are not ignored."""

# reprlib truncates a long list before it formats it.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = sys.maxsize
_SHORT.maxlist = _SHORT.maxdict = 80
_SHORT.maxlevel = 2


class FieldError(ValueError):
    """A request's field cannot be honoured; the message has its name, value and range.

    Attributes:
        field: the field's name as the request spells it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def field(default: object, kind: Kind, meaning: str, needs: tuple[str, ...] = ()) -> Any:
    """An entry of a table.

    Args:
        default: its value where a request has none.
        kind: the values that it accepts.
        meaning: a phrase in Markdown that is clear on its own.
        needs: the request fields that it modifies; without any of them it has no effect.
    """
    metadata = {"kind": kind, "meaning": meaning, "needs": needs}
    return dataclasses.field(default=default, metadata=metadata)


Entries: TypeAlias = Mapping[str, dataclasses.Field[Any]]
"""The entries of a table, by the names of the fields as requests spell them."""

_ENTRIES: dict[str, dataclasses.Field[Any]] = {}
_FOLDED: dict[str, str] = {}
"""The names of all fields, by how `folded` writes them."""


def folded(name: str) -> str:
    """A name without what misspellings differ in: case, `_`, `-`, other signs and a final "s"."""
    return "".join(filter(str.isalnum, name.lower())).removesuffix("s")


def entries_of(table: type, prefix: str = "") -> Entries:
    """The entries of a table, which are also registered with this module."""
    entries = {prefix + entry.name: entry for entry in dataclasses.fields(table)}
    _ENTRIES.update(entries)
    register_names(entries)
    return MappingProxyType(entries)


def register_names(names: Iterable[str]) -> None:
    """Let `check_name` suggest these names."""
    _FOLDED.update({folded(name): name for name in names})


def read(
    entries: Entries,
    fields: Mapping[str, Any],
    bounds: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> dict[str, Any]:
    """The attributes of a table's class, read from the entries of a request.

    Args:
        entries: the table. If a field limits another, it comes first.
        fields: any mapping; a missing or null entry gets its default, and other keys are ignored.
        bounds: upper limits that are not fields, by name.
        defaults: the server's own defaults, already checked. A default above the upper limit that
            the rest of the request implies is lowered to it.

    Raises:
        FieldError: a value has the wrong type or is out of range.
    """
    values: dict[str, Any] = {}
    ends: dict[str | None, Any] = {name: bounds[name] for name in bounds}
    for name, entry in entries.items():
        kind: Kind = entry.metadata["kind"]
        default: Any = entry.default
        upper = ends.get(kind.bound)
        value = fields.get(name)
        if value is None:
            value = default if defaults.get(name) is None else defaults[name]
            value = value if upper is None else min(value, upper)
        if not kind.takes(value, upper):
            raise bad_value(name, value, kind.allowed.format(largest=upper))
        values[entry.name] = ends[name] = kind.convert(value)
    return values


def check_needs(fields: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Reject a request's fields that modify another one which is missing.

    A request may turn that one off explicitly, so that two requests differ in it alone.

    Args:
        fields: the request's own fields.
        defaults: the server's own defaults.

    Raises:
        FieldError: the message has the field, its value and what it needs.
    """
    for name, entry in _ENTRIES.items():
        needs = entry.metadata["needs"]
        if (
            not needs
            or fields.get(name) is None
            or any(fields.get(one) is not None for one in needs)
        ):
            continue
        # Zero turns a penalty off, and so does one in the case of the repetition penalty.
        off = (None, 0, 1) if needs[-1] == "repetition_penalty" else (None, 0)
        if all(defaults.get(one) in off for one in needs):
            *others, last = needs
            listed = f"{', '.join(others)} or {last}" if others else f"{last} > 0"
            raise FieldError(
                name,
                f"{name} needs {listed}, got {shown(fields[name])} without it: it has no "
                "effect alone.",
            )


def check_name(name: str, value: object) -> None:
    """Reject a name that is nearly that of a field: it has one of `PREFIXES`, or it differs from a
    field in case, `_`, `-` or a final "s" alone.

    Raises:
        FieldError: the message suggests the closest field.
    """
    if name in _ENTRIES:
        return
    spelt = name[:80].lower().replace("-", "_")
    nearest = _FOLDED.get(folded(name[:80]))
    prefix = next((prefix for prefix in PREFIXES if spelt.startswith(prefix)), None)
    if nearest is None and prefix is not None:
        fields = [field for field in _ENTRIES if field.startswith(prefix)]
        (nearest,) = difflib.get_close_matches(spelt, fields, n=1, cutoff=0.0)
    if nearest is None or nearest == name:
        return
    # The client chose the name, and the message contains it.
    name = name[:80].encode("utf-8", "replace").decode()
    raise FieldError(
        name,
        f"{name} must be spelt {nearest} or left out: no field has that name, got {shown(value)}.",
    )


def shown(value: object) -> str:
    """A value as an error message shows it, truncated if it is long."""
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def description(field: str) -> str:
    """The meaning, type, range and default of one request field, as Markdown sentences."""
    text, default, meaning = _texts(field)
    return f"{_capital(meaning)}. {_capital(text)}; default {default}."


def json_schema(field: str) -> dict[str, Any]:
    """The OpenAPI schema of one request field, with its description and range."""
    return {"anyOf": [_kind(field).schema, {"type": "null"}], "description": description(field)}


def markdown_table(fields: Iterable[str]) -> str:
    """The table of request fields in README.md and docs/PENALTIES.md, with one line per field."""
    lines = ["| field | type and range | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{field}` | {' | '.join(_texts(field))} |" for field in fields]
    return "".join(f"{line}\n" for line in lines)


def _kind(field: str) -> Kind:
    kind: Kind = _ENTRIES[field].metadata["kind"]
    return kind


def _texts(field: str) -> tuple[str, str, str]:
    """Type and range, default, and meaning."""
    kind, entry = _kind(field), _ENTRIES[field]
    default = entry.default
    text = f"{default:g}" if isinstance(default, float) else json.dumps(default)
    shrinks = ", or the upper end if smaller" if kind.bound else ""
    return kind.text, f"`{text}`{shrinks}", entry.metadata["meaning"]


def _capital(phrase: str) -> str:
    return phrase[:1].upper() + phrase[1:]


def bad_value(field: str, value: object, allowed: str) -> FieldError:
    """The error for a value of the wrong type or out of its range."""
    return FieldError(field, f"{field} must be {allowed}, got {shown(value)}.")
