"""The LZ fields on their way from a request body to the scheduler (docs/SPEC.md section 6).

Each public function is what one patch of upstream's request path calls. Requests over HTTP passed
`sglang_lz.gate` before; those of the offline Engine and of gRPC meet `admit` only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema

from sglang_lz.params import FIELDS, FIELDS_TEXT, FieldError, LZParams, json_schema
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

    The values are taken as they come, so that `resolve` words the refusals of every endpoint.
    """

    lz_penalty: Annotated[Any, WithJsonSchema(json_schema("lz_penalty"))] = None
    lz_window_size: Annotated[Any, WithJsonSchema(json_schema("lz_window_size"))] = None
    lz_buffer_size: Annotated[Any, WithJsonSchema(json_schema("lz_buffer_size"))] = None
    lz_include_prompt: Annotated[Any, WithJsonSchema(json_schema("lz_include_prompt"))] = None
    lz_cost: Annotated[Any, WithJsonSchema(json_schema("lz_cost"))] = None


class LZFieldsInOptions(BaseModel):
    """Base of Ollama's request models, whose sampling parameters all stand in `options`."""


def given_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The LZ fields that are set in a mapping.

    Unset and null ones are left out, so that the server's --preferred-sampling-params reach
    through.
    """
    return {name: values[name] for name in FIELDS if values.get(name) is not None}


def without_lz_fields(body: Any) -> Any:
    """A /generate body as upstream's schema knows it: no LZ fields in its `sampling_params`."""
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
) -> None:
    """Validate the LZ fields of a request and write their values into its SamplingParams.

    Args:
        sampling_params: upstream's struct, the server's preferred parameters merged in; its LZ
            fields are changed in place, none is None after it.
        requested: what the request itself says, before anything was merged in.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.

    Raises:
        FieldError: a wrong value, or a penalty that this server cannot apply exactly.
    """
    limit = sampling_params.max_new_tokens
    if limit == 0 and _may_truncate():
        requested = {**requested, "lz_penalty": 0}  # perhaps the client asked for more
    params = resolve(
        requested,
        max_new_tokens=limit,
        beam_width=sampling_params.beam_width,
        is_encoder_decoder=is_encoder_decoder,
        has_input_embeds=has_input_embeds,
    )
    sampling_params.lz_penalty = params.penalty
    sampling_params.lz_window_size = params.window_size
    sampling_params.lz_buffer_size = params.buffer_size
    sampling_params.lz_include_prompt = params.include_prompt
    sampling_params.lz_cost = params.cost


def resolve(
    requested: Mapping[str, Any],
    *,
    max_new_tokens: int | None,
    beam_width: int | None,
    is_encoder_decoder: bool,
    has_input_embeds: bool,
) -> LZParams:
    """The LZ penalty of a request: its fields, the server's preferred ones, the defaults.

    Where nothing is generated (scores, embeddings, `max_new_tokens` 0) nothing is sampled either,
    and a preferred penalty does not count.

    Args:
        requested: what the request itself says; a null is as good as nothing.
        max_new_tokens: the most tokens to generate; None for no limit.
        beam_width: beams of beam search; None or 1 for none.
        is_encoder_decoder: whether the model is one.
        has_input_embeds: whether the prompt came as embeddings instead of tokens.

    Raises:
        FieldError: a wrong value, or a penalty that this server cannot apply exactly.
    """
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    # Upstream merges these in too, but lets a null win over them.
    preferred = given_fields(config("preferred_sampling_params") or {})
    params = LZParams.parse(requested, config("lz_max_window_size"), preferred)
    if params.penalty == 0:
        return params
    is_preferred = requested.get("lz_penalty") is None
    reasons = list(unsupported_modes(config))
    if max_new_tokens == 0:
        if is_preferred:
            return dataclasses.replace(params, penalty=0.0)
        reasons.append("where nothing is generated (max_new_tokens 0)")
    if is_encoder_decoder:
        reasons.append("with encoder-decoder models")
    if (beam_width or 1) > 1:
        reasons.append("with beam search (beam_width > 1)")
    if params.include_prompt and has_input_embeds:
        reasons.append("with lz_include_prompt on input_embeds, which have no token ids")
    if reasons:
        whose = " from the server's --preferred-sampling-params" if is_preferred else ""
        raise FieldError(
            "lz_penalty",
            f"lz_penalty must be 0 {reasons[0]}, got {params.penalty}{whose}: the LZ penalty is "
            "not supported there yet.",
        )
    return params


def resent_fields(sampling_params: Any) -> dict[str, Any]:
    """The LZ fields with which another server gets a request that was admitted here.

    Without a penalty only that there is none, whatever that server prefers or allows.
    """
    if not sampling_params.lz_penalty:
        return {"lz_penalty": 0}
    return {name: getattr(sampling_params, name) for name in FIELDS}


def _may_truncate() -> bool:
    """Whether upstream may have lowered a request's `max_new_tokens` to what its prompt leaves."""
    from sglang.srt.runtime_context import get_context

    return bool(get_context().config_leaf("allow_auto_truncate"))


def _without(params: Any) -> Any:
    if not isinstance(params, dict):
        return params
    return {name: value for name, value in params.items() if name not in FIELDS}
