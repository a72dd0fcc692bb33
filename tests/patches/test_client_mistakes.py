"""fixes/client-mistakes, in process.

What a real server answers is in tests/server/test_refusals.py and test_fuzz.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import HTTPException
from starlette.responses import Response, StreamingResponse
from starlette.testclient import TestClient

from sglang_lz.http import gate


class TestClientMistakes:
    """fixes/client-mistakes"""

    @pytest.fixture
    def client(self, monkeypatch: pytest.MonkeyPatch) -> TestClient:
        from sglang.srt.entrypoints.http_server import app

        # It needs a server's arguments; tests/patches/test_gate.py has it.
        monkeypatch.setitem(app.dependency_overrides, gate.check_fields, lambda: None)

        async def endpoint(**call: Any) -> Any:
            outcome = self.outcome
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr("fastapi.routing.run_endpoint_function", endpoint)
        return TestClient(app, raise_server_exceptions=False)  # its lifespan is not entered

    outcome: Exception | Response

    def post(self, client: TestClient, outcome: Exception | Response, path: str) -> Any:
        self.outcome = outcome
        body = {"model": "m", "prompt": "a", "messages": [], "text": "a", "reasoning_parser": "x"}
        return client.post(path, json=body)

    def test_a_value_error_on_a_route_that_samples(self, client: TestClient) -> None:
        answer = self.post(client, ValueError("stop must be a list."), "/api/generate")
        assert (answer.status_code, answer.json()) == (400, {"error": "stop must be a list."})

    @pytest.mark.parametrize("error", [KeyError("a"), RuntimeError("b"), MemoryError()], ids=repr)
    def test_a_server_error_stays_a_server_error(
        self, client: TestClient, error: Exception
    ) -> None:
        assert self.post(client, error, "/api/generate").status_code == 500
        assert self.post(client, ValueError("c"), "/flush_cache").status_code == 500

    def test_a_route_that_only_reads(self, client: TestClient) -> None:
        assert self.post(client, KeyError("a"), "/separate_reasoning").status_code == 400
        assert self.post(client, MemoryError(), "/separate_reasoning").status_code == 500

    def test_a_stream_that_fails_before_it_begins(self, client: TestClient) -> None:
        async def stream(error: Exception | None) -> AsyncIterator[bytes]:
            if error is not None:
                raise error
            yield b"one"
            yield b"two"

        def answer(error: Exception | None) -> Any:
            return self.post(client, StreamingResponse(stream(error)), "/api/generate")

        assert answer(None).content == b"onetwo"
        refused = answer(ValueError("top_p must be in (0, 1]."))
        assert (refused.status_code, refused.json()["error"]) == (400, "top_p must be in (0, 1].")
        assert answer(HTTPException(503, "full")).status_code == 503
        assert answer(KeyError("a")).status_code == 500

    def test_an_empty_stream(self, client: TestClient) -> None:
        async def stream() -> AsyncIterator[bytes]:
            for part in ():
                yield part

        answer = self.post(client, StreamingResponse(stream()), "/api/generate")
        assert (answer.status_code, answer.content) == (200, b"")
