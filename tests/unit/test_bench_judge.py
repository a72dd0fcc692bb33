"""The judge over HTTP, with a server that answers as a test wants."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import openai
import pytest

from bench.repetition.judge import HEAD, TAIL, connect, judge, parse, question


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("It repeats one line to the end.\nVerdict: yes", True),
        ("It repeats nothing.\n\n**Verdict: No**", False),
        ("**Verdict:** yes.", True),
        ("VERDICT: NO", False),
        ("I would say Verdict: yes, but on reflection\nVerdict: no", False),
        ("<think>Verdict: yes?</think>It is a table.\nVerdict: no", False),
        ("<think>Verdict: yes</think>I cannot tell.", None),
        ("yes", None),
        ("Verdict: unclear", None),
        ("Verdict: nothing to see", None),
        ("", None),
    ],
)
def test_parse(answer: str, verdict: bool | None) -> None:
    assert parse(answer) is verdict


def shown(text: str) -> str:
    *_, user = question(text)
    content = user["content"]
    assert isinstance(content, str)
    return content


def test_an_output_up_to_the_limit_is_shown_in_full() -> None:
    text = "".join(chr(0x4E00 + i) for i in range(HEAD + TAIL))
    assert text in shown(text)


def test_of_a_long_output_start_and_end_are_shown() -> None:
    text = "a" * HEAD + "b" * 12345 + "c" * TAIL
    content = shown(text)
    assert "a" * HEAD in content
    assert "c" * TAIL in content
    assert "[... 12345 characters left out ...]" in content
    assert "bb" not in content
    assert len(content) < HEAD + TAIL + 200


class Endpoint:
    """A chat endpoint that gives `answers` in turn, a status where one is a number."""

    def __init__(self) -> None:
        self.answers: list[str | int | None] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with endpoint.lock:
                    endpoint.asked.append({"path": self.path, **body})
                    endpoint.keys.append(self.headers["Authorization"])
                    answer = endpoint.answers.pop(0)
                status = answer if isinstance(answer, int) else 200
                message = {"role": "assistant", "content": answer}
                choice = {"index": 0, "message": message, "finish_reason": "stop"}
                choices = [] if answer == "no choice" else [choice]
                reply = json.dumps({"id": "1", "object": "chat.completion", "choices": choices})
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(reply)))
                self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(reply.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    monkeypatch.setenv("OPENAI_API_KEY", "the key")
    endpoint = Endpoint()
    thread = threading.Thread(target=endpoint.server.serve_forever)
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    thread.join()
    endpoint.server.server_close()


def test_the_verdict_comes_with_the_answer(endpoint: Endpoint) -> None:
    endpoint.answers = ["It goes round.\nVerdict: yes", "Verdict: no", None]
    client = connect(endpoint.url)
    assert judge(client, "arbiter", "x x x") == (True, "It goes round.\nVerdict: yes")
    assert judge(client, "arbiter", "x y z") == (False, "Verdict: no")
    assert judge(client, "arbiter", "") == (None, "")
    first = endpoint.asked[0]
    assert first["path"] == "/v1/chat/completions"
    assert (first["model"], first["temperature"]) == ("arbiter", 0)
    assert first["messages"] == question("x x x")
    assert endpoint.keys == ["Bearer the key"] * 3


def test_without_a_key_a_server_of_ones_own_is_asked(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    endpoint.answers = ["Verdict: no"]
    assert judge(connect(endpoint.url), "arbiter", "x") == (False, "Verdict: no")


def test_an_overloaded_endpoint_is_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [503, 429, "Verdict: yes"]
    assert judge(connect(endpoint.url), "arbiter", "x") == (True, "Verdict: yes")
    assert len(endpoint.asked) == 3


def test_a_refused_request_is_an_error(endpoint: Endpoint) -> None:
    endpoint.answers = [401]
    with pytest.raises(openai.OpenAIError):
        judge(connect(endpoint.url), "arbiter", "x")


def test_an_answer_without_a_choice_is_an_error(endpoint: Endpoint) -> None:
    endpoint.answers = ["no choice"]
    with pytest.raises(openai.OpenAIError, match="without a choice"):
        judge(connect(endpoint.url), "arbiter", "x")


def test_one_client_serves_many_threads(endpoint: Endpoint) -> None:
    endpoint.answers = ["Verdict: yes"] * 40
    client = connect(endpoint.url)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: judge(client, "arbiter", text), map(str, range(40))))
    assert found == [(True, "Verdict: yes")] * 40
    contents = {asked["messages"][-1]["content"] for asked in endpoint.asked}
    assert contents == {shown(str(i)) for i in range(40)}
