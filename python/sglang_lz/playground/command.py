"""`sglang-lz playground`: serves the page, or records a session."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import torch
import uvicorn

from lz_penalty.fields import lz
from sglang_lz.playground.app import (
    EXAMPLES,
    KNOWN,
    NONE,
    OTHER,
    OURS,
    SAMPLING,
    Asked,
    create_app,
    events,
)
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


def run(server: str, host: str, port: int, record: Path | None) -> None:
    """Serve the page until interrupted, or record a session.

    Args:
        server: the URL of the server to talk to.
        host: the address to listen on.
        port: the port to listen on.
        record: the file to write a recorded session to; None to serve.

    Raises:
        ValueError: a value cannot be used, or the server cannot be recorded.
        OSError: the file cannot be written.
    """
    torch.set_num_threads(1)  # the windows are so small that more would only wait for each other
    upstream = Upstream(server)
    if record is not None:
        found = asyncio.run(_recorded(upstream))
        record.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n")
        return
    if not 1 <= port <= 65535:
        raise ValueError(f"--port must be an integer in [1, 65535], got {port}.")
    app = create_app(upstream, hosts(host, port))
    shown = f"[{host}]" if ":" in host else host
    print(f"sglang-lz: the playground is at http://{shown}:{port}", file=sys.stderr, flush=True)
    uvicorn.run(app, host=host, port=port, log_level="error", server_header=False)


async def _recorded(upstream: Upstream) -> dict[str, Any]:
    """The first example in all three columns, as the page would show it.

    Raises:
        ValueError: an output could not be generated.
    """
    known, (_, value) = next(iter(KNOWN.items()))
    settings: dict[str, Any] = {
        "prompt": EXAMPLES[0][1],
        "chat": True,
        "known": known,
        "known_value": value,
        "fields": dict(lz.RECOMMENDED),
        **{name: start for name, (_, start) in SAMPLING.items()},
    }
    columns: dict[str, list[dict[str, Any]]] = {}
    try:
        about = await upstream.about()
        for column in (NONE, OTHER, OURS):
            asked = Asked({**settings, "column": column}, about)
            columns[column] = [event async for event in events(upstream, asked)]
            if "error" in columns[column][-1]:
                raise ValueError(columns[column][-1]["error"])
    except Exception as error:
        raise ValueError(f"Nothing was recorded. {error}") from error
    finally:
        await upstream.close()
    found = {"model": about.model, "settings": settings, "columns": columns}
    return json.loads(json.dumps(found), parse_float=lambda x: round(float(x), 4))
