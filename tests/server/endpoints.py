"""Every endpoint that takes the penalty's fields: its requests and where its text comes back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from bench.http_client import HTTP
from server.client import Json, events
from server.launch import Server
from server.model import tokenizer


@dataclass(frozen=True)
class Endpoint:
    """One way in."""

    name: str  # for test ids
    path: str  # of the URL
    # (content, new_tokens, fields) -> greedy request; `stream` is set by `send`
    body: Callable[[str, int, Json], Json]
    # The content becomes a user message of the chat template; otherwise it is the prompt
    chat: bool
    text: Callable[[Any], str]  # the sampled text in an answer
    delta: Callable[[Any], str]  # the sampled text in one event of a stream
    cumulative: bool = False  # each event repeats the text so far

    def send(
        self, server: Server, content: str, new_tokens: int, fields: Json, *, stream: bool = False
    ) -> httpx.Response:
        """POST a greedy request."""
        body = {**self.body(content, new_tokens, fields), "stream": stream}
        return HTTP.post(f"{server.url}{self.path}", json=body)

    def answer(
        self, server: Server, content: str, new_tokens: int, fields: Json, *, stream: bool = False
    ) -> str:
        """The text of the HTTP 200 that a greedy request gets."""
        answer = self.send(server, content, new_tokens, fields, stream=stream)
        assert answer.status_code == 200, answer.text
        return self.streamed(answer) if stream else self.text(answer.json())

    def streamed(self, answer: httpx.Response) -> str:
        """The text of all events of a stream."""
        deltas = [self.delta(event) for event in events(answer)]
        return deltas[-1] if self.cumulative else "".join(deltas)


def prompt_ids(content: str, chat: bool) -> list[int]:
    """The ids that the server makes of the content, as a chat message or as it is."""
    if not chat:
        return list(tokenizer().encode(content))
    return list(
        tokenizer().apply_chat_template(
            _messages(content), tokenize=True, add_generation_prompt=True, return_dict=False
        )
    )


def _messages(content: str) -> list[Json]:
    return [{"role": "user", "content": content}]


def _generate(content: str, new_tokens: int, fields: Json) -> Json:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, **fields}
    # SGLang needs no model here; a router of several does.
    return {"model": "m", "text": content, "sampling_params": sampling}


def _openai(limit: str, **content: Callable[[str], Any]) -> Callable[[str, int, Json], Json]:
    """Bodies with the content as these fields make it, and the limit under its name."""

    def body(text: str, new_tokens: int, fields: Json) -> Json:
        filled = {name: make(text) for name, make in content.items()}
        return {"model": "m", **filled, limit: new_tokens, "temperature": 0, **fields}

    return body


def _ollama(**content: Callable[[str], Any]) -> Callable[[str, int, Json], Json]:
    def body(text: str, new_tokens: int, fields: Json) -> Json:
        filled = {name: make(text) for name, make in content.items()}
        options = {"num_predict": new_tokens, "temperature": 0, **fields}
        return {"model": "m", **filled, "options": options}

    return body


def _responses_text(answer: Json) -> str:
    (message,) = (item for item in answer["output"] if item["type"] == "message")
    return str(message["content"][0]["text"])


ENDPOINTS = (
    Endpoint(
        "generate",
        "/generate",
        _generate,
        False,
        lambda answer: answer["text"],
        lambda event: event["text"],
        cumulative=True,
    ),
    Endpoint(
        "completions",
        "/v1/completions",
        _openai("max_tokens", prompt=str),
        False,
        lambda answer: answer["choices"][0]["text"],
        lambda event: "".join(choice["text"] for choice in event["choices"]),
    ),
    Endpoint(
        "chat",
        "/v1/chat/completions",
        _openai("max_tokens", messages=_messages),
        True,
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event["choices"]),
    ),
    Endpoint(
        "responses",
        "/v1/responses",
        _openai("max_output_tokens", input=str),
        True,
        _responses_text,
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    Endpoint(
        "messages",
        "/v1/messages",
        _openai("max_tokens", messages=_messages),
        True,
        lambda answer: answer["content"][0]["text"],
        lambda event: (
            event["delta"].get("text", "") if event["type"] == "content_block_delta" else ""
        ),
    ),
    Endpoint(
        "ollama-chat",
        "/api/chat",
        _ollama(messages=_messages),
        True,
        lambda answer: answer["message"]["content"],
        lambda event: event["message"]["content"],
    ),
    Endpoint(
        "ollama-generate",
        "/api/generate",
        _ollama(prompt=str),
        False,
        lambda answer: answer["response"],
        lambda event: event["response"],
    ),
)

every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
