"""`proper_tokens` alone, as reinforcement learning needs it: outputs survive decoding and encoding.

docs/PROPER_TOKENS.md tells trainers what holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from transformers import AutoTokenizer

from server.client import events, post_ok, streaming
from server.configurations import on
from server.launch import Server
from sglang_lz.demo import REASONER_PATH

QUESTIONS = ("Are you sure?", "Why?", " \n Say it\tagain,  please \n", "caf\u00e9 & \U0001f600?")


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(REASONER_PATH)


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


def rendered(messages: Sequence[dict[str, str]], *, is_asked: bool) -> list[int]:
    return list(
        tokenizer().apply_chat_template(
            list(messages), add_generation_prompt=is_asked, return_dict=False
        )
    )


def survives(tokens: list[int]) -> bool:
    return encode(tokenizer().decode(tokens)) == tokens


def turns(server: Server, *, stream: bool, temperature: float, **fields: Any) -> Iterator[Any]:
    """Chats of several turns; yields the messages before each answer, its tokens and its end."""
    starts = ["Tom has 3 apples and eats 1. How many are left?", "List some words."]
    for start in starts * 3:
        messages = [{"role": "user", "content": start}]
        for question in QUESTIONS:
            sampling = {"temperature": temperature, "max_new_tokens": 96, **fields}
            body: dict[str, Any] = {
                "input_ids": rendered(messages, is_asked=True),
                "sampling_params": sampling,
                "stream": stream,
            }
            if stream:
                with streaming(server, body) as response:
                    answers = [events(response)[-1]]
            else:
                sampling["n"] = 2
                answers = post_ok(server, "/generate", body)
            for answer in answers:
                tokens = answer["output_ids"]
                end = answer["meta_info"]["finish_reason"]["type"]
                yield messages, tokens[:-1] if end == "stop" else tokens, end
            text = tokenizer().decode(tokens, skip_special_tokens=True)
            messages = [
                *messages,
                {"role": "assistant", "content": text},
                {"role": "user", "content": question},
            ]


@on("reasoner")
def test_turns_of_a_chat_survive(server: Server) -> None:
    """Streamed and with n > 1; also within the whole chat, unless the seam has white space."""
    ended = 0
    for stream in (False, True):
        for messages, tokens, end in turns(
            server, stream=stream, temperature=1.5, proper_tokens=True, lz_penalty=0.15
        ):
            if end != "stop":
                continue
            ended += 1
            text = tokenizer().decode(tokens)
            assert encode(text) == tokens, text
            if text[:1].isspace():  # the template's line break before it takes it in
                continue
            whole = rendered([*messages, {"role": "assistant", "content": text}], is_asked=False)
            start = rendered(messages, is_asked=True)
            assert whole[: len(start) + len(tokens)] == [*start, *tokens]
    assert ended > 20


@pytest.mark.full
@on("reasoner")
def test_without_the_field_outputs_do_not_survive(server: Server) -> None:
    """The tests above could not fail otherwise."""
    found = [
        survives(tokens)
        for _, tokens, end in turns(server, stream=False, temperature=1.5)
        if end == "stop"
    ]
    assert not all(found)


@on("reasoner")
def test_cut_outputs_survive_without_their_last_tokens(server: Server) -> None:
    """As docs/PROPER_TOKENS.md says, a few tokens at most have to go."""
    cut = 0
    fields = {"proper_tokens": True, "max_new_tokens": 9}
    for _, tokens, end in turns(server, stream=False, temperature=1.5, **fields):
        if end != "length":
            continue
        cut += 1
        assert any(survives(tokens[: len(tokens) - dropped]) for dropped in range(5)), tokens
    assert cut > 20
