"""Tests that need a program of the system: not run without it, loudly, and in CI an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from _tools import IMAGE_TOOLS, ROOT

pytestmark = pytest.mark.slow

FILE = "tests/deploy/test_cuda_image.py"
COMMAND = [
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n1"),
    *(FILE, "-k", "test_a_missing_base"),
]


@pytest.fixture
def missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The packages that a session below misses, which searches an empty folder for them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    packages = IMAGE_TOOLS.missing()
    assert "podman" in packages
    return " ".join(packages)


def run_without_programs(folder: Path, **variables: str) -> tuple[int, list[str]]:
    """Status and output of a session that finds no podman."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [*COMMAND, f"--basetemp={folder / 'pytest'}"],
        env=env | {"PATH": str(folder)} | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_tests_without_their_tools_are_named_at_the_end(tmp_path: Path, missing: str) -> None:
    status, output = run_without_programs(tmp_path, CI="")
    assert status == 0
    *_, passed, title, tests, why, _, install, run = output
    assert "1 skipped" in passed
    assert "1 TESTS NOT RUN" in title
    assert tests == f"{FILE}: 1"
    assert why.endswith(f"not installed: {missing}")
    assert install.strip() == f"apt-get install {missing}"
    assert run.strip() == f"scripts/test {FILE}"


def test_in_ci_they_are_errors(tmp_path: Path, missing: str) -> None:
    status, output = run_without_programs(tmp_path, CI="true")
    assert status == 1
    assert "1 error" in output[-1]
    assert f"not installed: {missing}" in "\n".join(output)
