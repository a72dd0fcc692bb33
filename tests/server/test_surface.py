"""The five request fields in every endpoint (docs/SPEC.md section 6)."""

from __future__ import annotations

import json
import math
import random
from functools import cache
from typing import Any

import pytest
import requests

from server.client import OFF, Json, Lz, generate, post, post_ok
from server.configurations import on
from server.contract import check
from server.endpoints import ENDPOINTS, Endpoint
from server.launch import Server
from server.prompts import repetitive

NEW_TOKENS = 48
SEEN: Json = {"lz_penalty": 0.5, "lz_include_prompt": True}
# Each changes one field, and each has to change the text.
VARIANTS: dict[str, Json] = {
    "penalty": SEEN,
    "off": {},
    "strength": {**SEEN, "lz_penalty": 2.5},
    "window": {**SEEN, "lz_window_size": 6},
    "buffer": {**SEEN, "lz_buffer_size": 1},
    "include_prompt": {"lz_penalty": 0.5},
    "cost": {**SEEN, "lz_cost": "rate"},
}
FIELDS = ("lz_penalty", "lz_window_size", "lz_buffer_size", "lz_include_prompt", "lz_cost")

WRONG_VALUES: tuple[tuple[str, Json, list[str], list[Any]], ...] = (
    (
        "lz_penalty",
        {},
        ["0", "10"],
        [True, False, "0.5", -0.1, -1, 10.5, 11, [0.5], math.nan, math.inf, -math.inf],
    ),
    (
        "lz_window_size",
        {},
        ["1", "1024"],
        [0, -1, 1025, 64.0, 3.5, True, "64", [64], math.inf],
    ),
    ("lz_buffer_size", {"lz_window_size": 48}, ["1", "48"], [0, -3, 49, 8.0, True, "8"]),
    ("lz_include_prompt", {}, ["true", "false"], ["yes", "true", 1, 0, []]),
    ("lz_cost", {}, ["marginal", "rate"], ["x", "Rate", "", 1, True, ["rate"]]),
)

every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)


def reference(server: Server, prompt: list[int], fields: Json) -> str:
    """The text that /generate gives for these ids."""
    sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, **fields}
    answer = post_ok(server, "/generate", {"input_ids": prompt, "sampling_params": sampling})
    return str(answer["text"])


@cache
def telling(server: Server, endpoint: Endpoint) -> tuple[str, dict[str, str]]:
    """A content for which every variant gives another text, and those texts by variant."""
    words = ("red", "fox", "and", "dog", "one", "world", "over", "file", "name", "12", "34")
    for seed in range(60):
        rng = random.Random(seed)
        phrase = " ".join(rng.choices(words, k=rng.randint(3, 6)))
        content = f"{phrase} {phrase} {rng.choice(words)} {phrase} {rng.choice(words)}"
        prompt = endpoint.prompt_ids(content)
        texts: dict[str, str] = {}
        for name, fields in VARIANTS.items():
            texts[name] = reference(server, prompt, fields)
            if len(set(texts.values())) < len(texts):
                break
        else:
            return content, texts
    raise AssertionError("no content makes every field visible in the text")


@on("overlap")
@every_endpoint
@pytest.mark.parametrize("variant", VARIANTS)
def test_each_field_takes_effect(server: Server, endpoint: Endpoint, variant: str) -> None:
    content, texts = telling(server, endpoint)
    answer = endpoint.send(server, content, NEW_TOKENS, VARIANTS[variant])
    assert answer.status_code == 200, answer.text
    assert endpoint.text(answer.json()) == texts[variant]


@on("overlap")
@every_endpoint
def test_a_stream_says_the_same(server: Server, endpoint: Endpoint) -> None:
    content, texts = telling(server, endpoint)
    answer = endpoint.send(server, content, NEW_TOKENS, VARIANTS["cost"], stream=True)
    assert answer.status_code == 200, answer.text
    if endpoint.name.startswith("ollama"):  # upstream drops the last event's text there
        streamed = endpoint.streamed(answer)
        assert len(streamed) > len(texts["cost"]) // 2
        assert texts["cost"].startswith(streamed)
    else:
        assert endpoint.streamed(answer) == texts["cost"]


@on("overlap")
@every_endpoint
def test_null_means_default(server: Server, endpoint: Endpoint) -> None:
    content, texts = telling(server, endpoint)
    nothing = dict.fromkeys(FIELDS)
    for variant, fields in (("off", nothing), ("include_prompt", {**nothing, "lz_penalty": 0.5})):
        answer = endpoint.send(server, content, NEW_TOKENS, fields)
        assert answer.status_code == 200, answer.text
        assert endpoint.text(answer.json()) == texts[variant]


@on("overlap")
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
@pytest.mark.parametrize("strength", [{}, {"lz_penalty": 0.5}], ids=["alone", "with-penalty"])
def test_wrong_values(server: Server, endpoint: Endpoint, stream: bool, strength: Json) -> None:
    """Each wrong value is a 400 that names the field, the value and the range."""
    complaints = []
    wrong = [(*row[:3], value) for row in WRONG_VALUES for value in row[3]]
    for field, others, allowed, value in wrong:
        fields = {**strength, **others, field: value}
        answer = endpoint.send(server, "a b c", 2, fields, stream=stream)
        shown = {repr(value), json.dumps(value), str(value)}
        if answer.status_code != 400:
            complaints.append(
                f"{field}={value!r}: status {answer.status_code}: {answer.text[:200]}"
            )
        elif field not in answer.text:
            complaints.append(f"{field}={value!r}: field not named: {answer.text[:300]}")
        elif not any(text in decoded(answer) for text in shown):
            complaints.append(f"{field}={value!r}: value not named: {answer.text[:300]}")
        elif not all(text in decoded(answer).lower() for text in allowed):
            complaints.append(f"{field}={value!r}: range not named: {answer.text[:300]}")
    assert not complaints, "\n".join(complaints)
    answer = endpoint.send(server, "a b c", 2, {"lz_penalty": 0.5})
    assert answer.status_code == 200, f"no longer serving: {answer.text}"


def decoded(answer: requests.Response) -> str:
    """The body with JSON's escapes taken out of its message."""
    return answer.text.replace('\\"', '"')


@on("overlap")
def test_one_wrong_request_of_a_batch(server: Server) -> None:
    for index in range(2):
        sampling: list[Json] = [{"max_new_tokens": 2}, {"max_new_tokens": 2}]
        sampling[index]["lz_penalty"] = 99
        answer = post(server, "/generate", {"text": ["a", "b"], "sampling_params": sampling})
        assert answer.status_code == 400
        assert "lz_penalty" in answer.text


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
@every_endpoint
def test_openapi_describes_the_fields(server: Server, endpoint: Endpoint) -> None:
    document = requests.get(f"{server.url}/openapi.json", timeout=30).json()
    content = document["paths"][endpoint.path]["post"]["requestBody"]["content"]
    found = properties(document, content["application/json"]["schema"])
    for field in FIELDS:
        assert len(found.get(field, "")) > 20, f"{field}: {found.get(field)!r}"


def properties(document: Json, schema: Any, seen: tuple[str, ...] = ()) -> dict[str, str]:
    """Description by name of every property that a schema reaches."""
    found: dict[str, str] = {}
    if isinstance(schema, list):
        for part in schema:
            found |= properties(document, part, seen)
    elif isinstance(schema, dict):
        target = schema.get("$ref")
        if isinstance(target, str) and target not in seen:
            name = target.rsplit("/", 1)[1]
            found |= properties(document, document["components"]["schemas"][name], (*seen, target))
        for key, value in schema.items():
            if key == "properties":
                found |= {name: part.get("description", "") for name, part in value.items()}
                found |= properties(document, list(value.values()), seen)
            elif key not in ("default", "example", "examples"):
                found |= properties(document, value, seen)
    return found


@on("overlap", "defaults")
def test_the_maximum_window_is_reported(server: Server) -> None:
    info = requests.get(f"{server.url}/server_info", timeout=30).json()
    assert info["lz_max_window_size"] == (24 if server.config.name == "defaults" else 1024)


PREFERRED = Lz(0.5, 24, 24, False, "rate")


@on("defaults")
@pytest.mark.parametrize(
    ("fields", "lz"),
    [
        ({}, PREFERRED),
        (dict.fromkeys(FIELDS), PREFERRED),
        ({"lz_cost": "marginal"}, Lz(0.5, 24, 24, False, "marginal")),
        ({"lz_penalty": 1.5, "lz_window_size": 9}, Lz(1.5, 9, 9, False, "rate")),
        ({"lz_include_prompt": True, "lz_buffer_size": 2}, Lz(0.5, 24, 2, True, "rate")),
        ({"lz_penalty": 0}, OFF),
    ],
    ids=str,
)
def test_server_wide_defaults(server: Server, fields: Json, lz: Lz) -> None:
    """--preferred-sampling-params sets defaults, a field wins; a small maximum shrinks both."""
    rng = random.Random("defaults")
    for _ in range(3):
        sample = generate(server, repetitive(rng, 40), 48, OFF, **fields)
        check(server, sample, lz, "defaults: preferred parameters")


@on("defaults")
@every_endpoint
def test_server_wide_defaults_in_every_endpoint(server: Server, endpoint: Endpoint) -> None:
    content = "the red fox the red fox sees the red fox"
    prompt = endpoint.prompt_ids(content)
    explicit = {"lz_penalty": 0.5, "lz_cost": "rate", "lz_window_size": 24, "lz_buffer_size": 24}
    expected = reference(server, prompt, explicit)
    off = reference(server, prompt, {"lz_penalty": 0})
    assert expected != off
    for fields, text in (
        ({}, expected),
        (dict.fromkeys(FIELDS), expected),
        ({"lz_penalty": 0}, off),
    ):
        answer = endpoint.send(server, content, NEW_TOKENS, fields)
        assert answer.status_code == 200, answer.text
        assert endpoint.text(answer.json()) == text


@on("defaults")
@every_endpoint
def test_a_smaller_maximum_is_enforced(server: Server, endpoint: Endpoint) -> None:
    for fields in ({"lz_window_size": 25}, {"lz_buffer_size": 25}):
        answer = endpoint.send(server, "a b c", 2, fields)
        assert answer.status_code == 400, answer.text
        assert next(iter(fields)) in answer.text
        assert "24" in answer.text
