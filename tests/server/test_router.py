"""Upstream's routers handle the penalty's fields as docs/DEPLOY.md says.

A router that forwards more in a newer release fails these tests too: then the page is out of date.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.http_client import HTTP
from bench.processes import Background, free_port
from server.client import Json, post_ok
from server.configurations import CONFIGURATIONS, FORKED, on
from server.disaggregated import Pair
from server.endpoints import ENDPOINTS, Endpoint, prompt_ids
from server.launch import Config, Server, serving

PAGE = Path(__file__).parents[2] / "docs" / "DEPLOY.md"
CONTENT = "the value is an exception the value is an exception class the value is"
NEW_TOKENS = 32
FIELDS: Json = {
    "lz_penalty": 0.3,
    "lz_window_size": 64,
    "lz_buffer_size": 8,
    "lz_include_prompt": True,
    "lz_cost": "rate",
}
WRONG: Json = {"lz_penalty": 99}


REQUEST_SECONDS = 30

# A router has a machine of its own. Where it finds sglang, sglang_router imports all of it, for
# nothing but traces: six seconds.
_RUN = """
import runpy, sys
sys.modules["sglang"] = None
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""


class Router(Server):
    """A running router: its address, its process and its log."""

    def __init__(self, mode: str, workers: Sequence[Server], log_path: Path) -> None:
        """Start it.

        Args:
            mode: the router's Python package and the flags that choose its mode, as one types them.
            workers: the servers behind it; in the mode --pd-disaggregation a single `Pair`.
            log_path: its log.
        """
        package, *flags = mode.split()
        self.config = Config(mode)
        self.log_path = log_path
        self.mode = mode
        self.workers = workers
        port, metrics_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", _RUN, f"{package}.launch_router", *flags]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)]
        command += ["--policy", "round_robin", "--worker-startup-check-interval", "1"]
        (first, *_) = workers
        if isinstance(first, Pair):
            command += ["--prefill", first.prefill.url, str(first.bootstrap_port)]
            command += ["--decode", first.decode.url]
        elif "--enable-igw" not in flags:
            command += ["--worker-urls", *(worker.url for worker in workers)]
        # At once: a router that is asked to end waits for seconds for requests that never come.
        self.process = Background(command, name=f"router {mode!r}", log=log_path, grace=0)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._knows_its_workers() and self._serves()
        return False

    def _knows_its_workers(self) -> bool:
        if "--mini-lb" in self.mode:  # it asks none of them, and has no such list
            return True
        known = HTTP.get(f"{self.url}/workers", timeout=REQUEST_SECONDS).json()["total"]
        if "--enable-igw" in self.mode and not known:  # that mode is told of them while it runs
            for worker in self.workers:
                body = {"url": worker.url, "model_id": "m"}
                HTTP.post(f"{self.url}/workers", json=body, timeout=REQUEST_SECONDS)
        expected = 2 if isinstance(self.workers[0], Pair) else len(self.workers)
        return bool(known == expected)

    def _serves(self) -> bool:
        body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
        url = f"{self.url}/v1/chat/completions"
        return HTTP.post(url, json=body, timeout=REQUEST_SECONDS).is_success


@contextlib.contextmanager
def routing(mode: str, workers: Sequence[Server], log_path: Path) -> Iterator[Router]:
    """A ready router; ended when the block is left, however it is left."""
    router = Router(mode, workers, log_path)
    try:
        router.wait_until_ready()
        yield router
    finally:
        router.stop()


def documented() -> dict[str, dict[str, str]]:
    """The page's table: mode -> path of an endpoint -> what becomes of the fields."""
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text().splitlines()
        if re.match(r"\| (router and its flags|`(smg|sglang_router)[` ])", line)
    ]
    paths = [re.findall(r"`(\S+)`", cell) for cell in rows[0][1:]]
    return {
        row[0].strip("`"): {
            path: cell.strip("*")
            for group, cell in zip(paths, row[1:], strict=True)
            for path in group
        }
        for row in rows[1:]
    }


TABLE = documented()
FEWEST_FLAGS = ("smg", "sglang_router", "smg --pd-disaggregation")


def modes(*, is_paired: bool) -> list[Any]:
    """The table's modes, with pairs of a prefill and a decode server behind them or without."""
    return [
        pytest.param(mode, marks=() if mode in FEWEST_FLAGS else pytest.mark.full)
        for mode in TABLE
        if ("--pd-disaggregation" in mode) == is_paired
    ]


@cache
def texts(server: Server, chat: bool) -> tuple[str, str]:
    """The greedy texts of CONTENT with FIELDS and without, from the server itself."""
    found = []
    for fields in (FIELDS, {}):
        sampling = {"max_new_tokens": NEW_TOKENS, "temperature": 0, **fields}
        body = {"input_ids": prompt_ids(CONTENT, chat), "sampling_params": sampling}
        found.append(str(post_ok(server, "/generate", body)["text"]))
    assert found[0] != found[1]
    return found[0], found[1]


def observed(router: Router, endpoint: Endpoint, with_fields: str, without: str) -> str:
    """What becomes of the fields, in the page's words; or what happened, if it has no word."""
    answer = endpoint.send(router, CONTENT, NEW_TOKENS, FIELDS)
    if answer.status_code in (404, 501):
        return "absent"
    if answer.status_code == 400 and "lz_penalty" in answer.text:
        return "refused"
    if answer.status_code != 200:
        return f"status {answer.status_code}: {answer.text[:500]}"
    text = endpoint.text(answer.json())
    streamed = endpoint.streamed(endpoint.send(router, CONTENT, NEW_TOKENS, FIELDS, stream=True))
    if streamed != text:
        return f"answered {text!r}, streamed {streamed!r}"
    wrong = endpoint.send(router, CONTENT, 2, WRONG)
    if text == with_fields and wrong.status_code == 400 and "lz_penalty" in wrong.text:
        return "forwarded"
    if text == without and wrong.status_code == 200:
        return "dropped"
    return f"answered {text!r}, and to a wrong value {wrong.status_code}: {wrong.text[:500]}"


def check(router: Router, server: Server) -> None:
    """Hold a router to its row of the table; `server` is asked what the texts are."""
    found = {e.path: observed(router, e, *texts(server, e.chat)) for e in ENDPOINTS}
    assert found == TABLE[router.mode]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A second server of the configuration `overlap`."""
    log_path = tmp_path_factory.mktemp("replica") / "server.log"
    with serving(replace(CONFIGURATIONS["overlap"], env=FORKED), log_path) as running:
        yield running


@on("overlap")
@pytest.mark.parametrize("mode", modes(is_paired=False))
def test_in_front_of_two_replicas(
    server: Server, replica: Server, mode: str, tmp_path: Path
) -> None:
    before = [len(worker.log()) for worker in (server, replica)]
    with routing(mode, (server, replica), tmp_path / "router.log") as router:
        check(router, server)
    if "--backend openai" in mode:  # it has no policies: an idle first replica gets everything
        return
    for worker, start in zip((server, replica), before, strict=True):
        assert re.search(r'"POST /v1/\S+ HTTP/1.1" 200', worker.log()[start:])


@on("disaggregated")
@pytest.mark.parametrize("mode", modes(is_paired=True))
def test_in_front_of_prefill_and_decode(server: Server, mode: str, tmp_path: Path) -> None:
    with routing(mode, (server,), tmp_path / "router.log") as router:
        check(router, server)


@on("defaults")
def test_a_server_default_needs_no_field(server: Server, tmp_path: Path) -> None:
    """Behind the router that drops them; so a request cannot switch it off there either."""
    chat = next(endpoint for endpoint in ENDPOINTS if endpoint.name == "chat")

    def text(place: Server, fields: Json) -> str:
        return chat.answer(place, CONTENT, NEW_TOKENS, fields)

    off: Json = {"lz_penalty": 0}
    with routing("sglang_router", (server,), tmp_path / "router.log") as router:
        assert text(server, {}) != text(server, off)
        assert text(router, {}) == text(router, off) == text(server, {})
