"""A real server that cannot start says why in one sentence (test_serve.py has other cases)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import free_port
from server.configurations import FORKED
from server.launch import STARTUP_SECONDS, Config, Server, environment, model_path


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


PLUGIN = """\
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register():
    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.sample",
        lambda runner, logits_output, forward_batch: logits_output.next_token_logits.argmax(-1),
        HookType.REPLACE,
    )
"""


def refusal(path: Path, launcher: tuple[str, ...] = ("sglang.launch_server",)) -> str:
    """The last line that a server writes which finds `path` first on Python's path, and ends."""
    command = [sys.executable, "-m", *launcher, "--model-path", str(model_path())]
    command += ["--device", "cpu", "--host", "127.0.0.1", "--port", str(free_port())]
    env = environment(Config("start", env=(("PYTHONPATH", str(path)),)))
    ended = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=STARTUP_SECONDS, check=False
    )
    assert ended.returncode != 0
    assert "Uvicorn running" not in ended.stderr
    return ended.stderr.strip().splitlines()[-1]


def test_a_plugin_in_the_place_of_a_hook_stops_it(tmp_path: Path) -> None:
    (tmp_path / "taker.py").write_text(PLUGIN)
    info = tmp_path / "taker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: taker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\ntaker = taker:register\n")
    message = refusal(tmp_path)
    assert "ModelRunner.sample does not call sglang_lz's apply_step, so lz_penalty" in message


@pytest.mark.full
def test_another_copy_of_sglang_stops_it(tmp_path: Path) -> None:
    """The copy equals ours except for one file, which lacks the call."""
    import sglang

    ours = Path(sglang.__file__).parent
    changed = Path("srt", "model_executor", "model_runner.py")
    for folder in reversed(changed.parents):
        copy = tmp_path / "sglang" / folder
        copy.mkdir()
        for entry in (ours / folder).iterdir():
            if entry.relative_to(ours) not in (changed, *changed.parents):
                (copy / entry.name).symlink_to(entry)
    source = (ours / changed).read_text()
    (tmp_path / "sglang" / changed).write_text(source.replace("apply_step(", "id("))
    message = refusal(tmp_path)
    assert f"sglang is imported from {tmp_path}, not from {ours.parent}" in message


@pytest.mark.full
def test_a_stock_sglang_stops_it(tmp_path: Path) -> None:
    """A stock sglang has none of our checks, but `sglang-lz serve` has them."""
    stock = Path(os.environ["LZ_STOCK_SITE"])
    (tmp_path / "sglang").symlink_to(stock / "sglang")
    message = refusal(tmp_path, ("sglang_lz", "serve"))
    assert message.startswith(f"sglang-lz: sglang is imported from {stock.resolve()}, not from ")
