"""The playground's web application: its page, and the requests that the page sends.

Only the page itself may use it: requests that name another host, or come from a page of another
origin, are refused. The sizes of everything that a browser can send are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool

from lz_penalty.fields import lz
from lz_penalty.fields.kinds import Kind, boolean, choice, integer, number, token_ids
from lz_penalty.fields.lz import LZParams
from lz_penalty.fields.repetition import RECOMMENDED as RECOMMENDED_DETECTION
from lz_penalty.fields.table import FieldError, description, shown
from lz_penalty.numbers import is_number
from sglang_lz.guard import past_outputs
from sglang_lz.playground.explain import Explainer, Row, counters, loops_in
from sglang_lz.playground.upstream import STOCK, About, Upstream, UpstreamError, pieces

PAGE = Path(__file__).parent / "page"
"""Its session.json is the recorded session, which tests/pictures.py makes."""

MOST_TOKENS = 4096
"""Of an output, and of a text."""
MOST_CHARACTERS = 2**16
"""Of a prompt, and of a text."""
BODY_BYTES, LOG_BYTES = 2**20, 2**24
MOST_STREAMS, MOST_READINGS = 6, 2
MOST_LOOPING = 100
"""How many outputs of a log are shown."""
FALL = 0.01
"""By how much another penalty lowers a logit cannot be known from outside, so the page shows how
much a log probability fell. If it fell by less than this, in nats, it may have been rounded."""
SUM_EVERY = 32
"""How many tokens are generated between two updates of an output's summary."""
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
EXAMPLES = (
    (
        "The same lines with another number",
        "Prove by induction that the sum of the first n odd numbers is n squared. Then verify it "
        "for n from 1 to 12, one line for each.",
    ),
    ("A paragraph again and again", "Explain the water cycle to a ten-year-old, step by step."),
    ("A line again and again", "Write a letter of complaint to an airline about lost luggage."),
)
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
        return JSONResponse(await _server(upstream))

    @app.post("/api/request")
    async def request_text(request: Request) -> Response:
        about = await upstream.about()
        asked = Asked(await _body(request), about)
        return JSONResponse({"curl": asked.as_curl(upstream.url)})

    @app.post("/api/generate")
    async def generate(request: Request) -> Response:
        about = await upstream.about()
        asked = Asked(await _body(request), about)
        if streams.locked():
            raise BadRequest(f"At most {MOST_STREAMS} outputs can be generated at a time.")

        async def lines() -> AsyncIterator[str]:
            async with streams:
                async for event in events(upstream, asked):
                    yield f"data: {json.dumps(event)}\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    @app.post("/api/explain")
    async def explain(request: Request) -> Response:
        return JSONResponse(await _explanation(await _body(request), upstream, readings))

    @app.post("/api/log")
    async def log(request: Request) -> Response:
        data = await _bytes(request, LOG_BYTES)
        async with readings:
            return JSONResponse(await run_in_threadpool(looping, data))

    app.mount("/", StaticFiles(directory=PAGE, html=True, follow_symlink=True))
    return app


async def _server(upstream: Upstream) -> dict[str, Any]:
    """Whether the server answers, and what it says of itself."""
    try:
        about = await upstream.about(is_fresh=True)
    except UpstreamError as error:
        return {"url": upstream.url, "answers": False, "sentence": str(error)}
    sentence = "" if about.is_ours else STOCK
    return {"url": upstream.url, "answers": True, "sentence": sentence, **asdict(about)}


async def _explanation(
    body: Mapping[str, Any], upstream: Upstream, readings: asyncio.Semaphore
) -> dict[str, Any]:
    """What the penalty does to the tokens or the text that a request names."""
    about = await upstream.about()
    if not about.is_ours:
        raise UpstreamError(STOCK)
    params = _params(body, about.max_window_size)
    text = None if "ids" in body else _text(body, "text")
    if text is None:
        ids = _read(body, "ids", token_ids(MOST_TOKENS))
        if not ids or max(ids) >= about.vocab_size:
            allowed = f"1 to {MOST_TOKENS} token ids below {about.vocab_size}"
            raise BadRequest(f"ids must be {allowed}, got {shown(ids)}.")
    else:
        ids = await upstream.tokenize(text, is_chat=False)
        if len(ids) > MOST_TOKENS:
            got = f"{len(ids)} tokens"
            raise BadRequest(f"text must be at most {MOST_TOKENS} tokens long, got {got}.")
    texts = await upstream.texts(ids)
    numbers = numbers_of(ids, texts)
    if text is not None:
        texts, _ = pieces(text, 0, texts)
    async with readings:
        rows, total = await run_in_threadpool(explained, ids, params, about.vocab_size, numbers)
    tokens = zip(ids, texts, rows, strict=True)
    return {
        "tokens": [[token, part, None, *row] for token, part, row in tokens],
        "model": about.model,
        **total,
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
        self.temperature = sampling["temperature"]
        self.params = _params(body, about.max_window_size)
        if self.column != OURS:  # the copies are found all the same
            self.params = replace(self.params, penalty=0.0)
        self.vocab_size = about.vocab_size
        penalty: dict[str, Any] = {"lz_penalty": 0} if about.is_ours else {}
        if self.column == OTHER:
            name = _read(body, "known", NAME)
            value = {name: body.get("known_value")}
            penalty[name] = _read(value, name, KNOWN[name][0])
        elif self.column == OURS:
            penalty = self.params.request_fields()
        self.sampling_params: dict[str, Any] = {
            "temperature": self.temperature,
            "max_new_tokens": self.length,
            **({"sampling_seed": sampling["seed"]} if self.temperature else {}),
            # The server's default may be a guard, which would hide what each column does.
            **({"repetition_detection": {"max_pattern_size": 0}} if about.is_ours else {}),
            **penalty,
        }

    def as_curl(self, url: str) -> str:
        """The request, of this column, as a command with curl."""
        path = "/generate"
        body: dict[str, Any] = {"text": self.prompt, "sampling_params": self.sampling_params}
        if self.is_chat:
            renamed = {"max_new_tokens": "max_tokens", "sampling_seed": "seed"}
            path = "/v1/chat/completions"
            body = {
                "model": "default",
                "messages": [{"role": "user", "content": self.prompt}],
                **{renamed.get(name, name): value for name, value in self.sampling_params.items()},
            }
        data = shlex.quote(json.dumps(body, indent=2))
        return f"curl -s {url}{path} -H 'Content-Type: application/json' -d {data}"


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
        rows: list[Row] = []
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
                rows += found
                yield {
                    "tokens": [
                        [token, text, one[0], *row]
                        for token, text, one, row in zip(ids, texts, new, found, strict=True)
                    ]
                }
                if len(output) >= last_sum + SUM_EVERY:
                    last_sum = len(output)
                    yield await run_in_threadpool(summed, output, rows, params, numbers)
        if output:
            before = await upstream.unpenalised(prompt, output)
            again = await run_in_threadpool(Explainer, params, vocab_size, prompt, numbers)
            firsts = [one[2] for one in before]
            taken = await run_in_threadpool(again.explain, output[: len(firsts)], firsts)
            yield {
                "before": [
                    [own, first, text, *row]
                    for (own, first, _, text), row in zip(before, taken, strict=True)
                ]
            }
        total = await run_in_threadpool(summed, output, rows, params, numbers)
        yield {**total, "end": reason}
    except UpstreamError as error:
        yield {"error": str(error)}
    except (KeyError, TypeError, IndexError):
        yield {"error": "The server's answer has another form than SGLang's."}


def summed(
    tokens: list[int], rows: list[Row], params: LZParams, numbers: set[int]
) -> dict[str, Any]:
    """The loops of an output as begin, end, size of the pattern and copies, and its `counters`."""
    found = loops_in(tokens, params, numbers)
    return {
        "loops": [[one.begin, one.end, one.pattern_size, one.count] for one in found],
        "counters": counters(tokens, rows),
    }


def explained(
    ids: list[int], params: LZParams, vocab_size: int, numbers: set[int]
) -> tuple[list[Row], dict[str, Any]]:
    """The effect of these settings on a text without mistakes: its rows, and `summed`."""
    rows = Explainer(params, vocab_size, numbers=numbers).explain(ids)
    return rows, summed(ids, rows, params, numbers)


def numbers_of(ids: Sequence[int], texts: Sequence[str]) -> set[int]:
    """Those of these tokens that are numbers (docs/SPEC.md section 9), by their texts."""
    return {token for token, text in zip(ids, texts, strict=True) if is_number(text)}


def looping(data: bytes) -> dict[str, Any]:
    """The outputs of a log that loop, by the definition of `sglang-lz loops`.

    Raises:
        BadRequest: it cannot be read.
    """
    total = 0
    found: list[dict[str, Any]] = []
    try:
        for output in past_outputs.outputs_in(io.BufferedReader(io.BytesIO(data)), "The file"):
            total += 1
            unit, _, loops = past_outputs.searched(output, RECOMMENDED_DETECTION)
            if not loops or len(found) == MOST_LOOPING:
                continue
            # The page explains an output only when the user opens it, and then only its beginning.
            if unit == past_outputs.TOKENS:
                beginning: dict[str, Any] = {"ids": list((output.tokens or ())[:MOST_TOKENS])}
            else:
                beginning = {"text": (output.text or "")[:MOST_CHARACTERS]}
            copies = max(loop.count for loop in loops)
            found.append({"place": output.place, "copies": copies, **beginning})
    except past_outputs.LoopsError as error:
        raise BadRequest(str(error)) from None
    return {"outputs": total, "looping": found}


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
        "examples": [{"name": name, "prompt": prompt} for name, prompt in EXAMPLES],
        "fall": FALL,
        "log_bytes": LOG_BYTES,
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


async def _bytes(request: Request, most: int) -> bytes:
    """The body of a request.

    Raises:
        BadRequest: it is larger than `most` bytes.
    """
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > most:
            raise BadRequest(f"The playground takes at most {most:,} bytes at a time.")
    return bytes(data)


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await _bytes(request, BODY_BYTES))
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadRequest):
            raise
        raise BadRequest("The request is no JSON.") from None
    if not isinstance(body, dict):
        raise BadRequest("The request must be a JSON object.")
    return body
