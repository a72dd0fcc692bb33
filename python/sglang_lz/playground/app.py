"""The playground's web application: its page, and the requests that the page sends.

Only the page itself may use it: requests that name another host, or come from a page of another
origin, are refused. The sizes of everything that a browser can send are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool

from lz_penalty.fields import lz
from lz_penalty.fields.kinds import Kind, boolean, choice, integer, number
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.table import FieldError, description, shown
from lz_penalty.numbers import is_number
from sglang_lz.playground.explain import Explainer, loops_in
from sglang_lz.playground.upstream import STOCK, About, Upstream, UpstreamError, pieces

HOST = "127.0.0.1"
"""Where it listens. It has no password, so it is for this machine alone."""
PAGE = Path(__file__).parent / "page"
"""Its session.json is the recorded session, which tests/pictures.py makes."""

MOST_TOKENS = 4096
"""Of an output, and of a text."""
MOST_CHARACTERS = 2**16
"""Of a prompt, and of a text."""
BODY_BYTES = 2**20
MOST_STREAMS, MOST_READINGS = 6, 2
SUM_EVERY = 32
"""How many tokens are generated between two searches of an output for loops."""
EVENTS = 256
"""A stream has about this many events, because each event repeats the output so far."""

KNOWN: Mapping[str, tuple[Kind, float]] = {
    "repetition_penalty": (number(0.01, 2), 1.2),
    "frequency_penalty": (number(-2, 2), 0.5),
    "presence_penalty": (number(-2, 2), 0.5),
}
"""The penalties that users know, with their ranges in SGLang and the values to start with."""
SAMPLING: Mapping[str, tuple[Kind, float]] = {
    "temperature": (number(0, 2), 0),
    "seed": (integer(0, 2**31 - 1), 1),
    "max_new_tokens": (integer(1, MOST_TOKENS), 400),
}
NONE, OTHER, OURS = "none", "known", "lz"
COLUMN, CHAT, NAME = choice(NONE, OTHER, OURS), boolean(), choice(*KNOWN)
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class BadRequest(ValueError):
    """A request of the page is invalid; the message names field, value and range."""


def run(server: str, port: int) -> None:
    """Serve the page until interrupted.

    Args:
        server: the URL of the server to talk to.
        port: the port to listen on.

    Raises:
        ValueError: a value cannot be used.
    """
    torch.set_num_threads(1)  # the windows are so small that more would only wait for each other
    upstream = Upstream(server)
    if not 1 <= port <= 65535:
        raise ValueError(f"--port must be an integer in [1, 65535], got {port}.")
    suffix = "" if port == 80 else f":{port}"  # as browsers write the header
    app = create_app(upstream, frozenset((HOST + suffix, "localhost" + suffix)))
    print(f"sglang-lz: the playground is at http://{HOST}:{port}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="error", server_header=False)


def create_app(upstream: Upstream, hosts: frozenset[str]) -> FastAPI:
    """The application.

    Args:
        upstream: the one server that it talks to.
        hosts: the values of the Host header that it answers to, as in 127.0.0.1:30080.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await upstream.close()

    app = FastAPI(openapi_url=None, lifespan=lifespan)
    readings = asyncio.Semaphore(MOST_READINGS)
    streams = asyncio.Semaphore(MOST_STREAMS)

    @app.middleware("http")
    async def guard(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = _refused(request, hosts) or await call_next(request)
        response.headers.update(HEADERS)
        return response

    @app.exception_handler(BadRequest)
    @app.exception_handler(FieldError)
    @app.exception_handler(UpstreamError)
    async def refuse(_: Request, error: Exception) -> Response:
        status = 502 if isinstance(error, UpstreamError) else 400
        return JSONResponse({"error": str(error)}, status)

    @app.get("/api/fields")
    async def fields() -> Response:
        return JSONResponse(described())

    @app.get("/api/server")
    async def server() -> Response:
        try:
            about = await upstream.about()
        except UpstreamError as error:
            return JSONResponse({"url": upstream.url, "answers": False, "sentence": str(error)})
        sentence = "" if about.is_ours else STOCK
        said = {"url": upstream.url, "answers": True, "sentence": sentence, **asdict(about)}
        return JSONResponse(said)

    @app.post("/api/generate")
    async def generate(request: Request) -> Response:
        if streams.locked():
            raise BadRequest(f"At most {MOST_STREAMS} outputs can be generated at a time.")
        about = await upstream.about()
        asked = Asked(await _body(request), about)

        async def lines() -> AsyncIterator[str]:
            async with streams:
                async for event in events(upstream, asked):
                    yield f"data: {json.dumps(event)}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    @app.post("/api/explain")
    async def explain(request: Request) -> Response:
        return JSONResponse(await _explanation(await _body(request), upstream, readings))

    app.mount("/", StaticFiles(directory=PAGE, html=True, follow_symlink=True))
    return app


async def _explanation(
    body: Mapping[str, Any], upstream: Upstream, readings: asyncio.Semaphore
) -> dict[str, Any]:
    """What the penalty does to the text that a request holds."""
    about = await upstream.about()
    if not about.is_ours:
        raise UpstreamError(STOCK)
    params = _params(body, about.max_window_size)
    text = _text(body, "text")
    ids = await upstream.tokenize(text, is_chat=False)
    if len(ids) > MOST_TOKENS:
        got = f"{len(ids)} tokens"
        raise BadRequest(f"text must be at most {MOST_TOKENS} tokens long, got {got}.")
    texts = await upstream.texts(ids)
    numbers = numbers_of(ids, texts)
    parts, _ = pieces(text, 0, texts)
    explainer = Explainer(params, about.vocab_size, numbers=numbers)
    async with readings:
        rows = await run_in_threadpool(explainer.explain, ids)
        found = await run_in_threadpool(looped, ids, params, numbers)
    tokens = zip(ids, parts, rows, strict=True)
    return {
        "tokens": [[token, part, None, *row] for token, part, row in tokens],
        "model": about.model,
        **found,
    }


def _refused(request: Request, hosts: frozenset[str]) -> Response | None:
    """The answer to a request that does not come from the page itself; None if it does."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    kind = request.headers.get("content-type", "").partition(";")[0]
    if host.lower() not in hosts:
        sentence = "The playground answers only to the address that it printed when it started."
    elif origin is not None and origin != f"http://{host}":
        sentence = "The playground answers only to its own page."
    # Another origin cannot send this type without asking first.
    elif request.method == "POST" and kind != "application/json":
        sentence = "The playground takes JSON only."
    else:
        return None
    return JSONResponse({"error": sentence}, 403)


class Asked:
    """The request of one column, validated."""

    def __init__(self, body: Mapping[str, Any], about: About) -> None:
        """Read the page's request.

        Raises:
            BadRequest: a value is missing, of the wrong type, or out of range.
            FieldError: a field of the LZ penalty has such a value.
            UpstreamError: the LZ penalty is requested, but the server does not have it.
        """
        self.column = _read(body, "column", COLUMN)
        if self.column == OURS and not about.is_ours:
            raise UpstreamError(STOCK)
        self.prompt = _text(body, "prompt")
        self.is_chat = _read(body, "chat", CHAT)
        sampling = {name: _read(body, name, kind) for name, (kind, _) in SAMPLING.items()}
        self.length = int(sampling["max_new_tokens"])
        self.params = _params(body, about.max_window_size)
        if self.column != OURS:  # the copies are found all the same
            self.params = replace(self.params, penalty=0.0)
        self.vocab_size, self.max_input = about.vocab_size, about.max_input
        penalty: dict[str, Any] = {"lz_penalty": 0} if about.is_ours else {}
        if self.column == OTHER:
            name = _read(body, "known", NAME)
            value = {name: body.get("known_value")}
            penalty[name] = _read(value, name, KNOWN[name][0])
        elif self.column == OURS:
            penalty = self.params.request_fields()
        self.sampling_params: dict[str, Any] = {
            "temperature": sampling["temperature"],
            "max_new_tokens": self.length,
            **({"sampling_seed": sampling["seed"]} if sampling["temperature"] else {}),
            # The server's default may be a guard, which would hide what each column does.
            **({"repetition_detection": {"max_pattern_size": 0}} if about.is_ours else {}),
            **penalty,
        }


async def events(upstream: Upstream, asked: Asked) -> AsyncIterator[dict[str, Any]]:
    """The events that the page receives while an output grows; the last has `end` or `error`.

    `tokens` has for each token its id, its text, its log probability with the penalty, and
    `explain.COLUMNS`. `before` has for each token its log probability without any penalty; the log
    probability and the text of the token that is then the most likely; and `COLUMNS` for that one.
    If the output fills the context, `before` lacks its last tokens, because no prompt may fill it.
    """
    try:
        prompt = await upstream.tokenize(asked.prompt, is_chat=asked.is_chat)
        params = asked.params
        numbers: set[int] = set()
        if params.include_prompt and params.onset:
            numbers = numbers_of(prompt, await upstream.texts(prompt))
        vocab_size = max(asked.vocab_size, 2)
        explainer = await run_in_threadpool(Explainer, params, vocab_size, prompt, numbers)
        output: list[int] = []
        at, reason, last_sum = 0, "", 0
        interval = 1 + asked.length // EVENTS
        async with contextlib.aclosing(
            upstream.stream(prompt, asked.sampling_params, interval)
        ) as answers:
            async for answer in answers:
                meta = answer["meta_info"]
                new = meta["output_token_logprobs"][len(output) : asked.length]
                reason = (meta["finish_reason"] or {}).get("type", "")
                if not new:
                    continue
                ids = [int(one[1]) for one in new]
                texts = [one[2] or "" for one in new]
                numbers |= numbers_of(ids, texts)
                explainer.add_numbers(numbers)
                texts, at = pieces(answer["text"], at, texts)
                found = await run_in_threadpool(explainer.explain, ids)
                output += ids
                yield {
                    "tokens": [
                        [token, text, one[0], *row]
                        for token, text, one, row in zip(ids, texts, new, found, strict=True)
                    ]
                }
                if len(output) >= last_sum + SUM_EVERY:
                    last_sum = len(output)
                    yield await run_in_threadpool(looped, output, params, numbers)
        if output:
            before = await upstream.unpenalised(prompt, output, asked.max_input)
            again = await run_in_threadpool(Explainer, params, vocab_size, prompt, numbers)
            firsts = [one[2] for one in before]
            taken = await run_in_threadpool(again.explain, output[: len(firsts)], firsts)
            yield {
                "before": [
                    [own, first, text, *row]
                    for (own, first, _, text), row in zip(before, taken, strict=True)
                ]
            }
        total = await run_in_threadpool(looped, output, params, numbers)
        yield {**total, "end": reason}
    except UpstreamError as error:
        yield {"error": str(error)}
    except (KeyError, TypeError, IndexError):
        yield {"error": "The server's answer has another form than SGLang's."}


def looped(tokens: list[int], params: LZParams, numbers: set[int]) -> dict[str, Any]:
    """The loops of an output as begin, end and size of the pattern."""
    found = loops_in(tokens, params, numbers)
    return {"loops": [[one.begin, one.end, one.pattern_size] for one in found]}


def numbers_of(ids: Sequence[int], texts: Sequence[str]) -> set[int]:
    """Those of these tokens that are numbers (docs/SPEC.md section 9), by their texts."""
    return {token for token, text in zip(ids, texts, strict=True) if is_number(text)}


def described() -> dict[str, Any]:
    """The controls of the page: every field with its type, range, meaning and default."""
    recommended = LZParams.parse(lz.RECOMMENDED, lz.DEFAULT_MAX_WINDOW_SIZE).request_fields()
    return {
        "lz": [
            {
                "name": name,
                "description": description(name),
                "schema": entry.metadata["kind"].schema,
                "bound": entry.metadata["kind"].bound,
                "value": recommended[name],
            }
            for name, entry in lz.LZ_ENTRIES.items()
        ],
        "known": [_control(name, *control) for name, control in KNOWN.items()],
        "sampling": [_control(name, *control) for name, control in SAMPLING.items()],
        "max_window_size": lz.DEFAULT_MAX_WINDOW_SIZE,
    }


def _control(name: str, kind: Kind, value: float) -> dict[str, Any]:
    return {"name": name, "schema": kind.schema, "value": value}


def _params(body: Mapping[str, Any], max_window_size: int) -> LZParams:
    fields = body.get("fields")
    if not isinstance(fields, dict):
        raise BadRequest(f"fields must be an object of request fields, got {shown(fields)}.")
    return LZParams.parse(fields, max_window_size or lz.DEFAULT_MAX_WINDOW_SIZE)


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARACTERS:
        got = f"{len(value)} characters" if isinstance(value, str) else shown(value)
        raise BadRequest(f"{name} must be a text of 1 to {MOST_CHARACTERS} characters, got {got}.")
    return value


def _read(body: Mapping[str, Any], name: str, kind: Kind) -> Any:
    value = body.get(name)
    if not kind.takes(value, None):
        raise BadRequest(f"{name} must be {kind.allowed}, got {shown(value)}.")
    return value


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > BODY_BYTES:
            raise BadRequest(f"The playground takes at most {BODY_BYTES:,} bytes at a time.")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("The request is no JSON.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request must be a JSON object.")
    return body
