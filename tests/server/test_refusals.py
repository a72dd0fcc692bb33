"""What the penalty does not cover is refused by a real server, which then goes on.

Modes of a whole server are in tests/patches/test_refused_modes.py: upstream needs a C++ compiler,
several machines or a GPU to start most of them. They are refused where a wrong value is, whose
answer at every endpoint is in test_surface.py.
"""

from __future__ import annotations

import random

import pytest

from server.client import OFF, Lz, generate, post, request_body
from server.configurations import on
from server.contract import check
from server.launch import Server
from server.prompts import repetitive


def refusal(server: Server, **sampling: object) -> str:
    """The message of the 400 that a request with the penalty gets."""
    body = request_body(repetitive(random.Random(1), 12), 8, Lz(0.5), **sampling)
    answer = post(server, "/generate", body)
    assert answer.status_code == 400, f"{answer.status_code}: {answer.text[:1000]}"
    message = answer.json()["error"]
    return str(message["message"] if isinstance(message, dict) else message)


@on("overlap")
def test_beam_search_refuses(server: Server) -> None:
    """Beam search samples in a place of its own."""
    message = refusal(server, beam_width=2)
    assert "lz_penalty" in message
    assert "beam" in message.lower()
    sample = generate(server, repetitive(random.Random(2), 12), 8, Lz(0.5))
    check(server, sample, Lz(0.5), "overlap: after a refusal")
    sample = generate(server, repetitive(random.Random(2), 12), 8)
    check(server, sample, OFF, "overlap: after a refusal")


@on("overlap")
def test_beam_search_refuses_the_other_penalties(server: Server) -> None:
    """Upstream would leave them out without a word."""
    for name, value in (("frequency_penalty", 0.5), ("no_repeat_ngram_size", 3)):
        body = request_body([5, 6, 7], 4, beam_width=2, **{name: value})
        answer = post(server, "/generate", body)
        assert answer.status_code == 400
        assert f"{name} must be 0 with beam search" in answer.text


@on("ngram", "eagle")
@pytest.mark.parametrize("stream", [False, True])
def test_speculation_refuses_custom_logit_processors(server: Server, stream: bool) -> None:
    """Verification would ignore them."""
    body = request_body([5, 6, 7], 4) | {"custom_logit_processor": "{}", "stream": stream}
    answer = post(server, "/generate", body)
    assert answer.status_code == 400
    assert "custom_logit_processor must be left out with speculative decoding" in answer.text
