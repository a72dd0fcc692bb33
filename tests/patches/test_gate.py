"""requests/http-gate: what upstream's routes let through, in process, without a server behind them.

A request that passes the gate reaches an endpoint without a server, which is no HTTP 400 of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.testclient import TestClient

from lz_penalty.fields.table import PREFIXES
from sglang_lz.http.admission import FIELDS
from sglang_lz.http.gate import LIMITS, OBJECTS

BODY_METHODS = {"POST", "PUT", "PATCH", "DELETE"}
# Where each route that takes the fields has them.
TAKERS: dict[str, tuple[str, ...]] = {
    "/generate": ("sampling_params",),
    "/v1/completions": (),
    "/v1/chat/completions": (),
    "/invocations": (),
    "/v1/responses": (),
    "/v1/messages": (),
    "/api/chat": ("options",),
    "/api/generate": ("options",),
    "/vertex_generate": ("parameters", "sampling_params"),
}


def all_routes() -> list[BaseRoute]:
    """Upstream's route table, with what its routers bring."""
    from sglang.srt.entrypoints.http_server import app

    def flat(routes: list[Any]) -> Iterator[BaseRoute]:
        for route in routes:
            router = getattr(route, "original_router", None)  # how FastAPI includes a router
            yield from flat(router.routes) if router else [route]

    return list(flat(app.routes))


def api_routes() -> list[APIRoute]:
    return [route for route in all_routes() if isinstance(route, APIRoute)]


def url(route: APIRoute) -> str:
    return re.sub(r"\{[^}]*\}", "x", route.path)


REACHED = 299


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """Upstream's application, whose endpoints say no more than that they were reached."""
    from sglang.srt.entrypoints.http_server import app

    async def reached(**call: Any) -> Response:
        return Response(status_code=REACHED)

    monkeypatch.setattr("fastapi.routing.run_endpoint_function", reached)
    return TestClient(app)  # its lifespan is not entered


def nested(where: tuple[str, ...], values: dict[str, Any]) -> Any:
    """A body with these values at a place."""
    body: Any = values
    for name in reversed(where):
        body = {name: [body] if name == "instances" else body}
    return body


def named(answer: Any) -> str:
    """Our refusal's message; the test fails if the answer is anything else."""
    assert answer.status_code == 400, f"{answer.status_code}: {answer.text[:500]}"
    error = answer.json().get("error", answer.json())
    message = error if isinstance(error, str) else (error or {}).get("message", "")
    assert message.startswith((*FIELDS, *PREFIXES)), message
    return str(message)


def assert_passed(answer: Any) -> None:
    """The gate let it through: it reached its endpoint, or upstream found something wrong."""
    assert answer.status_code in (REACHED, 400, 422), f"{answer.status_code}: {answer.text[:500]}"
    if answer.status_code == 400:
        with pytest.raises(AssertionError):
            named(answer)


def test_every_route_that_takes_requests_is_tried_here() -> None:
    """The others are FastAPI's own pages, and a WebSocket that transcribes."""
    others = [route for route in all_routes() if not isinstance(route, APIRoute)]
    sockets = [route for route in others if isinstance(route, WebSocketRoute)]
    assert [socket.path for socket in sockets] == ["/v1/realtime"]
    for route in others:
        assert route in sockets or (isinstance(route, Route) and route.methods == {"GET", "HEAD"})
    assert "/scale_elastic_ep" in {route.path for route in api_routes()}


def test_the_routes_that_take_the_fields_are_known() -> None:
    from sglang_lz.http.gate import place_of

    taking = {route.path: place_of(route) for route in api_routes()}
    assert {path: place for path, place in taking.items() if place is not None} == TAKERS


@pytest.mark.slow
def test_every_other_route_refuses_them(client: TestClient, server_config: dict[str, Any]) -> None:
    """Wherever they may stand, on every route of this release and on those of the next."""
    seen = 0
    places = [(), *((name,) for name in OBJECTS), ("parameters", "sampling_params")]
    for route in api_routes():
        for method in sorted(BODY_METHODS & route.methods):
            for where in places:
                if where == TAKERS.get(route.path):
                    continue
                for name, value in (("lz_cost", "rate"), ("repetition_detection", "x")):
                    answer = client.request(method, url(route), json=nested(where, {name: value}))
                    message = named(answer)
                    assert message.startswith((f"{name} must ", f"{name} belongs ")), (
                        route.path,
                        where,
                        message,
                    )
                    assert repr(value) in message
                    seen += 1
    assert seen > 600


def test_null_means_unset_everywhere(client: TestClient, server_config: dict[str, Any]) -> None:
    for path in (*TAKERS, "/v1/score", "/v1/embeddings", "/encode"):
        for where in ((), ("sampling_params",), ("options",), ("instances",)):
            answer = client.post(path, json=nested(where, dict.fromkeys(FIELDS)))
            assert_passed(answer)


def test_every_route_refuses_them_in_the_url(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    for route in api_routes():
        for method in sorted(route.methods):
            answer = client.request(method, url(route), params={"lz_penalty": "0.5"})
            assert answer.status_code == 400, (route.path, method, answer.text)
            if method != "HEAD":
                assert "'0.5' in the URL" in named(answer)


def test_forms_are_read(client: TestClient, server_config: dict[str, Any]) -> None:
    files = {"file": ("a.wav", b"RIFF lz_", "audio/wav")}
    for data, message in (
        ({"lz_penalty": "0.5"}, "lz_penalty must be left out"),
        ({"lz_penalti": "0.5"}, "lz_penalti must be spelt lz_penalty"),
    ):
        answer = client.post("/v1/audio/transcriptions", data=data, files=files)
        assert named(answer).startswith(message)
    for kind in ("multipart/form-data", "Multipart/Form-Data"):
        sent = client.build_request(
            "POST", "/v1/audio/transcriptions", data={"model": "m"}, files=files
        )
        sent.headers["content-type"] = sent.headers["content-type"].replace(
            "multipart/form-data", kind
        )
        assert client.send(sent).status_code == REACHED


def test_json_under_the_name_of_a_form_is_json(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    """FastAPI reads it so, and the gate saw an empty form."""
    for kind in ("application/x-www-form-urlencoded+json", "multipart/form-data+json"):
        for body in ('{"text": "a", "sampling_params": {"lz_penalty": -3}}', '{"lz_penalti": 1}'):
            headers = {"Content-Type": f"{kind}; charset=utf-8"}
            named(client.post("/generate", content=body, headers=headers))
        internal = {"text": "a", "positional_embed_overrides": {"a": 1}}
        answer = client.post("/generate", content=json.dumps(internal), headers=headers)
        assert answer.status_code == 400, answer.text


def test_a_body_that_nobody_reads_is_not_read(
    client: TestClient, server_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be endless, and `/health` asks for no key."""

    async def unread(*_: object) -> None:
        raise AssertionError("the body was read")

    monkeypatch.setattr("starlette.requests.Request.body", unread)
    assert client.request("GET", "/health", content=b" " * 1000).status_code == REACHED


def test_many_mistakes_get_a_short_answer(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    """Pydantic lists some twenty for each wrong part of a message, and FastAPI copies each."""
    message = {"role": "user", "content": [{"type": "zzz"}] * 2000}
    for path, body in (
        ("/v1/chat/completions", {"messages": [message]}),
        ("/v1/completions", {"prompt": [[None]] * 4000}),
        ("/v1/score", {"items": [[None]] * 4000, "query": "a", "model": "m"}),
        ("/generate", {"input_embeds": [[None]] * 4000}),
        ("/generate", {"text": "a", "custom_labels": {str(i): i for i in range(4000)}}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code in (400, 422), answer.text[:500]
        assert len(answer.text) < 50_000, answer.text[:500]  # the places in unions are long


def test_keys_spelt_with_escapes_are_read(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    for path in ("/v1/score", "/v1/completions"):
        raw = b'{"\\u006cz_penalti": 1}'
        answer = client.post(path, content=raw, headers={"Content-Type": "application/json"})
        assert "lz_penalti must be spelt" in named(answer)


@pytest.mark.parametrize(("path", "where"), TAKERS.items())
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
class TestTakers:
    @pytest.fixture
    def send(
        self,
        client: TestClient,
        server_config: dict[str, Any],
        path: str,
        where: tuple[str, ...],
        stream: bool,
    ) -> Callable[..., Any]:
        """Sends a request with these values where the route has its LZ fields."""

        def post(**values: Any) -> Any:
            return client.post(path, json={**nested(where, values), "stream": stream})

        return post

    def test_a_wrong_value_is_refused_in_the_words_of_the_api(
        self, send: Callable[..., Any], path: str
    ) -> None:
        """Its place in the error says the field, as OpenAI does (`param`)."""
        answer = send(lz_penalty=11)
        message = "lz_penalty must be a finite number in [0, 10], got 11."
        assert answer.status_code == 400
        error = {"type": "invalid_request_error", "message": message}
        named = {**error, "param": "lz_penalty", "code": 400}
        assert answer.json() == {
            "/v1/messages": {"type": "error", "error": error},
            "/v1/responses": {"error": named},
            "/generate": {"error": named},
            "/vertex_generate": {"error": named},
            "/api/chat": {"error": message},
            "/api/generate": {"error": message},
        }.get(path, {"object": "error", **named})

    def test_a_field_at_the_top_says_where_it_must_stand(
        self,
        client: TestClient,
        server_config: dict[str, Any],
        path: str,
        where: tuple[str, ...],
        stream: bool,
    ) -> None:
        for value in (0.5, "zzz"):
            answer = client.post(path, json={"lz_penalty": value, "stream": stream})
            if where:
                assert named(answer).startswith(f"lz_penalty belongs in {'.'.join(where)} here")
            elif value == 0.5:
                assert_passed(answer)
            else:
                assert named(answer).startswith("lz_penalty must be a finite number")

    def test_a_penalty_without_generated_tokens_is_refused(
        self, send: Callable[..., Any], where: tuple[str, ...]
    ) -> None:
        limit = LIMITS[where[-1]] if where else "max_tokens"
        answer = send(lz_penalty=0.5, **{limit: 0})
        assert "where nothing is generated" in named(answer)
        assert_passed(send(lz_penalty=0, **{limit: 0}))
        # Names that upstream does not read there, and the limit that it takes first.
        for other in {*LIMITS.values(), "max_completion_tokens"} - {limit}:
            values = {"lz_penalty": 0.5, limit: 3, other: 0}
            assert_passed(send(**values))

    def test_a_mode_that_cannot_honour_it_refuses(
        self, send: Callable[..., Any], server_config: dict[str, Any]
    ) -> None:
        server_config["speculative_algorithm"] = "UNO"
        assert "by UNO" in named(send(lz_penalty=1))
        assert_passed(send(lz_penalty=0, lz_window_size=8))

    def test_beams_refuse_a_preferred_penalty_and_say_whose_it_is(
        self, send: Callable[..., Any], server_config: dict[str, Any], where: tuple[str, ...]
    ) -> None:
        server_config["preferred_sampling_params"] = {"lz_penalty": 0.5}
        answer = send(beam_width=2)
        if where[-1:] != ("sampling_params",):  # there upstream knows no beams
            assert_passed(answer)
            return
        message = named(answer)
        assert "beam search" in message
        assert "got 0.5 from the server's --preferred-sampling-params" in message
        assert_passed(send(beam_width=2, lz_penalty=0))


def test_each_of_several_requests_is_checked(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    sampling = [{}, {"lz_penalty": 11}]
    message = named(
        client.post("/generate", json={"text": ["a", "b"], "sampling_params": sampling})
    )
    assert "got 11" in message


def test_a_prompt_of_embeddings_cannot_be_included(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    fields = {"lz_penalty": 0.5, "lz_include_prompt": True}
    embeds = [[0.0]]
    for body, path in (
        ({"input_embeds": embeds, "sampling_params": fields}, "/generate"),
        (
            {"instances": [{"input_embeds": embeds}], "parameters": {"sampling_params": fields}},
            "/vertex_generate",
        ),
    ):
        assert "input_embeds" in named(client.post(path, json=body))


def test_encoder_decoder_models_refuse_before_a_stream(
    client: TestClient, server_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from sglang.srt.entrypoints import http_server

    config = SimpleNamespace(is_encoder_decoder=True, is_multimodal=False, is_audio_model=False)
    state = SimpleNamespace(tokenizer_manager=SimpleNamespace(model_config=config))
    monkeypatch.setattr(http_server, "get_global_state", lambda: state)
    body = {"text": "a", "stream": True, "sampling_params": {"lz_penalty": 1}}
    assert "encoder-decoder" in named(client.post("/generate", json=body))


def test_a_body_is_read_and_parsed_once(
    client: TestClient, server_config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate and upstream's handler share one request."""
    import orjson
    from sglang.srt.entrypoints import http_server

    parsed = []
    monkeypatch.setattr(
        http_server, "orjson", type("Counted", (), {"loads": lambda raw: _count(parsed, raw)})
    )
    assert orjson.loads is not http_server.orjson.loads
    client.post("/v1/completions", json={"prompt": "a", "lz_penalty": 0.5})
    assert [json.loads(raw)["prompt"] for raw in parsed] == ["a"]


def _count(parsed: list[bytes], raw: bytes) -> Any:
    parsed.append(raw)
    return json.loads(raw)


def test_a_custom_processor_may_have_parameters_of_any_name(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    """But for those of the fields, which would be ignored there."""
    for place, body in (
        ("/generate", {"text": "a", "sampling_params": {"custom_params": {}}}),
        ("/v1/chat/completions", {"messages": [], "custom_params": {}}),
    ):
        params = body.get("sampling_params", body)["custom_params"]
        params["lz_mine"] = 1
        assert_passed(client.post(place, json=body))
        params["lz_cost"] = "rate"
        assert "lz_cost belongs" in named(client.post(place, json=body))


def test_names_and_values_of_any_size_get_a_short_answer(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    for body in ({"lz_" + "x" * 10**6: 1}, {"lz_window": [0] * 10**6}, {"lz_cost": "x" * 10**6}):
        answer = client.post("/v1/completions", json={"prompt": "a", **body})
        named(answer)
        assert len(answer.text) < 1000


def test_names_with_half_a_surrogate_pair_get_an_answer(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    """Where the standard parser reads the body, which lets half a surrogate pair through."""
    headers = {"Content-Type": "application/json"}
    answer = client.post("/scale_elastic_ep", content=b'{"lz_\\ud800": 1}', headers=headers)
    assert "lz_? must be spelt" in named(answer)


# By route: where JSON is asked for, and the object of sampling parameters.
JSON_AT: dict[str, str] = {
    "/generate": "json_schema in sampling_params",
    "/v1/completions": "response_format at the top level",
    "/v1/chat/completions": "response_format at the top level",
    "/v1/responses": "text.format at the top level",
    "/v1/messages": "output_config.format at the top level",
    "/api/chat": "format at the top level",
    "/api/generate": "format at the top level",
}
SHAPING: dict[str, Any] = {
    "regex": "[0-9]+",
    "ebnf": 'root ::= "a"',
    "json_schema": "{}",
    "structural_tag": "{}",
    "response_format": {"type": "json_object"},
    "frequency_penalty": 0.5,
    "presence_penalty": -0.5,
    "repetition_penalty": 1.1,
    "min_tokens": 5,
    "min_new_tokens": 5,
}


def reads(path: str, where: tuple[str, ...], name: str) -> bool:
    """Whether a route has this constraint or penalty, by its own request model."""
    from sglang.srt.sampling.sampling_params import SamplingParams

    (route,) = (route for route in api_routes() if route.path == path)
    model = route.dependant.body_params[0].field_info.annotation
    if where == ("sampling_params",):
        return name in SamplingParams.__struct_fields__
    if where == ("options",):
        return name in ("frequency_penalty", "presence_penalty")
    return where == () and path != "/generate" and name in model.model_fields


@pytest.mark.parametrize("path", JSON_AT)
def test_no_route_drops_a_constraint_or_a_penalty(
    client: TestClient, server_config: dict[str, Any], path: str
) -> None:
    """In no place where clients put one."""
    for name, value in SHAPING.items():
        for where in ((), ("sampling_params",), ("options",), ("extra_body",)):
            if where == ("sampling_params",) and path != "/generate":
                continue  # no client has that object there
            answer = client.post(path, json=nested(where, {name: value}))
            if where == TAKERS[path] and reads(path, where, name):
                assert f"{name} would have" not in answer.text, (where, name)
                continue
            assert answer.status_code == 400, (where, name, answer.text)
            assert f"{name} would have no effect" in answer.text, (where, name, answer.text)


@pytest.mark.parametrize("path", JSON_AT)
@pytest.mark.parametrize(
    "name",
    [
        *("guided_json", "structured_outputs", "response_schema", "output_format", "format"),
        *("guided_decoding", "responseSchema", "generationConfig"),
    ],
)
def test_other_servers_names_for_json_are_told_ours(
    client: TestClient, server_config: dict[str, Any], path: str, name: str
) -> None:
    if name == "format" and path.startswith("/api/"):
        return
    for where in {(), TAKERS[path]}:
        answer = client.post(path, json=nested(where, {name: {"type": "object"}}))
        assert answer.status_code == 400, answer.text
        assert f"use {JSON_AT[path]}" in answer.text


@pytest.mark.parametrize(
    ("name", "value", "ours"),
    [
        ("guided_regex", "a+", "regex"),
        ("guided_choice", ["a", "b"], "regex"),
        ("choice", ["a", "b"], "regex"),
        ("guided_grammar", 'root ::= "a"', "ebnf"),
        ("grammar", 'root ::= "a"', "ebnf"),
        ("allowed_token_ids", [1], "logit_bias"),
        ("bad_words", ["a"], "logit_bias"),
        *(("Regex", "a+", "regex"), ("guided-regex", "a+", "regex"), ("gbnf", "x", "ebnf")),
        *(("logits_bias", {"1": 1}, "logit_bias"), ("suppress_tokens", [1], "logit_bias")),
        ("repeat_penalty", 1.1, "repetition_penalty"),
        ("repeat_last_n", 64, "penalty_last_n"),
    ],
)
def test_other_servers_names_are_told_ours(
    client: TestClient, server_config: dict[str, Any], name: str, value: Any, ours: str
) -> None:
    for path, where in TAKERS.items():
        if path.startswith("/api/") and name.startswith("repeat"):
            continue
        answer = client.post(path, json=nested(where, {name: value}))
        assert answer.status_code == 400, (path, answer.text)
        has_it = path not in ("/v1/responses", "/v1/messages", "/api/chat", "/api/generate")
        told = f"use {ours} " if has_it or ours == "penalty_last_n" else "this endpoint has no such"
        if path == "/v1/responses" and ours == "repetition_penalty":
            told = f"use {ours} "
        assert told in answer.text, (path, answer.text)


def test_neutral_values_are_accepted(client: TestClient, server_config: dict[str, Any]) -> None:
    """Some clients send every field that they know, most of them at their neutral values."""
    nothing = {
        **{"regex": "", "json_schema": None, "guided_json": None, "format": ""},
        **{"frequency_penalty": 0, "repetition_penalty": 1.0, "min_tokens": 0},
        "response_format": {"type": "text"},
    }
    for path, where in TAKERS.items():
        for place in {(), where}:
            assert_passed(client.post(path, json=nested(place, nothing)))


def test_json_object_takes_no_schema(client: TestClient, server_config: dict[str, Any]) -> None:
    """llama.cpp's spelling, of which upstream would serve any JSON object."""
    form = {"type": "json_object", "schema": {"type": "object"}}
    for path, body in (
        ("/v1/chat/completions", {"messages": [], "response_format": form}),
        ("/v1/completions", {"prompt": "a", "response_format": form}),
        ("/v1/responses", {"input": "a", "text": {"format": form}}),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 400
        assert "must have type json_schema" in answer.text


def test_two_constraints_are_refused(client: TestClient, server_config: dict[str, Any]) -> None:
    """Upstream would let the one win over the other."""
    both = {"json_schema": "{}", "response_format": {"type": "json_object"}}
    for path in ("/v1/completions", "/v1/chat/completions"):
        answer = client.post(path, json={"prompt": "a", "messages": [], **both})
        assert answer.status_code == 400
        assert "json_schema must be left out beside response_format" in answer.text


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        *(("lz_penalti", "lz_penalty"), ("lz_windowsize", "lz_window_size"), ("lz_", "lz_cost")),
        *(("lz_buffer", "lz_buffer_size"), ("lz_prompt", "lz_include_prompt")),
        *(("LZ_penalty", "lz_penalty"), ("lzpenalty", "lz_penalty"), ("lz-penalty", "lz_penalty")),
        *(("lzPenalty", "lz_penalty"), ("LZ-Onsett", "lz_onset"), ("Lz_Onset", "lz_onset")),
        *(("DRY_multiplier", "dry_multiplier"), ("dryBase", "dry_base")),
        ("noRepeatNgramSize", "no_repeat_ngram_size"),
        *(("proper_token", "proper_tokens"), ("properTokens", "proper_tokens")),
        *(("repetition-detection", "repetition_detection"), ("penaltyLastN", "penalty_last_n")),
    ],
)
def test_the_nearest_name_is_told(
    client: TestClient, server_config: dict[str, Any], wrong: str, right: str
) -> None:
    for path, where in TAKERS.items():
        for place in {(), where}:
            answer = client.post(path, json=nested(place, {wrong: 0.5}))
            assert answer.status_code == 400, (path, answer.text)
            assert f"{wrong} must be spelt {right} or left out: no field has" in answer.text


@pytest.mark.parametrize(
    "key", ["min_count", "max_pattern_size", "min_pattern_size", "ignore_numbers"]
)
def test_a_key_of_the_guard_belongs_in_its_object(
    client: TestClient, server_config: dict[str, Any], key: str
) -> None:
    for path, where in TAKERS.items():
        for place in {(), where}:
            answer = client.post(path, json=nested(place, {key: 20}))
            assert answer.status_code == 400, (path, answer.text)
            assert f"{key} belongs in repetition_detection" in answer.text


MODIFIERS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("lz_onset", "lz_window_size", "lz_buffer_size"), (8, "lz_penalty")),
    "lz_cost": ("rate", "lz_penalty"),
    "lz_include_prompt": (True, "lz_penalty"),
    "dry_base": (1.75, "dry_multiplier"),
    "dry_allowed_length": (2, "dry_multiplier"),
    "dry_penalty_last_n": (-1, "dry_multiplier"),
    "dry_sequence_breakers": (["a"], "dry_multiplier"),
    "no_repeat_ngram_window": (90, "no_repeat_ngram_size"),
    "no_repeat_ngram_whitelist": ([1], "no_repeat_ngram_size"),
    "penalty_last_n": (64, "repetition_penalty"),
}


@pytest.mark.parametrize("name", MODIFIERS)
def test_a_modifier_alone_is_refused(
    client: TestClient, server_config: dict[str, Any], name: str
) -> None:
    value, main = MODIFIERS[name]
    for path, where in TAKERS.items():

        def send(path: str = path, where: tuple[str, ...] = where, **values: Any) -> Any:
            return client.post(path, json=nested(where, {name: value, **values}))

        assert f"{name} needs {main}" in named(send()) or main == "repetition_penalty"
        assert f"{name} needs " in named(send(**{main: None}))
        if main == "repetition_penalty" and not reads(path, where, main):
            continue
        assert_passed(send(**{main: 1.5 if main != "no_repeat_ngram_size" else 3}))
        assert_passed(send(**{main: 0 if main != "repetition_penalty" else 1}))
        server_config["preferred_sampling_params"] = {main: 2}
        assert_passed(send())
        server_config["preferred_sampling_params"] = {main: 0}
        assert f"{name} needs " in named(send())
        server_config["preferred_sampling_params"] = None


def test_the_guard_needs_its_longest_pattern(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    for detection in ({"min_count": 20}, {"action": "stop"}, {"min_count": 3, "action": "stop"}):
        for path, where in TAKERS.items():
            answer = client.post(path, json=nested(where, {"repetition_detection": detection}))
            assert "needs max_pattern_size > 0" in named(answer)
            off = {"repetition_detection": {**detection, "max_pattern_size": 0}}
            assert_passed(client.post(path, json=nested(where, off)))


def test_integral_floats_are_integers(client: TestClient, server_config: dict[str, Any]) -> None:
    fields = {
        **{"lz_penalty": 0.1, "lz_onset": 3.0, "lz_window_size": 64.0, "lz_buffer_size": 8.0},
        **{"no_repeat_ngram_size": 3.0, "no_repeat_ngram_whitelist": [5.0]},
        "repetition_detection": {"max_pattern_size": 512.0, "min_count": 20.0},
    }
    for path, where in TAKERS.items():
        assert_passed(client.post(path, json=nested(where, fields)))


@pytest.mark.parametrize(
    "serving", ["chat", "completion", "embedding", "classify", "score", "rerank"]
)
def test_requests_over_grpc_get_the_same_checks(
    server_config: dict[str, Any], serving: str
) -> None:
    """requests/grpc-gate: OpenAI's JSON, which becomes the same request models."""
    from sglang.srt.entrypoints.grpc_bridge import RuntimeHandle

    class Bridge:
        _get_openai_request_class = RuntimeHandle._get_openai_request_class

        def _get_openai_serving(self) -> dict[str, Any]:
            return {serving: None}

        def _safe_callback(self, callback: Any, body: bytes, **_: Any) -> None:
            callback(json.loads(body)["error"]["message"])

    def answer(**fields: Any) -> str:
        said: list[str] = []
        body = json.dumps({"model": "m", **fields}).encode()
        run = RuntimeHandle._run_openai_request(Bridge(), serving, body, said.append, False)
        with contextlib.suppress(AttributeError):  # it went on to a serving that is not there
            asyncio.run(run)
        return said[0] if said else ""

    assert answer(lz_penalti=0.5).startswith("lz_penalti must be spelt lz_penalty")
    misplaced = answer(sampling_params={"lz_penalty": 0.5})
    wrong = answer(lz_penalty=11)
    if serving in ("chat", "completion"):
        assert misplaced.startswith("lz_penalty belongs at the top level")
        assert wrong.startswith("lz_penalty must be a finite number")
    else:
        assert misplaced.startswith("lz_penalty must be left out")
        assert wrong.startswith("lz_penalty must be left out")


def test_no_answer_names_a_path_of_the_server(
    client: TestClient, server_config: dict[str, Any]
) -> None:
    answer = client.post("/generate", json={"input_ids": ["1"]})
    assert answer.status_code == 400
    assert "elements must be int or list" in answer.text
    assert ".py" not in answer.text
