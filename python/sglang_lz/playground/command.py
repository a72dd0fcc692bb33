"""`sglang-lz playground`: serves the page."""

from __future__ import annotations

import sys

import torch
import uvicorn

from sglang_lz.playground.app import create_app
from sglang_lz.playground.upstream import Upstream

HOST = "127.0.0.1"
"""Where it listens. It has no password, so it is for this machine alone."""


def run(server: str, port: int) -> None:
    """Serve the page until interrupted.

    Args:
        server: the URL of the server to talk to.
        port: the port to listen on.

    Raises:
        ValueError: a value cannot be used.
    """
    torch.set_num_threads(1)  # the windows are so small that more would only wait for each other
    upstream = Upstream(server)
    if not 1 <= port <= 65535:
        raise ValueError(f"--port must be an integer in [1, 65535], got {port}.")
    app = create_app(upstream, frozenset((f"{HOST}:{port}", f"localhost:{port}")))
    print(f"sglang-lz: the playground is at http://{HOST}:{port}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=HOST, port=port, log_level="error", server_header=False)
