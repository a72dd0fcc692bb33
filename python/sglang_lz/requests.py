"""The LZ fields on their way from a request body to the scheduler (docs/SPEC.md section 6).

Each public function is what one patch of upstream's request path calls. A refusal is a
ValueError, which upstream answers with HTTP 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, model_validator

from sglang_lz.params import FIELDS, FIELDS_TEXT, LZParams, json_schema
from sglang_lz.support import unsupported_modes

# Upstream's own types of these objects, with a description of the keys that we add.
GenerateSamplingParams = Annotated[
    list[dict[str, Any]] | dict[str, Any] | None,
    Field(description=f"Sampling parameters, those of the LZ penalty among them. {FIELDS_TEXT}"),
]
OllamaOptions = Annotated[
    dict[str, Any] | None,
    Field(description=f"Ollama's options, and those of the LZ penalty. {FIELDS_TEXT}"),
]


class LZFields(BaseModel):
    """Base of the OpenAI- and Anthropic-style request models: the five fields, at the top level.

    The values are taken as they come, so that `admit` words the refusals of every endpoint.
    """

    lz_penalty: Annotated[Any, WithJsonSchema(json_schema("lz_penalty"))] = None
    lz_window_size: Annotated[Any, WithJsonSchema(json_schema("lz_window_size"))] = None
    lz_buffer_size: Annotated[Any, WithJsonSchema(json_schema("lz_buffer_size"))] = None
    lz_include_prompt: Annotated[Any, WithJsonSchema(json_schema("lz_include_prompt"))] = None
    lz_cost: Annotated[Any, WithJsonSchema(json_schema("lz_cost"))] = None


def checked_fields(request: Any) -> dict[str, Any]:
    """The LZ fields that a request model sets, for its sampling parameters.

    Unset fields are left out, so that the server's --preferred-sampling-params reach through. They
    are checked here because upstream's stream may begin before `admit` sees them, and then it
    cannot turn into a 400 any more.

    Raises:
        ValueError: `admit` would refuse them.
    """
    fields = _given(vars(request))
    _check(fields)
    return fields


class LZFieldsInOptions(BaseModel):
    """Base of Ollama's request models, whose sampling parameters all stand in `options`."""

    @model_validator(mode="before")
    @classmethod
    def _no_field_at_the_top_level(cls, values: Any) -> Any:
        if isinstance(values, dict):
            _refuse_top_level(values, "options")
        return values


def ollama_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """The LZ fields in Ollama's `options`, for the sampling parameters.

    Raises:
        HTTPException: 400 if `admit` would refuse them. Upstream's Ollama routes answer a
            ValueError with 500.
    """
    from fastapi import HTTPException

    fields = _given(options)
    try:
        _check(fields)
    except ValueError as error:
        raise HTTPException(status_code=400, detail=str(error)) from error
    return fields


def without_lz_fields(body: Any) -> Any:
    """A /generate body as upstream's schema knows it: no LZ fields in its `sampling_params`."""
    if not isinstance(body, dict):
        return body
    params = body.get("sampling_params")
    if isinstance(params, list):
        return {**body, "sampling_params": [_without(item) for item in params]}
    return {**body, "sampling_params": _without(params)} if params is not None else body


def contract_error(body: Any) -> str | None:
    """Why `admit` would refuse a /generate body that upstream's schema accepts; None if not.

    Asked before the stream begins, as in `checked_fields`.
    """
    params = body.get("sampling_params")
    for item in params if isinstance(params, list) else [params]:
        try:
            _refuse_top_level(body, "sampling_params")
            _check(item or {}, has_input_embeds=body.get("input_embeds") is not None)
        except ValueError as error:
            return str(error)
    return None


def admit(sampling_params: Any, *, is_encoder_decoder: bool, has_input_embeds: bool) -> None:
    """Validate the LZ fields of upstream's SamplingParams and resolve their defaults in it.

    Args:
        sampling_params: upstream's struct; changed in place. A field that is None takes the
            server's preferred value, if there is one, else its default.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.

    Raises:
        ValueError: a wrong value, or a penalty that this server cannot apply exactly.
    """
    fields = {name: getattr(sampling_params, name) for name in (*FIELDS, "beam_width")}
    params = _parse(fields, is_encoder_decoder, has_input_embeds)
    sampling_params.lz_penalty = params.penalty
    sampling_params.lz_window_size = params.window_size
    sampling_params.lz_buffer_size = params.buffer_size
    sampling_params.lz_include_prompt = params.include_prompt
    sampling_params.lz_cost = params.cost


def _refuse_top_level(body: Mapping[str, Any], where: str) -> None:
    for name, value in _given(body).items():
        raise ValueError(f"{name} must stand in {where} here, got {value!r} at the top level.")


def _check(fields: Mapping[str, Any], has_input_embeds: bool = False) -> None:
    _parse(fields, False, has_input_embeds)


def _parse(fields: Mapping[str, Any], is_encoder_decoder: bool, has_input_embeds: bool) -> LZParams:
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    # Upstream merges these in too, but lets a null win over them.
    preferred = config("preferred_sampling_params") or {}
    merged = {**_given(preferred), **_given(fields)}
    params = LZParams.parse(merged, config("lz_max_window_size"))
    if params.penalty > 0:
        reasons = list(unsupported_modes(config))
        if is_encoder_decoder:
            reasons.append("with encoder-decoder models")
        if (fields.get("beam_width") or 1) > 1:
            reasons.append("with beam search (beam_width > 1)")
        if params.include_prompt and has_input_embeds:
            reasons.append("with lz_include_prompt on input_embeds, which have no token ids")
        if reasons:
            raise ValueError(
                f"lz_penalty must be 0 {reasons[0]}, got {params.penalty}: the LZ penalty is not "
                "supported there yet."
            )
    return params


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in FIELDS if values.get(name) is not None}


def _without(params: Any) -> Any:
    if not isinstance(params, dict):
        return params
    return {name: value for name, value in params.items() if name not in FIELDS}
