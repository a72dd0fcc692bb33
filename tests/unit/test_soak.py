"""The soak's schedules and its judgement: what it must see, and what it must not take for wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from soak.check import Answer, check
from soak.drive import Driver, Log
from soak.schedule import ANSWER, HOSTILE, LEAVE, REFUSED, STREAM, Action, Request, Wave

REQUEST = Request(prompt=[300, 301], new_tokens=2)


def row(token: int, logprob: float) -> Any:
    """A full vocabulary's logprobs, as a stream has them."""
    return [[logprob if i == token else -9.0, i, None] for i in range(2048)]


def stream(*outputs: list[int], deltas: bool) -> Answer:
    events = []
    for i, tokens in enumerate(outputs):
        shown = tokens if deltas else [token for earlier in outputs[: i + 1] for token in earlier]
        meta = {
            "output_token_logprobs": [[-1.0, token, None] for token in shown],
            "output_top_logprobs": [row(token, -1.0) for token in shown],
            "finish_reason": None,
        }
        events.append(f"data: {json.dumps({'output_ids': shown, 'meta_info': meta})}\n\n")
    content = "".join(events).encode()
    return Answer("c", "w", STREAM, REQUEST, {}, content, deltas)


def test_a_logprob_that_differs_from_its_row_is_a_failure() -> None:
    answer = stream([7], [8], deltas=True)
    changed = answer.content.replace(b"[-1.0, 8, null]]", b"[-1.5, 8, null]]", 1)
    (verdict,) = check(Answer(*("c", "w", STREAM, REQUEST, {}), changed, True))
    assert verdict.failure is not None
    assert "not that of its row" in verdict.failure["reason"]


class Handler(BaseHTTPRequestHandler):
    """Answers with what the prompt's first token says."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = body["input_ids"][0]
        if status == 0:
            self.connection.close()
            return
        error = {"error": {"message": "lz_penalty must be less"}}
        content = json.dumps(error if status >= 400 else {"all": "well"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def driven() -> Iterator[tuple[Driver, list[Answer]]]:
    """A driver of a server that does as it is told, and what the driver handed on."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        process = SimpleNamespace(wait=lambda seconds: None)
        server: Any = SimpleNamespace(process=process)
        config = SimpleNamespace(name="c", flags=())
        url = f"http://127.0.0.1:{http.server_port}"
        served: Any = SimpleNamespace(url=url, config=config, killed=False, server=server)
        answers: list[Answer] = []
        yield Driver(served, answers.append, Log()), answers
        http.shutdown()
        thread.join()


def send(driver: Driver, how: str, status: int, reason: str = "") -> list[str]:
    """What the driver calls wrong when a request gets such an answer."""
    wave = Wave("w", (Action(0.0, how, Request([status], 1), 0.5, reason),))
    driver.log.wrong.clear()
    driver.wave(wave)
    return [error["reason"] for error in driver.log.wrong]


def test_unexpected_events_are_errors(driven: tuple[Driver, list[Answer]]) -> None:
    driver, answers = driven
    assert send(driver, ANSWER, 200) == []
    assert [answer.content for answer in answers] == [b'{"all": "well"}']
    assert "status 500" in send(driver, ANSWER, 500)[0]
    assert "no answer" in send(driver, ANSWER, 0)[0]
    assert send(driver, REFUSED, 400, "must be less") == []
    assert "not refused" in send(driver, REFUSED, 400, "must be more")[0]
    assert "not refused" in send(driver, REFUSED, 200, "must be less")[0]
    assert "not refused" in send(driver, REFUSED, 500, "must be less")[0]
    assert send(driver, HOSTILE, 200) == send(driver, HOSTILE, 400) == []
    assert "status 500" in send(driver, HOSTILE, 500)[0]
    assert "no answer" in send(driver, HOSTILE, 0)[0]
    assert send(driver, LEAVE, 200) == []
    assert len(answers) == 2, "what is refused or left is not checked"
