"""The other clients of a server and its memory: what they see while it is attacked.

The clients run in a process of their own, so that what an attack costs its sender is not measured.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import httpx
import psutil

from bench.http_client import HTTP, lines
from hostile.attacks import COMPLETIONS, GENERATE

TOKENS = 300
"""Of a stream; the next one begins at its end."""
LONGEST_SECONDS = 30.0
"""After so long an answer is taken to be lost."""
PAUSES = {"short": 0.2, "health": 0.05}
"""Seconds between requests."""
SAMPLE_SECONDS = 0.05
KINDS = TOKEN, SHORT, HEALTH = "token", "short", "health"


class Wait(NamedTuple):
    """A wait that is over."""

    kind: str  # for a token of the stream, for a short request, or for /health
    at: float  # its end, on the monotonic clock
    seconds: float  # how long it was
    ok: bool  # whether what was waited for came


class Watch:
    """The other clients of a server; they leave when the block is left.

    Attributes:
        waits: those that are over so far.
    """

    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        # A pipe ends with its process. A queue's lock would be held for ever by one that was
        # terminated while it wrote.
        self._pipe, self._end_of_clients = context.Pipe(duplex=False)
        arguments = (url, self._end_of_clients)
        self._process = context.Process(target=_clients, args=arguments, daemon=True)
        self.waits: list[Wait] = []
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Watch:
        self._process.start()
        self._end_of_clients.close()
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self._reader.join()

    def _read(self) -> None:
        with contextlib.suppress(EOFError), self._pipe:
            while True:
                self.waits.append(self._pipe.recv())

    def between(self, kind: str, begin: float, end: float) -> list[float]:
        """Seconds of the waits of a kind that ended in a time, and of one that goes on at its end.

        What failed counts as a wait to the end.
        """
        waits = [wait for wait in list(self.waits) if wait.kind == kind]
        found = [wait.seconds for wait in waits if wait.ok and begin <= wait.at <= end]
        last = max((wait.at for wait in waits if wait.ok and wait.at <= end), default=begin)
        return [*found, max(0.0, end - last - PAUSES.get(kind, 0.0))]

    def failed(self, begin: float, end: float) -> int:
        """How many waits came to nothing in a time."""
        return sum(not wait.ok and begin <= wait.at <= end for wait in list(self.waits))

    def token_since(self, at: float) -> bool:
        """Whether the stream has had a token since then."""
        return any(wait.kind == TOKEN and wait.ok and wait.at > at for wait in self.waits[-500:])


def _clients(url: str, pipe: Connection) -> None:
    lock = threading.Lock()

    def put(kind: str, began: float, ok: bool = True) -> float:
        now = time.monotonic()
        with lock:
            pipe.send(Wait(kind, now, now - began, ok))
        return now

    short = {"text": "The weather", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    clients: dict[str, Callable[[], httpx.Response]] = {
        SHORT: lambda: HTTP.post(f"{url}{GENERATE}", json=short, timeout=LONGEST_SECONDS),
        HEALTH: lambda: HTTP.get(f"{url}/health", timeout=LONGEST_SECONDS),
    }
    for kind, ask in clients.items():
        threading.Thread(target=_beat, args=(kind, ask, put), daemon=True).start()
    while True:
        _stream(url, put)


def _beat(kind: str, ask: Callable[[], httpx.Response], put: Callable[..., float]) -> None:
    while True:
        began = time.monotonic()
        ok = False
        with contextlib.suppress(httpx.HTTPError):
            ok = ask().is_success
        put(kind, began, ok)
        time.sleep(PAUSES[kind])


def _stream(url: str, put: Callable[..., float]) -> None:
    """Ask for a greedy stream; the wait for its first token begins with the request."""
    sampling = {"temperature": 0, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    body = {"model": "m", "prompt": "Once upon a time", **sampling}
    last = time.monotonic()
    try:
        with HTTP.stream(
            "POST", f"{url}{COMPLETIONS}", json=body, timeout=LONGEST_SECONDS
        ) as answer:
            answer.raise_for_status()
            for line in lines(answer):
                if line.startswith(b'data: {"id"'):
                    last = put(TOKEN, last, ok=b'"abort"' not in line)
    except httpx.HTTPError:
        put(TOKEN, last, ok=False)
        time.sleep(0.2)


class Memory:
    """Resident memory of a process and all it started, sampled while a block lasts.

    Attributes:
        peak: the most so far, MB.
    """

    def __init__(self, pid: int, limit: float, exceeded: Callable[[], Any]) -> None:
        """Keep what it needs.

        Args:
            pid: of the first process.
            limit: MB.
            exceeded: called once if the processes have more.
        """
        self._pid, self._limit, self._exceeded = pid, limit, exceeded
        self.peak = megabytes(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            self.peak = max(self.peak, megabytes(self._pid))
            if self.peak > self._limit:
                self._exceeded()
                return


def megabytes(pid: int) -> float:
    """Resident memory of a process and all it started, MB; pages that they share count for each."""
    found = 0.0
    with contextlib.suppress(psutil.Error):
        first = psutil.Process(pid)
        for process in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found += process.memory_info().rss / 2**20
    return found
