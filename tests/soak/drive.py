"""Send the waves of a schedule to a server, and do to it what they say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.http_client import HTTP
from bench.processes import is_alive
from server.client import without_logprobs
from server.launch import Config, Server, started
from soak.check import Answer
from soak.schedule import (
    ABORT,
    HANG_UP,
    HOSTILE,
    KILLED_CLIENT,
    LEAVE,
    PROMPT,
    REFUSED,
    STREAM,
    TOKENS,
    Action,
    Kill,
    Wave,
)

CLIENTS = 64
PATIENCE_SECONDS = 600.0
"""An answer that takes longer never comes."""
END_SECONDS = 10.0
"""A server that no longer answers ends within it, if it ends."""
ORPHAN_SECONDS = 20.0
LONGEST_SENTENCE = 600
ABORTED = "Aborted by AbortReq"
CLIENT = """\
import json, sys, httpx
url, body = json.load(sys.stdin)
with httpx.stream("POST", url, json=body, timeout=None, trust_env=False) as answer:
    for part in answer.raise_for_status().iter_bytes():
        sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
"""
"""A process that hands on a stream, to be killed."""
CLIENT_SECONDS = 0.7
"""How long it takes to import what it needs, before it sends its request."""


@dataclass
class Log:
    """What happened, by name, and what should not have."""

    events: Counter[str] = field(default_factory=Counter)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, event: str) -> None:
        """Count an event."""
        with self._lock:
            self.events[event] += 1

    def error(self, reason: str, **facts: Any) -> None:
        """Keep what should not have happened."""
        with self._lock:
            self.wrong.append({"reason": reason, **facts})


class _Server(Server):
    def _for_site(self) -> dict[str, str]:
        return {}  # a digest of every step is for comparing ranks, and would cost a fifth


class Served:
    """A server that may be killed and started again.

    As a context manager it is ended when the block is left.
    """

    def __init__(
        self,
        config: Config,
        folder: Path,
        log: Log,
        begun: Callable[[int], None] = lambda pid: None,
    ) -> None:
        """Start it.

        Args:
            config: its configuration.
            folder: where its logs go.
            log: of events and errors.
            begun: called with the process id as soon as there is one.
        """
        self.config, self.folder, self.log, self._begun = config, folder, log, begun
        self.starts = 0
        self.killed = False
        self.server: Server
        self.start()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.server.url

    def start(self) -> None:
        """Start it, with the caches that the one before it may have left half written.

        Raises:
            ProcessError: it ended, or was not ready in time.
        """
        self.killed = False
        self.server = started(lambda _: self._begin())

    def _begin(self) -> Server:
        self.starts += 1
        name = f"{self.config.name}-{self.starts}.log".replace(" ", "-")
        self.server = _Server(self.config, self.folder / name)
        self._begun(self.server.process.pid)
        return self.server

    def start_again(self, kill_after: float | None) -> None:
        """End what is left of it and start it, killed once while it starts if there are seconds."""
        self.server.stop()
        if kill_after is not None:
            self._begin()
            time.sleep(kill_after)
            self.server.process.stop(grace=0)
            self.log.note("server killed while it started")
        self.start()
        self.log.note("server started again")

    def kill(self, kill: Kill) -> None:
        """SIGKILL it: all of its processes, or the first, which the others must then follow."""
        self.killed = True
        process = self.server.process
        if kill.whole:
            self.log.note("server killed")
            process.stop(grace=0)
            return
        self.log.note("server's first process killed")
        os.kill(process.pid, signal.SIGKILL)
        process.wait(ORPHAN_SECONDS)
        deadline = time.monotonic() + ORPHAN_SECONDS
        while is_alive(process.pid):
            if time.monotonic() > deadline:
                self.log.error("processes go on without the one that started them")
                break
            time.sleep(0.2)


class Driver:
    """Sends waves to a server."""

    def __init__(self, served: Served, put: Callable[[Answer], None], log: Log) -> None:
        """Keep what it needs.

        Args:
            served: the server.
            put: takes an answer to be checked.
            log: of events and errors.
        """
        self.served, self.log = served, log
        self._put = put
        self.broken = False
        self.deltas = "--incremental-streaming-output" in served.config.flags

    def wave(self, wave: Wave) -> None:
        """Send a wave, and start the server again if it was killed or ended by itself."""
        self.broken = False
        began = time.monotonic()
        over = threading.Event()
        deeds: list[tuple[float, Callable[[], None]]] = [
            (at, partial(self._pause, mode, seconds)) for at, mode, seconds in wave.pauses
        ]
        if wave.abort_all is not None:
            deeds.append((wave.abort_all, self._abort_all))
        if wave.kill is not None:
            deeds.append((wave.kill.at, partial(self.served.kill, wave.kill)))
        deeds.sort(key=lambda deed: deed[0])

        def act() -> None:
            for at, deed in deeds:
                if over.wait(max(0.0, began + at - time.monotonic())):
                    return
                deed()

        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            acting = pool.submit(act)
            sent = [pool.submit(self._send, action, wave, began) for action in wave.actions]
            for future in sent:
                future.result()
            over.set()
            acting.result()
        if self.served.killed:
            self.served.start_again(wave.kill.again if wave.kill else None)
        elif self.broken and (status := self.served.server.process.wait(END_SECONDS)) is not None:
            tail = self.served.server.log_tail()
            self.log.error(f"the server ended with status {status}", wave=wave.name, log=tail)
            self.served.start_again(None)
        elif wave.flush:
            self._flush(wave)

    def _send(self, action: Action, wave: Wave, began: float) -> None:
        time.sleep(max(0.0, began + action.at - time.monotonic()))
        if self.served.killed:
            return
        self.log.note(action.how)
        body = body_of(action)
        try:
            content = self._answer(action, body, wave)
        except (httpx.HTTPError, OSError) as error:
            self._cut_off(f"no answer: {error!r}", body, wave)
            return
        if content:
            name = self.served.config.name
            self._put(
                Answer(name, wave.name, action.how, action.request, body, content, self.deltas)
            )

    def _answer(self, action: Action, body: dict[str, Any], wave: Wave) -> bytes:
        """The parts of the answer to check; empty for none."""
        url = f"{self.served.url}/generate"
        if action.how == KILLED_CLIENT:
            return self._killed_client(url, body, action.after)
        if action.how in (STREAM, HANG_UP):
            return self._stream(url, body, action, wave)
        timer = None
        patience = PATIENCE_SECONDS
        if action.how == LEAVE:
            patience = max(action.after, 0.01)
        elif action.how == ABORT:
            timer = threading.Timer(action.after, self._abort, [body["rid"]])
            timer.start()
        try:
            answer = HTTP.post(
                url,
                content=json.dumps(body),  # what is no number in JSON too
                headers={"Content-Type": "application/json"},
                timeout=httpx.Timeout(PATIENCE_SECONDS, read=patience),
            )
        except httpx.ReadTimeout:
            if action.how != LEAVE:
                raise
            return b""
        finally:
            if timer is not None:
                timer.join()
        if action.how == REFUSED:
            self._refused(answer, action, body, wave)
            return b""
        if action.how == HOSTILE and answer.status_code in (200, 400):
            return b""
        if answer.status_code != 200:
            if ABORTED in answer.text and (action.how == ABORT or wave.abort_all is not None):
                self.log.note("aborted before it began")
            else:
                self._unexpected(answer, body, wave)
            return b""
        return answer.content

    def _stream(self, url: str, body: dict[str, Any], action: Action, wave: Wave) -> bytes:
        content = b""
        with HTTP.stream("POST", url, json=body, timeout=PATIENCE_SECONDS) as answer:
            if answer.status_code != 200:
                answer.read()
                self._unexpected(answer, body, wave)
                return b""
            with (
                contextlib.suppress(httpx.HTTPError)
                if self.served.killed
                else (contextlib.nullcontext())
            ):
                for part in answer.iter_bytes():
                    content += part
                    if action.how == HANG_UP and content.count(b"\n\n") >= action.after:
                        break
        return content

    def _killed_client(self, url: str, body: dict[str, Any], seconds: float) -> bytes:
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as client:
            assert client.stdin is not None
            client.stdin.write(json.dumps([url, body]).encode())
            client.stdin.close()
            client.stdin = None
            killer = threading.Timer(CLIENT_SECONDS + seconds, client.kill)
            killer.start()
            assert client.stdout is not None
            content = client.stdout.read()
            killer.cancel()
        return content

    def _refused(
        self, answer: httpx.Response, action: Action, body: dict[str, Any], wave: Wave
    ) -> None:
        try:
            error = answer.json()["error"]
            sentence = str(error["message"] if isinstance(error, dict) else error)
        except (ValueError, KeyError, TypeError):
            sentence = ""
        is_clear = action.reason in sentence and len(sentence) <= LONGEST_SENTENCE
        if answer.status_code != 400 or not is_clear:
            reason = f"not refused with {action.reason!r}: {answer.status_code}"
            self.log.error(f"{reason} {answer.text[:500]}", wave=wave.name, request=body)

    def _unexpected(self, answer: httpx.Response, body: dict[str, Any], wave: Wave) -> None:
        self._cut_off(f"status {answer.status_code}: {answer.text[:500]}", body, wave)

    def _cut_off(self, reason: str, body: dict[str, Any], wave: Wave) -> None:
        if self.served.killed:
            self.log.note("cut off by the server's end")
            return
        self.broken = True
        self.log.error(reason, wave=wave.name, request=body)

    def _post(self, path: str, body: dict[str, Any]) -> None:
        with contextlib.suppress(httpx.HTTPError):
            HTTP.post(f"{self.served.url}{path}", json=body, timeout=PATIENCE_SECONDS)

    def _abort(self, rid: str) -> None:
        self._post("/abort_request", {"rid": rid})

    def _abort_all(self) -> None:
        self.log.note("all aborted")
        self._post("/abort_request", {"abort_all": True})

    def _pause(self, mode: str, seconds: float) -> None:
        self.log.note(f"pause, {mode}")
        self._post("/pause_generation", {"mode": mode})
        time.sleep(seconds)
        self._post("/continue_generation", {})

    def _flush(self, wave: Wave) -> None:
        self.log.note("cache flushed")
        url = f"{self.served.url}/flush_cache?timeout={PATIENCE_SECONDS:g}"
        try:
            answer = HTTP.post(url, timeout=PATIENCE_SECONDS + 10)
        except httpx.HTTPError as error:
            self.log.error(f"the cache was not flushed: {error!r}", wave=wave.name)
            return
        if answer.status_code != 200:
            self.log.error(f"the cache was not flushed: {answer.text[:500]}", wave=wave.name)


def body_of(action: Action) -> dict[str, Any]:
    """The body of an action, for /generate."""
    body = action.request.body()
    if action.how in (STREAM, HANG_UP, KILLED_CLIENT):
        # The server refuses to stream the flat form.
        body = {name: value for name, value in body.items() if "flat" not in name}
        body["stream"] = True
    elif action.how in (TOKENS, HOSTILE):
        body = without_logprobs(body)
    elif action.how == PROMPT:
        body |= {"logprob_start_len": 0, "return_flat_raw_top_logprobs": True}
    elif action.how == ABORT:
        body["rid"] = os.urandom(8).hex()
    return body
