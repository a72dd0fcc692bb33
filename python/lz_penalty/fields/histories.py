"""The penalties over a request's whole history, beside the LZ penalty: fields and ranges.

The frequency, presence and repetition penalties and `min_new_tokens` are upstream's fields, in its
`SamplingParams`. `HistoryParams` is the table of the fields that we add. docs/PENALTIES.md defines
all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lz_penalty.fields.kinds import integer, number, texts, token_ids
from lz_penalty.fields.table import entries_of, field, read

LARGEST_NUMBER = 2**30
"""A window of this many tokens is larger than any context."""
MOST_WHITELISTED = 1024
LARGEST_HISTORY_MEMORY = 8191
"""The limit in MiB: addresses in this memory are int32, counted in words."""
MOST_TAILS = 62
"""The most characters of all breakers beyond their first ones. Each begins a tail, which has a bit
of a table's mask; the sign and the bit for breakers of a single token are not among them."""
LONGEST_BREAKER = 40
"""llama.cpp truncates breakers to this length."""

COUNTS = ("frequency_penalty", "presence_penalty", "repetition_penalty")
"""The penalties that count tokens."""
UPSTREAM: Mapping[str, float] = MappingProxyType(
    {"frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0}
)
"""Upstream's fields, each with the value at which it is off."""
NEUTRAL = MappingProxyType({**UPSTREAM, "no_repeat_ngram_size": 0, "dry_multiplier": 0})
"""The fields that turn on a penalty, likewise."""
SEES_PROMPT = ("repetition_penalty", "no_repeat_ngram_size", "dry_multiplier")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HistoryParams:
    """The settings of a request's penalties other than upstream's fields, validated."""

    penalty_last_n: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "how many of the most recent tokens the frequency, presence and repetition penalties "
        "count; -1 counts all of them",
        COUNTS,
    )
    no_repeat_ngram_size: int = field(
        0,
        integer(0, LARGEST_NUMBER),
        "the length in tokens of the n-grams that must not occur twice; 0 turns this off",
    )
    no_repeat_ngram_window: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "how many of the most recent tokens are searched for earlier n-grams; -1 searches all of "
        "them, 0 turns this off",
        ("no_repeat_ngram_size",),
    )
    no_repeat_ngram_whitelist: tuple[int, ...] = field(
        (),
        token_ids(MOST_WHITELISTED),
        "tokens that may complete an n-gram a second time",
        ("no_repeat_ngram_size",),
    )
    dry_multiplier: float = field(0.0, number(0, 100), "strength of DRY, in nats; 0 turns it off")
    dry_base: float = field(
        1.75,
        number(1, 100),
        "the factor by which DRY grows with each token of a match beyond `dry_allowed_length`",
        ("dry_multiplier",),
    )
    dry_allowed_length: int = field(
        2,
        integer(0, LARGEST_NUMBER),
        "the shortest match, in tokens, that DRY penalises",
        ("dry_multiplier",),
    )
    dry_penalty_last_n: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "how many of the most recent tokens DRY searches for matches; -1 searches all of them, 0 "
        "turns DRY off",
        ("dry_multiplier",),
    )
    dry_sequence_breakers: tuple[str, ...] = field(
        ("\n", ":", '"', "*"),
        texts(MOST_TAILS, LONGEST_BREAKER),
        "strings that end a DRY match: DRY does not look back beyond the most recent one; a list "
        "replaces the default",
        ("dry_multiplier",),
    )

    @classmethod
    def parse(
        cls, fields: Mapping[str, Any], defaults: Mapping[str, Any] = _NOTHING
    ) -> HistoryParams:
        """Read our fields of a request; arguments and errors are those of `LZParams.parse`."""
        return cls(**read(ENTRIES, fields, {}, defaults))

    @property
    def has_dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    @property
    def is_used(self) -> bool:
        """Whether any of these penalties is on."""
        return self.has_dry or self.no_repeat_ngram_size > 0

    def request_fields(self) -> dict[str, Any]:
        """The request fields that specify these settings."""
        return {name: getattr(self, name) for name in FIELDS}


ENTRIES = entries_of(HistoryParams)
FIELDS = tuple(ENTRIES)
"""The names of the fields that we add, as requests spell them."""


def in_use(values: Mapping[str, Any]) -> Iterator[str]:
    """The fields among these values that turn a penalty on. Null counts as unset, and values that
    are not numbers are left to other checks."""
    for name, neutral in NEUTRAL.items():
        value = values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value != neutral:
            yield name
