"""Shared by the container tests: podman, the stand-in for a registry's image, options to build.

Everything that podman keeps is in .cache/containers/podman and is removed at the end. The tree of
the base image, and what the builds download, stay in .cache for the next time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution

import pytest

from _tools import IMAGE_TOOLS
from deploy.containers import CONTAINERS, PYTHON_OF_BASE, Podman, add_torch, pip_mounts
from system_tools import require

_in_use: list[Podman] = []
_removals: list[subprocess.Popen[bytes]] = []


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    require(IMAGE_TOOLS)
    podman = Podman(CONTAINERS / "podman")
    _in_use.append(podman)
    yield podman
    _begin_to_remove()
    for removal in _removals:
        removal.wait()


def _begin_to_remove() -> None:
    while _in_use:
        _removals.append(_in_use.pop().clear())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last of these tests, remove what podman keeps while others run.

    It takes minutes, and a fixture of theirs would end only with the session.
    """
    if nextitem is not None and nextitem.path.parent != item.path.parent:
        _begin_to_remove()


@pytest.fixture(scope="session")
def base(podman: Podman) -> str:
    """Name of an image that stands in for the slim Python of a registry, and may bring torch."""
    torch = distribution("torch").version if sys.version_info[:2] == PYTHON_OF_BASE else "none"
    tree = CONTAINERS / f"base-torch-{torch}.tar"
    if not tree.exists():
        new = tree.with_suffix(".new")
        command = ["mmdebstrap", "--quiet", "--variant=minbase", "--format=tar"]
        command += ["--include=python3,python3-pip,ca-certificates"]
        # As Debian's own images have it.
        command += ["--aptopt=Acquire::Languages none", "--dpkgopt=force-unsafe-io"]
        subprocess.run([*command, "bookworm", str(new)], check=True, env=podman.env)
        if torch != "none":
            add_torch(new)
        new.rename(tree)
    podman("import", str(tree), "localhost/base:latest")
    return "localhost/base:latest"


@pytest.fixture(scope="session")
def build_options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of podman's build that give it this machine's network and settings of pip.

    As mounts, which no image keeps: certificates and indexes are the machine's own.
    """
    mounts = pip_mounts(tmp_path_factory.mktemp("pip") / "pip.conf")
    torch = ["--build-arg", "TORCH_INDEX="] if sys.version_info[:2] == PYTHON_OF_BASE else []
    return ["--network", "host", *torch, *(f"--volume={mount}" for mount in mounts)]
