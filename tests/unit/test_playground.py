"""The playground without a browser: what it computes, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

import oracle
from lz_penalty.fields import lz
from lz_penalty.fields.lz import LZParams
from sglang_lz.playground import app
from sglang_lz.playground.explain import COLUMNS, Explainer, loops_in
from sglang_lz.playground.upstream import Upstream

V = 32
HOST = "127.0.0.1:30080"
LOOP = [1, 2, 3, 4] * 12
TEXT = [*range(5, 25), *LOOP, 7, 1, 2, 9, *[6] * 30, 1, 2, 3, 9, 9, *LOOP, 30]


def params(**fields: Any) -> LZParams:
    return LZParams.parse({**lz.RECOMMENDED, **fields}, 1024)


SETTINGS = [
    params(),
    params(lz_onset=0),
    params(lz_onset=1, lz_cost="rate"),
    params(lz_onset=0, lz_window_size=9, lz_buffer_size=3),
    params(lz_onset=2, lz_window_size=16, lz_include_prompt=True),
]


@pytest.mark.parametrize("setting", SETTINGS)
def test_lowered_nats_equal_the_oracle(setting: LZParams) -> None:
    rng = random.Random(1)
    prompt = LOOP[:32]
    text = [*TEXT, *(rng.randrange(4) for _ in range(40))]
    numbers = frozenset({0, 3})
    rows = Explainer(setting, V, prompt, numbers).explain(text)
    own = setting.include_prompt, setting.window_size, setting.onset
    memory = oracle.memory_of_steps(prompt, text, *own, numbers=numbers)
    lowered = 0
    for i, (token, row) in enumerate(zip(text, rows, strict=True)):
        told = dict(zip(COLUMNS, row, strict=True))
        x = oracle.visible_history(prompt, text[:i], setting.include_prompt)
        delta = oracle.delta_bits(
            *(x, V, setting.window_size, setting.buffer_size, setting.cost),
            onset=setting.onset,
            memory=memory[i],
            numbers=numbers,
        )
        bits = np.log2(V) - delta[token]
        assert told["nats"] == pytest.approx(setting.penalty * bits, abs=1e-4)
        assert bool(told["memory"]) == memory[i]
        seen = x[-setting.window_size :]
        assert bool(told["distance"]) == (token in seen)
        if told["distance"]:
            assert x[-int(told["distance"])] == token
            source = len(seen) - 1 - int(told["distance"])
            matches = oracle.match_lengths(seen, setting.buffer_size)
            assert told["match"] == (matches[source] if source >= 0 else 0)
            copies = oracle.copies(x, setting.window_size)
            assert told["copies"] == copies.get(int(told["distance"]), 0)
            lowered += told["nats"] > 0
    assert lowered > 10


def test_loops_are_those_that_reach_the_onset() -> None:
    found = loops_in(TEXT, params())
    assert [(one.pattern_size, one.begin, one.end) for one in found] == [
        (4, 20, 68),
        (1, 72, 102),
        (4, 107, 155),
    ]
    assert [one.repeated for one in found] == [44, 29, 44]
    numbered = [*TEXT[:68], *(token for n in range(7, 12) for token in (1, 2, 3, 4, 5, 6, n)), 1]
    numbers = range(7, 12)
    for text, own, ends in ((numbered, (), [72]), (numbered, numbers, [72, 104])):
        assert [one.end for one in loops_in(text, params(), own)] == ends


# The application


def answer(tokens: list[int], *, is_last: bool) -> str:
    meta = {
        "output_token_logprobs": [[-0.5, token, f"<img onerror={token}>"] for token in tokens],
        "finish_reason": {"type": "length"} if is_last else None,
    }
    text = "".join(f"<img onerror={token}>" for token in tokens)
    return f"data: {json.dumps({'text': text, 'meta_info': meta})}\n\n"


class Server:
    """A server that answers as SGLang does, with the changes that a test makes."""

    def __init__(self, *, is_ours: bool = True) -> None:
        self.info: dict[str, Any] = {"served_model_name": "m"}
        if is_ours:
            self.info["lz_max_window_size"] = 600
        self.output = LOOP
        self.bodies: list[dict[str, Any]] = []
        self.stream = answer(LOOP[:5], is_last=False) + answer(LOOP, is_last=True)
        self.stream += "data: [DONE]\n\n"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content) if request.content else {}
        if request.url.path == "/server_info":
            return httpx.Response(200, json=self.info)
        if request.url.path == "/tokenize":
            text = body.get("prompt") or body["messages"][0]["content"]
            return httpx.Response(200, json={"tokens": [ord(c) % V for c in text]})
        if request.url.path == "/detokenize":
            return httpx.Response(200, json={"text": [f"<{t[0]}>" for t in body["tokens"]]})
        self.bodies.append(body)
        if max(body["input_ids"]) >= V:
            error = {"message": f"input_ids must be token ids in [0, {V - 1}], got more."}
            return httpx.Response(400, json={"error": error})
        if body.get("stream"):
            return httpx.Response(200, text=self.stream)
        output = body["input_ids"][body["logprob_start_len"] :]
        meta = {
            "input_token_logprobs": [[None, 0, ""], *[[-1.5, t, "x"] for t in output[1:]]],
            "input_top_logprobs": [None, *[[[-0.1, 3, "y"]] for _ in output[1:]]],
        }
        return httpx.Response(200, json={"meta_info": meta})


def ask(
    method: str,
    path: str,
    server: Callable[[httpx.Request], httpx.Response] | None = None,
    headers: dict[str, str] | None = None,
    **request: Any,
) -> httpx.Response:
    async def answered() -> httpx.Response:
        upstream = Upstream("http://127.0.0.1:1", httpx.MockTransport(server or Server()))
        application = app.create_app(upstream, frozenset({HOST}))
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as client:
            return await client.request(method, path, headers=headers, **request)

    return asyncio.run(answered())


ASKED: dict[str, Any] = {
    **{"column": "lz", "prompt": "abc", "chat": False, "temperature": 0, "seed": 1},
    **{"max_new_tokens": len(LOOP), "known": "repetition_penalty", "known_value": 1.2},
    "fields": dict(lz.RECOMMENDED),
}


def events(server: Server | None = None, **changes: Any) -> list[dict[str, Any]]:
    response = ask("POST", "/api/generate", server, json=ASKED | changes)
    assert response.status_code == 200, response.text
    return [json.loads(part.removeprefix("data: ")) for part in response.text.split("\n\n")[:-1]]


def test_a_server_that_is_not_ours_runs_the_other_columns() -> None:
    assert ask("GET", "/api/server", Server(is_ours=False)).json()["sentence"] == app.STOCK
    for path in ("/api/generate", "/api/explain"):
        refused = ask("POST", path, Server(is_ours=False), json={**ASKED, "text": "a"})
        assert (refused.status_code, refused.json()["error"]) == (502, app.STOCK)
    server = Server(is_ours=False)
    assert events(server, column="none")[-1]["end"] == "length"
    assert "lz_penalty" not in server.bodies[0]["sampling_params"]


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (answer(LOOP[:5], is_last=False), "The server's stream broke off before its end."),
        ("data: {\n\n", "The server's stream is not one of /generate."),
        ('data: {"error": {"message": "full"}}\n\n', "The server says: full"),
    ],
)
def test_a_stream_that_breaks_is_a_sentence(stream: str, sentence: str) -> None:
    server = Server()
    server.stream = stream
    assert events(server)[-1] == {"error": sentence}


def test_a_text_may_hold_what_ends_a_line_elsewhere() -> None:
    server = Server()
    server.stream = server.stream.replace("<img", "\u2028\x85\\n\\n<img")
    assert events(server)[0]["tokens"][0][1] == "\u2028\x85\n\n<img onerror=1>"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"column": 1}, 'column must be "none" or "known" or "lz", got 1.'),
        ({"prompt": ""}, "prompt must be a text of 1 to 65536 characters, got 0 characters."),
        ({"max_new_tokens": 5000}, "max_new_tokens must be an integer in [1, 4096], got 5000."),
        (
            {"column": "known", "known_value": 3},
            "repetition_penalty must be a finite number in [0.01, 2], got 3.",
        ),
        ({"fields": 3}, "fields must be an object of request fields, got 3."),
        ({"fields": {"lz_penalty": 11}}, "lz_penalty must be a finite number in [0, 10], got 11."),
        (
            {"fields": {"lz_window_size": 601}},
            "lz_window_size must be an integer in [1, 600], the upper end being the server's "
            "--lz-max-window-size, got 601.",
        ),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], sentence: str) -> None:
    response = ask("POST", "/api/generate", json=ASKED | changes)
    assert (response.status_code, response.json()["error"]) == (400, sentence)


def test_sizes_are_bounded() -> None:
    headers = {"content-type": "application/json"}
    large = ask("POST", "/api/explain", content=b"x" * (app.BODY_BYTES + 1), headers=headers)
    assert large.status_code == 400
    assert large.json()["error"] == "The playground takes at most 1,048,576 bytes at a time."
    text = {"text": "a" * (app.MOST_TOKENS + 1), "fields": ASKED["fields"]}
    assert ask("POST", "/api/explain", json=text).json()["error"] == (
        "text must be at most 4096 tokens long, got 4097 tokens."
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:30080"},
        {"host": "127.0.0.1:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"content-type": "text/plain"},
    ],
)
def test_requests_from_other_pages_are_refused(headers: dict[str, str]) -> None:
    body = json.dumps(ASKED)
    own = {"content-type": "application/json", "origin": f"http://{HOST}"}
    assert ask("POST", "/api/generate", headers=own, content=body).status_code == 200
    assert ask("POST", "/api/generate", headers=own | headers, content=body).status_code == 403


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/page.css", "/session.json", "/api/fields", "/absent"]
)
def test_every_answer_has_a_strict_policy(path: str) -> None:
    response = ask("GET", path)
    assert response.status_code == (404 if path == "/absent" else 200)
    assert response.headers["content-security-policy"].startswith("default-src 'none'; ")
    assert "unsafe" not in response.headers["content-security-policy"]
