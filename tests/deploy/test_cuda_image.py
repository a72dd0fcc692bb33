"""The CUDA image, on a base that is laid out as upstream's is; no server runs here."""

from __future__ import annotations

import sys

import pytest

from deploy.containers import Podman

pytestmark = pytest.mark.xdist_group("containers")

# As in upstream's release image: an editable installation in the working directory, no entry point.
UPSTREAM = """\
FROM localhost/base:latest
WORKDIR /sgl-workspace/sglang
RUN mkdir -p python/sglang \\
    && echo '__version__ = "0.5.23"' > python/sglang/__init__.py \\
    && printf '[project]\\nname = "sglang"\\nversion = "0.5.23"\\n' > python/pyproject.toml \\
    && python3 -m pip install --break-system-packages --no-index --no-build-isolation -e python
"""
WHERE = "import sglang; print(sglang.__file__)"


@pytest.fixture(scope="module")
def upstream(podman: Podman, base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Reference, by digest, of an image like upstream's."""
    folder = tmp_path_factory.mktemp("upstream")
    (folder / "Dockerfile").write_text(UPSTREAM)
    podman("build", "--network=host", "--tag", "localhost/upstream:latest", str(folder))
    return f"localhost/upstream@{podman.inspect('image', 'localhost/upstream:latest')['Digest']}"


@pytest.fixture(scope="module")
def image(podman: Podman, upstream: str, base: str, build_options: list[str]) -> str:
    # With podman's layers, where the other image's build has installed git on the same base.
    options = [*build_options, "--layers", "--build-arg", f"WHEEL_BASE_IMAGE={base}"]
    options += ["--build-arg", f"PYTHON=cp{sys.version_info.major}{sys.version_info.minor}"]
    return podman.build("cuda", upstream, "--engine", "buildah", "--", *options)


def run(podman: Podman, image: str, *command: str) -> str:
    return podman("run", "--rm", "--network=host", "--read-only", "--entrypoint=", image, *command)


def test_sglang_comes_from_our_wheel(podman: Podman, upstream: str, image: str) -> None:
    editable = "/sgl-workspace/sglang/python/sglang/__init__.py"
    assert run(podman, upstream, "python3", "-c", WHERE) == editable
    code = "import importlib.util as u; print(u.find_spec('sglang').origin)"
    found = run(podman, image, "python3", "-c", code)
    assert found.endswith("dist-packages/sglang/__init__.py")
    assert "editable" not in run(podman, image, "sh", "-c", "ls /usr/local/lib/python3*/*")


def test_the_doctor_passes(podman: Podman, image: str) -> None:
    report = run(podman, image, "sglang-lz", "doctor")
    assert "cuda flavour" in report
    assert "FAIL" not in report


def test_it_serves_as_an_unprivileged_user(podman: Podman, image: str) -> None:
    config = podman.inspect("image", image)["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"] == ["sglang-lz", "serve"]
    assert config["WorkingDir"] == "/"
    assert run(podman, image, "sh", "-c", "id -u; touch /cache/file && echo writable") == (
        "10001\nwritable"
    )
