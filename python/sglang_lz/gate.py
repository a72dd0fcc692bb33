"""What a request over HTTP says of the LZ penalty, checked before its endpoint sees it.

Upstream ignores the keys that it does not know, and some of its streams begin before `admit` could
refuse a request. So `check_fields` looks at the requests of every route first: a field that the
route takes is checked, and every other key that begins as ours do is refused, wherever sampling
parameters may stand. A route that takes the fields says so by its request model, so one that
the next release adds takes none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from sglang_lz.params import FIELDS, PREFIX, FieldError, check_name, shown
from sglang_lz.requests import LZFields, LZFieldsInOptions, resolve

Place: TypeAlias = tuple[str, ...]
"""Keys from a body down to an object in it; () is the body itself."""

# Where clients put sampling parameters, rightly or not.
OBJECTS = ("sampling_params", "options", "parameters", "instances", "extra_body", "custom_params")
DEEPEST = 2
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")

# What Ollama and SGLang call the most tokens to generate.
LIMITS = {"options": "num_predict", "sampling_params": "max_new_tokens"}


async def check_fields(connection: HTTPConnection) -> None:
    """Refuse a request whose LZ fields cannot be honoured (a dependency of every route).

    Upstream reads the same request, so its body is read and parsed once. A WebSocket has no body.

    Raises:
        FieldError: which `answer` turns into HTTP 400.
    """
    if not isinstance(connection, Request):
        return
    place = place_of(connection.scope.get("route"))
    _check_keys(connection.query_params, ("the URL",), place)
    check_body(await _body(connection, place), place)


def check_json(body: Any, model: type) -> None:
    """`check_fields` for a body that came without HTTP, and becomes this request model.

    Raises:
        FieldError: its LZ fields cannot be honoured.
    """
    check_body(body, place_in(model))


def check_body(body: Any, place: Place | None) -> None:
    """Refuse a parsed body whose LZ fields cannot be honoured.

    Args:
        body: what JSON or a form held; None for nothing.
        place: where its LZ fields stand, None if they may stand nowhere.

    Raises:
        FieldError: one of them is wrong, misspelt, or elsewhere.
    """
    objects = list(_objects(body))
    for where, values in objects:
        _check_keys(values, where, place)
    has_input_embeds = any(values.get("input_embeds") is not None for _, values in objects)
    for where, values in objects:
        if where == place:
            resolve(
                values,
                max_new_tokens=_limit(values, where),
                beam_width=_beam_width(values, where),
                is_encoder_decoder=_is_encoder_decoder(),
                has_input_embeds=has_input_embeds,
            )


async def answer(request: Request, error: Exception) -> Response:
    """HTTP 400 in the words of the API that the route belongs to (a handler of `FieldError`)."""
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
    """Where the LZ fields stand in the body of a route of FastAPI's; None if it takes none."""
    parameters = route.dependant.body_params if isinstance(route, APIRoute) else ()
    places = [place_in(parameter.field_info.annotation) for parameter in parameters]
    return next((place for place in places if place is not None), None)


def place_in(model: object) -> Place | None:
    """Where the LZ fields stand in the body that a request model describes; None if nowhere."""
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
    """What stands in a request's body; None if it cannot name a field, or cannot be read."""
    if request.headers.get("content-type", "").lower().startswith(FORMS):
        return dict(await request.form())
    raw = await request.body()
    # The routes that take none may get megabytes. JSON may spell a key with \\u00 escapes.
    if place is None and PREFIX.encode() not in raw and b"\\u00" not in raw:
        return None
    try:
        return await request.json()
    except (ValueError, RecursionError):  # upstream words that
        return None


def _objects(body: Any, where: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a body that may hold sampling parameters, each of a list by itself."""
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
        if not name.startswith(PREFIX):
            continue
        # Custom processors give their own parameters whatever names they like.
        if where[-1:] == ("custom_params",) and name not in FIELDS:
            continue
        check_name(name, value)
        if where == place or value is None:
            continue
        here = f"in {'.'.join(where)}" if where else "at the top level"
        if place is None:
            raise FieldError(
                name, f"{name} must be left out: this endpoint takes no LZ field, got "
                f"{shown(value)} {here}.",
            )  # fmt: skip
        there = f"in {'.'.join(place)}" if place else "at the top level"
        raise FieldError(name, f"{name} must stand {there} here, got {shown(value)} {here}.")


def _is_encoder_decoder() -> bool:
    from sglang.srt.entrypoints.http_server import get_global_state

    state = get_global_state()
    return state is not None and bool(state.tokenizer_manager.model_config.is_encoder_decoder)


def _limit(values: Mapping[str, Any], where: Place) -> Any:
    """The most tokens to generate, as upstream reads it there."""
    if where:
        return values.get(LIMITS[where[-1]])
    return values.get("max_completion_tokens") or values.get("max_tokens")


def _beam_width(values: Mapping[str, Any], where: Place) -> int | None:
    """The number of beams if it is one; what is none, upstream refuses."""
    value = values.get("beam_width") if where[-1:] == ("sampling_params",) else None
    return value if isinstance(value, int) else None
