"""`sglang-lz playground`: serves the page."""

from __future__ import annotations

import sys

import torch
import uvicorn

from sglang_lz.playground.app import create_app
from sglang_lz.playground.upstream import Upstream

ANY = ("", "0.0.0.0", "::")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def hosts(host: str, port: int) -> frozenset[str]:
    """The values of the Host header to answer to.

    Raises:
        ValueError: the host stands for all addresses, whose names are not known.
    """
    if host in ANY:
        raise ValueError(f"--host must be one address or name, got {host!r}.")
    own = f"[{host}]" if ":" in host else host
    names = LOOPBACK if own in LOOPBACK else (own,)
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(with_port | (set(names) if port == 80 else set()))


def run(server: str, host: str, port: int) -> None:
    """Serve the page until interrupted.

    Args:
        server: the URL of the server to talk to.
        host: the address to listen on.
        port: the port to listen on.

    Raises:
        ValueError: a value cannot be used.
    """
    torch.set_num_threads(1)  # the windows are so small that more would only wait for each other
    upstream = Upstream(server)
    if not 1 <= port <= 65535:
        raise ValueError(f"--port must be an integer in [1, 65535], got {port}.")
    app = create_app(upstream, hosts(host, port))
    shown = f"[{host}]" if ":" in host else host
    print(f"sglang-lz: the playground is at http://{shown}:{port}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=host, port=port, log_level="error", server_header=False)
