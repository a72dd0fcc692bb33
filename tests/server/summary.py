"""Plugin of pytest: the table of deviations from the contract at the end of the session."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import pytest

DEVIATIONS = "lz_deviations"
TOLERANCE = 2e-4
"""What we take for float tolerance, in nats (docs/SPEC.md section 7)."""


@dataclass
class Row:
    """One line of the summary."""

    deviation: float = 0.0
    positions: int = 0


@dataclass
class Summary:
    """Largest deviation by mode, for the reader of the session's output."""

    rows: dict[str, Row] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def record(self, mode: str, deviations: Sequence[float]) -> None:
        """Add the positions of one checked sample."""
        with self.lock:  # tests check requests in several threads
            row = self.rows.setdefault(mode, Row())
            row.deviation = max(row.deviation, *deviations)
            row.positions += len(deviations)

    def merge(self, rows: Mapping[str, tuple[float, int]]) -> None:
        """Add what another process found: the fields of its `Row`s, by mode."""
        for mode, (deviation, positions) in rows.items():
            row = self.rows.setdefault(mode, Row())
            row.deviation = max(row.deviation, deviation)
            row.positions += positions

    def lines(self) -> list[str]:
        """The table, one line a mode."""
        width = max(map(len, self.rows))
        return [
            f"{mode:<{width}}  {row.positions:>6} positions  max |deviation| {row.deviation:.1e}"
            for mode, row in sorted(self.rows.items())
        ]


SUMMARY = Summary()


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
