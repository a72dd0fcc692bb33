"""Each API answers with any text that a model writes, whole and in streams."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from proper_tokens.tokenizer import byte_characters
from server.client import Json, events, post, post_ok, refusal, streaming
from server.configurations import on
from server.contract import at_once
from server.encodings import encode
from server.endpoints import ENDPOINTS, Endpoint, every_endpoint
from server.launch import Server
from server.model import tokenizer

NEW_TOKENS = 40
MESSAGES = [{"role": "user", "content": "What is a list?"}]
TEXTS = ("ab你好 世。日本語e", "é日\U0001f600。ü 你", "\U0001f469‍\U0001f467 世世。")
# With a regex they write what a test wants.
CONSTRAINED = [one for one in ENDPOINTS if one.name in ("generate", "completions", "chat")]


def token(text: str) -> str:
    """The id of a text that is one token, as keys of `logit_bias` spell it."""
    (one,) = encode(text)
    return str(one)


def byte_token(byte: int) -> str:
    """Likewise of a byte."""
    (name,) = [name for name, value in byte_characters().items() if value == byte]
    return str(tokenizer().convert_tokens_to_ids(name))


@on("chunked", "overlap")
@every_endpoint
def test_a_stream_holds_the_whole_answer(server: Server, endpoint: Endpoint) -> None:
    for content in ("a b c", "What is a list?"):
        whole, streamed = (
            endpoint.answer(server, content, NEW_TOKENS, {}, stream=stream)
            for stream in (False, True)
        )
        assert streamed == whole


@pytest.mark.each_kind
@on("chunked", "ngram")
def test_a_stream_holds_each_character_once(server: Server) -> None:
    """Also where a character is several tokens, of which a step brings some."""
    for endpoint in CONSTRAINED:
        if endpoint.chat and server.config.name == "ngram":
            continue  # it thinks instead
        for text in TEXTS:
            fields = {"regex": re.escape(text * 2)}
            for stream in (False, True):
                assert endpoint.answer(server, "a", 200, fields, stream=stream) == text * 2


@on("overlap", "chunked")
@pytest.mark.parametrize("byte", [0x80, 0xE4, 0xFF], ids=hex)
def test_invalid_utf8_is_shown_at_once(server: Server, byte: int) -> None:
    sampling = {"max_new_tokens": 100, "logit_bias": {byte_token(byte): 100}, "ignore_eos": True}
    body = {"text": "a", "sampling_params": {**sampling, "temperature": 0}}
    with streaming(server, body) as answer:
        seen = events(answer)
    for event in seen:
        assert len(event["text"]) >= event["meta_info"]["completion_tokens"] - 4
    assert seen[-1]["text"] == post_ok(server, "/generate", body)["text"] == "\ufffd" * 100


@on("overlap")
def test_a_stop_string_is_found_however_it_is_spelt(server: Server) -> None:
    """Eight spaces are one token for the tokenizer; here each of them is one."""
    sampling = {"max_new_tokens": 30, "logit_bias": {token(" "): 100}, "stop": " " * 8}
    body = {"text": "a", "sampling_params": {**sampling, "temperature": 0}}
    answer = post_ok(server, "/generate", body)
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": " " * 8}
    assert answer["text"] == ""
    with streaming(server, body) as stream:
        assert events(stream)[-1]["text"] == ""


@on("overlap", "chunked")
@pytest.mark.parametrize("field", ["stop", "stop_regex"])
def test_a_stream_does_not_show_how_a_stop_string_begins(server: Server, field: str) -> None:
    sampling = {"max_new_tokens": 60, "temperature": 0, "regex": "one two three four five"}
    for stop in ("three", "wo thr", "four fiv"):
        body = {"text": "a", "sampling_params": {**sampling, field: stop}}
        whole = post_ok(server, "/generate", body)["text"]
        assert whole == "one two three four five".partition(stop)[0]
        with streaming(server, body) as answer:
            assert events(answer)[-1]["text"] == whole


@on("overlap", "chunked")
def test_the_stop_sequence_of_a_message_is_named(server: Server) -> None:
    body = {"model": "m", "messages": MESSAGES, "max_tokens": NEW_TOKENS, "temperature": 0}
    (block,) = post_ok(server, "/v1/messages", body)["content"]
    stop = block["text"].split()[5]
    body["stop_sequences"] = ["never", stop]
    answer = post_ok(server, "/v1/messages", body)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", stop)
    streamed = events(post(server, "/v1/messages", body | {"stream": True}))
    (end,) = (event["delta"] for event in streamed if event["type"] == "message_delta")
    assert end == {"stop_reason": "stop_sequence", "stop_sequence": stop}
    deltas = (one["delta"]["text"] for one in streamed if one["type"] == "content_block_delta")
    assert "".join(deltas) == answer["content"][0]["text"] == block["text"].partition(stop)[0]


@on("overlap")
def test_ollama_says_that_an_answer_is_too_long(server: Server) -> None:
    for endpoint in ENDPOINTS:
        if endpoint.name.startswith("ollama"):
            answers = [endpoint.send(server, "a", 3, {}, stream=stream) for stream in (False, True)]
            for answer in answers:
                assert events(answer)[-1]["done_reason"] == "length"


SCHEMA = {"type": "object", "properties": {"v": {"type": "string"}}}


@on("chunked", "overlap")
@pytest.mark.parametrize("parameters", [SCHEMA, {"description": "Any."}, {}], ids=str)
def test_the_arguments_of_a_tool_are_an_object(server: Server, parameters: Json) -> None:
    """Of one that is not strict too, whatever else the model would like to write."""
    schema = {**parameters, "type": "object"}  # of Anthropic's API, which asks for it
    function = {"name": "f", "parameters": parameters, "strict": False}
    tools = [{"type": "function", "function": function}]
    chosen = {"type": "function", "function": {"name": "f"}}
    asked = {"model": "m", "temperature": 1, "max_tokens": 60}
    chats = [
        ("/v1/chat/completions", {**asked, "messages": MESSAGES, "tools": tools, "seed": seed, **f})
        for seed in range(2)
        for f in ({"tool_choice": "required"}, {"tool_choice": chosen})
    ]
    messages = {**asked, "messages": MESSAGES, "tools": [{"name": "f", "input_schema": schema}]}
    responses = {**asked, "input": "a", "tools": [{"type": "function", **function}]}
    requests = [
        *chats,
        *[("/v1/messages", {**messages, "tool_choice": {"type": "any"}})] * 5,
        *[("/v1/responses", {**responses, "tool_choice": "required"})] * 2,
    ]

    def has_objects(path: str, body: Json) -> None:
        for arguments in arguments_in(path, post_ok(server, path, body)):
            assert isinstance(json.loads(arguments), dict), arguments

    at_once(has_objects, *zip(*requests, strict=True))


def arguments_in(path: str, answer: Json) -> list[str]:
    """The arguments of the calls in an answer."""
    if path == "/v1/messages":
        calls = [one for one in answer["content"] if one["type"] == "tool_use"]
        return [json.dumps(call["input"]) for call in calls]
    if path == "/v1/responses":
        return [one["arguments"] for one in answer["output"] if one["type"] == "function_call"]
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    return [call["function"]["arguments"] for call in calls]


# None of them is a call that a client could make.
CALLS = (
    '{"name": "f", "arguments": null}',
    '{"name": "f", "arguments": [1]}',
    '{"name": "f", "arguments": {"v": 1e999}}',
    '{"name": "f", "arguments": {"v": "\\ud800"}}',
    '{"name": "f", "arguments": {"v": ' + "9" * 40,
    '{"name": "unknown", "arguments": {}}',
    '{"name": 5, "arguments": {}}',
    '{"name": ["f"]}',
    '"f"',
    "[" * 60,
    "null",
    "5",
    "[]",
)


@on("chunked")
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_malformed_tool_calls_are_not_errors(server: Server, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 200, "temperature": 0}
    body |= {"tools": tools, "stream": stream}

    def answered(text: str) -> None:
        answer = post(server, "/v1/chat/completions", {**body, "regex": re.escape(text)})
        assert answer.status_code == 200, (text, answer.text)
        assert '"error"' not in answer.text, (text, answer.text)
        if stream:
            ends = [e["choices"][0]["finish_reason"] for e in events(answer) if e["choices"]]
            assert ends[-1] is not None, text

    at_once(answered, [f"<tool_call>\n{call}\n</tool_call>" for call in CALLS])


@on("no-overlap")
def test_thinking_that_opens_again_is_content(server: Server) -> None:
    """After its forced end, in streams as in whole answers."""
    text = "so <think>it</think> is"
    loop = {"max_pattern_size": 4, "min_count": 4, "action": "end_thinking"}
    body = {"model": "m", "messages": MESSAGES, "max_tokens": 120, "temperature": 0}
    body |= {"repetition_detection": loop, "logit_bias": {token("a"): 100}}
    body |= {"regex": re.escape(text)}
    message = post_ok(server, "/v1/chat/completions", body)["choices"][0]["message"]
    assert message["content"] == text
    streamed = events(post(server, "/v1/chat/completions", body | {"stream": True}))
    deltas = [event["choices"][0]["delta"] for event in streamed if event["choices"]]
    for part in ("content", "reasoning_content"):
        assert "".join(one.get(part) or "" for one in deltas) == message[part]


@on("overlap")
@pytest.mark.parametrize("wrong", [{}, 5, ["a"]], ids=str)
def test_a_wrong_type_is_refused_by_the_name_of_its_field(server: Server, wrong: Any) -> None:
    constraints = ("json_schema", "regex", "ebnf", "structural_tag")
    for field in (*constraints, "temperature", "max_new_tokens"):
        if field in ("temperature", "max_new_tokens") and wrong == 5:
            continue
        sampling = {field: wrong}
        for body in (
            {"text": "a", "sampling_params": sampling},
            {"text": ["a", "b"], "sampling_params": [{}, sampling]},
            {"instances": [{"text": "a"}], "parameters": {"sampling_params": sampling}},
        ):
            path = "/vertex_generate" if "instances" in body else "/generate"
            assert f"{field}: " in refusal(server, path, body)
