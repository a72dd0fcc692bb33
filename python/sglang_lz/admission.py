"""Our request fields on their way from a request body to the scheduler (docs/SPEC.md section 6).

These are the fields of the LZ penalty, the fields of `histories`, `repetition_detection` and
`proper_tokens`. Upstream's own penalty fields are checked here too, because modes in which they are
not exact reject them.

Each public name is used by a patch of upstream's request path. `sglang_lz.gate` checks HTTP
requests first; requests from the offline Engine or gRPC are checked by `admit` only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from sglang_lz.bounds import limits, stop_regex
from sglang_lz.fields import histories, lz, repetition
from sglang_lz.fields.histories import HistoryParams, in_use
from sglang_lz.fields.lz import LZParams
from sglang_lz.fields.modes import (
    early_processors,
    ignored_transforms,
    unguarded_modes,
    unsupported_modes,
)
from sglang_lz.fields.refusal import Refusal
from sglang_lz.fields.repetition import END_THINKING, RepetitionDetection
from sglang_lz.proper import request_field

_SCHEMAS = {
    **{name: lz.json_schema(name) for name in (*lz.FIELDS, *histories.FIELDS, request_field.FIELD)},
    repetition.FIELD: repetition.json_schema(),
}
FIELDS = tuple(_SCHEMAS)
"""The names of all our fields as requests spell them."""
FIELDS_TEXT = " ".join(f"`{name}`: {schema['description']}" for name, schema in _SCHEMAS.items())

UNPENALISED = {"lz_penalty": 0, request_field.FIELD: False, **histories.NEUTRAL}
"""The sampling parameters of requests to which the server's preferred penalties must not apply."""

# Upstream's own types of these objects, with descriptions of the keys that we add.
GenerateSamplingParams = Annotated[
    list[dict[str, Any]] | dict[str, Any] | None,
    Field(description=f"Sampling parameters, ours among them. {FIELDS_TEXT}"),
]
OllamaOptions = Annotated[
    dict[str, Any] | None,
    Field(description=f"Ollama's options, and ours. {FIELDS_TEXT}"),
]


_MODEL_FIELDS: dict[str, Any] = {
    name: (Annotated[Any, WithJsonSchema(schema)], None) for name, schema in _SCHEMAS.items()
}
RequestFields = create_model("RequestFields", **_MODEL_FIELDS)
"""Base of the OpenAI- and Anthropic-style request models, with the fields at the top level.

It accepts any value, so that `resolve` produces the error message on every endpoint.
"""


class RequestFieldsInOptions(BaseModel):
    """Base of Ollama's request models, which hold all sampling parameters in `options`."""


def given_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields in a mapping.

    Null ones are omitted. Where upstream merges sampling parameters, they would otherwise override
    the server's --preferred-sampling-params.
    """
    return {name: values[name] for name in FIELDS if values.get(name) is not None}


def other_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The contents of a mapping other than our fields."""
    return {name: value for name, value in values.items() if name not in FIELDS}


def without_our_fields(body: Any) -> Any:
    """The body of a /generate request, without our fields in its `sampling_params`.

    A malformed body is returned unchanged, and upstream's schema rejects it.
    """
    if not isinstance(body, dict):
        return body
    params = body.get("sampling_params")
    if isinstance(params, list):
        return {**body, "sampling_params": [_without(item) for item in params]}
    return {**body, "sampling_params": _without(params)} if params is not None else body


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a request is besides its sampling parameters.

    Attributes:
        max_new_tokens: the maximum number of tokens to generate; None for no limit.
        beam_width: the number of beams in beam search; None or 1 without beam search.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.
        custom_logit_processor: the request's, if any.
    """

    max_new_tokens: int | None = None
    beam_width: int | None = None
    is_encoder_decoder: bool = False
    has_input_embeds: bool = False
    custom_logit_processor: object = None


@dataclass(frozen=True)
class Resolved:
    """What our fields ask for, with the server's preferred ones and the defaults.

    Attributes:
        penalty: the LZ penalty; its strength may be 0.
        history: the settings of the other penalties; None for the defaults.
        detection: the definition of a loop; None without the loop guard.
        proper_tokens: whether the output has only proper tokens.
    """

    penalty: LZParams
    history: HistoryParams | None
    detection: RepetitionDetection | None
    proper_tokens: bool


def admit(
    sampling_params: Any, requested: Mapping[str, Any], *, tokenizer: object = None, **facts: Any
) -> None:
    """Validate our fields of a request and store them in its SamplingParams.

    Args:
        sampling_params: upstream's struct. Its `lz_params` becomes the request's LZ penalty,
            `history_params` the settings of its other penalties, and `repetition_detection` the
            definition of a loop; each may be None. With `proper_tokens` it always has a constraint.
        requested: the request's own sampling parameters, without the server's preferred ones.
        tokenizer: the model's; None if the server has none.
        facts: those of `Facts` that `sampling_params` does not hold.

    Raises:
        FieldError: a value is wrong, or this server cannot apply it exactly.
    """
    stop_regex.check(requested.get(stop_regex.FIELD))
    limits.check_constraints(sampling_params)
    sampling_params.stop_regex_max_len = min(
        sampling_params.stop_regex_max_len, stop_regex.MOST_TOKENS
    )
    limits.check_sampling_floats(sampling_params)
    limit = sampling_params.max_new_tokens
    if limit == 0 and _may_truncate():
        requested = {**requested, "lz_penalty": 0}  # the client may have requested more tokens
    upstream = {name: getattr(sampling_params, name) for name in (*histories.UPSTREAM, "min_p")}
    found = resolve(
        {**requested, **upstream},
        Facts(max_new_tokens=limit, beam_width=sampling_params.beam_width, **facts),
    )
    sampling_params.lz_params = found.penalty if found.penalty.penalty > 0 else None
    sampling_params.history_params = found.history
    sampling_params.repetition_detection = found.detection
    sampling_params.proper_tokens = found.proper_tokens
    if found.proper_tokens:
        request_field.constrain(sampling_params, requested, tokenizer)


def resolve(
    requested: Mapping[str, Any], facts: Facts, config: Callable[[str], Any] | None = None
) -> Resolved:
    """What our fields of a request ask for.

    If nothing is generated (scores, embeddings, `max_new_tokens` 0), preferred penalties are
    ignored.

    Args:
        requested: the request's own sampling parameters, including upstream's. A null counts as
            missing.
        facts: what else the request is.
        config: looks up a server argument by its name; by default those of this server.

    Raises:
        FieldError: a value is wrong, or this server cannot apply a penalty or transform exactly.
    """
    if config is None:
        from sglang.srt.runtime_context import get_context

        config = get_context().config_leaf
    # Upstream merges these in too, but a null in the request would override them.
    preferred = config("preferred_sampling_params") or {}
    values = {**preferred, **{name: v for name, v in requested.items() if v is not None}}
    values["custom_logit_processor"] = facts.custom_logit_processor
    penalty = LZParams.parse(requested, config("lz_max_window_size"), preferred)
    history = HistoryParams.parse(requested, preferred)
    detection = RepetitionDetection.parse(values.get(repetition.FIELD))
    proper_tokens = request_field.is_asked(requested, preferred)
    if facts.max_new_tokens == 0:
        history, proper_tokens = HistoryParams(), False
        if requested.get("lz_penalty") is None:
            penalty = dataclasses.replace(penalty, penalty=0.0)
    found = Resolved(
        penalty, None if history == HistoryParams() else history, detection, proper_tokens
    )
    for refusal in _inexact(values, found, facts, config):
        field = refusal.field
        is_preferred = requested.get(field) is None and field in preferred
        raise refusal.error(values[field], is_preferred=is_preferred)
    return found


def _inexact(
    values: Mapping[str, Any], found: Resolved, facts: Facts, config: Callable[[str], Any]
) -> Iterator[Refusal]:
    """Refusals of the fields that cannot be honoured exactly."""
    beams = ["with beam search (beam_width > 1)"] if (facts.beam_width or 1) > 1 else []
    models = ["with encoder-decoder models"] if facts.is_encoder_decoder else []
    modes = [*unsupported_modes(config), *models, *beams]
    if found.detection is not None:
        ends_thinking = found.detection.action == END_THINKING
        yield from unguarded_modes(config, ends_thinking=ends_thinking)
        for where in beams:
            yield Refusal(repetition.FIELD, "left out", where)
    if found.proper_tokens:
        yield from request_field.unserved_modes(config)
        for where in beams:
            yield Refusal(request_field.FIELD, "false", where)
    if facts.max_new_tokens != 0:
        yield from (one for one in ignored_transforms(config) if values.get(one.field))
        has_penalty = found.penalty.penalty > 0 or any(in_use(values))
        if has_penalty and values.get("custom_logit_processor"):
            yield from early_processors(config)
        for name in in_use(values):
            off = f"{histories.NEUTRAL[name]:g}"
            for where in modes:
                yield Refusal(name, off, where)
            if facts.has_input_embeds and name in histories.SEES_PROMPT:
                yield Refusal(name, off, "on input_embeds, which have no token ids")
        breakers = found.history is not None and found.history.dry_sequence_breakers
        if values.get("dry_multiplier") and breakers and config("skip_tokenizer_init"):
            where = "with dry_sequence_breakers on a server with --skip-tokenizer-init"
            yield Refusal("dry_multiplier", "0", where)
    if found.penalty.penalty > 0:
        for where in modes:
            yield Refusal("lz_penalty", "0", where)
        if facts.max_new_tokens == 0:
            yield Refusal("lz_penalty", "0", "where nothing is generated (max_new_tokens 0)")
        if found.penalty.include_prompt and facts.has_input_embeds:
            where = "with lz_include_prompt on input_embeds, which have no token ids"
            yield Refusal("lz_penalty", "0", where)


def resent_fields(sampling_params: Any) -> dict[str, Any]:
    """Our fields to include when a request admitted here is forwarded to another server.

    If the request has none, the result turns them off explicitly: that server may prefer some.
    """
    penalty, detection = sampling_params.lz_params, sampling_params.repetition_detection
    return {
        **({"lz_penalty": 0} if penalty is None else penalty.request_fields()),
        **(sampling_params.history_params or HistoryParams()).request_fields(),
        repetition.FIELD: {} if detection is None else dataclasses.asdict(detection),
        request_field.FIELD: sampling_params.proper_tokens,
    }


def _may_truncate() -> bool:
    """Whether upstream may have lowered a request's `max_new_tokens` to fit the context."""
    from sglang.srt.runtime_context import get_context

    return bool(get_context().config_leaf("allow_auto_truncate"))


def _without(params: Any) -> Any:
    return other_fields(params) if isinstance(params, dict) else params
