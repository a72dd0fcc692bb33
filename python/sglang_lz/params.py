"""The request fields of the LZ penalty and their ranges (docs/SPEC.md section 6).

`LZParams` is the table of them. All else that depends on which fields there are is derived from
it: how a request is read, the request models and their OpenAPI schemas, the arguments of the
benchmarks, and the table in README.md. A new field is one entry there.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sglang_lz.kinds import Kind, boolean, choice, integer, is_integer, number

DEFAULT_WINDOW_SIZE = 512
DEFAULT_MAX_WINDOW_SIZE = 1024
LARGEST_MAX_WINDOW_SIZE = 8192
"""One program of the CUDA kernel holds a whole window in its registers."""
MAX_WINDOW_SIZE = "--lz-max-window-size"

PREFIX = "lz_"
"""Every LZ field's name begins with it, and no name of upstream's does."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# It cuts a long list before it makes a text of it.
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = sys.maxsize
_SHORT.maxlist = _SHORT.maxdict = 80


class FieldError(ValueError):
    """A request's LZ field cannot be honoured; the message names it, its value and its range.

    Attributes:
        field: the name of the field, as the request spells it.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def _field(default: object, kind: Kind, meaning: str) -> Any:
    """An entry of the table; the meaning is a phrase in Markdown, clear without the others."""
    return dataclasses.field(default=default, metadata={"kind": kind, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class LZParams:
    """One request's LZ penalty, validated, with every default resolved.

    Each attribute is one field, which requests spell with `PREFIX` in front. A field that bounds
    another comes before it.
    """

    penalty: float = _field(
        0.0,
        number(0, 10.0),
        "strength of the LZ penalty, in nats per bit of codelength; 0 is off, start at 0.15",
    )
    window_size: int = _field(
        DEFAULT_WINDOW_SIZE,
        integer(1, MAX_WINDOW_SIZE),
        "how many of the newest tokens the LZ penalty sees",
    )
    buffer_size: int = _field(
        32,
        integer(1, "lz_window_size"),
        "the longest match that counts, in tokens",
    )
    include_prompt: bool = _field(
        False,
        boolean(),
        "whether the LZ penalty sees the prompt besides the output",
    )
    cost: str = _field(
        "marginal",
        choice("marginal", "rate"),
        "the price of a token: `marginal` is the change in codelength, `rate` the bits per token "
        "of its match",
    )
    onset: int = _field(
        0,
        integer(0, 64),
        "copies of a loop to wait for, beside the first; then the LZ penalty stays on and grows "
        "with each copy",
    )

    @classmethod
    def parse(
        cls,
        fields: Mapping[str, Any],
        max_window_size: int,
        defaults: Mapping[str, Any] = _NOTHING,
    ) -> LZParams:
        """Read the `lz_*` entries of a request; a missing or null entry takes its default.

        Args:
            fields: any mapping; keys that do not begin with `PREFIX` are ignored.
            max_window_size: the server's maximum window, in tokens.
            defaults: the server's own defaults, already checked. A default above the upper end
                that the rest of the request allows is lowered to it.

        Raises:
            FieldError: a value of the wrong type or out of range, or a misspelt name.
        """
        for name in fields:
            if name.startswith(PREFIX):
                check_name(name, fields[name])
        values: dict[str, Any] = {}
        bounds: dict[str | None, Any] = {MAX_WINDOW_SIZE: max_window_size}
        for name, entry in _ENTRIES.items():
            kind: Kind = entry.metadata["kind"]
            default: Any = entry.default
            upper = bounds.get(kind.bound)
            value = fields.get(name)
            if value is None:
                value = default if defaults.get(name) is None else defaults[name]
                value = value if upper is None else min(value, upper)
            if not kind.takes(value, upper):
                raise _bad(name, value, kind.allowed.format(largest=upper))
            value = float(value) if isinstance(default, float) else value
            values[entry.name] = bounds[name] = value
        return cls(**values)

    def request_fields(self) -> dict[str, Any]:
        """The fields of a request that asks for this penalty."""
        return {PREFIX + field.name: getattr(self, field.name) for field in _ENTRIES.values()}


_ENTRIES = {PREFIX + field.name: field for field in dataclasses.fields(LZParams)}
FIELDS = tuple(_ENTRIES)
"""The names of the fields, as requests spell them."""


def check_max_window_size(value: Any) -> int:
    """Return the server's `--lz-max-window-size`, or raise ValueError naming its range."""
    if not is_integer(value) or not 1 <= value <= LARGEST_MAX_WINDOW_SIZE:
        raise _bad(MAX_WINDOW_SIZE, value, f"an integer in [1, {LARGEST_MAX_WINDOW_SIZE}] (tokens)")
    return value


def check_name(name: str, value: object) -> None:
    """Refuse a name that begins with `PREFIX` and is not that of a field.

    Raises:
        FieldError: the message names the nearest field.
    """
    if name in FIELDS:
        return
    name = name[:80].encode("utf-8", "replace").decode()  # it is printed, and may be anything
    (nearest,) = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.0)
    raise FieldError(
        name,
        f"{name} must be spelt {nearest} or left out: no LZ field has that name, "
        f"got {shown(value)}.",
    )


def shown(value: object) -> str:
    """A value as an error message shows it, cut where it is long."""
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def argument(field: str) -> dict[str, Any]:
    """What argparse must know of the command line argument for one request field."""
    text, _, meaning = _texts(field)
    return {**_kind(field).argument, "help": f"{_capital(meaning)}. {_capital(text)}."}


def description(field: str) -> str:
    """Meaning, type, range and default of one request field, as sentences in Markdown."""
    text, default, meaning = _texts(field)
    return f"{_capital(meaning)}. {_capital(text)}; default {default}."


def json_schema(field: str) -> dict[str, Any]:
    """The OpenAPI schema of one request field, with its description and range."""
    return {"anyOf": [_kind(field).schema, {"type": "null"}], "description": description(field)}


def markdown_table() -> str:
    """The table of the request fields in README.md, a line each."""
    lines = ["| field | type and range | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{field}` | {' | '.join(_texts(field))} |" for field in FIELDS]
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


def _bad(field: str, value: object, allowed: str) -> FieldError:
    return FieldError(field, f"{field} must be {allowed}, got {shown(value)}.")
