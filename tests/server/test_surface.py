"""The request fields in every endpoint (docs/SPEC.md section 6, docs/PENALTIES.md)."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import openai
import pytest
from sglang.srt.sampling.sampling_params import SamplingParams

from bench.http_client import HTTP
from oracle import Penalties
from server.client import OFF, Json, Lz, generate, post, post_ok, refusal
from server.configurations import on
from server.contract import Case, at_once, check
from server.endpoints import ENDPOINTS, Endpoint, every_endpoint, prompt_ids
from server.launch import Server
from server.prompts import repetitive

NEW_TOKENS = 48
SEEN: Json = {"lz_penalty": 0.1, "lz_include_prompt": True, "lz_cost": "rate"}
# By field: a request with it, and one that differs in this field alone.
PAIRS: dict[str, tuple[Json, Json]] = {
    "lz_penalty": ({"lz_penalty": 0.1}, {}),
    "lz_window_size": ({**SEEN, "lz_window_size": 8}, SEEN),
    "lz_buffer_size": ({**SEEN, "lz_buffer_size": 1}, SEEN),
    "lz_include_prompt": (SEEN, {"lz_penalty": 0.1, "lz_cost": "rate"}),
    "lz_cost": ({"lz_penalty": 0.1, "lz_cost": "rate"}, {"lz_penalty": 0.1}),
    "lz_onset": ({"lz_penalty": 0.1, "lz_onset": 64}, {"lz_penalty": 0.1}),
    "dry_multiplier": ({"dry_multiplier": 0.8}, {}),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 3}, {}),
}
FIELDS = tuple(PAIRS)

WRONG_VALUES: tuple[tuple[str, Json, list[str], list[Any]], ...] = (
    (
        "lz_penalty",
        {},
        ["0", "10"],
        [True, False, "0.5", "NaN", -0.1, -1, 10.5, 11, 10**40, [0.5], {}],
    ),
    (
        "lz_window_size",
        {},
        ["1", "1024"],
        [0, -1, 1025, 10**30, 1025.0, 3.5, 1e300, True, "64", [64]],
    ),
    ("lz_buffer_size", {"lz_window_size": 48}, ["1", "48"], [0, -3, 49, 8.5, True, "8"]),
    ("lz_include_prompt", {}, ["true", "false"], ["yes", "true", 1, 0, []]),
    ("lz_cost", {}, ["marginal", "rate"], ["x", "Rate", "", 1, True, ["rate"]]),
    ("lz_onset", {}, ["0", "64"], [-1, 65, 2.5, True, "2", [2]]),
    ("dry_multiplier", {}, ["0", "100"], [-0.1, 101, True, "0.8"]),
    ("no_repeat_ngram_size", {}, ["0"], [-1, 3.5, True, "3"]),
    ("dry_sequence_breakers", {}, ["strings", "40"], ["abc", [""], [1], ["a" * 41]]),
)


def reference(server: Server, prompt: list[int], fields: Json) -> str:
    """The text that /generate gives for these ids."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, **fields}
    answer = post_ok(server, "/generate", {"input_ids": prompt, "sampling_params": sampling})
    return str(answer["text"])


@cache
def telling(server: Server, chat: bool, field: str) -> tuple[str, str]:
    """A content whose greedy text shows the field's effect, and that text by /generate."""
    words = ("if", "the", "value", "is", "an", "object", "exception", "not", "class", "method")
    for seed in range(40):
        rng = random.Random(seed)
        phrase = " ".join(rng.choices(words, k=rng.randint(3, 6)))
        content = f"{phrase} {phrase} {rng.choice(words)} {phrase}"
        prompt = prompt_ids(content, chat)
        text, without = (reference(server, prompt, fields) for fields in PAIRS[field])
        if text != without:
            return content, text
    raise AssertionError(f"no content shows an effect of {field}")


@on("overlap")
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_each_field_takes_effect(server: Server, endpoint: Endpoint, stream: bool) -> None:
    def shows_its_effect(field: str) -> None:
        content, text = telling(server, endpoint.chat, field)
        fields = PAIRS[field][0]
        assert endpoint.answer(server, content, NEW_TOKENS, fields, stream=stream) == text, field

    at_once(shows_its_effect, FIELDS)


def documented_fields(server: Server, endpoint: Endpoint) -> Json:
    """The properties of an endpoint's request, from the server's OpenAPI document."""
    document = HTTP.get(f"{server.url}/openapi.json").json()
    content = document["paths"][endpoint.path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    listed: Json = document["components"]["schemas"][name]["properties"]
    return listed


@on("overlap")
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_null_means_unset_for_every_field(server: Server, endpoint: Endpoint, stream: bool) -> None:
    """Of every object of a request, as OpenAI's API allows."""
    nulls = dict.fromkeys(documented_fields(server, endpoint))
    inner = (*SamplingParams.__struct_fields__[:24], *FIELDS, "num_predict", "seed", "n")
    for fields in ({"lz_penalty": 0.5}, {}):
        body = endpoint.body("a list of", 8, fields)
        expected = endpoint.text(post_ok(server, endpoint.path, body | {"stream": False}))
        filled = {**nulls, **body}
        for place in {"sampling_params", "options"} & body.keys():
            filled[place] = {**dict.fromkeys(inner), **body[place]}
        answer = post(server, endpoint.path, filled | {"stream": True if stream else None})
        assert answer.status_code == 200, answer.text
        if not stream and not endpoint.path.startswith("/api/"):  # Ollama's default is a stream
            assert endpoint.text(answer.json()) == expected
        else:
            assert expected.startswith(endpoint.streamed(answer))


SCHEMA: Json = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
# By endpoint: what it calls each of these sampling parameters of /generate, and with which value.
SPELT: tuple[tuple[str, Json, Json], ...] = (
    ("ollama-chat", {"format": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}),
    ("ollama-generate", {"format": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}),
    ("ollama-generate", {"format": "json"}, {"json_schema": '{"type": "object"}'}),
    ("ollama-generate", {"format": ""}, {}),
    (
        "ollama-chat",
        {"format": SCHEMA, "options": {"proper_tokens": True}},
        {"json_schema": json.dumps(SCHEMA), "proper_tokens": True},
    ),
    ("ollama-chat", {"options": {"repeat_penalty": 1.6}}, {"repetition_penalty": 1.6}),
    (
        "ollama-generate",
        {"options": {"repeat_penalty": 1.6, "repeat_last_n": 6}},
        {"repetition_penalty": 1.6, "penalty_last_n": 6},
    ),
    ("chat", {"json_schema": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
    ("completions", {"json_schema": json.dumps(SCHEMA)}, {"json_schema": json.dumps(SCHEMA)}),
)


@on("overlap")
@pytest.mark.parametrize(("name", "fields", "sampling"), SPELT, ids=str)
def test_endpoints_with_their_own_field_names(
    server: Server, name: str, fields: Json, sampling: Json
) -> None:
    """Its text is that of /generate with SGLang's names."""
    (endpoint,) = (endpoint for endpoint in ENDPOINTS if endpoint.name == name)
    content = "the red fox the red fox sees the red fox"
    body = endpoint.body(content, NEW_TOKENS, fields.get("options", {}))
    body |= {name: value for name, value in fields.items() if name != "options"}
    expected = reference(server, prompt_ids(content, endpoint.chat), sampling)
    assert endpoint.text(post_ok(server, endpoint.path, body | {"stream": False})) == expected
    assert not sampling or expected != reference(server, prompt_ids(content, endpoint.chat), {})


@on("overlap")
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
@pytest.mark.parametrize("strength", [{}, {"lz_penalty": 0.5}], ids=["alone", "with-penalty"])
def test_wrong_values(server: Server, endpoint: Endpoint, stream: bool, strength: Json) -> None:
    """Each wrong value is a 400 that names the field, the value and the range."""
    wrong = []
    for field, others, allowed, values in WRONG_VALUES:
        for value in values:
            fields = {**strength, **others, field: value}
            answer = endpoint.send(server, "a b c", 2, fields, stream=stream)
            said = answer.text.replace('\\"', '"')  # without the escapes of JSON
            shown = {repr(value), json.dumps(value), str(value)}
            if type(value) is int:
                shown.add(repr(float(value)))  # as some JSON parsers read an integer above 64 bits
            is_told = (
                answer.status_code == 400
                and field in said
                and any(text in said for text in shown)
                and all(text in said.lower() for text in allowed)
            )
            if not is_told:
                wrong.append(f"{field}={value!r}: {answer.status_code} {said[:300]}")
    assert not wrong, "\n".join(wrong)
    endpoint.answer(server, "a b c", 2, {"lz_penalty": 0.5})  # it still serves


@on("overlap")
@pytest.mark.parametrize("limit", [{"lz_penalty": 10}, {"lz_penalty": 10.0}, {"lz_penalty": 0}])
def test_limits_are_served(server: Server, limit: Json) -> None:
    rng = random.Random("limits")
    for window, buffer in ((1, 1), (1024, 1024), (1024, 1), (512, 512)):
        lz = Lz(float(limit["lz_penalty"]), window, buffer, True, rng.choice(("marginal", "rate")))
        sample = generate(
            server,
            repetitive(rng, 40),
            12,
            OFF,
            **{**lz.fields(), "lz_window_size": window, **limit},
        )
        check(server, sample, lz, "overlap: limits of the ranges")


@on("overlap")
@pytest.mark.parametrize(
    ("literal", "status"),
    [("NaN", 400), ("Infinity", 400), ("-Infinity", 400), ("1e999", 400), ("0.1", 200)],
)
@every_endpoint
def test_non_finite_numbers(server: Server, endpoint: Endpoint, literal: str, status: int) -> None:
    """JSON has none: the server's parser or the field's check refuses them; 0.1 shows the rest."""
    body = json.dumps(endpoint.body("a", 2, {"lz_penalty": "?"})).replace('"?"', literal)
    headers = {"Content-Type": "application/json"}
    answer = HTTP.post(f"{server.url}{endpoint.path}", content=body, headers=headers)
    assert answer.status_code == status, answer.text


@on("overlap")
@every_endpoint
def test_openapi_describes_the_fields(server: Server, endpoint: Endpoint) -> None:
    """As properties, or by name in the description of the object that has no properties listed."""
    listed = documented_fields(server, endpoint)
    for field in FIELDS:
        described = [
            part["description"]
            for name, part in listed.items()
            if name == field or f"`{field}`: " in part.get("description", "")
        ]
        assert len(described) == 1, f"{field}: {described}"
        assert len(described[0]) > 20


@pytest.mark.every_server
@on("overlap", "defaults")
def test_the_maximum_window_is_reported(server: Server) -> None:
    info = HTTP.get(f"{server.url}/server_info").json()
    assert info["lz_max_window_size"] == (24 if server.config.name == "defaults" else 1024)


PREFERRED = Lz(0.5, 24, 16, True, "rate")


@on("defaults")
@pytest.mark.parametrize(
    ("fields", "lz"),
    [
        ({}, PREFERRED),
        (dict.fromkeys(FIELDS), PREFERRED),
        ({"lz_cost": "marginal"}, Lz(0.5, 24, 16, True, "marginal")),
        ({"lz_penalty": 1.5, "lz_window_size": 9}, Lz(1.5, 9, 9, True, "rate")),
        ({"lz_include_prompt": False, "lz_buffer_size": 2}, Lz(0.5, 24, 2, False, "rate")),
        ({"lz_penalty": 0}, OFF),
    ],
    ids=str,
)
def test_server_wide_defaults(server: Server, fields: Json, lz: Lz) -> None:
    """--preferred-sampling-params sets defaults, a field wins; a small window shrinks both."""
    rng = random.Random("defaults")
    for _ in range(3):
        sample = generate(server, repetitive(rng, 40), 48, OFF, presence_penalty=0, **fields)
        check(server, sample, lz, "defaults: preferred parameters")


@on("defaults")
@every_endpoint
def test_server_wide_defaults_in_every_endpoint(server: Server, endpoint: Endpoint) -> None:
    content = "the red fox the red fox sees the red fox"
    prompt = prompt_ids(content, endpoint.chat)
    explicit = {**PREFERRED.fields(), "presence_penalty": 0.7}
    expected = reference(server, prompt, explicit)
    off = reference(server, prompt, {"lz_penalty": 0, "presence_penalty": 0.7})
    without = reference(server, prompt, {**explicit, "presence_penalty": 0})
    assert len({expected, off, without}) == 3
    for fields, text in (
        ({}, expected),
        (dict.fromkeys(FIELDS), expected),
        ({"lz_penalty": 0}, off),
    ):
        assert endpoint.answer(server, content, NEW_TOKENS, fields) == text


@on("defaults")
@every_endpoint
def test_a_smaller_maximum_is_enforced(server: Server, endpoint: Endpoint) -> None:
    for fields in ({"lz_window_size": 25}, {"lz_buffer_size": 25.0}):
        answer = endpoint.send(server, "a b c", 2, fields)
        assert answer.status_code == 400, answer.text
        assert next(iter(fields)) in answer.text
        assert "24" in answer.text


@on("defaults")
def test_scores_do_not_depend_on_other_requests(server: Server) -> None:
    """Nothing is generated there, so a preferred penalty does not count, alone or in company.

    Upstream samples a batch of such requests only together with one that generates.
    """
    rng = random.Random("scores")
    prompts = [repetitive(rng, 24) for _ in range(20)]
    labels = sorted({*prompts[0]})[:8]

    def scored(fields: Json, *company: Json) -> list[list[float]]:
        found = []
        for prompt in prompts:
            sampling = [{"max_new_tokens": 0, **fields}, *company]
            body = {
                "input_ids": [prompt] * len(sampling),
                "sampling_params": sampling,
                "return_logprob": True,
                "token_ids_logprob": [labels] * len(sampling),
            }
            meta = post_ok(server, "/generate", body)[0]["meta_info"]
            found.append([entry[0] for entry in meta["output_token_ids_logprobs"][0]])
        return found

    expected = scored({"lz_penalty": 0})
    assert scored({}) == [pytest.approx(row, abs=1e-4) for row in expected]
    assert scored({}, {"max_new_tokens": 4}) == [pytest.approx(row, abs=1e-4) for row in expected]


@on("overlap")
def test_every_other_endpoint_refuses_the_fields(server: Server) -> None:
    """All that the server's own OpenAPI document lists, so one that is added is tried too."""
    paths = HTTP.get(f"{server.url}/openapi.json").json()["paths"]
    takers = {endpoint.path for endpoint in ENDPOINTS} | {"/invocations", "/vertex_generate"}
    tried = 0
    for path, methods in paths.items():
        for method in methods.keys() & {"post", "put"}:
            for fields in ({"lz_penalti": 1}, {"lz_penalty": 0.5}):
                if path in takers and "lz_penalty" in fields:
                    continue
                url = f"{server.url}{path.replace('{', '').replace('}', '')}"
                answer = HTTP.request(method, url, json=fields)
                assert answer.status_code == 400, f"{path}: {answer.text[:500]}"
                assert next(iter(fields)) in answer.text
                tried += 1
    assert takers <= paths.keys()
    assert tried > 60
    body = {"instances": [{"text": "a", "lz_penalty": 0.5}]}
    assert "belongs in parameters.sampling_params" in refusal(server, "/vertex_generate", body)


@on("overlap")
def test_the_routes_of_clouds_accept_the_fields(server: Server) -> None:
    """Vertex AI's is /generate in an envelope, SageMaker's is chat completions."""
    fields = PAIRS["lz_penalty"][0]
    content, text = telling(server, False, "lz_penalty")
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, **fields}
    body = {"instances": [{"text": content}], "parameters": {"sampling_params": sampling}}
    assert post_ok(server, "/vertex_generate", body)["predictions"][0]["text"] == text
    (chat,) = (endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")
    content, text = telling(server, True, "lz_penalty")
    answer = post_ok(server, "/invocations", chat.body(content, NEW_TOKENS, fields))
    assert chat.text(answer) == text


@on("overlap")
@pytest.mark.parametrize("new_tokens", [1, 2, 3, 17])
def test_max_output_tokens_are_generated(server: Server, new_tokens: int) -> None:
    """Of /v1/responses, as of OpenAI's."""
    body = {"model": "m", "input": "What is a list?", "max_output_tokens": new_tokens}
    body |= {"temperature": 0, "lz_penalty": 0.1}
    answer = post_ok(server, "/v1/responses", body)
    assert answer["usage"]["output_tokens"] == new_tokens
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}


@on("overlap")
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_an_unmodified_openai_client_is_served_correctly(server: Server, stream: bool) -> None:
    """The penalties of OpenAI's own API: the text is that of /generate, held to the contract."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    content, penalties = "What is a list?", {"frequency_penalty": 0.8, "presence_penalty": 0.3}
    asked: Any = {"model": "m", "max_tokens": NEW_TOKENS, "temperature": 0, **penalties}
    messages: Any = [{"role": "user", "content": content}]
    answer: Any = client.chat.completions.create(**asked, messages=messages, stream=stream)
    if stream:
        text = "".join(chunk.choices[0].delta.content or "" for chunk in answer if chunk.choices)
    else:
        text = answer.choices[0].message.content
    case = Case(prompt_ids(content, True), NEW_TOKENS, penalties=Penalties(**penalties))
    sample = case.run(server)
    case.check(server, sample, "overlap: an OpenAI client")
    assert text == reference(server, case.prompt, penalties)
    assert text != reference(server, case.prompt, {})
