"""bench.models: its grid, its run directory, its probes and its scores; a stub answers."""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bench.models import commands, grid, run_directory

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
LOOP = "again"


class Stub(ThreadingHTTPServer):
    """An OpenAI-compatible endpoint whose answers depend on prompt, seed and penalty alone."""

    daemon_threads = True
    # As many as may wait to connect; the default of 5 refuses a burst.
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.known = {"lz_penalty", "lz_cost", "repetition_penalty", "return_token_ids"}
        self.asked: list[dict[str, Any]] = []
        self.seconds = 0.0

    @property
    def samples(self) -> Counter[str]:
        """How often each sample was asked for; what only probes is shorter."""
        return Counter(json.dumps(body) for body in self.asked if body["max_tokens"] == 30)


class Handler(BaseHTTPRequestHandler):
    server: Stub

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        self.answer(200 if known else 404, {"data": [{"id": "stub"}]} if known else {})

    def do_POST(self) -> None:
        stub = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wrong = {"lz_penalty": -1, "repetition_penalty": -1, "lz_cost": "no such cost"}
        for name, value in wrong.items():
            if name in stub.known and body.get(name) == value:
                return self.answer(400, {"error": {"message": f"{name} out of range"}})
        stub.asked.append(body)
        time.sleep(stub.seconds)
        used = {name: body[name] for name in sorted(stub.known & body.keys()) if "_p" in name}
        prompt = body.get("prompt") or body["messages"][0]["content"]
        digest = hashlib.sha256(
            f"{prompt} {body['seed']} {body['temperature'] > 0} {used}".encode()
        )
        words = [LOOP] * 25 if prompt.endswith("loop") and not used else []
        ids = list(digest.digest()[:5]) + [7] * len(words)
        text = " ".join([digest.hexdigest(), *words, "Answer: 42"])
        chat = "messages" in body
        said = {"message": {"content": text}} if chat else {"text": text}
        told = {"response_token_ids" if chat else "token_ids": ids}
        if "return_token_ids" in stub.known and body.get("return_token_ids"):
            said |= told
        choice = {**said, "finish_reason": "length" if words else "stop"}
        return self.answer(200, {"choices": [choice], "usage": {"completion_tokens": len(ids)}})

    def answer(self, status: int, content: dict[str, Any]) -> None:
        raw = json.dumps(content).encode()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was killed
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def stub() -> Iterator[Stub]:
    with Stub() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield server
        server.shutdown()


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Six problems, two of which the stub answers with a loop."""
    file = tmp_path / "problems.jsonl"
    rows = [
        {"id": i, "prompt": f"problem {i}{' loop' * (i < 2)}", "answer": "42", "group": "ab"[i % 2]}
        for i in range(6)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def arguments(stub: Stub, problems: Path, out: Path, *more: str) -> list[str]:
    return [
        *("run", "--base-url", stub.url, "--out", str(out), "--task", f"jsonl={problems}"),
        *("--max-tokens", "30", "--seeds", "2", "--temperature", "0", "0.7"),
        *("--penalty", "none", "--penalty", "lz_penalty=0.15", *more),
    ]


def run(stub: Stub, problems: Path, out: Path, *more: str) -> None:
    commands.main(arguments(stub, problems, out, *more))


def refusal(stub: Stub, problems: Path, out: Path, *more: str) -> str:
    with pytest.raises(SystemExit) as caught:
        run(stub, problems, out, *more)
    assert isinstance(caught.value.code, str)
    return caught.value.code


SAMPLES = 6 * 2 * 3  # problems, variants; one seed at temperature 0 and two at 0.7


def kept(out: Path) -> dict[Any, dict[str, Any]]:
    """The samples of a run directory by key, without what the clock says."""
    whole = (out / "samples.jsonl").read_text().split("\n")[:-1]
    lines = [json.loads(line) for line in whole]
    found = {run_directory.key_of(line): line for line in lines}
    assert len(found) == len(lines), "a sample is there twice"
    for line in lines:
        del line["seconds"]
    return found


class TestRun:
    def test_a_killed_run_goes_on_without_losing_or_repeating(
        self, stub: Stub, problems: Path, tmp_path: Path
    ) -> None:
        run(stub, problems, tmp_path / "whole")
        expected = kept(tmp_path / "whole")
        assert len(expected) == SAMPLES
        assert stub.samples.total() == SAMPLES

        out = tmp_path / "killed"
        stub.asked.clear()
        stub.seconds = 0.1
        given = arguments(stub, problems, out, "--concurrency", "4")
        command = [sys.executable, "-m", "bench.models", *given]
        with subprocess.Popen(command, cwd=ROOT) as started:
            while not (out / "samples.jsonl").exists() or len(kept(out)) < 10:
                assert started.poll() is None
                time.sleep(0.02)
            started.kill()
        before = kept(out)
        assert 10 <= len(before) < SAMPLES
        assert stub.samples.total() <= len(before) + 4, "only what was in flight is lost"

        stub.asked.clear()
        stub.seconds = 0
        run(stub, problems, out)
        assert len(stub.samples) == SAMPLES - len(before)
        late = stub.samples.total() - len(stub.samples)  # what the killed run had already sent
        assert late <= 4
        assert kept(out) == expected
        first, second = (
            json.loads((folder / "result.json").read_text())["cells"]
            for folder in (out, tmp_path / "whole")
        )
        assert first == second, "the order of arrival changes nothing"

        stub.asked.clear()
        result = (out / "result.json").read_bytes()
        run(stub, problems, out)
        assert stub.samples.total() == 0
        commands.main(["report", str(out)])
        assert (out / "result.json").read_bytes() == result


class TestProbes:
    def test_an_endpoint_that_ignores_a_penalty_is_refused(
        self, stub: Stub, problems: Path, tmp_path: Path
    ) -> None:
        stub.known.discard("lz_cost")
        assert "ignores lz_cost" in refusal(stub, problems, tmp_path)
        assert not (tmp_path / "samples.jsonl").exists()


class TestScores:
    def test_hand_computed(self, stub: Stub, problems: Path, tmp_path: Path) -> None:
        """The stub: two of six problems loop without a penalty; every answer is right."""
        run(stub, problems, tmp_path)
        result = json.loads((tmp_path / "result.json").read_text())
        names = [(cell["variant"], cell["temperature"]) for cell in result["cells"]]
        lz = grid.expand(["lz_penalty=0.15"])[0].name
        assert names == [("none", 0.0), ("none", 0.7), (lz, 0.0), (lz, 0.7)]
        none, _, _, penalised = result["cells"]
        assert (none["samples"], penalised["samples"], none["items"]) == (6, 12, 6)
        assert none["accuracy"] == {"mean": 1.0, "ci": [0.5407, 1.0]}  # 0.025 ** (1 / 6)
        assert none["degenerate"]["mean"] == 0.3333
        assert none["finish"] == {"length": 2, "stop": 4}
        assert none["tokens"]["mean"] == round((2 * 30 + 4 * 5) / 6, 4)
        assert none["against_none"] is None
        assert none["final_loop"]["mean"] == none["cut_off"]["mean"] == 0.3333
        assert none["copied"]["mean"] == round(2 / 6 * 17 / 23, 4)
        assert none["near_copies"]["mean"] == 0.3333
        assert none["most_copies"] == 25
        assert penalised["degenerate"] == {"mean": 0.0, "ci": [0.0, 0.4593]}
        against = penalised["against_none"]
        assert against["degenerate"]["mean"] == against["cut_off"]["mean"] == -0.3333
        assert against["ended_loops"] == {"ended": 4, "right": 4}
        assert against["unchanged"] == {"mean": 0.0, "ci": [0.0, 0.4593]}
        assert none["groups"]["a"]["degenerate"] == 0.3333
        assert none["groups"]["a"]["rep_4_gram"] == round(21 / 27 / 3, 4)
        assert (tmp_path / "overview.png").stat().st_size > 10_000

    def test_a_stopped_run_has_the_same_items_under_each_penalty(
        self, stub: Stub, problems: Path, tmp_path: Path
    ) -> None:
        """Those before the first missing sample."""
        run(stub, problems, tmp_path, "--concurrency", "1")  # kept in the order of the run
        path = tmp_path / "samples.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        keys = [(line["item"], line["temperature"]) for line in map(json.loads, lines)]
        third = list(dict.fromkeys(item for item, temperature in keys if temperature == 0))[2]
        lines.pop(keys.index((third, 0.0)))
        path.write_text("".join(lines))
        commands.main(["report", str(tmp_path)])
        cells = json.loads((tmp_path / "result.json").read_text())["cells"]
        assert [(cell["temperature"], cell["samples"]) for cell in cells] == [(0, 2), (0.7, 12)] * 2
