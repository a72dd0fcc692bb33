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

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
script = importlib.import_module("_image")
SetupError = importlib.import_module("_environment").SetupError

DIGEST = "sha256:" + "0" * 64


@pytest.fixture(autouse=True)
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the only programs there are: none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    # The script's own leaves no descendant of its process, which here has servers that go on.
    monkeypatch.setattr(script._supervise, "run", unsupervised)
    return tmp_path


def unsupervised(command: Sequence[str], **options: Any) -> int:
    return subprocess.run(command, check=False, **options).returncode


def put(
    folder: Path,
    name: str,
    *,
    works: bool = True,
    builds: bool = True,
    buildx: bool = True,
    complaint: str = "",
) -> None:
    """An engine whose `info`, `build` and `buildx` succeed or fail, with something to say."""
    file = folder / name
    file.write_text(
        "#!/bin/sh\n"
        'echo "$0 $*" >> "$0.log"\n'
        f"[ -z {shlex.quote(complaint)} ] || printf {shlex.quote(complaint)} >&2\n"
        f'case "$1" in info) exit {int(not works)};; build) exit {int(not builds)};; '
        f"buildx) exit {int(not buildx)};; esac\n"
        "echo 2.3 GB\n"
    )
    file.chmod(0o755)


# As docker says it to a user outside its group.
DENIED = "\nERROR: permission denied while trying to connect to the docker API at SOCKET\nmore\n"


def test_the_first_engine_that_works_is_taken(
    engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(engines, "docker", works=False, complaint=DENIED)
    put(engines, "podman")
    put(engines, "buildah")
    assert script.find_engine("buildah") == "buildah"
    assert capsys.readouterr().err == ""
    assert script.find_engine() == "podman"
    (said,) = capsys.readouterr().err.splitlines()
    assert "`docker info` fails (permission denied while trying to connect to the docker" in said
    assert said.endswith("at SOCKET); building with podman instead.")


def test_no_engine_is_one_sentence(engines: Path) -> None:
    with pytest.raises(SetupError, match="install docker with its buildx plugin, podman or"):
        script.find_engine()
    with pytest.raises(SetupError, match=r"^docker is not installed\.$"):
        script.find_engine("docker")
    put(engines, "docker", works=False, complaint=DENIED)
    for wanted in ("docker", None):
        with pytest.raises(SetupError, match=r"`docker info` fails \(permission denied.* SOCKET\)"):
            script.find_engine(wanted)
    put(engines, "docker", works=False)
    with pytest.raises(SetupError, match=r"`docker info` fails \(exit status 1\)"):
        script.find_engine("docker")


@pytest.mark.parametrize("base", [[], ["--base", "lmsysorg/sglang:v0.5.23"]])
def test_cuda_needs_a_pinned_base(engines: Path, base: list[str]) -> None:
    put(engines, "podman")
    with pytest.raises(SetupError, match="must be pinned"):
        script.image(["cuda", *base])
    assert not (engines / "podman.log").exists()


def test_another_image_is_refused() -> None:
    with pytest.raises(SetupError, match="the image is 'rocm'; it must be cpu, cuda or router"):
        script.image(["rocm"])


def test_print_shows_the_command(
    engines: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(engines, "podman")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    base = f"lmsysorg/sglang@{DIGEST}"
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
    release = script.version().replace("+", "-")
    tags = [b for a, b in itertools.pairwise(command) if a == "--tag"]
    assert tags == ["sglang-lz:cuda", f"sglang-lz:{release}-cuda"]
    assert (engines / "podman.log").read_text().endswith("podman info\n")


@pytest.mark.parametrize(
    ("image", "arguments"),
    [
        ("cpu", ""),
        ("router", " --host=0.0.0.0 --port=30000 --worker-urls http://SERVER:30000"),
    ],
)
def test_after_a_build_comes_the_next_command(
    engines: Path, capsys: pytest.CaptureFixture[str], image: str, arguments: str
) -> None:
    put(engines, "docker")
    assert script.image([image, "--tag", "mine"]) == 0
    output = capsys.readouterr()
    run = "docker run --rm --init --stop-timeout 300 --publish 127.0.0.1:30000:30000"
    assert output.out == f"{run} mine{arguments}\n"
    assert "built mine, 2.3 GB" in output.err
    assert "--format" not in (engines / "docker.log").read_text().partition("images")[0]


def test_a_failed_build_is_one_sentence(engines: Path) -> None:
    put(engines, "buildah", builds=False)
    with pytest.raises(SetupError, match=r"buildah could not build the image.*lines above\.$"):
        script.image(["cpu"])


@pytest.mark.parametrize("buildx", [False, True])
def test_a_build_that_lacks_buildx_says_so(engines: Path, buildx: bool) -> None:
    put(engines, "docker", builds=False, buildx=buildx)
    with pytest.raises(SetupError, match="docker could not build the image") as caught:
        script.image(["cpu"])
    assert ("install docker-buildx-plugin" in str(caught.value)) == (not buildx)


def test_a_wrong_time_is_refused(engines: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(engines, "podman")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")
    with pytest.raises(SetupError, match="SOURCE_DATE_EPOCH is 'yesterday'"):
        script.image(["cpu"])
