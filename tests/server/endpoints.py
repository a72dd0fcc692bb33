"""Every endpoint that takes the penalty's fields: its requests and where its text comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

from bench.http_client import HTTP
from server.launch import Server, model_path

Json = dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    """One way in.

    Attributes:
        name: for test ids.
        path: of the URL.
        body: (content, new_tokens, fields) -> greedy request; `stream` is set by `send`.
        chat: the content becomes a user message of the chat template; otherwise it is the prompt.
        text: the sampled text in an answer.
        delta: the sampled text in one event of a stream.
        cumulative: each event repeats the text so far.
    """

    name: str
    path: str
    body: Callable[[str, int, Json], Json]
    chat: bool
    text: Callable[[Any], str]
    delta: Callable[[Any], str]
    cumulative: bool = False

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
        deltas = []
        for line in answer.content.decode().split("\n"):  # UTF-8, said or not
            event = line.removeprefix("data: ").strip()
            if event.startswith("{"):
                deltas.append(self.delta(json.loads(event)))
        return deltas[-1] if self.cumulative else "".join(deltas)


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_path())


def prompt_ids(content: str, chat: bool) -> list[int]:
    """The ids that the server makes of the content, as a chat message or as it is."""
    if not chat:
        return list(_tokenizer().encode(content))
    return list(
        _tokenizer().apply_chat_template(
            _messages(content), tokenize=True, add_generation_prompt=True, return_dict=False
        )
    )


def _messages(content: str) -> list[Json]:
    return [{"role": "user", "content": content}]


def _generate(content: str, new_tokens: int, fields: Json) -> Json:
    sampling = {"max_new_tokens": new_tokens, "temperature": 0, **fields}
    # SGLang needs no model here; a router of several does.
    return {"model": "m", "text": content, "sampling_params": sampling}


def _completions(content: str, new_tokens: int, fields: Json) -> Json:
    return {"model": "m", "prompt": content, "max_tokens": new_tokens, "temperature": 0, **fields}


def _chat(content: str, new_tokens: int, fields: Json) -> Json:
    return {
        "model": "m",
        "messages": _messages(content),
        "max_tokens": new_tokens,
        "temperature": 0,
        **fields,
    }


def _responses(content: str, new_tokens: int, fields: Json) -> Json:
    return {
        "model": "m",
        "input": content,
        "max_output_tokens": new_tokens,
        "temperature": 0,
        **fields,
    }


def _ollama(content: Json) -> Callable[[str, int, Json], Json]:
    def body(text: str, new_tokens: int, fields: Json) -> Json:
        filled = {key: make(text) for key, make in content.items()}
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
        _completions,
        False,
        lambda answer: answer["choices"][0]["text"],
        lambda event: "".join(choice["text"] for choice in event["choices"]),
    ),
    Endpoint(
        "chat",
        "/v1/chat/completions",
        _chat,
        True,
        lambda answer: answer["choices"][0]["message"]["content"],
        lambda event: "".join(choice["delta"].get("content") or "" for choice in event["choices"]),
    ),
    Endpoint(
        "responses",
        "/v1/responses",
        _responses,
        True,
        _responses_text,
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
    ),
    Endpoint(
        "messages",
        "/v1/messages",
        _chat,
        True,
        lambda answer: answer["content"][0]["text"],
        lambda event: (
            event["delta"].get("text", "") if event["type"] == "content_block_delta" else ""
        ),
    ),
    Endpoint(
        "ollama-chat",
        "/api/chat",
        _ollama({"messages": _messages}),
        True,
        lambda answer: answer["message"]["content"],
        lambda event: event["message"]["content"],
    ),
    Endpoint(
        "ollama-generate",
        "/api/generate",
        _ollama({"prompt": str}),
        False,
        lambda answer: answer["response"],
        lambda event: event["response"],
    ),
)

every_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
