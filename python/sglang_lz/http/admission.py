"""Our request fields on their way from a request body to the scheduler (docs/SPEC.md section 6).

These are the fields of the LZ penalty, the fields of `histories`, `repetition_detection` and
`proper_tokens`. Upstream's own penalty fields are checked here too, because modes in which they are
not exact reject them.

Each public name is used by a patch of upstream's request path. `sglang_lz.http.gate` checks HTTP
requests first; requests from the offline Engine or gRPC are checked by `admit` only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field, WithJsonSchema, create_model, model_validator

from lz_penalty.fields import histories, lz, repetition
from lz_penalty.fields.histories import HistoryParams, in_use
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import RepetitionDetection
from lz_penalty.fields.table import check_name, check_needs, json_schema
from sglang_lz.bounds import limits, stop_regex
from sglang_lz.bounds.modes import (
    early_processors,
    ignored_transforms,
    unguarded_modes,
    unsupported_modes,
)
from sglang_lz.bounds.refusal import Refusal
from sglang_lz.constraints import request_field

_SCHEMAS = {
    **{name: json_schema(name) for name in (*lz.FIELDS, *histories.FIELDS, request_field.FIELD)},
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
    dict[str, Any] | None, Field(description=f"Ollama's options, and ours. {FIELDS_TEXT}")
]


_MODEL_FIELDS: dict[str, Any] = {
    name: (Annotated[Any, WithJsonSchema(schema)], None) for name, schema in _SCHEMAS.items()
}
PREFERRED_AS = {
    "max_new_tokens": ("max_completion_tokens", "max_output_tokens", "max_tokens"),
    "min_new_tokens": ("min_tokens",),
    "sampling_seed": ("seed",),
}
"""OpenAI's names of some of upstream's sampling parameters."""


class _Preferring(BaseModel):
    @model_validator(mode="before")
    @classmethod
    def prefer(cls, values: Any) -> Any:
        """Give fields that a request lacks the values of --preferred-sampling-params.

        Upstream merges those into its sampling parameters, where its models' defaults override
        them.
        """
        if not isinstance(values, dict):
            return values
        given = {name for name, value in values.items() if value is not None}
        missing = {}
        for name, value in preferred().items():
            names = PREFERRED_AS.get(name, (name,))
            known = [one for one in names if one in cls.model_fields]
            if name in (*FIELDS, *limits.CONSTRAINTS) or not known or given & {*known}:
                continue
            if not cls.model_fields[known[0]].is_required():
                missing[known[0]] = value
        return {**values, **missing}


RequestFields = create_model("RequestFields", __base__=_Preferring, **_MODEL_FIELDS)
"""Base of the OpenAI- and Anthropic-style request models, with the fields at the top level.

It accepts any value, so that `resolve` produces the error message on every endpoint.
"""


class RequestFieldsInOptions(BaseModel):
    """Base of Ollama's request models, which hold all sampling parameters in `options`."""

    @model_validator(mode="before")
    @classmethod
    def read_format(cls, values: Any) -> Any:
        """Add the constraint of `format` to the options, which `ollama_params` reads."""
        if not isinstance(values, dict) or not isinstance(values.get("options") or {}, dict):
            return values
        form = values.get("format")
        read = {"options": {**(values.get("options") or {}), **format_schema(form)}}
        return {**values, **read, **({"format": None} if form == "" else {})}


OLLAMA_OURS = {"repeat_last_n": "penalty_last_n"}
"""Ollama's options that are fields of ours, and those fields."""
_OLLAMA = {
    "repeat_penalty": "repetition_penalty",
    "min_p": "min_p",
    "json_schema": "json_schema",
    **OLLAMA_OURS,
}


def format_schema(form: Any) -> dict[str, str]:
    """The constraint of Ollama's `format`, as a sampling parameter of upstream."""
    if form == "json":
        return {"json_schema": '{"type": "object"}'}
    with contextlib.suppress(RecursionError):  # upstream's parser reports it
        return {"json_schema": json.dumps(form)} if isinstance(form, dict) else {}
    return {}


def ollama_params(options: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields and those of Ollama's options that upstream does not map, as sampling parameters.

    Args:
        options: Ollama's, after `RequestFieldsInOptions.read_format`.
    """
    mapped = {inner: options.get(name) for name, inner in _OLLAMA.items()}
    return {
        **{name: value for name, value in mapped.items() if value is not None},
        **given_fields(options),
    }


def given_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Our fields in a mapping.

    Null ones are omitted. Where upstream merges sampling parameters, they would otherwise override
    the server's --preferred-sampling-params.
    """
    return {name: values[name] for name in FIELDS if values.get(name) is not None}


def other_fields(values: Mapping[str, Any], request: Any = None) -> dict[str, Any]:
    """Upstream's sampling parameters among those of a request.

    Args:
        values: sampling parameters, with the server's preferred ones.
        request: upstream's GenerateReqInput or EmbeddingReqInput, if they are a request's. A null
            there counts as missing, and a constraint replaces a preferred one of any kind.

    Raises:
        FieldError: a name is misspelt.
    """
    for name, value in values.items():
        check_name(name, value)
    found = {name: value for name, value in values.items() if name not in FIELDS}
    if request is not None:
        requested = request.sampling_params
        is_constrained = any(requested.get(name) for name in limits.CONSTRAINTS)
        for name, value in preferred().items():
            if name in limits.CONSTRAINTS and is_constrained:
                found[name] = requested.get(name)
            elif name in found and found[name] is None:
                found[name] = value
    return found


def preferred() -> Mapping[str, Any]:
    """The server's preferred sampling parameters; none outside a server."""
    from sglang.srt.runtime_context import get_context

    try:
        return get_context().config_leaf("preferred_sampling_params") or {}
    except ValueError:  # no server has published its arguments
        return {}


def without_our_fields(body: Any) -> Any:
    """The body of a /generate request, without our fields in its `sampling_params`.

    A malformed body is returned unchanged, and upstream's schema rejects it.
    """
    if not isinstance(body, dict) or body.get("sampling_params") is None:
        return body
    params = body["sampling_params"]
    others = [
        {name: one[name] for name in one if name not in FIELDS} if isinstance(one, dict) else one
        for one in limits.as_list(params)
    ]
    return {**body, "sampling_params": others if isinstance(params, list) else others[0]}


def naming_field(error: str, body: Any, decode: Callable[[Any], Any]) -> str:
    """Add the field's name to a message of upstream's schema of /generate (upstream's hook).

    Args:
        error: upstream's message. It names unknown fields only.
        body: the parsed body.
        decode: raises a ValueError with that message, for a body that has the field alone too.
    """
    body = body if isinstance(body, dict) else {}
    params = [one for one in limits.as_list(body.get("sampling_params")) if isinstance(one, dict)]
    fields = [
        *((name, {"sampling_params": {name: one[name]}}) for one in params for name in one),
        *((name, {name: value}) for name, value in body.items()),
    ]
    for name, alone in fields:
        try:
            decode(alone)
        except ValueError as found:
            if str(found) == error and name not in error:
                return f"{name}: {error}"
    return error


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a request besides its sampling parameters.

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
    """Our fields of a request, resolved with the server's preferred ones and the defaults.

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
    from sglang.srt.runtime_context import get_context

    stop_regex.check(requested.get(stop_regex.FIELD))
    limits.check_constraints(sampling_params)
    sampling_params.stop_regex_max_len = min(
        sampling_params.stop_regex_max_len, stop_regex.MOST_TOKENS
    )
    limits.check_sampling_floats(sampling_params)
    limit = sampling_params.max_new_tokens
    if limit == 0 and get_context().config_leaf("allow_auto_truncate"):
        # The client may have requested more tokens; upstream lowered their number to the context's.
        requested = {**requested, "lz_penalty": 0}
    upstream = {name: getattr(sampling_params, name) for name in (*histories.UPSTREAM, "min_p")}
    found = resolve(
        {**requested, **upstream},
        Facts(max_new_tokens=limit, beam_width=sampling_params.beam_width, **facts),
    )
    check_needs(requested, preferred())
    sampling_params.lz_params = found.penalty if found.penalty.penalty > 0 else None
    sampling_params.history_params = found.history
    sampling_params.repetition_detection = found.detection
    sampling_params.proper_tokens = found.proper_tokens
    if found.proper_tokens:
        request_field.constrain(sampling_params, requested, tokenizer)


def resolve(
    requested: Mapping[str, Any], facts: Facts, config: Callable[[str], Any] | None = None
) -> Resolved:
    """Resolve our fields of a request.

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
    defaults = config("preferred_sampling_params") or {}
    values = {**defaults, **{name: v for name, v in requested.items() if v is not None}}
    values["custom_logit_processor"] = facts.custom_logit_processor
    penalty = LZParams.parse(requested, config("lz_max_window_size"), defaults)
    history = HistoryParams.parse(requested, defaults)
    detection = RepetitionDetection.parse(values.get(repetition.FIELD))
    proper_tokens = request_field.is_asked(requested, defaults)
    if facts.max_new_tokens == 0:
        history, proper_tokens = HistoryParams(), False
        if requested.get("lz_penalty") is None:
            penalty = dataclasses.replace(penalty, penalty=0.0)
    found = Resolved(
        penalty, None if history == HistoryParams() else history, detection, proper_tokens
    )
    for refusal in _inexact(values, found, facts, config):
        field = refusal.field
        is_preferred = requested.get(field) is None and field in defaults
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
        yield from unguarded_modes(config, found.detection)
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
