"""A real server that cannot start says why in one sentence (test_serve.py has other cases)."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.configurations import FORKED
from server.launch import STARTUP_SECONDS, Config, Server


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("--polici x", "unrecognized arguments: --polici x; "),
        ("--model-path /no/model", "--model-path /no/model does not exist."),
        ("--lz-max-window-size 0", "--lz-max-window-size must be an integer in [1, "),
        ("--lz-history-memory 0", "--lz-history-memory must be an integer in [1, 8191] (MiB), got"),
        # Upstream itself refuses this one.
        ("--tokenizer-worker-num 0", "Tokenizer worker num must >= 1"),
    ],
)
def test_a_wrong_argument(tmp_path: Path, wrong: str, sentence: str) -> None:
    server = Server(Config("wrong", tuple(wrong.split()), FORKED), tmp_path / "server.log")
    try:
        status = server.process.wait(STARTUP_SECONDS)
    finally:
        server.stop()
    assert status == 2, server.log()
    assert "Traceback" not in server.log()
    assert server.log().splitlines()[-1].startswith(f"sglang-lz: {sentence}")
