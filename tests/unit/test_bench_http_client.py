"""The HTTP client: it reaches the servers of this machine, and splits a stream into lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from os import environ
from pathlib import Path

import httpx
import pytest

from bench.http_client import answers, lines
from bench.processes import Background, free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    assert not answers(address)
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    with Background([*command, "--directory", str(ROOT / "docs")], grace=0) as process:
        process.wait_until(lambda: answers(f"{address}/SPEC.md"), 60)
        yield address


def test_a_server_answers_or_not(url: str) -> None:
    assert answers(url)
    assert not answers(f"{url}/no-such-file")


def test_a_server_of_this_machine_is_reached_without_a_proxy(url: str) -> None:
    program = "import sys; from bench.http_client import answers; assert answers(sys.argv[1])"
    variables = environ | {"http_proxy": f"http://127.0.0.1:{free_port()}"}
    subprocess.run([sys.executable, "-c", program, url], cwd=ROOT, env=variables, check=True)


def test_lines_end_at_line_feeds_only() -> None:
    content = "data: \u2028\x0b\x85\r\n\ndata: [DONE]".encode()
    for size in range(1, len(content) + 1):
        parts = (content[i : i + size] for i in range(0, len(content), size))
        found = list(lines(httpx.Response(200, content=parts)))
        assert found == ["data: \u2028\x0b\x85".encode(), b"", b"data: [DONE]"]
