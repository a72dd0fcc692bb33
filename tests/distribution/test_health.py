"""The images' health check: what it says of a server that answers, refuses, or is not there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from bench.processes import free_port

STATUS = {"/health_generate": 200}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(STATUS.get(self.path, 404))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that answers with `STATUS`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def check(port: int) -> tuple[int, str]:
    """The check's exit status and what it writes."""
    command = [sys.executable, "-m", "sglang_lz.distribution.health"]
    env = os.environ | {"SGLANG_LZ_PORT": str(port)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("status", "says"), [(200, ""), (503, "answered 503\n")])
def test_a_server_that_answers(
    port: int, status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATUS, "/health_generate", status)
    line = says and f"/health_generate on port {port} {says}"
    assert check(port) == (int(status != 200), line)


def test_no_server() -> None:
    port = free_port()
    status, said = check(port)
    assert status == 1
    assert re.fullmatch(rf"no answer on port {port}: .*\n", said)
