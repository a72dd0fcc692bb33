"""The HTTP client of the benchmarks and the tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import httpx

TIMEOUT_SECONDS = 600

HTTP = httpx.Client(
    timeout=TIMEOUT_SECONDS,
    follow_redirects=True,
    # Servers are paused and killed here: a request on a connection that was kept could fail because
    # of the one before it.
    limits=httpx.Limits(max_keepalive_connections=0),
    # A proxy that the environment names cannot reach the servers of this machine.
    mounts={"all://127.0.0.1": None, "all://localhost": None},
)
"""Sends each request on a connection of its own. It may be used by several threads."""


def request(url: str, body: dict[str, object] | None = None) -> Any:
    """Return the JSON answer to a GET, or to a POST if there is a body.

    Raises:
        httpx.HTTPError: there is none, or its status is that of an error.
    """
    answer = HTTP.get(url) if body is None else HTTP.post(url, json=body)
    return answer.raise_for_status().json()


def answers(url: str, seconds: float = 10.0) -> bool:
    """Whether a GET of `url` is answered with success within so many seconds."""
    with contextlib.suppress(httpx.HTTPError):
        return HTTP.get(url, timeout=seconds).is_success
    return False


def lines(answer: httpx.Response) -> Iterator[bytes]:
    """The lines of a streamed answer as they arrive, without their ends.

    `httpx.Response.iter_lines` also ends a line at characters such as U+2028, which JSON may
    contain.
    """
    rest = b""
    for part in answer.iter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        yield from (line.removesuffix(b"\r") for line in whole)
    if rest:
        yield rest
