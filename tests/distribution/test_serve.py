"""`sglang-lz serve`: what it adds to the user's arguments, and that it becomes the server."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from distribution.world import SOURCE, put
from sglang_lz.models import catalogue, packages
from sglang_lz.startup import serve
from sglang_lz.startup.errors import DistError
from sglang_lz.startup.seal import PACKAGES, Seal
from sglang_lz.startup.serve import PREFERRED, model_arguments, server_arguments

ENVIRON = {"SGLANG_LZ_HOST": "0.0.0.0", "SGLANG_LZ_PORT": "8000"}
MINE = {"host": "0.0.0.0", "port": "1", "dtype": "bfloat16", "max_total_tokens": "9"}
DEFAULT = {"host": "127.0.0.1", "port": "30000", "dtype": "float32", "max_total_tokens": "32768"}


SMOL = ["--model-path", "/models/smollm2-135m", "--served-model-name", "smollm2-135m"]


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Models that are fetched at once; gets whether there is a network."""
    network = [True]

    def obtain(model: catalogue.Published) -> Path:
        if not network[0]:
            raise packages.UnreachableError("No network.")
        return Path("/models", model.name)

    monkeypatch.setattr(catalogue, "obtain", obtain)
    return network


def added(mine: str) -> list[str]:
    """The server's arguments after those of its address."""
    host, _, port, _, *rest = server_arguments("cuda", mine.split())
    assert (host, port) == ("--host", "--port")
    return rest


@pytest.mark.parametrize(
    ("mine", "flavour", "environ", "expected"),
    [
        ("", "cpu", {}, DEFAULT),
        ("--port=1 --host 0.0.0.0 --dtype bfloat16 --max-total-tokens 9", "cpu", {}, MINE),
        ("", "cuda", {}, {"dtype": None, "max_total_tokens": None}),
        ("", "cpu", ENVIRON, {"host": "0.0.0.0", "port": "8000"}),
        ("--port 1", "cpu", ENVIRON, {"host": "0.0.0.0", "port": "1"}),
    ],
)
def test_the_users_arguments_win_over_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
    mine: str,
    flavour: str,
    environ: dict[str, str],
    expected: dict[str, str | None],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    for name in ("--host", "--port", "--dtype", "--max-total-tokens"):
        parser.add_argument(name)
    options, _ = parser.parse_known_args(server_arguments(flavour, mine.split()))
    assert vars(options) == vars(options) | expected


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        ("", SMOL),
        ("--demo", serve.DEMO_ARGUMENTS),
        ("--demo --tp 1", [*serve.DEMO_ARGUMENTS, "--tp", "1"]),
        *((f"{name} smollm2-135m", SMOL) for name in ("--model-path", "--model")),
        ("--model-path=smollm2-135m --tp 1", [*SMOL, "--tp", "1"]),
        ("--model HuggingFaceTB/SmolLM2", ["--model-path", "HuggingFaceTB/SmolLM2"]),
        ("--model b --model-path a --model smollm2-135m", SMOL),
        ("--served-model-name s", [*SMOL, "--served-model-name", "s"]),
        ("--model /m", ["--model-path", "/m"]),
        ("--model=", ["--model-path", ""]),
        ("--model smollm2-135m --model /m", ["--model-path", "/m"]),
    ],
)
def test_a_model_is_named_by_its_folder(mine: str, expected: list[str]) -> None:
    assert added(mine) == expected


def test_without_a_network_the_demo_model_is_served(
    models: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    models[0] = False
    assert model_arguments(None) == serve.DEMO_ARGUMENTS
    instead = "Serving the model of the tests instead, which writes nonsense."
    assert capsys.readouterr().err == f"sglang-lz: No network. {instead}\n"
    with pytest.raises(packages.PackageError):
        model_arguments("smollm2-135m")
    for other in ("--model-path", "--config"):
        with pytest.raises(DistError, match=f"--demo must be left out with {other}"):
            added(f"--demo {other} m")


@pytest.mark.parametrize("mine", ["--config c.yaml", "--port 1 --config=c.yaml", "--config="])
def test_nothing_overrides_the_users_configuration_file(mine: str) -> None:
    assert server_arguments("cpu", mine.split()) == mine.split()
    for flag in ("--end-loops", "--playground", "--demo"):
        with pytest.raises(DistError, match=f"^{flag} must be left out with --config"):
            server_arguments("cpu", [*mine.split(), flag])


@pytest.mark.parametrize(
    ("mine", "own"),
    [
        ("", {}),
        (f"{PREFERRED} {{}}", {}),
        (f'{PREFERRED} {{"lz_penalty":0}}', {"lz_penalty": 0}),
        (f'{PREFERRED}={{"lz_penalty":0}}', {"lz_penalty": 0}),
    ],
)
def test_end_loops_sets_the_preferred_parameters(mine: str, own: dict[str, int]) -> None:
    given = [PREFERRED, json.dumps(own, separators=(",", ":"))] if mine else []
    assert added(f"{mine} --model m --tp 1") == ["--model-path", "m", *given, "--tp", "1"]
    *model, name, preferred, tp, one = added(f"{mine} --end-loops --model m --tp 1")
    assert (*model, name, tp, one) == ("--model-path", "m", PREFERRED, "--tp", "1")
    assert json.loads(preferred) == serve.RECOMMENDED | own


@pytest.mark.parametrize("mine", [f"{PREFERRED} []", f"{PREFERRED}=x"])
def test_end_loops_refuses_parameters_it_cannot_extend(mine: str) -> None:
    with pytest.raises(DistError, match=r"must be a JSON object, got"):
        added(f"--end-loops {mine}")


def test_an_argument_needs_its_value() -> None:
    with pytest.raises(DistError, match=f"^argument {PREFERRED}: expected one argument"):
        added(PREFERRED)


# What is started

# As much of upstream as is called before it serves; it says what it was given.
UPSTREAM = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/server_args.py": """\
class ServerArgs:
    def __init__(self, options):
        vars(self).update(vars(options))

    def resolve_once(self):
        if self.model_path == "no-model":
            raise OSError("no-model is no model\\n\\nSee a page.")

    def check_server_args(self):
        if self.lz_max_window_size < 1:
            raise ValueError("--lz-max-window-size must be positive")
""",
    "sglang/srt/utils/__init__.py": """\
def get_device(): return "cpu"
def kill_process_tree(parent_pid, include_parent): pass
""",
    "sglang/srt/utils/common.py": "def get_cpu_ids_by_node(): return ['0,1,2', '4,5,6,7']",
    "sglang/launch_server.py": """\
import argparse, json, os, sys
from sglang.srt.server_args import ServerArgs

NAMES = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND")

def load_plugins(): pass

def prepare_server_args(arguments):
    parser = argparse.ArgumentParser(prog="upstream")
    add = parser.add_argument
    for name in ("--host", "--dtype", "--served-model-name", "--device", "--config"):
        add(name)
    for name in ("--max-total-tokens", "--max-running-requests", "--port"):
        add(name, type=int)
    for name in ("--sleep-on-idle", "--enable-dp-attention"):
        add(name, action="store_true")
    add("--model-path", "--model", dest="model_path", required=True)
    add("--lz-max-window-size", type=int, default=1024)
    add("--tp-size", "--tensor-parallel-size", "--tp", type=int, default=1)
    add("--dp-size", "--data-parallel-size", "--dp", type=int, default=1)
    add("--pp-size", "--pipeline-parallel-size", type=int, default=1)
    add("--nnodes", type=int, default=1)
    return ServerArgs(parser.parse_args(arguments))

def run_server(server_args):
    server_args.check_server_args()
    print(json.dumps([os.getpid(), sys.argv[1:], {n: os.environ.get(n) for n in NAMES}]))
""",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of our packages, with a seal, and a server that says what it got."""
    ignored = shutil.ignore_patterns("__pycache__", "seal.json")
    for name in PACKAGES:
        shutil.copytree(SOURCE / name, tmp_path / name, ignore=ignored)
    seal = Seal("1+lz1.cpu", "1", "cpu", "build", (), (), {})
    (tmp_path / "sglang_lz" / "seal.json").write_bytes(seal.dump())
    put(tmp_path, UPSTREAM)
    return tmp_path


@pytest.fixture
def port() -> Iterator[int]:
    """A port of 127.0.0.1 that nothing else listens on, held without listening."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def start(site: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    unset = ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "SGLANG_CPU_OMP_THREADS_BIND")
    env = {k: v for k, v in os.environ.items() if k not in unset and "SGLANG_LZ" not in k}
    env |= {"PYTHONPATH": str(site)} | variables
    command, pipe = [sys.executable, "-m", "sglang_lz", "serve", *arguments], subprocess.PIPE
    if not any(argument.startswith(("--model", "--config")) for argument in arguments):
        command.append("--demo")
    return subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True)


def started(process: subprocess.Popen[str]) -> tuple[int, list[str], dict[str, str | None]]:
    """The process, the arguments and the variables of the server that ran."""
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    pid, arguments, variables = json.loads(output)
    return pid, arguments, variables


def refused(process: subprocess.Popen[str]) -> str:
    """What `sglang-lz serve` said, after the line that shows the command, of why it ended."""
    output, errors = process.communicate()
    assert (process.returncode, output) == (2, "")
    _, sentence = errors.splitlines()
    return sentence.removeprefix("sglang-lz: ")


def test_it_becomes_the_server(site: Path, port: int) -> None:
    process = start(site, "--port", str(port), "--tp", "2", "--model-path", "a model")
    pid, arguments, variables = started(process)
    assert pid == process.pid
    assert arguments[:4] == ["--host", "127.0.0.1", "--port", str(port)]
    assert arguments[-4:] == ["--model-path", "a model", "--tp", "2"]
    assert variables["HF_HUB_OFFLINE"] is variables["OMP_NUM_THREADS"] is None
    _, arguments, variables = started(start(site, "--port", str(port)))
    assert str(site / "sglang_lz" / "demo" / "model") in arguments
    assert variables["HF_HUB_OFFLINE"] == variables["OMP_NUM_THREADS"] == "1"


def test_the_playground_starts_beside_the_server_and_ends_with_it(site: Path, port: int) -> None:
    (site / "sglang_lz" / "playground" / "app.py").write_text(
        "import os, time\n"
        "def run(*given):\n"
        "    with open(os.environ['SAYS'], 'w') as file: file.write(f'{os.getpid()} {given}')\n"
        "    time.sleep(600)\n"
    )
    says = site / "says"
    server = site / "sglang/launch_server.py"
    wait = "    while not os.path.exists(os.environ['SAYS']): pass\n"
    check = "    server_args.check_server_args()\n"
    server.write_text(server.read_text().replace(check, check + wait))
    process = start(site, "--port", str(port), "--playground", SAYS=str(says))
    _, arguments, _ = started(process)
    assert "--playground" not in arguments
    pid, _, given = says.read_text().partition(" ")
    assert given == f"('http://127.0.0.1:{port}', 30080)"
    with contextlib.suppress(psutil.NoSuchProcess):
        end = time.monotonic() + 30
        while psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < end
            time.sleep(0.05)


# The cores of several ranks on a CPU


@pytest.mark.parametrize(
    ("arguments", "cores"),
    [
        ("", None),
        ("--tp 2", "0,1,2|4,5,6,7"),
        ("--pp-size 2 --tp-size 2", "0|1,2|4,5|6,7"),
        ("--tp 2 --dp 2 --enable-dp-attention", "0,1,2|4,5,6,7"),
        ("--tp 4 --nnodes 2", "0,1,2|4,5,6,7"),
        ("--tp 3 --dp 3", "0|1|2|4|5|6|7|0|1"),
        ("--tp 2 --device cuda", None),
        ("--tp 2 7|6", "7|6"),
    ],
)
def test_ranks_share_the_cores(site: Path, port: int, arguments: str, cores: str | None) -> None:
    given, users = arguments.removesuffix("7|6").split(), arguments.endswith("7|6")
    mine = {"SGLANG_CPU_OMP_THREADS_BIND": "7|6"} if users else {}
    _, _, variables = started(start(site, "--port", str(port), *given, **mine))
    assert variables["SGLANG_CPU_OMP_THREADS_BIND"] == cores


# A failed start says why in one sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--polici x", "unrecognized arguments: --polici x; "),
        ("--tp two", "argument --tp-size/--tensor-parallel-size/--tp: invalid int value: 'two'; "),
        ("--lz-max-window-size 0", "--lz-max-window-size must be positive"),
        ("--model-path no-model", "no-model is no model See a page."),
        ("--model-path /no/model", "--model-path /no/model does not exist."),
        # From a network for documentation (RFC 5737).
        ("--host 203.0.113.1", "cannot listen on port {port} of 203.0.113.1 ("),
        ("--port 65536", "--port must be an integer in [1, 65535], got 65536."),
    ],
)
def test_a_wrong_argument(site: Path, port: int, arguments: str, sentence: str) -> None:
    said = refused(start(site, "--port", str(port), *arguments.split()))
    assert said.startswith(sentence.format(port=port))


def test_a_port_in_use(site: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refused(start(site, "--port", str(port)))
    assert said == f"port {port} of 127.0.0.1 is in use; choose another with --port."
