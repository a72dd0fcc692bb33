"""Plugin of pytest: tests that need programs of the system are not run without them, and said so.

They are skipped, and the last lines of the session say which, why, and what runs them. With CI set,
they are errors.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from _tools import Tools

MISSING = "not installed: "


def require(tools: Tools) -> None:
    """Skip the test that asks, or with CI set fail it, if there is a program missing."""
    if packages := tools.missing():
        reason = MISSING + " ".join(packages)
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def pytest_unconfigure(config: pytest.Config) -> None:
    """After pytest's own last line."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    skipped = terminal.stats.get("skipped", ()) if terminal else ()
    not_run: dict[str, Counter[str]] = {}
    for report in skipped:
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if reason.startswith(MISSING):
            file = report.nodeid.partition("::")[0]
            not_run.setdefault(reason.removeprefix(MISSING), Counter())[file] += 1
    for packages, files in not_run.items():
        terminal.write_sep("=", f"{files.total()} TESTS NOT RUN", red=True, bold=True)
        for file, count in sorted(files.items()):
            terminal.write_line(f"{file}: {count}")
        terminal.write_line(f"They need what is not installed: {packages}")
        terminal.write_line("To run them (on Debian and Ubuntu, the first as root):")
        terminal.write_line(f"    apt-get install {packages}")
        terminal.write_line(f"    scripts/test {' '.join(sorted(files))}")
