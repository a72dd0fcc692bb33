"""A real server refuses what it cannot do correctly, and continues to serve.

Modes of a whole server are in tests/patches/test_refused_modes.py: upstream needs a C++ compiler,
several machines or a GPU to start most of them. They are refused where a wrong value is, whose
answer at every endpoint is in test_surface.py.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

from bench.http_client import HTTP
from server.client import OFF, Json, Lz, generate, post, refusal, request_body, streaming
from server.configurations import on
from server.contract import check
from server.launch import Server, vocab_size
from server.prompts import repetitive


@on("overlap")
@pytest.mark.parametrize(
    ("field", "off"),
    [
        ({"lz_penalty": 0.5}, "0"),
        ({"frequency_penalty": 0.5}, "0"),
        ({"no_repeat_ngram_size": 3}, "0"),
        ({"proper_tokens": True}, "false"),
    ],
    ids=str,
)
def test_beam_search_refuses(server: Server, field: Json, off: str) -> None:
    """Upstream would ignore each of them."""
    said = refusal(server, "/generate", request_body([5, 6, 7], 4, beam_width=2, **field))
    assert f"{next(iter(field))} must be {off} with beam search" in said
    for lz in (Lz(0.5), OFF):
        sample = generate(server, repetitive(random.Random(2), 12), 8, lz)
        check(server, sample, lz, "overlap: after a refusal")


WRONG_IDS = (-1, vocab_size(), 2**31, 2**62, -(2**62), 2**70)
ASKED: Json = {"max_new_tokens": 2, "temperature": 0}
LABELS: Json = {"model": "m", "label_token_ids": [1]}


def with_id(token: int) -> list[tuple[str, Json]]:
    """Requests with this token id in every place where a client can put one."""
    ids, several = [5, token], [[5], [5, token]]
    message = {"role": "user", "content": "a"}
    chat: Json = {"model": "m", "messages": [message], "max_tokens": 2}
    return [
        ("/generate", {"input_ids": ids}),
        ("/generate", {"input_ids": several}),
        ("/generate", {"input_ids": ids, "image_data": "x"}),
        ("/generate", {"input_ids": [5], "return_logprob": True, "token_ids_logprob": [token]}),
        ("/generate", {"input_ids": [5], "sampling_params": {"logit_bias": {str(token): 1}}}),
        ("/generate", {"input_ids": ids, "sampling_params": {"n": 2}}),
        ("/v1/completions", {"model": "m", "prompt": ids, "max_tokens": 2}),
        ("/v1/completions", {"model": "m", "prompt": several, "max_tokens": 2}),
        ("/v1/chat/completions", {**chat, "logit_bias": {str(token): 1}}),
        ("/vertex_generate", {"instances": [{"input_ids": ids}]}),
        ("/encode", {"input_ids": ids}),
        ("/classify", {"input_ids": several}),
        ("/v1/embeddings", {"model": "m", "input": ids}),
        ("/v1/score", {**LABELS, "query": ids, "items": [[5]]}),
        ("/v1/score", {**LABELS, "query": [5], "items": several}),
        ("/v1/score", {"model": "m", "query": [5], "items": [[5]], "label_token_ids": [token]}),
        ("/v1/detokenize", {"model": "m", "tokens": ids}),
        ("/v1/detokenize", {"model": "m", "tokens": several}),
    ]


@on("overlap")
@pytest.mark.parametrize("token", WRONG_IDS)
def test_unknown_token_ids_are_refused(server: Server, token: int) -> None:
    """Each would end the scheduler, or answer HTTP 500: on every route that takes ids it is 400."""
    for path, body in with_id(token):
        for stream in [False, True] if path in ("/generate", "/v1/completions") else [False]:
            refusal(server, path, {**body, "stream": stream} if stream else body)
    assert generate(server, [5], 2).outputs


@on("overlap")
def test_a_session_refuses_unknown_token_ids(server: Server) -> None:
    name = post(server, "/open_session", {"capacity_of_str_len": 1000}).json()
    session: Json = {"session_params": {"id": name}, "sampling_params": ASKED}
    for ids in ([5, 6], [-1], [vocab_size()], [7]):
        answer = post(server, "/generate", {"input_ids": ids, **session})
        assert answer.status_code == (200 if ids in ([5, 6], [7]) else 400), answer.text
    post(server, "/close_session", {"session_id": name})


def streamed(options: Json) -> list[tuple[str, Json]]:
    """Streams of every route that samples, with these sampling parameters."""
    message = {"role": "user", "content": "a"}
    chat: Json = {"model": "m", "messages": [message], "max_tokens": 2, "stream": True, **options}
    ollama = {"num_predict": 2, **options}  # by default more than the context has room for
    return [
        ("/generate", {"text": "a", "stream": True, "sampling_params": options}),
        ("/v1/completions", {"model": "m", "prompt": "a", "stream": True, **options}),
        ("/v1/chat/completions", chat),
        ("/invocations", chat),
        ("/v1/messages", chat),
        ("/v1/responses", {"model": "m", "input": "a", "stream": True, **options}),
        ("/api/chat", {"model": "m", "messages": [message], "options": ollama}),
        ("/api/generate", {"model": "m", "prompt": "a", "options": ollama}),
    ]


@on("overlap")
@pytest.mark.parametrize("options", [{"temperature": -1}, {"top_p": 5}], ids=str)
def test_a_refused_stream_gets_an_ordinary_error(server: Server, options: Json) -> None:
    """Upstream sends HTTP 200 first, and then an error in the stream, or nothing at all."""
    for path, body in streamed(options):
        assert next(iter(options)) in refusal(server, path, body), path


TEXT: Json = {"text": "a"}
PROMPT: Json = {"model": "m", "prompt": "a"}
MISTAKES: tuple[tuple[str, Json], ...] = (
    # Without our checks, the server would end, or would not answer.
    ("/generate", {"text": ""}),
    ("/generate", {"text": ["a", ""]}),
    ("/generate", {"text": "", "session_params": {"id": None}}),
    ("/v1/score", {**LABELS, "query": "", "items": [""]}),
    ("/generate", {**TEXT, "return_logprob": True, "top_logprobs_num": vocab_size() + 1}),
    ("/v1/completions", {**PROMPT, "logprobs": 2**40}),
    ("/generate", {**TEXT, "custom_labels": {"unknown": "x"}}),
    ("/generate", {**TEXT, "session_params": {"id": ["s"]}}),
    ("/generate", {**TEXT, "http_worker_ipc": "ipc:///nowhere"}),
    ("/generate", {**TEXT, "token_indices_to_pool": [99]}),
    ("/vertex_generate", {"instances": [TEXT], "parameters": {"lora_id": "x"}}),
    ("/generate", {**TEXT, "sampling_params": {"n": 10**9}}),
    ("/v1/completions", {**PROMPT, "n": 10**9}),
    ("/v1/completions", {**PROMPT, "stop_token_ids": [2**70]}),
    ("/v1/completions", {**PROMPT, "min_tokens": 2**40, "max_tokens": 2**41}),
    ("/api/generate", {**PROMPT, "options": {"top_k": 2**40}}),
    # Without our checks, the answer would be HTTP 500.
    ("/api/chat", {"model": "m", "messages": []}),
    ("/api/chat", {"model": "m", "messages": [], "stream": False}),
    ("/api/generate", {**PROMPT, "options": {"temperature": "hot"}}),
    ("/api/generate", {**PROMPT, "options": {"stop": 5}}),
    ("/api/generate", {**PROMPT, "options": {"num_predict": 1.5}}),
    ("/generate", {"input_embeds": []}),
    ("/generate", {"input_embeds": [[None]]}),
    ("/generate", {"input_ids": [True, 5], "stream": True}),
    ("/generate", {"text": ["a", "b"], "sampling_params": [{}]}),
    ("/generate", {**TEXT, "sampling_params": {"stop_regex": ["("]}}),
    ("/encode", {}),
    ("/classify", {}),
    ("/encode", {**TEXT, "rid": "x", "sampling_params": []}),
    ("/vertex_generate", {"instances": [{"text": 5}]}),
    ("/vertex_generate", {"instances": [TEXT], "parameters": {"text": "b"}}),
    ("/v1/messages", {"model": "m", "max_tokens": 2, "messages": []}),
    ("/v1/messages/count_tokens", {"model": "m", "messages": []}),
    ("/v1/detokenize", {"model": "m", "tokens": [-1]}),
    ("/parse_function_call", {**TEXT, "tools": [], "tool_call_parser": "unknown"}),
    ("/separate_reasoning", {**TEXT, "reasoning_parser": "unknown"}),
)


@on("overlap")
@pytest.mark.parametrize(("path", "body"), MISTAKES, ids=str)
def test_a_mistake_of_the_client_is_no_error_of_the_server(
    server: Server, path: str, body: Json
) -> None:
    assert len(refusal(server, path, body)) > 20
    assert generate(server, [5], 2).outputs


MESSAGE: Json = {"role": "user", "content": "a"}
CHAT: Json = {"model": "m", "messages": [MESSAGE], "max_tokens": 2}
CALL: Json = {"tools": [], "tool_call_parser": "qwen25"}
CALL: Json = {"tools": [], "tool_call_parser": "qwen25"}
TOOL: Json = {"name": "f", "parameters": {"type": ["null"] * 8}}
LONG: Json = {"name": "f", "parameters": {"type": "string", "pattern": "^.{0,9000}$"}}
DEEP: Json = functools.reduce(lambda inner, _: {"a": inner}, range(200), {})
EXCESS: tuple[tuple[str, Json, str], ...] = (
    ("/v1/completions", {**PROMPT, "prompt": ["a"] * 4097}, "at most 4096 prompts"),
    ("/encode", {"text": ["a"] * 4097}, "at most 4096 prompts"),
    ("/v1/embeddings", {"model": "m", "input": ["a"] * 4097}, "at most 4096 prompts"),
    ("/v1/score", {**LABELS, "query": "a" * 20_000, "items": ["a"] * 4000}, "query must be"),
    ("/v1/score", {**LABELS, "query": [5] * 20_000, "items": [[5]] * 4000}, "query must be"),
    ("/generate", {**TEXT, "sampling_params": [{}] * 12_289}, "at most 12288 objects"),
    ("/generate", {**TEXT, "sampling_params": {"custom_params": DEEP}}, "at most 128 levels"),
    ("/v1/completions", {**PROMPT, "custom_params": {"a": "a" * 2**19}}, "at most 128 levels"),
    ("/generate", {**TEXT, "sampling_params": {"stop_token_ids": [*range(4097)]}}, "at most 4096"),
    ("/v1/messages", {**CHAT, "stop_sequences": ["a" * 5000]}, "at most 4096 characters"),
    ("/v1/responses", {"model": "m", "input": "a", "request_id": "HEALTH_CHECK_1"}, "request_id"),
    ("/v1/completions", {**PROMPT, "session_params": {"id": "s"}}, "only /generate reads it"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": TOOL}]}, "names"),
    ("/v1/chat/completions", {**CHAT, "messages": [{**MESSAGE, "tools": [TOOL]}]}, "names"),
    ("/parse_function_call", {**CALL, "text": "a" * 8193}, "at most 8192 characters"),
)


@on("overlap")
@pytest.mark.parametrize(("path", "body", "words"), EXCESS, ids=[one[2] for one in EXCESS])
def test_what_would_take_seconds_or_gigabytes_is_refused(
    server: Server, path: str, body: Json, words: str
) -> None:
    assert words in refusal(server, path, body)


@on("overlap")
@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/v1/chat/completions"])
def test_many_mistakes_get_a_short_answer(server: Server, path: str) -> None:
    """Upstream makes a chat of the body of the first two itself."""
    message = {"role": "user", "content": [{"type": "zzz"}] * 2000}
    image = {"type": "image", "source": {"type": "url", "url": [5]}}
    for messages in ([message], [{"role": "user", "content": [image] * 2000}]):
        body = {"model": "m", "max_tokens": 2, "messages": messages, "input": messages}
        answer = post(server, path, body)
        assert answer.status_code == 400, answer.text[:500]
        assert len(answer.text) < 50_000, answer.text[:500]


PARAMETERS: Json = {"max_new_tokens": 2, "custom_params": {"items": [0.5] * 5000}}
CHEAP: tuple[tuple[str, Json], ...] = (
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": LONG}]}),
    ("/generate", {"input_ids": [5, 6], "sampling_params": PARAMETERS}),
    ("/generate", {"text": ["a"] * 3, "sampling_params": [PARAMETERS] * 3}),
)


@on("overlap")
@pytest.mark.parametrize(("path", "body"), CHEAP)
def test_what_costs_little_is_served(server: Server, path: str, body: Json) -> None:
    """A pattern that nobody compiles, and the parameters of a processor."""
    answer = post(server, path, body)
    assert answer.status_code == 200, answer.text


@on("overlap")
def test_top_logprobs_of_the_prompt_of_a_session_are_refused(server: Server) -> None:
    """They may be of any number of tokens."""
    session = post(server, "/open_session", {"capacity_of_str_len": 1000}).json()
    top = {"return_logprob": True, "top_logprobs_num": 5, "logprob_start_len": 0}
    asked: Json = {**TEXT, "sampling_params": ASKED, "session_params": {"id": session}}
    assert "top_logprobs_num must be 0" in refusal(server, "/generate", {**asked, **top})
    assert post(server, "/generate", {**asked, **top, "logprob_start_len": -1}).status_code == 200
    post(server, "/close_session", {"session_id": session})


@on("overlap")
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/tokenize", "/encode"])
def test_bodies_have_a_bound(server: Server, path: str) -> None:
    """One that says its size, and one that comes in parts and does not say it."""
    large = b'{"text": "' + b"a" * (17 << 20) + b'"}'
    headers = {"Content-Type": "application/json"}
    for data in (large, (large[i : i + (1 << 20)] for i in range(0, len(large), 1 << 20))):
        try:
            answer = HTTP.post(f"{server.url}{path}", content=data, headers=headers)
        except httpx.TransportError:
            continue  # it does not read the rest
        assert answer.status_code == 400, answer.text[:500]
        assert "body" in answer.text
    assert post(server, "/generate", request_body([5, 6, 7], 4)).status_code == 200


@on("overlap")
@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/messages", "/encode"])
@pytest.mark.parametrize("body", ["null", "[]", '"a"', "5"])
def test_a_body_is_an_object(server: Server, path: str, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    answer = HTTP.post(f"{server.url}{path}", content=body, headers=headers)
    assert answer.status_code == 400, answer.text
    assert "The body must be a JSON object" in answer.text


@on("overlap")
def test_a_text_longer_than_any_context(server: Server) -> None:
    for path, body in (
        ("/generate", {"text": "x" * 100_000}),
        ("/v1/completions", {"model": "m", "prompt": ["a", "x" * 100_000]}),
        ("/v1/tokenize", {"model": "m", "prompt": "x" * 100_000}),
    ):
        assert "text must be at most 65536 characters" in refusal(server, path, body)


TOO_SLOW = "next tokens that are found within 0.1 s"


# XGrammar takes minutes for a token, during which all requests would wait.
ENDLESS = r"(([^\n]?){0,9}|([\s\S]+|.?|\n{1000}){0,9}){20,300}c{0,9}"
SLOW = r"((\w?(\n{0,9}é[a-z]{0,100})(.*){0,100}([^\n]{0,9}é?)){3})"


@pytest.mark.each_kind
@on("overlap", "no-overlap", "tp2", "pp2", "eagle-tree", "ngram", "dflash", "dspark")
def test_a_constraint_that_is_too_slow_ends_its_request(server: Server) -> None:
    letters = post(server, "/v1/tokenize", {"model": "m", "prompt": "aébcdefghijklmnop"})
    bias = {str(token): 50 for token in letters.json()["tokens"]}
    asked = [
        {"regex": SLOW, "logit_bias": bias},
        *({"regex": prefix + ENDLESS} for prefix in ("", "abc", ".{0,4}x")),
    ]
    for own, temperature in itertools.product(asked, (1, 0)):
        fields = {**own, "temperature": temperature, "ignore_eos": True}
        assert TOO_SLOW in refusal(server, "/generate", request_body([5, 6, 7], 60, **fields))
    schema = json.dumps({"type": "string", "pattern": f"^{ENDLESS}$"})
    refusal(server, "/generate", request_body([5, 6, 7], 60, json_schema=schema))
    assert post(server, "/generate", request_body([5, 6, 7], 4)).status_code == 200


@pytest.mark.parametrize("proper", [False, True])
@on("overlap")
def test_a_schema_that_would_not_be_enforced_is_refused_by_name(
    server: Server, proper: bool
) -> None:
    """XGrammar takes one keyword and ignores its siblings."""
    value: Json = {"type": "integer", "minimum": 5, "anyOf": [{"type": "integer", "maximum": 7}]}
    schema = {"type": "object", "properties": {"v": value}, "required": ["v"]}
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": "<t>", "content": content, "end": "</t>"}
    function = {"name": "f", "parameters": schema, "strict": True}
    chat: Json = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 8}
    structure = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    required = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    ollama: Json = {**chat, "prompt": "a", "format": schema, "options": {"num_predict": 8}}
    for path, body in (
        ("/generate", request_body([5, 6, 7], 8, json_schema=json.dumps(schema))),
        ("/generate", request_body([5, 6, 7], 8, structural_tag=json.dumps({"format": tag}))),
        ("/v1/chat/completions", {**chat, "response_format": structure}),
        ("/v1/chat/completions", {**chat, **required}),
        *(
            (path, {**ollama, "stream": stream})
            for path in ("/api/chat", "/api/generate")
            for stream in (False, True)  # without our checks, an empty stream
        ),
    ):
        if proper:
            body.get("sampling_params", body.get("options", body))["proper_tokens"] = True
        assert "anyOf at #/properties/v: minimum, type beside it" in refusal(server, path, body)


@on("adapters")
def test_a_processor_that_cannot_be_loaded_ends_its_request(server: Server) -> None:
    """Upstream's server ended with it."""
    plain = request_body([5, 6, 7], 4)
    for given in ("", "xx", "{}", json.dumps({"callable": "deadbeef"})):
        said = refusal(server, "/generate", plain | {"custom_logit_processor": given})
        assert "custom_logit_processor cannot be loaded" in said
    forbidden = post(server, "/generate", plain).json()["output_ids"][0]
    body = request_body([5, 6, 7], 4, custom_params={"token_ids": [forbidden]})
    processor = {"custom_logit_processor": DisallowedTokensLogitsProcessor.to_str()}
    answer = post(server, "/generate", body | processor)
    assert answer.status_code == 200, answer.text
    assert forbidden not in answer.json()["output_ids"]


ACCEPTED_BY_MISTAKE: tuple[tuple[str, Json], ...] = (
    *(
        ("/generate", request_body([5, 6, 7], 4, temperature=1, **field))
        for field in ({"top_k": 2**31}, {"n": 1025}, {"stop_regex": "("}, {"stream_interval": 0})
    ),
    *(
        ("/generate", request_body([5, 6, 7], 4) | field)
        for field in (
            {"session_params": {"id": ["a"]}},
            {"lora_id": ["a"]},
            {"positional_embed_overrides": 5},
            {"rid": "HEALTH_CHECK"},
            {"logprob_start_len": -2},
            {"top_logprobs_num": vocab_size() + 1},
        )
    ),
    *(
        ("/v1/completions", {**PROMPT, "max_tokens": 4, "stream": True, **field})
        for field in ({"logprobs": vocab_size() + 1}, {"top_k": 2**31}, {"n": 1025})
    ),
    (
        "/vertex_generate",
        {
            "instances": [{"input_ids": [5]}],
            "parameters": {"sampling_params": {"is_normalized": True, "temperature": 0}},
        },
    ),
)


@pytest.mark.each_kind
@on("overlap", "ngram", "eagle", "dflash", "dspark")
def test_values_that_upstream_accepts_by_mistake_are_refused(server: Server) -> None:
    """Without our checks, each of these ended the server, blocked it, or was answered 500."""
    for path, body in ACCEPTED_BY_MISTAKE:
        refusal(server, path, body)
    assert post(server, "/generate", request_body([5, 6, 7], 4)).status_code == 200


@on("overlap", "ngram")
def test_stop_regex_does_not_backtrack(server: Server) -> None:
    """After some thirty tokens Python's `re` holds the server until its watchdog ends it."""
    given = {"regex": "a{64}", "stop_regex": "(a|a)+b"}
    answer = post(server, "/generate", request_body([5, 6, 7], 64, **given))
    assert answer.json()["text"] == "a" * 64
    given = {"regex": "a{64}", "stop_regex": ["b", "a{7}"]}
    answer = post(server, "/generate", request_body([5, 6, 7], 64, **given))
    assert answer.json()["text"].startswith("a" * 7)
    assert answer.json()["meta_info"]["finish_reason"]["matched"] == "a{7}"


@on("overlap", "ngram")
def test_an_abort_ends_no_other_request(server: Server) -> None:
    """A client that goes away, and whose request's id begins as another's does."""
    others = [request_body([5, 6, 7], 200) | {"rid": f"abort-{i}"} for i in range(3)]
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(post, server, "/generate", body) for body in others]
        gone = request_body([5, 6, 7], 4000) | {"rid": "abort-"}
        del gone["return_flat_raw_output_top_logprobs"], gone["return_flat_raw_top_logprobs_b64"]
        with streaming(server, gone) as answer:
            next(answer.iter_bytes())
        ends = [future.result().json()["meta_info"]["finish_reason"] for future in futures]
    assert ends == [{"type": "length", "length": 200}] * 3


@on("overlap", "ngram")
def test_sessions_replace_requests(server: Server) -> None:
    """All requests of a session, and an id that was used twice."""
    opened = post(server, "/open_session", {"capacity_of_str_len": 1000})
    body = {"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 2}}
    turns: list[dict[str, object]] = [
        *({}, {"replace": True}, {"rid": "turn"}, {"rid": "turn"}),
        *({"rid": "turn", "replace": True}, {"replace": True}),
    ]
    for i, turn in enumerate(turns):
        params = {"id": opened.json(), **turn}
        rid = {} if i == 0 else {"rid": "turn"}
        answer = post(server, "/generate", body | {"session_params": params} | rid)
        assert answer.status_code == 200, answer.text
    post(server, "/close_session", {"session_id": opened.json()})
