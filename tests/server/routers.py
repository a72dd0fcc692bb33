"""Upstream's routers in front of running servers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from bench.http_client import HTTP
from bench.processes import Background, free_port
from server.disaggregated import Pair
from server.launch import Config, Server

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
