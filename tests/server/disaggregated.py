"""A prefill server and a decode server behind one address."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from bench.http_client import HTTP
from bench.processes import free_port
from server.launch import Config, Server


class Pair(Server):
    """Both servers, and a router in front of them like upstream's.

    Attributes:
        prefill: the server that prefills and samples each request's first token.
        decode: the server that samples all others.
    """

    def __init__(self, config: Config, log_path: Path) -> None:
        """Start both; `config.decode_flags` go to the decode server only."""
        assert config.decode_flags is not None
        self.config = config
        self.bootstrap_port = free_port()
        sides = {
            "prefill": ("--disaggregation-bootstrap-port", str(self.bootstrap_port)),
            "decode": config.decode_flags,
        }
        self.prefill, self.decode = (
            Server(
                Config(
                    f"{config.name}-{side}",
                    ("--disaggregation-mode", side, *config.flags, *flags),
                    config.env,
                    draft=config.draft,
                ),
                log_path.with_stem(side),
            )
            for side, flags in sides.items()
        )
        self.rooms = itertools.count(1)
        self.router = _RouterServer(("127.0.0.1", 0), _Router)
        self.router.pair = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.router.server_port}"
        threading.Thread(target=self.router.serve_forever, daemon=True).start()

    def generate(self, body: dict[str, Any]) -> httpx.Response:
        """Send a /generate request to both servers and merge their answers."""
        body = body | {
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self.bootstrap_port,
            "bootstrap_room": next(self.rooms),
        }

        def send(side: Server) -> httpx.Response:
            return HTTP.post(f"{side.url}/generate", json=body)

        with ThreadPoolExecutor(2) as pool:
            prefilled, decoded = pool.map(send, (self.prefill, self.decode))
        if not (prefilled.is_success and decoded.is_success):
            return decoded if prefilled.is_success else prefilled
        answer = decoded.json()
        meta = prefilled.json()["meta_info"]
        answer["meta_info"] |= {name: meta[name] for name in meta if name.startswith("input_")}
        return httpx.Response(decoded.status_code, content=json.dumps(answer))

    def wait_until_ready(self) -> None:
        """Block until both servers are ready.

        Raises:
            RuntimeError: as `Server.wait_until_ready`.
        """
        self.prefill.wait_until_ready()
        self.decode.wait_until_ready()

    def log(self) -> str:
        """All that both servers wrote so far."""
        return self.prefill.log() + self.decode.log()

    def log_tail(self) -> str:
        """The last lines of both logs, under titles."""
        return f"{self.prefill.log_tail()}\n{self.decode.log_tail()}"

    def stop(self) -> None:
        """End the router and both servers."""
        self.router.shutdown()
        self.router.server_close()
        self.prefill.stop()
        self.decode.stop()


class _RouterServer(ThreadingHTTPServer):
    request_queue_size = 128  # tests send dozens of requests at once; the default of 5 resets some


class _Router(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Route one request; all but /generate concern the decode server only."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        pair: Pair = self.server.pair  # type: ignore[attr-defined]
        if self.path == "/generate":
            answer = pair.generate(body)
        else:
            answer = HTTP.post(f"{pair.decode.url}{self.path}", json=body)
        self.send_response(answer.status_code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""
