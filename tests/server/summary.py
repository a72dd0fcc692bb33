"""Plugin of pytest: the table of deviations from the contract at the end of the session."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

import pytest

from server.contract import SUMMARY, TOLERANCE

DEVIATIONS = "lz_deviations"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist measured."""
    SUMMARY.merge(getattr(node, "workeroutput", {}).get(DEVIATIONS, {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of pytest-xdist: hand over what it measured."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[DEVIATIONS] = {mode: astuple(row) for mode, row in SUMMARY.rows.items()}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how far each mode was from the contract."""
    if SUMMARY.rows:
        terminalreporter.section(f"LZ contract, tolerance {TOLERANCE:.0e} nats")
        for line in SUMMARY.lines():
            terminalreporter.write_line(line)
