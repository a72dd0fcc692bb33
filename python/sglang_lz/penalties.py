"""The penalties over a request's whole history, beside the LZ penalty: fields and ranges.

Frequency, presence and repetition penalty and `min_new_tokens` are upstream's fields, which stand
in its `SamplingParams`. `HistoryParams` is the table of those that we add. docs/PENALTIES.md
defines them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sglang_lz.history import MOST_TAILS
from sglang_lz.kinds import integer, number, texts, token_ids
from sglang_lz.params import FieldError, entries_of, field, read

LARGEST_NUMBER = 2**30
"""A window of so many tokens is larger than any context."""
MOST_WHITELISTED = 1024
LONGEST_BREAKER = 40
"""llama.cpp cuts breakers off there."""

NEUTRAL: Mapping[str, float] = MappingProxyType(
    {
        "frequency_penalty": 0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "min_new_tokens": 0,
        "no_repeat_ngram_size": 0,
        "dry_multiplier": 0,
    }
)
"""The fields that turn a penalty on, and the values at which each is off."""
SEES_PROMPT = ("repetition_penalty", "no_repeat_ngram_size", "dry_multiplier")
UPSTREAM = ("frequency_penalty", "presence_penalty", "repetition_penalty", "min_new_tokens")

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class HistoryParams:
    """What a request asks of its penalties beside upstream's fields, validated."""

    penalty_last_n: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "how many of the newest tokens the frequency, presence and repetition penalties see; -1 "
        "is all",
    )
    no_repeat_ngram_size: int = field(
        0,
        integer(0, LARGEST_NUMBER),
        "the length in tokens of the n-grams of which none may come twice; 0 is off",
    )
    no_repeat_ngram_window: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "in how many of the newest tokens an n-gram must lie not to be repeated; -1 is all",
    )
    no_repeat_ngram_whitelist: tuple[int, ...] = field(
        (),
        token_ids(MOST_WHITELISTED),
        "tokens that may complete an n-gram again",
    )
    dry_multiplier: float = field(
        0.0,
        number(0, 100),
        "strength of DRY, in nats; 0 is off",
    )
    dry_base: float = field(
        1.75,
        number(1, 100),
        "by how much DRY grows with each token of a repeat beyond `dry_allowed_length`",
    )
    dry_allowed_length: int = field(
        2,
        integer(0, LARGEST_NUMBER),
        "the longest repeat that DRY lets go on for nothing, less one",
    )
    dry_penalty_last_n: int = field(
        -1,
        integer(-1, LARGEST_NUMBER),
        "in how many of the newest tokens DRY looks for repeats; -1 is all, 0 turns it off",
    )
    dry_sequence_breakers: tuple[str, ...] = field(
        ("\n", ":", '"', "*"),
        texts(MOST_TAILS, LONGEST_BREAKER),
        "texts over which no repeat of DRY goes on; a list of them takes the place of the default",
    )

    @classmethod
    def parse(
        cls, fields: Mapping[str, Any], defaults: Mapping[str, Any] = _NOTHING
    ) -> HistoryParams:
        """Read our fields of a request; arguments and errors as `LZParams.parse`."""
        return cls(**read(ENTRIES, fields, {}, defaults))

    @property
    def has_dry(self) -> bool:
        """Whether DRY is on."""
        return self.dry_multiplier > 0 and self.dry_penalty_last_n != 0

    def request_fields(self) -> dict[str, Any]:
        """The fields of a request that asks for this."""
        return {name: getattr(self, name) for name in FIELDS}


ENTRIES = entries_of(HistoryParams)
FIELDS = tuple(ENTRIES)
"""The names of the fields that we add, as requests spell them."""


def in_use(values: Mapping[str, Any]) -> Iterator[str]:
    """The penalties that values turn on, by the field that does. Null is unset, and what is no
    number is for others to refuse."""
    for name, neutral in NEUTRAL.items():
        value = values.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and value != neutral:
            yield name


def is_used(sampling_params: Any) -> bool:
    """Whether a request has a penalty over its history.

    Args:
        sampling_params: upstream's struct, admitted.
    """
    own: HistoryParams | None = sampling_params.history_params
    return (
        (own is not None and (own.has_dry or own.no_repeat_ngram_size > 0))
        or sampling_params.frequency_penalty != 0
        or sampling_params.presence_penalty != 0
        or sampling_params.repetition_penalty != 1
        or sampling_params.min_new_tokens > 0
    )


def refuse(name: str, value: object, reason: str, whose: str = "") -> FieldError:
    """The error of a penalty that a server or a request cannot have."""
    return FieldError(
        name,
        f"{name} must be {NEUTRAL[name]:g} {reason}, got {value}{whose}: it is not exact there, so "
        "it is refused.",
    )
