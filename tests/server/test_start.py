"""What keeps a real server from starting is one sentence (test_serve.py has the other cases)."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from bench.processes import free_port

STARTUP_SECONDS = 600


def why(*arguments: str) -> str:
    """The last line of a server that does not start."""
    command = [sys.executable, "-m", "sglang_lz", "serve", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=STARTUP_SECONDS, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--polici x", "unrecognized arguments: --polici x; "),
        ("--model-path /no/model", "--model-path /no/model does not exist."),
        ("--lz-max-window-size 0", "--lz-max-window-size must be an integer in [1, "),
        (
            "--lz-history-memory 0",
            "--lz-history-memory must be an integer in [1, 8191] (MiB), got",
        ),
        # One that upstream itself refuses.
        ("--tokenizer-worker-num 0", "Tokenizer worker num must >= 1"),
    ],
)
def test_a_wrong_argument(arguments: str, sentence: str) -> None:
    said = why("--port", str(free_port()), *arguments.split())
    assert said.startswith(f"sglang-lz: {sentence}")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = why("--port", str(port))
    assert said == f"sglang-lz: port {port} of 127.0.0.1 is in use; choose another with --port."
