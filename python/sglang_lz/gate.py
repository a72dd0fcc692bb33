"""Checks our fields of every request over HTTP before its endpoint sees it.

Upstream ignores keys that it does not know, and some of its streams begin before `admit` could
refuse a request. So `check_fields` runs first, on every route. It checks the values of our fields
that the route takes, and refuses them, and any other key that begins as they do
(`params.PREFIXES`), wherever else clients put sampling parameters. The request model of a route
tells whether it takes the fields: a route that a later release adds takes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sglang_lz import metrics, repetition
from sglang_lz.params import FIELDS as LZ_FIELDS
from sglang_lz.params import PREFIXES, FieldError, LZParams, check_name, shown
from sglang_lz.proper import admission
from sglang_lz.requests import (
    FIELDS,
    LZFields,
    LZFieldsInOptions,
    resolve,
    resolve_detection,
    resolve_history,
)

Place: TypeAlias = tuple[str, ...]
"""Keys from a body down to an object in it; () is the body itself."""

# Where clients put sampling parameters, whether or not the route reads them there.
OBJECTS = ("sampling_params", "options", "parameters", "instances", "extra_body", "custom_params")
DEEPEST = 2
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")

# A body with none of these in it holds no field of ours: a key in JSON may be written with escapes.
_TRACES = (*(name.encode() for name in FIELDS), *map(str.encode, PREFIXES), b"\\u00")

# No custom logit processor has parameters of these names.
ONLY_OURS = (*LZ_FIELDS, repetition.FIELD)
# Names that no other name begins like.
_WHOLE_NAMES = (repetition.FIELD, admission.FIELD)

PROCESSOR = "custom_logit_processor"

# The names under which Ollama and SGLang take the most tokens to generate.
LIMITS = {"options": "num_predict", "sampling_params": "max_new_tokens"}


async def check_fields(connection: HTTPConnection) -> None:
    """Refuse a request whose fields cannot be honoured (a FastAPI dependency of every route).

    The request object keeps its parsed body, so upstream does not parse it again. A WebSocket has
    no body.

    Raises:
        FieldError: `answer` turns it into HTTP 400.
    """
    if not isinstance(connection, Request):
        return
    route = connection.scope.get("route")
    place = place_of(route)
    _check_keys(connection.query_params, ("the URL",), place)
    penalties = check_body(await _body(connection, place), place)
    if place is not None:
        metrics.admitted(str(getattr(route, "path", "")), penalties)


def check_json(body: Any, model: type) -> None:
    """`check_fields` for a body that did not come over HTTP, and will become this request model.

    Raises:
        FieldError: its fields of ours cannot be honoured.
    """
    check_body(body, place_in(model))


def check_body(body: Any, place: Place | None) -> list[LZParams]:
    """Refuse a parsed body whose fields of ours cannot be honoured.

    Args:
        body: the parsed JSON or form; None for nothing.
        place: the object that takes our fields; None if there is none.

    Returns:
        The LZ penalty of each object that takes our fields.

    Raises:
        FieldError: a field of ours has a wrong value or name, or stands in another object.
    """
    objects = list(_objects(body))
    for where, values in objects:
        _check_keys(values, where, place)
    has_input_embeds = any(values.get("input_embeds") is not None for _, values in objects)
    processor = next(filter(None, (values.get(PROCESSOR) for _, values in objects)), None)
    found: list[LZParams] = []
    if place is None or not isinstance(body, dict):
        return found
    # A body without that object has the server's preferred parameters.
    for values in [values for where, values in objects if where == place] or [{}]:
        beam_width = _beam_width(values, place)
        limit = _limit(values, place)
        resolve_detection(values, beam_width=beam_width)
        if admission.resolve_proper_tokens(values, max_new_tokens=limit, beam_width=beam_width):
            admission.check_constraint(values, values, _tokenizer())
        facts: dict[str, Any] = {
            "max_new_tokens": limit,
            "beam_width": beam_width,
            "is_encoder_decoder": _is_encoder_decoder(),
            "has_input_embeds": has_input_embeds,
        }
        resolve_history(values, custom_logit_processor=processor, **facts)
        found.append(resolve(values, **facts))
    return found


async def answer(request: Request, error: Exception) -> Response:
    """HTTP 400 in the error format of the route's API (the handler of `FieldError`)."""
    assert isinstance(error, FieldError)
    path = request.url.path.removeprefix(request.scope.get("root_path", ""))
    place = place_of(request.scope.get("route"))
    message, kind = str(error), "invalid_request_error"
    named = {"message": message, "type": kind, "param": error.field, "code": 400}
    content: dict[str, Any] = {"error": named}
    if path.startswith("/v1/messages"):  # Anthropic's
        content = {"type": "error", "error": {"type": kind, "message": message}}
    elif place == ("options",):  # Ollama's
        content = {"error": message}
    elif place == () and path != "/v1/responses":  # upstream's form of OpenAI's
        content = {"object": "error", **named}
    return JSONResponse(content, status_code=400)


def place_of(route: object) -> Place | None:
    """The object that takes our fields in the body of a FastAPI route; None if there is none."""
    parameters = route.dependant.body_params if isinstance(route, APIRoute) else ()
    places = [place_in(parameter.field_info.annotation) for parameter in parameters]
    return next((place for place in places if place is not None), None)


def place_in(model: object) -> Place | None:
    """The object that takes our fields in the body of a request model; None if there is none."""
    from sglang.srt.managers.io_struct import GenerateReqInput, VertexGenerateReqInput

    if model is GenerateReqInput:
        return ("sampling_params",)
    if model is VertexGenerateReqInput:
        return ("parameters", "sampling_params")
    if isinstance(model, type) and issubclass(model, LZFields):
        return ()
    if isinstance(model, type) and issubclass(model, LZFieldsInOptions):
        return ("options",)
    return None


async def _body(request: Request, place: Place | None) -> Any:
    """The parsed body of a request; None if it holds no field of ours, or cannot be parsed."""
    if request.headers.get("content-type", "").lower().startswith(FORMS):
        return dict(await request.form())
    raw = await request.body()
    # Routes that take no field may get megabytes.
    if place is None and not any(part in raw for part in _TRACES):
        return None
    try:
        return await request.json()
    except (ValueError, RecursionError):  # upstream's parser will answer that
        return None


def _objects(body: Any, where: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a body that may hold sampling parameters, those in lists included."""
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
        if name not in FIELDS and not name.startswith(PREFIXES):
            continue
        # Custom logit processors choose the names of their own parameters.
        if where[-1:] == ("custom_params",) and name not in ONLY_OURS:
            continue
        if name not in _WHOLE_NAMES:
            check_name(name, value)
        if where == place or value is None:
            continue
        here = f"in {'.'.join(where)}" if where else "at the top level"
        if place is None:
            raise FieldError(
                name, f"{name} must be left out: this endpoint does not take it, got "
                f"{shown(value)} {here}.",
            )  # fmt: skip
        there = f"in {'.'.join(place)}" if place else "at the top level"
        raise FieldError(name, f"{name} must stand {there} here, got {shown(value)} {here}.")


def _is_encoder_decoder() -> bool:
    from sglang.srt.entrypoints.http_server import get_global_state

    state = get_global_state()
    return state is not None and bool(state.tokenizer_manager.model_config.is_encoder_decoder)


def _tokenizer() -> Any:
    from sglang.srt.entrypoints.http_server import get_global_state

    state = get_global_state()
    return None if state is None else state.tokenizer_manager.tokenizer


def _limit(values: Mapping[str, Any], where: Place) -> Any:
    """The most tokens to generate, as upstream reads it there."""
    if where:
        return values.get(LIMITS[where[-1]])
    return values.get("max_completion_tokens") or values.get("max_tokens")


def _beam_width(values: Mapping[str, Any], where: Place) -> int | None:
    """The number of beams, if it is an integer. Upstream refuses anything else."""
    value = values.get("beam_width") if where[-1:] == ("sampling_params",) else None
    return value if isinstance(value, int) else None
