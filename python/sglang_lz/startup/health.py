"""``python -m sglang_lz.startup.health``: the health check for the server in our images."""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException

SECONDS = 25  # the server itself gives up on a token after 20 s


def unhealthy(port: int) -> str | None:
    """Return why the server on a port of 127.0.0.1 is not healthy, on one line; None if it is."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    try:
        connection.request("GET", "/health_generate")
        status = connection.getresponse().status
    except (OSError, HTTPException) as error:
        return f"no answer on port {port}: {error!s}"
    finally:
        connection.close()
    return None if status == 200 else f"/health_generate on port {port} answered {status}"


if __name__ == "__main__":
    sys.exit(unhealthy(int(os.environ["SGLANG_LZ_PORT"])))
