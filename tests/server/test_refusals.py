"""What the penalty does not cover is refused by a real server, which then goes on.

Most server modes are in tests/patches/test_refused_modes.py: upstream needs a C++ compiler, several
machines or a GPU to start them. Context parallelism stands here for all of them.
"""

from __future__ import annotations

import random

import pytest

from server.client import OFF, Lz, generate, post, request_body
from server.configurations import on
from server.contract import check
from server.endpoints import Endpoint, every_endpoint
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


@on("context-parallel")
@every_endpoint
@pytest.mark.parametrize("stream", [False, True], ids=["answer", "stream"])
def test_a_server_that_cannot_refuses(server: Server, endpoint: Endpoint, stream: bool) -> None:
    """Every endpoint says so before it streams, and serves everyone else."""
    answer = endpoint.send(server, "a b c", 8, {"lz_penalty": 0.5}, stream=stream)
    assert answer.status_code == 400, answer.text
    assert "lz_penalty" in answer.text
    assert "context parallelism" in answer.text
    for fields in ({}, {"lz_penalty": 0}):
        assert endpoint.send(server, "a b c", 8, fields, stream=stream).status_code == 200
