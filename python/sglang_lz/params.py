"""The five request fields of the LZ penalty and their ranges (docs/SPEC.md section 6)."""

from __future__ import annotations

import difflib
import math
import reprlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

MAX_PENALTY = 10.0
DEFAULT_WINDOW_SIZE = 512
DEFAULT_BUFFER_SIZE = 32
DEFAULT_MAX_WINDOW_SIZE = 1024
LARGEST_MAX_WINDOW_SIZE = 8192
"""One program of the CUDA kernel holds a whole window in its registers."""
COSTS = ("marginal", "rate")

FIELDS = ("lz_penalty", "lz_window_size", "lz_buffer_size", "lz_include_prompt", "lz_cost")
PREFIX = "lz_"
"""What every name of ours in a request begins with, and no name of upstream's."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# Of a list of any length without making the text of all of it.
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


@dataclass(frozen=True, slots=True)
class LZParams:
    """One request's LZ penalty, validated, with every default resolved.

    Attributes:
        penalty: alpha, the strength in nats per bit; 0 means off.
        window_size: W, how many of the newest visible tokens the compressor sees.
        buffer_size: B, the longest match that counts, in tokens.
        include_prompt: whether the prompt is visible besides the output.
        cost: "marginal" or "rate" (docs/SPEC.md section 2).
    """

    penalty: float = 0.0
    window_size: int = DEFAULT_WINDOW_SIZE
    buffer_size: int = DEFAULT_BUFFER_SIZE
    include_prompt: bool = False
    cost: str = COSTS[0]

    @classmethod
    def parse(
        cls,
        fields: Mapping[str, Any],
        max_window_size: int,
        defaults: Mapping[str, Any] = _NOTHING,
    ) -> LZParams:
        """Read the `lz_*` entries of a request; a missing or null entry takes its default.

        Args:
            fields: any mapping that may hold the names in `FIELDS`; other keys are ignored.
            max_window_size: the server's maximum window, in tokens.
            defaults: the server's own defaults, right by themselves. As the defaults of
                docs/SPEC.md do, a default size shrinks to what the request leaves room for.

        Raises:
            FieldError: a value of the wrong type or out of range.
        """
        penalty = _value(fields, defaults, "lz_penalty", 0.0)
        if not _is_number(penalty) or not 0.0 <= penalty <= MAX_PENALTY:
            raise _bad("lz_penalty", penalty, f"a finite number in [0, {MAX_PENALTY:g}]")

        window_size = _size(
            fields,
            "lz_window_size",
            _value(defaults, _NOTHING, "lz_window_size", DEFAULT_WINDOW_SIZE),
            max_window_size,
            "the server's --lz-max-window-size",
        )
        buffer_size = _size(
            fields,
            "lz_buffer_size",
            _value(defaults, _NOTHING, "lz_buffer_size", DEFAULT_BUFFER_SIZE),
            window_size,
            "lz_window_size",
        )

        include_prompt = _value(fields, defaults, "lz_include_prompt", False)
        if not isinstance(include_prompt, bool):
            raise _bad("lz_include_prompt", include_prompt, "true or false")

        cost = _value(fields, defaults, "lz_cost", COSTS[0])
        if not isinstance(cost, str) or cost not in COSTS:
            raise _bad("lz_cost", cost, " or ".join(f'"{name}"' for name in COSTS))

        return cls(float(penalty), window_size, buffer_size, include_prompt, cost)


def check_max_window_size(value: Any) -> int:
    """Return the server's `--lz-max-window-size`, or raise ValueError naming its range."""
    if not _is_integer(value) or not 1 <= value <= LARGEST_MAX_WINDOW_SIZE:
        raise _bad(
            "--lz-max-window-size", value, f"an integer in [1, {LARGEST_MAX_WINDOW_SIZE}] (tokens)"
        )
    return value


def json_schema(field: str) -> dict[str, Any]:
    """The OpenAPI schema of one request field, with its description and range."""
    return dict(_JSON_SCHEMAS[field])


def check_name(name: str, value: object) -> None:
    """Refuse a name that begins as ours do and is none of `FIELDS`.

    Raises:
        FieldError: it is none; the message names the nearest field.
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


def _value(
    fields: Mapping[str, Any], defaults: Mapping[str, Any], name: str, otherwise: object
) -> Any:
    for values in (fields, defaults):
        if (value := values.get(name)) is not None:
            return value
    return otherwise


def _size(fields: Mapping[str, Any], name: str, default: int, maximum: int, whose: str) -> int:
    value = fields.get(name)
    if value is None:
        return min(default, maximum)
    if not _is_integer(value) or not 1 <= value <= maximum:
        raise _bad(name, value, f"an integer in [1, {maximum}], the upper end being {whose}")
    return value


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(field: str, value: object, allowed: str) -> FieldError:
    return FieldError(field, f"{field} must be {allowed}, got {shown(value)}.")


def shown(value: object) -> str:
    """A value as an error message shows it, cut where it is long."""
    text = _SHORT.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


_JSON_SCHEMAS: dict[str, dict[str, Any]] = {
    "lz_penalty": {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": MAX_PENALTY}, {"type": "null"}],
        "description": (
            "Strength of the LZ penalty in nats per bit: tokens that an LZ77 compressor of the "
            f"recent tokens could predict become less likely. 0 to {MAX_PENALTY:g}; "
            "0, the default, is off; start at 0.15."
        ),
    },
    "lz_window_size": {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "description": (
            "How many of the newest tokens the LZ penalty sees. 1 to the server's "
            f"--lz-max-window-size; default {DEFAULT_WINDOW_SIZE}, or that maximum if smaller."
        ),
    },
    "lz_buffer_size": {
        "anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}],
        "description": (
            "The longest match, in tokens, that counts for the LZ penalty. 1 to lz_window_size; "
            f"default {DEFAULT_BUFFER_SIZE}, or lz_window_size if smaller."
        ),
    },
    "lz_include_prompt": {
        "anyOf": [{"type": "boolean"}, {"type": "null"}],
        "description": (
            "Whether the LZ penalty sees the prompt besides the output. Default false: the "
            "output only, as for frequency_penalty."
        ),
    },
    "lz_cost": {
        "anyOf": [{"type": "string", "enum": list(COSTS)}, {"type": "null"}],
        "description": (
            'How the LZ penalty prices a token in bits: "marginal", the default, is the change '
            'in codelength; "rate" is bits per token of the match and grows with its length.'
        ),
    },
}

FIELDS_TEXT = " ".join(f"`{name}`: {_JSON_SCHEMAS[name]['description']}" for name in FIELDS)
