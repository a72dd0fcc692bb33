"""What keeps a real server from starting is one sentence (test_serve.py has the other cases)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import free_port
from server.configurations import CONFIGURATIONS
from server.launch import environment
from sglang_lz.distribution.serve import server_arguments

STARTUP_SECONDS = 600


# A wrong argument, and the sentence about it.
WRONG = {
    "--polici x": "unrecognized arguments: --polici x; ",
    "--model-path /no/model": "--model-path /no/model does not exist.",
    "--lz-max-window-size 0": "--lz-max-window-size must be an integer in [1, ",
    "--lz-history-memory 0": "--lz-history-memory must be an integer in [1, 8191] (MiB), got",
    # One that upstream itself refuses.
    "--tokenizer-worker-num 0": "Tokenizer worker num must >= 1",
}


def last_line(status: int, written: str) -> str:
    assert status == 2, written
    assert "Traceback" not in written
    return written.splitlines()[-1]


def test_wrong_arguments() -> None:
    """Each to a launch of its own; what they import is imported once."""
    given = [
        server_arguments("cpu", ["--port", str(free_port()), *wrong.split()]) for wrong in WRONG
    ]
    command = [sys.executable, str(Path(__file__).with_name("starts.py"))]
    done = subprocess.run(
        command,
        input=json.dumps(given),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=STARTUP_SECONDS,
        check=True,
    )
    said = [last_line(*json.loads(line)) for line in done.stdout.splitlines()]
    for found, sentence in zip(said, WRONG.values(), strict=True):
        assert found.startswith(f"sglang-lz: {sentence}")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "sglang_lz", "serve", "--port", str(port)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STARTUP_SECONDS, check=False
        )
        said = last_line(done.returncode, done.stderr)
    assert said == f"sglang-lz: port {port} of 127.0.0.1 is in use; choose another with --port."


def test_servers_of_one_environment_are_forks_of_one_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whichever test starts them: pytest names the one that runs in the environment."""
    found = []
    for test in ("one", "another"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", test)
        found.append(environment(CONFIGURATIONS["ngram"]))
    assert found[0] == found[1]
