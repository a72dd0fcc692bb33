"""Constraints and penalties that an endpoint would drop in silence: those of other servers, those
of another endpoint, and those in the wrong object.

What they ask for shapes every token, so an answer without them would break what was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from lz_penalty.fields.histories import NEUTRAL, UPSTREAM
from lz_penalty.fields.table import FieldError, folded, shown

JSON = ("response_format", "text.format", "output_config.format", "format", "json_schema")
"""How requests ask for JSON, in the order of preference."""
_HOLDERS = ("text", "output_config")
"""Objects with a `format`, of the APIs of OpenAI's responses and of Anthropic."""
MEANT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        name: meant
        for names, meant in (
            ("json_schema response_format format output_format guided_json", JSON),
            ("structured_outputs response_schema output_schema guided_decoding", JSON),
            ("response_mime_type generation_config text output_config", JSON),
            ("structural_tag guided_structural_tag", ("structural_tag", "response_format")),
            ("regex guided_regex guided_choice choice", ("regex",)),
            ("ebnf guided_grammar grammar gbnf lark", ("ebnf",)),
            ("logit_bias allowed_token_ids bad_words bad_words_ids", ("logit_bias",)),
            ("banned_tokens custom_token_bans force_words_ids", ("logit_bias",)),
            ("suppress_tokens sequence_bias logits_bias", ("logit_bias",)),
            ("stop stop_sequences", ("stop", "stop_sequences")),
            *((name, (name,)) for name in (*UPSTREAM, "min_p", "stop_token_ids", "stop_regex")),
            ("min_tokens min_length", ("min_tokens", "min_new_tokens")),
            ("min_new_tokens", ("min_new_tokens", "min_tokens")),
            ("repetition_penalty rep_pen", ("repetition_penalty", "repeat_penalty")),
            ("repeat_penalty", ("repeat_penalty", "repetition_penalty")),
            ("repeat_last_n", ("repeat_last_n", "penalty_last_n")),
        )
        for name in names.split()
    }
)
"""Names that shape an output, of SGLang, vLLM, llama.cpp, Ollama, Gemini's and Anthropic's APIs;
each with the fields that an endpoint may take for it, the best first."""

_NEUTRAL = {**NEUTRAL, "repeat_penalty": 1, "rep_pen": 1}
_FOLDED = {folded(name): name for name in MEANT}

Place: TypeAlias = tuple[str, ...]
"""The keys that lead from a body to an object inside it; () is the body itself."""


def located(place: Place) -> str:
    """Where an object stands in a body, in words."""
    return f"in {'.'.join(place)}" if place else "at the top level"


def check_dropped(
    values: Mapping[str, Any], where: Place, takes: Mapping[Place, Collection[str]]
) -> None:
    """Refuse what the endpoint would drop in an object of a request's body.

    A null, an empty constraint and a penalty at its neutral value ask for nothing.

    Args:
        values: the object.
        where: the keys that lead to it; () for the body.
        takes: the names that the endpoint reads, by the object that has them.

    Raises:
        FieldError: the message has the name, the value, and what to send instead.
    """
    read = takes.get(where, ())
    for name, value in values.items():
        meant = _FOLDED.get(folded(name[:80]))
        if meant is None or name in read or _asks_nothing(meant, value):
            continue
        better = _better(meant, takes)
        if better is None:
            instead = "this endpoint has no such field; /generate and /v1/chat/completions do"
        else:
            field, there = better
            place = located(there)
            instead = f"{field} belongs {place} here" if field == name else f"use {field} {place}"
        raise FieldError(
            name, f"{name} would have no effect {located(where)}, got {shown(value)}: {instead}."
        )
    for name, form in ("response_format", values.get("response_format")), ("text", _format(values)):
        if isinstance(form, dict) and form.get("type") == "json_object" and form.get("schema"):
            raise FieldError(
                name,
                f"{name} must have type json_schema with a schema, got {shown(form)}: "
                "json_object would ignore it.",
            )
    if values.get("json_schema") and not _asks_nothing("", values.get("response_format")):
        raise FieldError(
            "json_schema",
            "json_schema must be left out beside response_format, got "
            f"{shown(values['json_schema'])}: an output has one constraint.",
        )


def _better(name: str, takes: Mapping[Place, Collection[str]]) -> tuple[str, Place] | None:
    for field in MEANT[name]:
        for place, fields in takes.items():
            if field.partition(".")[0] in fields:
                return field, place
    return None


def _format(values: Mapping[str, Any]) -> Any:
    text = values.get("text")  # of /v1/responses; elsewhere it is a prompt
    return text.get("format") if isinstance(text, dict) else None


def _asks_nothing(name: str, value: object) -> bool:
    if name in _HOLDERS:
        return not isinstance(value, dict) or _asks_nothing("format", value.get("format"))
    if name in _NEUTRAL:
        return value is None or (value == _NEUTRAL[name] and not isinstance(value, bool))
    return not value or (isinstance(value, dict) and value.get("type") == "text")
