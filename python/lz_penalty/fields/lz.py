"""The request fields of the LZ penalty and their ranges (docs/SPEC.md section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lz_penalty.fields.kinds import boolean, choice, integer, number
from lz_penalty.fields.table import check_name, entries_of, field, read

DEFAULT_WINDOW_SIZE = 512
DEFAULT_MAX_WINDOW_SIZE = 1024
LARGEST_MAX_WINDOW_SIZE = 8192
"""A program of the CUDA kernel holds a whole window in registers, which limits its size."""
MAX_WINDOW_SIZE = "--lz-max-window-size"

PREFIX = "lz_"
"""Every LZ field's name begins with this prefix, and none of upstream's names does."""

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_STRENGTH = (f"{PREFIX}penalty",)


@dataclass(frozen=True, slots=True)
class LZParams:
    """One request's LZ penalty, validated, with all defaults resolved.

    Each attribute is one field; requests add `PREFIX` to its name. If a field limits another, it
    must come first.
    """

    penalty: float = field(
        0.0,
        number(0, 10.0),
        "strength of the LZ penalty, in nats per bit of codelength; 0 turns it off, 0.15 is a good"
        " start",
    )
    window_size: int = field(
        DEFAULT_WINDOW_SIZE,
        integer(1, MAX_WINDOW_SIZE),
        "how many of the most recent tokens the LZ penalty searches for matches",
        _STRENGTH,
    )
    buffer_size: int = field(
        32,
        integer(1, "lz_window_size"),
        "the longest match that the LZ penalty considers, in tokens",
        _STRENGTH,
    )
    include_prompt: bool = field(
        False,
        boolean(),
        "whether the LZ penalty searches the prompt as well as the output",
        _STRENGTH,
    )
    cost: str = field(
        "marginal",
        choice("marginal", "rate"),
        "how a token is priced: `marginal` by the change in total codelength, `rate` by its "
        "match's bits per token",
        _STRENGTH,
    )
    onset: int = field(
        0,
        integer(0, 64),
        "how many repeats of a loop to allow before the LZ penalty starts; it then grows with each "
        "repeat and stays on while loops fill the recent text; 0 applies it from the first token",
        _STRENGTH,
    )

    @classmethod
    def parse(
        cls, fields: Mapping[str, Any], max_window_size: int, defaults: Mapping[str, Any] = _NOTHING
    ) -> LZParams:
        """Read the `lz_*` entries of a request; a missing or null entry gets its default.

        Args:
            fields: any mapping; keys without `PREFIX` are ignored.
            max_window_size: the server's maximum window, in tokens.
            defaults: the server's own defaults, already checked. A default above the upper limit
                that the rest of the request implies is lowered to it.

        Raises:
            FieldError: a value has the wrong type or is out of range, or a name is misspelt.
        """
        for name in fields:
            if name.startswith(PREFIX):
                check_name(name, fields[name])
        return cls(**read(LZ_ENTRIES, fields, {MAX_WINDOW_SIZE: max_window_size}, defaults))

    def request_fields(self) -> dict[str, Any]:
        """The request fields that specify this penalty."""
        return {name: getattr(self, entry.name) for name, entry in LZ_ENTRIES.items()}


LZ_ENTRIES = entries_of(LZParams, PREFIX)
FIELDS = tuple(LZ_ENTRIES)
"""The names of the LZ penalty's fields, as requests spell them."""
RECOMMENDED: Mapping[str, Any] = MappingProxyType({"lz_penalty": 0.15, "lz_onset": 3})
"""The setting that the documentation recommends."""
