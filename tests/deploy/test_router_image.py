"""The router's image starts as unprivileged as the servers'; test_router.py asks it for more."""

from __future__ import annotations

import contextlib
import time

import httpx
import pytest

from bench.http_client import HTTP
from bench.processes import free_port
from deploy.containers import Podman

pytestmark = pytest.mark.xdist_group("containers")

STARTUP_SECONDS = 240
REQUEST_SECONDS = 30
GRACE_SECONDS = 60


@pytest.mark.full
def test_it_starts_and_waits_for_servers(
    podman: Podman, base: str, build_options: list[str]
) -> None:
    image = podman.build("router", base, "--engine", "podman", "--", *build_options)
    assert podman.inspect("image", image)["Config"]["User"] == "10001:10001"
    port, metrics_port = free_port(), free_port()
    limits = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges"]
    arguments = ["--host=127.0.0.1", f"--port={port}"]
    arguments += ["--prometheus-host=127.0.0.1", f"--prometheus-port={metrics_port}"]
    container = podman("run", "--detach", "--network=host", *limits, image, *arguments)
    try:
        deadline = time.monotonic() + STARTUP_SECONDS
        status = 0
        while status != 200 and time.monotonic() < deadline:
            time.sleep(0.5)
            with contextlib.suppress(httpx.HTTPError):
                alive = HTTP.get(f"http://127.0.0.1:{port}/liveness", timeout=REQUEST_SECONDS)
                status = alive.status_code
        log = podman.run("logs", container)
        assert status == 200, log.stdout + log.stderr
        # The kubelet sends no requests to a router without a server.
        ready = HTTP.get(f"http://127.0.0.1:{port}/readiness", timeout=REQUEST_SECONDS)
        assert ready.status_code == 503
        podman("stop", "--time", str(GRACE_SECONDS), container)
        assert podman.inspect("container", container)["State"]["ExitCode"] == 0
    finally:
        podman("rm", "--force", "--time", "0", container)
