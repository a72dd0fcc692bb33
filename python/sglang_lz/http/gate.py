"""Checks our fields in every HTTP request before the endpoint sees it.

Upstream ignores unknown keys, and some of its streams begin before `admit` can reject a request.
`check_fields` therefore runs first, on every route. It checks the values of those of our fields
that the route accepts. It rejects our fields, and any other key with one of their prefixes
(`table.PREFIXES`), in every other place where clients put sampling parameters. The request model
of a route shows whether it accepts the fields, so a route added by a later release accepts none.

`serve` runs the routes, and answers the errors that `mistakes` attributes to the client.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
)
from functools import cache
from typing import Any

import pydantic
from fastapi.exceptions import RequestValidationError
from fastapi.params import Form
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic_core import SchemaValidator
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Message

from lz_penalty.fields import repetition
from lz_penalty.fields.lz import FIELDS as LZ_FIELDS
from lz_penalty.fields.table import FieldError, bad_value, check_name, check_needs, shown
from sglang_lz.bounds import limits
from sglang_lz.bounds.texts import most_characters
from sglang_lz.constraints import request_field
from sglang_lz.guard import metrics
from sglang_lz.http.admission import (
    FIELDS,
    OLLAMA_OURS,
    Facts,
    RequestFields,
    RequestFieldsInOptions,
    Resolved,
    format_schema,
    ollama_params,
    preferred,
    resolve,
)
from sglang_lz.http.dropped import Place, check_dropped, located
from sglang_lz.http.mistakes import DATA_ERRORS, as_refusal, is_clients

# Where clients put sampling parameters, whether or not the route reads them there.
OBJECTS = (
    *("sampling_params", "options", "parameters", "instances", "extra_body", "custom_params"),
    *("nvext", "vllm_xargs"),
)
DEEPEST = 2
# Fields of a body that holds a single prompt, or something that becomes one.
SINGLE = frozenset(("messages", "instructions", "tokens", "questions", "state"))

# Names that no custom logit processor uses for its own parameters.
ONLY_OURS = (*LZ_FIELDS, repetition.FIELD)
# Vertex AI's envelope has these in each of its instances.
_OF_INSTANCES = ("text", "input_ids", "input_embeds", "image_data")

PROCESSOR = "custom_logit_processor"

MOST_OBJECTS = 3 * limits.MOST_OUTPUTS
"""The most objects of a body that may hold sampling parameters."""
MOST_KEYS = 1 << 17
"""The most keys of these objects in total."""
MOST_ERRORS = 64
"""The most mistakes of a body that an answer lists."""

# Ollama's options that are copied unchecked into upstream's sampling parameters, with their names
# there.
OLLAMA_OPTIONS = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "stop")},
    **{name: name for name in ("presence_penalty", "frequency_penalty")},
    "repeat_penalty": "repetition_penalty",
    "num_predict": "max_new_tokens",
    "seed": "sampling_seed",
}

# What Ollama and SGLang call the maximum number of tokens to generate.
LIMITS = {"options": "num_predict", "sampling_params": "max_new_tokens"}


async def check_fields(connection: HTTPConnection) -> None:
    """Reject a request whose fields cannot be honoured (a FastAPI dependency of every route).

    The request object caches its parsed body, so upstream does not parse it again. A WebSocket has
    no body.

    Raises:
        FieldError: `answer` turns it into HTTP 400.
    """
    if not isinstance(connection, Request):
        return
    route = connection.scope.get("route")
    for adapter in (field._type_adapter for field in _parameters(route)):
        _fail_fast(adapter)
    for own in RequestFields.__subclasses__():
        _fail_fast(own)
    model = _model_of(route)
    place = place_in(model)
    _check_keys(connection.query_params, ("the URL",), place)
    inner = _takes_internal(route)
    has_body = _models(route) or connection.method not in ("GET", "HEAD")
    body: Any = await _body(connection) if has_body else None
    if (place is not None or inner) and not isinstance(body, dict):
        raise FieldError("body", f"The body must be a JSON object, got {shown(body)}.")
    if inner:
        limits.check_internal(body)
    found = check_json(body, model)
    for values, resolved in found:
        if resolved.proper_tokens:
            await request_field.check_rules({**values, **_constraint(body, values)}, values)
    if place is not None:
        path = str(getattr(route, "path", ""))
        metrics.admitted(path, [resolved.penalty for _, resolved in found])


def check_json(body: Any, model: object) -> list[tuple[Mapping[str, Any], Resolved]]:
    """Reject a parsed body if one of our fields in it, or a constraint, cannot be honoured.

    A null means unset. Upstream's request models refuse it for most fields, so nulls are removed.

    Args:
        body: the parsed JSON or form; None if there is none.
        model: the request model that it becomes; None if the route has none that takes our fields.

    Returns:
        Each object that accepts our fields, and what it asks for.

    Raises:
        FieldError: a field of ours has a wrong value or name, or is in the wrong object.
    """
    place = place_in(model)
    objects = list(itertools.islice(_objects(body), MOST_OBJECTS + 1))
    if len(objects) > MOST_OBJECTS or sum(len(values) for _, values in objects) > MOST_KEYS:
        raise FieldError(
            "body",
            f"The body must have at most {MOST_OBJECTS} objects that may hold sampling parameters, "
            f"of at most {MOST_KEYS} keys in all, got more.",
        )
    takes = _taken(model, place)
    for where, values in objects:
        _check_keys(values, where, place)
        if where[-1:] == ("custom_params",):
            continue  # a processor's own parameters
        if takes:
            check_dropped(values, where, takes)
            for name in [name for name, value in values.items() if value is None]:
                del values[name]
        if where == ("parameters",) and place == (*where, "sampling_params"):
            for name in _OF_INSTANCES:
                if name in values:
                    got = f"got {shown(values[name])} in parameters"
                    raise FieldError(name, f"{name} belongs in instances here, {got}.")
        limits.check_object(values)
        if where == place == () and values.get("session_params"):
            rule = "left out: only /generate reads it"
            raise bad_value("session_params", values["session_params"], rule)
    found: list[tuple[Mapping[str, Any], Resolved]] = []
    if place is None or not isinstance(body, dict):
        return found
    has_input_embeds = any(values.get("input_embeds") is not None for _, values in objects)
    processor = next(filter(None, (values.get(PROCESSOR) for _, values in objects)), None)
    manager = _manager()
    # If the body lacks that object, the server's preferred parameters apply.
    for given in [values for where, values in objects if where == place] or [{}]:
        values = given
        if place == ("options",):
            _check_options(given)
            values = {**given, **ollama_params(given)}
        facts = Facts(
            max_new_tokens=_limit(values, place),
            beam_width=_beam_width(values, place),
            is_encoder_decoder=manager is not None and manager.model_config.is_encoder_decoder,
            has_input_embeds=has_input_embeds,
            custom_logit_processor=processor,
        )
        try:
            resolved = resolve(values, facts)
            check_needs(values, preferred())
        except FieldError as error:
            raise _as_spelt(error, given) from None
        if resolved.proper_tokens:
            request_field.check_tokenizer(values, manager and manager.tokenizer)
        found.append((values, resolved))
    return found


def _constraint(body: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The constraint that OpenAI's `response_format` or Ollama's `format` requests, if it is well
    formed."""
    if "format" in body:
        return format_schema(body["format"])
    form = values.get("response_format")
    if not isinstance(form, dict):
        return {}
    kind, inner = form.get("type"), form.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    with contextlib.suppress(RecursionError):
        if kind == "json_schema" and isinstance(schema, dict):
            return {"json_schema": json.dumps(schema)}
        if kind == "json_object":
            return {"json_schema": '{"type": "object"}'}
        if kind == "structural_tag":
            return {"structural_tag": json.dumps(form)}
    return {}


async def serve(handler: Callable[[Request], Awaitable[Response]], request: Request) -> Response:
    """Run the handler of a route. Answer the client's errors with HTTP 400 in its API's format.

    On a route that samples, the stream begins only once its first part is available. Upstream would
    send HTTP 200 before it checks the request, and could then only drop the connection.
    """
    route = request.scope.get("route")
    samples = place_of(route) is not None
    try:
        response = await handler(bounded(request))
        if isinstance(response, StreamingResponse) and samples:
            response.body_iterator = await begun(response.body_iterator)
    except DATA_ERRORS as error:
        path = getattr(route, "path", "")
        if isinstance(error, FieldError) or is_clients(error, samples=samples, path=path):
            return await answer(request, as_refusal(error))
        raise
    except RequestValidationError as error:
        error.endpoint_file = None  # upstream's answer is its text, which would name this path
        listed: Any = error.errors()
        del listed[MOST_ERRORS:]
        for one in listed:
            one["msg"], one["input"] = one["msg"][:400], shown(one["input"])
        raise
    return response


def bounded(request: Request) -> Request:
    """The same request, but reading its body fails once it exceeds the allowed size.

    Raises:
        FieldError: the Content-Length header already exceeds the allowed size.
    """
    most = most_body(request.scope.get("route"))
    if most is None:
        return request
    length = request.headers.get("content-length", "")
    error = FieldError(
        "body", f"The body must be at most {most} bytes here, got {length or 'more'}."
    )
    if length.isdecimal() and int(length) > most:
        raise error
    seen = 0

    async def receive() -> Message:
        nonlocal seen
        message = await request.receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise error
        return message

    return type(request)(request.scope, receive)


def most_body(route: object) -> int | None:
    """The largest body of a FastAPI route in bytes; None if it is for operators, because some of
    these accept model weights.
    """
    from sglang.srt.utils.auth import AuthLevel

    manager = _manager()
    models = _models(route)
    level = getattr(getattr(route, "endpoint", None), "_auth_level", AuthLevel.NORMAL)
    if manager is None or level is not AuthLevel.NORMAL:
        return None
    if manager.model_config.is_multimodal or manager.model_config.is_audio_model:
        return limits.MOST_MEDIA
    if any(not SINGLE.isdisjoint(getattr(one, "model_fields", ())) for one in models):
        return min(limits.MOST_BODY, max(limits.LEAST_BODY, most_characters(manager.context_len)))
    return limits.MOST_BODY


async def begun(parts: AsyncIterable[Any]) -> AsyncIterator[Any]:
    """Wait for the first part of a stream, and return a stream of the same parts.

    Raises:
        Exception: whatever the stream raises before its first part.
    """
    rest = aiter(parts)
    first = await anext(rest, None)

    async def all_parts() -> AsyncIterator[Any]:
        if first is not None:
            yield first
        async for part in rest:
            yield part

    return all_parts()


def typed_request(**values: Any) -> Any:
    """Upstream's GenerateReqInput for the values of an envelope, checked like a /generate body.

    Raises:
        FieldError: a value has a wrong type, or its field is reserved for the server.
    """
    from sglang.srt.entrypoints.api_contract import generate_contract_error

    limits.check_internal(values)
    given = {name: value for name, value in values.items() if value is not None}
    if error := generate_contract_error(given):
        raise FieldError("parameters", f"The request cannot be used: {error}.")
    try:
        return _generate_request().validate_python(given)
    except pydantic.ValidationError as error:
        raise FieldError("parameters", f"The request cannot be used: {error}.") from None


async def answer(request: Request, error: Exception) -> Response:
    """HTTP 400 in the error format of the route's API (the handler of `FieldError`)."""
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    place = place_of(request.scope.get("route"))
    message, kind = str(error), "invalid_request_error"
    named = {"message": message, "type": kind, "param": getattr(error, "field", None), "code": 400}
    content: dict[str, Any] = {"error": named}
    if path.startswith("/v1/messages"):  # Anthropic's
        content = {"type": "error", "error": {"type": kind, "message": message}}
    elif place == ("options",):  # Ollama's
        content = {"error": message}
    elif place == () and path != "/v1/responses":  # upstream's form of OpenAI's
        content = {"object": "error", **named}
    return JSONResponse(content, status_code=400)


def _model_of(route: object) -> object:
    """The request model of a FastAPI route that accepts our fields; None if none does."""
    return next((one for one in _models(route) if place_in(one) is not None), None)


def _taken(model: Any, place: Place | None) -> dict[Place, Collection[str]]:
    """The names that a route reads, by the object of its body that has them; none if it does not
    sample."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    if model is None or place is None:
        return {}
    if place == ():
        return {(): model.model_fields}
    if place == ("options",):
        return {(): model.model_fields, place: (*OLLAMA_OPTIONS, *OLLAMA_OURS, *FIELDS)}
    return {place: (*SamplingParams.__struct_fields__, *FIELDS)}


def place_of(route: object) -> Place | None:
    """The object that accepts our fields in the body of a FastAPI route; None if none does."""
    return place_in(_model_of(route))


def place_in(model: object) -> Place | None:
    """The object that accepts our fields in the body of a request model; None if none does."""
    from sglang.srt.managers.io_struct import GenerateReqInput, VertexGenerateReqInput

    if model is GenerateReqInput:
        return ("sampling_params",)
    if model is VertexGenerateReqInput:
        return ("parameters", "sampling_params")
    if isinstance(model, type) and issubclass(model, RequestFields):
        return ()
    if isinstance(model, type) and issubclass(model, RequestFieldsInOptions):
        return ("options",)
    return None


@cache
def _generate_request() -> pydantic.TypeAdapter[Any]:
    from sglang.srt.managers.io_struct import GenerateReqInput

    return pydantic.TypeAdapter(GenerateReqInput)


@cache
def _fail_fast(model: Any) -> None:
    """Let a list end at its first wrong item: in a type adapter of FastAPI's, or in a model of ours
    that upstream also makes of other bodies.

    Pydantic has some twenty errors for each wrong part of a message: those of a large body would
    take gigabytes, and half a minute of the event loop.
    """
    is_adapter = isinstance(model, pydantic.TypeAdapter)
    schema = model.core_schema if is_adapter else model.__pydantic_core_schema__
    name = "validator" if is_adapter else "__pydantic_validator__"
    setattr(model, name, SchemaValidator(_failing_fast(schema), _use_prebuilt=False))


def _failing_fast(schema: Any) -> Any:
    if type(schema) in (list, tuple):
        return type(schema)(map(_failing_fast, schema))
    if not isinstance(schema, dict):
        return schema
    kept = ("default", "expected", "metadata", "serialization")
    found = {key: one if key in kept else _failing_fast(one) for key, one in schema.items()}
    fails_fast = schema.get("type") in ("frozenset", "list", "set", "tuple")
    return {**found, "fail_fast": True} if fails_fast else found


def _models(route: object) -> list[object]:
    """The request models of a FastAPI route."""
    return [parameter.field_info.annotation for parameter in _parameters(route)]


def _parameters(route: object) -> list[Any]:
    return route.dependant.body_params if isinstance(route, APIRoute) else []


def _takes_internal(route: object) -> bool:
    """Whether a route's request model is upstream's internal one, with fields of its own."""
    from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput

    return any(model in (GenerateReqInput, EmbeddingReqInput) for model in _models(route))


async def _body(request: Request) -> Any:
    """The parsed body of a request; None if it cannot be parsed."""
    is_json = request.headers.get("content-type", "").lower().startswith("application/json")
    fields = _parameters(request.scope.get("route"))
    if not is_json and any(isinstance(one.field_info, Form) for one in fields):
        return dict(await request.form())
    try:
        return await request.json()
    except (ValueError, RecursionError):  # upstream's parser reports this
        return None


def _objects(body: Any, where: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a body that may hold sampling parameters, including those inside lists."""
    if isinstance(body, list) and where:
        for item in body:
            if isinstance(item, dict):
                yield from _objects(item, where)
    elif isinstance(body, dict):
        yield where, body
        for name in OBJECTS if len(where) < DEEPEST else ():
            yield from _objects(body.get(name), (*where, name))


def _check_keys(values: Mapping[str, Any], where: Place, place: Place | None) -> None:
    for name, value in values.items():
        # Custom logit processors name their own parameters, and may use our prefixes.
        if where[-1:] == ("custom_params",) and name not in ONLY_OURS:
            continue
        check_name(name, value)
        is_key = name in repetition.KEYS
        if (name not in FIELDS and not is_key) or value is None or (where == place and not is_key):
            continue
        if is_key:
            problem = f"belongs in {repetition.FIELD}"
        elif place is None:
            problem = "must be left out: this endpoint does not take it"
        else:
            problem = f"belongs {located(place)} here"
        raise FieldError(name, f"{name} {problem}, got {shown(value)} {located(where)}.")


def _check_options(options: Mapping[str, Any]) -> None:
    """Check the types of Ollama's options. Upstream passes any value on to the scheduler."""
    from sglang.srt.entrypoints.api_contract import generate_contract_error

    for name, inner in OLLAMA_OPTIONS.items():
        error = generate_contract_error({"sampling_params": {inner: options.get(name)}})
        if error is not None:
            raise FieldError(name, f"{name} has a wrong type, got {shown(options[name])}: {error}.")


def _as_spelt(error: FieldError, options: Mapping[str, Any]) -> FieldError:
    """The error with the name that an Ollama option has in the request."""
    names = {inner: name for name, inner in {**OLLAMA_OPTIONS, **OLLAMA_OURS}.items()}
    name = names.get(error.field)
    if name is None or name not in options or error.field in options:
        return error
    return FieldError(name, str(error).replace(error.field, name, 1))


def _manager() -> Any:
    """Upstream's TokenizerManager; None outside a server."""
    from sglang.srt.entrypoints.http_server import get_global_state

    state = get_global_state()
    return None if state is None else state.tokenizer_manager


def _limit(values: Mapping[str, Any], where: Place) -> Any:
    """The maximum number of tokens to generate, as upstream reads it from this object."""
    if where:
        return values.get(LIMITS[where[-1]])
    return values.get("max_completion_tokens") or values.get("max_tokens")


def _beam_width(values: Mapping[str, Any], where: Place) -> int | None:
    """The number of beams, if it is an integer. Upstream rejects anything else."""
    value = values.get("beam_width") if where[-1:] == ("sampling_params",) else None
    return value if isinstance(value, int) else None
