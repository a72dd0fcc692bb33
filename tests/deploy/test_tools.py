"""Tests that need a program of the system: not run without it, loudly, and in CI an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from _tools import ROOT

COMMAND = [
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n1"),
    *("tests/deploy/test_report_page.py", "-k", "test_charts_have_names"),
]


def run_without_programs(folder: Path, **variables: str) -> tuple[int, list[str]]:
    """Status and output of a session that finds no browser."""
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


def test_tests_without_their_tools_are_named_at_the_end(tmp_path: Path) -> None:
    status, output = run_without_programs(tmp_path, CI="")
    assert status == 0
    *_, passed, title, tests, why, _, install, run = output
    assert "1 skipped" in passed
    assert "1 TESTS NOT RUN" in title
    assert tests == "tests/deploy/test_report_page.py: 1"
    assert why.endswith("not installed: chromium")
    assert install.strip() == "apt-get install chromium"
    assert run.strip() == "scripts/test full tests/deploy/test_report_page.py"


def test_in_ci_they_are_errors(tmp_path: Path) -> None:
    status, output = run_without_programs(tmp_path, CI="true")
    assert status == 1
    assert "1 error" in output[-1]
    assert "not installed: chromium" in "\n".join(output)
