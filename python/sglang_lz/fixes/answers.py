"""Answers that hold any text that the model writes, in each API."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from pydantic import AfterValidator

logger = logging.getLogger(__name__)

_INWARDS = re.compile(r'"\$ref": "#(?!/\$defs/)[^"]*"')
_SHAPES = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "not", "if"}


def object_schema(parameters: Any, default: dict[str, Any] | None = None) -> Any:
    """The schema of a tool's arguments, which are an object (upstream's hook).

    Without a schema, or with one that does not say which kind of value it describes, `null` would
    be allowed.

    Args:
        parameters: the tool's schema, if it has one.
        default: what holds for the object without one. It is given where upstream puts the schema
            into one of a list of calls, of which `#` is the root then.

    Raises:
        ValueError: a `$ref` would point to something else there.
    """
    if default is not None and (found := _INWARDS.search(json.dumps(parameters))):
        raise ValueError(
            f"tools must refer to #/$defs only in their parameters, got {found[0]:.80}: these "
            "become a part of another schema."
        )
    if isinstance(parameters, dict) and parameters.keys() & _SHAPES:
        return parameters
    return {"type": "object", **(parameters or default or {})}


def with_object_arguments(tool: Any) -> dict[str, Any]:
    """Upstream's Tool for XGrammar, its arguments an object, strict or not (upstream's hook)."""
    dumped: dict[str, Any] = tool.model_dump()
    function = dumped["function"]
    is_loose = function.get("strict") is False
    function["parameters"] = object_schema(None if is_loose else function.get("parameters"))
    return {**dumped, "function": {**function, "strict": True}} if is_loose else dumped


def encodable(text: str) -> str:
    """JSON in which half surrogate pairs are escaped, as the model wrote them (upstream's hook)."""
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text)


EncodableJson = Annotated[str, AfterValidator(encodable)]
"""The arguments of a tool call. Upstream's parsers read the escapes and cannot send the result."""


def tool_input(arguments: Any) -> dict[str, Any]:
    """The `input` of Anthropic's tool_use block (upstream's hook).

    Args:
        arguments: what the model wrote. If it is no JSON object that an answer can hold (cut off,
            infinite numbers, half a surrogate pair), the input is empty, as upstream's is.
    """
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError):
        value = None
    if isinstance(value, dict):
        return value
    logger.warning("The arguments of a tool call are no JSON object: %.200r", arguments)
    return {}


def stopped(choice: Any, request: Any) -> dict[str, str]:
    """The fields that name the stop sequence of an Anthropic answer (upstream's hook).

    Args:
        choice: upstream's, of chat completions.
        request: upstream's AnthropicMessagesRequest.
    """
    matched = choice.matched_stop if choice.finish_reason == "stop" else None
    if isinstance(matched, str) and matched in (request.stop_sequences or ()):
        return {"stop_reason": "stop_sequence", "stop_sequence": matched}
    return {}


def surviving(unread: Callable[[str], Any]) -> Callable[[type], type]:
    """Let a parser pass on what it cannot read of an output instead of raising (upstream's hook).

    Args:
        unread: makes the result of the parser's methods of the text that they could not read.
    """

    def wrap(parser: type) -> type:
        for name in ("parse_non_stream", "parse_stream_chunk", "parse_stream_end"):
            setattr(parser, name, _surviving(getattr(parser, name), unread))
        return parser

    return wrap


def _surviving(parse: Callable[..., Any], unread: Callable[[str], Any]) -> Callable[..., Any]:
    @functools.wraps(parse)
    def parsed(self: Any, *texts: str, **options: Any) -> Any:
        try:
            return parse(self, *texts, **options)
        except Exception:
            logger.exception("An output could not be parsed")
            return unread("".join(texts))

    return parsed


def finish_reason(chunk: Any) -> str:
    """Why an answer of Ollama's API ended, its `done_reason` (upstream's hook)."""
    reason = (chunk["meta_info"].get("finish_reason") or {}).get("type")
    return "length" if reason == "length" else "stop"


async def parts(manager: Any, *request: Any) -> AsyncIterator[Any]:
    """The parts of a stream of /generate, each with the whole text so far (upstream's hook).

    The last one, which has the finish reason, has no new text. Ollama's clients expect none there.

    Args:
        manager: upstream's TokenizerManager.
        request: the arguments of its `generate_request`.

    Raises:
        ValueError: the request was ended, for instance because its constraint is refused.
    """
    text = ""
    async for chunk in manager.generate_request(*request):
        text = text + chunk["text"] if manager.incremental_streaming_output else chunk["text"]
        meta = chunk["meta_info"]
        if (meta.get("finish_reason") or {}).get("type") == "abort":
            raise ValueError(meta["finish_reason"]["message"])
        if meta.get("finish_reason") is not None:
            yield {**chunk, "text": text, "meta_info": {**meta, "finish_reason": None}}
        yield {**chunk, "text": text}
