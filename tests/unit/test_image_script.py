"""The decisions of scripts/image, with engines that only answer."""

from __future__ import annotations

import importlib
import itertools
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
script = importlib.import_module("_image")
SetupError = importlib.import_module("_environment").SetupError
DENIED = "\nERROR: permission denied while trying to connect to the docker API at SOCKET\nmore\n"
"""As docker says it to a user outside its group."""


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the only programs there are: none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    # The script's own leaves no descendant of its process, which here has servers that go on.
    monkeypatch.setattr(script._supervise, "run", unsupervised)
    return tmp_path


def unsupervised(command: Sequence[str], **options: Any) -> int:
    return subprocess.run(command, check=False, **options).returncode


def put(folder: Path, name: str, *, fails: str = "", complaint: str = "") -> None:
    """An engine of which one command fails, with something to say."""
    file = folder / name
    file.write_text(
        f"#!/bin/sh\nprintf {shlex.quote(complaint or ' ')} >&2\n"
        f'[ "$1" = "{fails}" ] && exit 1\necho 2.3 GB\n'
    )
    file.chmod(0o755)


def test_the_first_engine_that_works_is_taken(
    engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(engines, "docker", fails="info", complaint=DENIED)
    with pytest.raises(SetupError, match=r"`docker info` fails \(permission denied.* SOCKET\)"):
        script.find_engine()
    put(engines, "podman")
    put(engines, "buildah")
    assert script.find_engine("buildah") == "buildah"
    assert capsys.readouterr().err == ""
    assert script.find_engine() == "podman"
    assert "SOCKET); building with podman instead." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "engine", "sentence"),
    [
        ("cpu", "", "no container engine is installed; install docker"),
        ("cpu --engine docker", "", "docker is not installed"),
        ("cuda", "podman", "must be pinned"),
        ("cuda --base lmsysorg/sglang:v0.5.23", "podman", "must be pinned"),
        ("cpu", "buildah", r"buildah could not build the image.*lines above\.$"),
        ("cpu", "docker", "docker 23 and newer need the buildx plugin"),
    ],
)
def test_what_cannot_be_built_is_one_sentence(
    engines: Path, arguments: str, engine: str, sentence: str
) -> None:
    if engine:
        put(engines, engine, fails="build")
    with pytest.raises(SetupError, match=sentence):
        script.image(arguments.split())


def test_a_wrong_time_is_refused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engines, "podman")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SetupError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        script.image(["cpu"])


def test_print_shows_the_command(
    engines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engines, "podman")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    base = f"lmsysorg/sglang@sha256:{'0' * 64}"
    assert script.image(["cuda", "--base", base, "--print", "--", "--network", "host"]) == 0
    command = shlex.split(capsys.readouterr().out)
    assert command[:2] == ["podman", "build"]
    assert command[-3:] == ["--network", "host", "."]
    options = dict(itertools.pairwise(command))
    assert options["--file"] == "docker/cuda.Dockerfile"
    assert options["--format"] == "docker"
    arguments = [b for a, b in itertools.pairwise(command) if a == "--build-arg"]
    assert {f"BASE_IMAGE={base}", "CREATED=1970-01-02T00:00:00Z"} <= set(arguments)
    # Since buildah 1.41 the build argument and --timestamp exclude each other.
    assert options["--timestamp"] == "86400"
    assert "SOURCE_DATE_EPOCH" not in " ".join(command)


def test_after_a_build_comes_the_next_command(
    engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(engines, "docker")
    assert script.image(["cpu", "--tag", "mine"]) == 0
    output = capsys.readouterr()
    run = "docker run --rm --init --stop-timeout 300 --publish 127.0.0.1:30000:30000"
    assert output.out == f"{run} mine\n"
    assert "built mine, 2.3 GB" in output.err
