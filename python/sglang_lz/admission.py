"""Our request fields on their way from a request body to the scheduler (docs/SPEC.md section 6).

These are the fields of the LZ penalty, the fields of `histories`, `repetition_detection` and
`proper_tokens`. Upstream's own penalty fields are checked here too, because modes in which they are
not exact reject them.

Each public name is used by a patch of upstream's request path. `sglang_lz.gate` checks HTTP
requests first; requests from the offline Engine or gRPC are checked by `admit` only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model

from sglang_lz.bounds import limits, stop_regex
from sglang_lz.fields import histories, lz
from sglang_lz.fields.histories import HistoryParams, in_use, refuse
from sglang_lz.fields.lz import FieldError, LZParams, shown
from sglang_lz.fields.modes import ignored_transforms, unguarded_modes, unsupported_modes
from sglang_lz.loops import detector
from sglang_lz.loops.detector import END_THINKING, RepetitionDetection
from sglang_lz.proper import request_field

_SCHEMAS = {
    **{name: lz.json_schema(name) for name in (*lz.FIELDS, *histories.FIELDS, request_field.FIELD)},
    detector.FIELD: detector.json_schema(),
}
FIELDS = tuple(_SCHEMAS)
"""The names of all our fields as requests spell them."""
FIELDS_TEXT = " ".join(f"`{name}`: {schema['description']}" for name, schema in _SCHEMAS.items())

UNPENALISED = {"lz_penalty": 0, request_field.FIELD: False, **histories.NEUTRAL}
"""Sampling parameters for requests to which the server's preferred penalties must not apply."""

# Upstream's own types of these objects, with descriptions of the keys that we add.
GenerateSamplingParams = Annotated[
    list[dict[str, Any]] | dict[str, Any] | None,
    Field(description=f"Sampling parameters, ours among them. {FIELDS_TEXT}"),
]
OllamaOptions = Annotated[
    dict[str, Any] | None,
    Field(description=f"Ollama's options, and ours. {FIELDS_TEXT}"),
]


_PREFERRED = " from the server's --preferred-sampling-params"

_MODEL_FIELDS: dict[str, Any] = {
    name: (Annotated[Any, WithJsonSchema(schema)], None) for name, schema in _SCHEMAS.items()
}
LZFields = create_model("LZFields", **_MODEL_FIELDS)
"""Base of the OpenAI- and Anthropic-style request models, with the fields at the top level.

It accepts any value, so that `resolve` produces the error message on every endpoint.
"""


class LZFieldsInOptions(BaseModel):
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


def without_lz_fields(body: Any) -> Any:
    """The body of a /generate request, without our fields in its `sampling_params`.

    A malformed body is returned unchanged, and upstream's schema rejects it.
    """
    if not isinstance(body, dict):
        return body
    params = body.get("sampling_params")
    if isinstance(params, list):
        return {**body, "sampling_params": [_without(item) for item in params]}
    return {**body, "sampling_params": _without(params)} if params is not None else body


def admit(
    sampling_params: Any,
    requested: Mapping[str, Any],
    *,
    is_encoder_decoder: bool,
    has_input_embeds: bool,
    custom_logit_processor: object = None,
    tokenizer: object = None,
) -> None:
    """Validate our fields of a request and store them in its SamplingParams.

    Args:
        sampling_params: upstream's struct. Its `lz_params` becomes the request's LZ penalty,
            `history_params` the settings of its other penalties, and `repetition_detection` the
            definition of a loop; each may be None. With `proper_tokens` it always has a constraint.
        requested: the request's own sampling parameters, without the server's preferred ones.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.
        custom_logit_processor: the request's, if any.
        tokenizer: the model's.

    Raises:
        FieldError: a value is wrong, or this server cannot apply it exactly.
    """
    stop_regex.check(requested.get(stop_regex.FIELD))
    limits.check_constraints(sampling_params)
    sampling_params.stop_regex_max_len = min(
        sampling_params.stop_regex_max_len, stop_regex.MOST_TOKENS
    )
    limits.check_sampling_floats(sampling_params)
    beam_width = sampling_params.beam_width
    sampling_params.repetition_detection = resolve_detection(requested, beam_width=beam_width)
    limit = sampling_params.max_new_tokens
    if limit == 0 and _may_truncate():
        requested = {**requested, "lz_penalty": 0}  # the client may have requested more tokens
    penalty = resolve(
        requested,
        max_new_tokens=limit,
        beam_width=beam_width,
        is_encoder_decoder=is_encoder_decoder,
        has_input_embeds=has_input_embeds,
    )
    sampling_params.lz_params = penalty if penalty.penalty > 0 else None
    upstream = {name: getattr(sampling_params, name) for name in (*histories.UPSTREAM, "min_p")}
    sampling_params.history_params = resolve_history(
        {**requested, **upstream},
        max_new_tokens=limit,
        beam_width=beam_width,
        is_encoder_decoder=is_encoder_decoder,
        has_input_embeds=has_input_embeds,
        custom_logit_processor=custom_logit_processor,
    )
    sampling_params.proper_tokens = request_field.resolve_proper_tokens(
        requested, max_new_tokens=limit, beam_width=beam_width
    )
    if sampling_params.proper_tokens:
        request_field.constrain(sampling_params, requested, tokenizer)


def resolve(
    requested: Mapping[str, Any],
    *,
    max_new_tokens: int | None,
    beam_width: int | None,
    is_encoder_decoder: bool,
    has_input_embeds: bool,
) -> LZParams:
    """The LZ penalty of a request, from its fields, the server's preferred ones and the defaults.

    If nothing is generated (scores, embeddings, `max_new_tokens` 0), a preferred penalty is
    ignored.

    Args:
        requested: the request's own sampling parameters. A null counts as missing.
        max_new_tokens: the maximum number of tokens to generate; None for no limit.
        beam_width: the number of beams in beam search; None or 1 without beam search.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.

    Raises:
        FieldError: a value is wrong, or this server cannot apply the penalty exactly.
    """
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    # Upstream merges these in too, but a null in the request would override them.
    preferred = given_fields(config("preferred_sampling_params") or {})
    penalty = LZParams.parse(requested, config("lz_max_window_size"), preferred)
    if penalty.penalty == 0:
        return penalty
    is_preferred = requested.get("lz_penalty") is None
    reasons = list(unsupported_modes(config))
    if max_new_tokens == 0:
        if is_preferred:
            return dataclasses.replace(penalty, penalty=0.0)
        reasons.append("where nothing is generated (max_new_tokens 0)")
    if is_encoder_decoder:
        reasons.append("with encoder-decoder models")
    if (beam_width or 1) > 1:
        reasons.append("with beam search (beam_width > 1)")
    if penalty.include_prompt and has_input_embeds:
        reasons.append("with lz_include_prompt on input_embeds, which have no token ids")
    if reasons:
        whose = _PREFERRED if is_preferred else ""
        raise FieldError(
            "lz_penalty",
            f"lz_penalty must be 0 {reasons[0]}, got {penalty.penalty}{whose}: the LZ penalty is "
            "not supported there yet.",
        )
    return penalty


def resolve_history(
    requested: Mapping[str, Any],
    *,
    max_new_tokens: int | None,
    beam_width: int | None,
    is_encoder_decoder: bool,
    has_input_embeds: bool,
    custom_logit_processor: object,
) -> HistoryParams | None:
    """The settings of a request's penalties other than upstream's fields; None for the defaults.

    Args:
        requested: its own sampling parameters, including upstream's. A null counts as missing.
        custom_logit_processor: the request's, if any.
        others: as in `resolve`.

    Raises:
        FieldError: a value is wrong, or this server cannot apply a penalty or transform exactly.
    """
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    preferred = config("preferred_sampling_params") or {}
    own = HistoryParams.parse(requested, preferred)
    values = {**preferred, **{k: v for k, v in requested.items() if v is not None}}
    if max_new_tokens == 0:
        return None
    for name, what in ignored_transforms(config):
        value = custom_logit_processor if name == "custom_logit_processor" else values.get(name)
        if value:
            raise FieldError(
                name,
                f"{name} must be left out {what}, got {shown(value)}.",
            )
    reasons = list(unsupported_modes(config))
    if is_encoder_decoder:
        reasons.append("with encoder-decoder models")
    if (beam_width or 1) > 1:
        reasons.append("with beam search (beam_width > 1)")
    for name in in_use(values):
        whose = "" if requested.get(name) is not None else _PREFERRED
        why = list(reasons)
        if has_input_embeds and name in histories.SEES_PROMPT:
            why.append("on input_embeds, which have no token ids")
        if name == "dry_multiplier" and own.dry_sequence_breakers and config("skip_tokenizer_init"):
            why.append("with dry_sequence_breakers on a server with --skip-tokenizer-init")
        if why:
            raise refuse(name, values[name], why[0], whose)
    return None if own == HistoryParams() else own


def resolve_detection(
    requested: Mapping[str, Any], *, beam_width: int | None
) -> RepetitionDetection | None:
    """The definition of a loop in a request, from its own field or the server's preferred one.

    Args:
        requested: the request's own sampling parameters. A null counts as missing.
        beam_width: the number of beams in beam search; None or 1 without beam search.

    Raises:
        FieldError: a value is wrong, or this server does not support the guard.
    """
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    value, whose = requested.get(detector.FIELD), ""
    if value is None:
        value = (config("preferred_sampling_params") or {}).get(detector.FIELD)
        whose = _PREFERRED
    detection = RepetitionDetection.parse(value)
    if detection is None:
        return None
    reasons = list(unguarded_modes(config, ends_thinking=detection.action == END_THINKING))
    if (beam_width or 1) > 1:
        reasons.append(f"{detector.FIELD} must be left out with beam search (beam_width > 1)")
    if reasons:
        raise FieldError(detector.FIELD, f"{reasons[0]}, got {shown(value)}{whose}.")
    return detection


def resent_fields(sampling_params: Any) -> dict[str, Any]:
    """Our fields to include when a request admitted here is forwarded to another server.

    If the request has none, the result turns them off explicitly: that server may prefer some.
    """
    penalty, detection = sampling_params.lz_params, sampling_params.repetition_detection
    return {
        **({"lz_penalty": 0} if penalty is None else penalty.request_fields()),
        **(sampling_params.history_params or HistoryParams()).request_fields(),
        detector.FIELD: {} if detection is None else dataclasses.asdict(detection),
        request_field.FIELD: sampling_params.proper_tokens,
    }


def _may_truncate() -> bool:
    """Whether upstream may have lowered a request's `max_new_tokens` to fit the context."""
    from sglang.srt.runtime_context import get_context

    return bool(get_context().config_leaf("allow_auto_truncate"))


def _without(params: Any) -> Any:
    return other_fields(params) if isinstance(params, dict) else params
