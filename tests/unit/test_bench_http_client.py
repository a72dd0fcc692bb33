"""The HTTP client splits a stream into lines."""

from __future__ import annotations

import httpx

from bench.http_client import lines


def test_lines_end_at_line_feeds_only() -> None:
    content = "data: \u2028\x0b\x85\r\n\ndata: [DONE]".encode()
    for size in range(1, len(content) + 1):
        parts = (content[i : i + size] for i in range(0, len(content), size))
        found = list(lines(httpx.Response(200, content=parts)))
        assert found == ["data: \u2028\x0b\x85".encode(), b"", b"data: [DONE]"]
