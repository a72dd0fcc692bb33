"""`sglang-lz serve`: what it adds to the user's arguments, and that it becomes the server."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dist.world import SOURCE
from sglang_lz.dist.seal import Seal
from sglang_lz.dist.serve import DEMO_MODEL, server_arguments

def parsed(arguments: list[str]) -> argparse.Namespace:
    """What upstream's parser would make of a few of the arguments."""
    parser = argparse.ArgumentParser()
    for name in ("--host", "--port", "--dtype", "--max-total-tokens", "--served-model-name"):
        parser.add_argument(name)
    parser.add_argument("--model-path", "--model", dest="model_path")
    return parser.parse_known_args(arguments)[0]


def test_the_demo_model_is_served_by_default() -> None:
    options = parsed(server_arguments("cpu", [], {}))
    assert (options.host, options.port) == ("127.0.0.1", "30000")
    assert (options.model_path, options.served_model_name) == (str(DEMO_MODEL), "demo")
    assert (options.dtype, options.max_total_tokens) == ("float32", "32768")


def test_the_users_arguments_win() -> None:
    mine = ["--port=1", "--host", "0.0.0.0", "--dtype", "bfloat16", "--max-total-tokens", "9"]
    options = parsed(server_arguments("cpu", mine, {}))
    assert (options.host, options.port) == ("0.0.0.0", "1")
    assert (options.dtype, options.max_total_tokens) == ("bfloat16", "9")


@pytest.mark.parametrize(
    "mine", [["--model-path", "m"], ["--model", "m"], ["--model-path=m"], ["--model=m"]]
)
def test_the_users_model_keeps_its_own_name(mine: list[str]) -> None:
    options = parsed(server_arguments("cpu", mine, {}))
    assert (options.model_path, options.served_model_name) == ("m", None)


def test_cuda_has_upstreams_defaults() -> None:
    options = parsed(server_arguments("cuda", [], {}))
    assert (options.dtype, options.max_total_tokens) == (None, None)


@pytest.mark.parametrize("mine", [["--config", "c.yaml"], ["--port", "1", "--config=c.yaml"]])
def test_nothing_overrides_the_users_configuration_file(mine: list[str]) -> None:
    assert server_arguments("cpu", mine, {}) == mine


def test_the_environment_says_where_to_listen() -> None:
    environ = {"SGLANG_LZ_HOST": "0.0.0.0", "SGLANG_LZ_PORT": "8000"}
    options = parsed(server_arguments("cpu", [], environ))
    assert (options.host, options.port) == ("0.0.0.0", "8000")
    assert parsed(server_arguments("cpu", ["--port", "1"], environ)).port == "1"


# What is started

SERVER = """\
import json, os, sys
names = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS")
print(json.dumps([os.getpid(), sys.argv[1:], [os.environ.get(name) for name in names]]))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages: this sglang_lz, with a seal, and a server that says what it got."""
    ignored = shutil.ignore_patterns("__pycache__", "seal.json")
    shutil.copytree(SOURCE, tmp_path / "sglang_lz", ignore=ignored)
    seal = Seal("1+lz1.cpu", "1", "1", "cpu", "build", (), (), {})
    (tmp_path / "sglang_lz" / "seal.json").write_bytes(seal.dump())
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang" / "launch_server.py").write_text(SERVER)
    return tmp_path


def start(site: Path, *arguments: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_LZ")}
    for name in ("HF_HUB_OFFLINE", "OMP_NUM_THREADS"):
        env.pop(name, None)
    return subprocess.Popen(
        [sys.executable, "-m", "sglang_lz", "serve", *arguments],
        env=env | {"PYTHONPATH": str(site)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_becomes_the_server(site: Path) -> None:
    process = start(site, "--tp", "2", "--model-path", "a model")
    pid, arguments, variables = json.loads(process.communicate()[0])
    assert pid == process.pid
    assert arguments[:4] == ["--host", "127.0.0.1", "--port", "30000"]
    assert arguments[-4:] == ["--tp", "2", "--model-path", "a model"]
    assert variables == [None, None]


def test_the_demo_model_is_looked_for_nowhere_else(site: Path) -> None:
    process = start(site)
    _, arguments, variables = json.loads(process.communicate()[0])
    assert str(site / "sglang_lz" / "demo" / "model") in arguments
    assert variables == ["1", "1"]


def test_a_checkout_serves_nothing(site: Path) -> None:
    (site / "sglang_lz" / "seal.json").unlink()
    process = start(site)
    errors = process.communicate()[1]
    assert process.returncode == 2
    assert "in a checkout use scripts/serve" in errors
