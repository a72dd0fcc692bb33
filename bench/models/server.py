"""A server that is started for a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.common import DEMO, ROOT
from bench.http_client import answers
from bench.processes import Background, free_port

STARTUP_SECONDS = 1800.0
SHUTDOWN_SECONDS = 30.0
# So small that more threads only wait for each other.
SMALL_MODELS = {"demo": DEMO / "model", "pocket": DEMO / "reasoner"}


@contextlib.contextmanager
def serving(model: str, arguments: Sequence[str], log: Path) -> Iterator[str]:
    """The address of a server that scripts/serve starts and that ends with the block.

    It runs with --enable-deterministic-inference, so it honours seeds.

    Args:
        model: a name of `SMALL_MODELS`, or what sglang takes as --model-path.
        arguments: further arguments of scripts/serve.
        log: where its output goes.

    Raises:
        ProcessError: it ended, or did not start in time; the message ends with its output.
    """
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(str(ROOT / "scripts" / "serve"), "--host", "127.0.0.1", "--port", str(port)),
        *("--model-path", str(SMALL_MODELS.get(model, model))),
        *("--served-model-name", model, "--enable-deterministic-inference"),
        *arguments,
    ]
    env = dict(os.environ)
    if model in SMALL_MODELS:
        env.setdefault("OMP_NUM_THREADS", "1")
        env.setdefault("HF_HUB_OFFLINE", "1")
    with Background(
        command,
        name=f"the server of {model}",
        log=log,
        env=env,
        grace=SHUTDOWN_SECONDS,
        ends_with_us=True,
    ) as server:
        server.wait_until(lambda: answers(f"{url}/health_generate"), STARTUP_SECONDS)
        yield url
