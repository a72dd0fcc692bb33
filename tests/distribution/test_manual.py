"""The manual pages, and that the tools run with nothing installed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from distribution.world import SOURCE, World
from sglang_lz.distribution.cli import COMMANDS

pytestmark = pytest.mark.slow

STDLIB = set(sys.stdlib_module_names)


@pytest.mark.parametrize("command", COMMANDS)
def test_page(world: World, command: str) -> None:
    page = world.ok(command, "--help")
    assert re.search(r"^Reads +\w|^Check ", page, re.M)
    assert re.search(r"\bWrites?\b|Nothing is imported, changed", page)
    for status in ("0  done", "1  a check", "2  it could not"):
        assert status in page
    assert f"examples:\n  sglang-lz {command}" in page
    assert max(len(line) for line in page.splitlines()) <= 100


def test_every_option_is_explained(world: World) -> None:
    for command in COMMANDS:
        page = world.ok(command, "--help")
        options = page.partition("options:\n")[2].partition("\nexit status:")[0]
        for line in re.split(r"\n  (?=-)", options):
            assert len(re.split(r"\s{2,}", line.strip())) > 1, line


def test_main_page_lists_every_command(world: World) -> None:
    page = world.ok("--help")
    for command in COMMANDS:
        assert re.search(rf"^    {command} +\w", page, re.M)


def test_no_command(world: World) -> None:
    assert world.run().returncode == 2


def test_standard_library_only(world: World) -> None:
    """It must run before anything is installed."""
    for file in (SOURCE / "distribution").glob("*.py"):
        allowed = STDLIB | ({"minisign"} if file.name == "verify.py" else set())  # when called
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, f"{file.name} imports {name}"
    # `-S` hides what is installed, so this covers what the tools import of our other rooms.
    subprocess.run(
        [sys.executable, "-S", "-c", "import sglang_lz.distribution.cli"],
        env={"PYTHONPATH": str(SOURCE.parent)},
        check=True,
    )
    command = [sys.executable, "-S", "-m", "sglang_lz", "lint"]
    subprocess.run(
        command, cwd=world.package.parent, capture_output=True, check=True, env={"PATH": "/usr/bin"}
    )
