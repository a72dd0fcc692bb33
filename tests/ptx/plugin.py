"""A plugin of pytest: the tests' `cuda_kernels` are the compiled ones, run by their PTX."""

from __future__ import annotations

from typing import Any

import emulator

EMULATOR = emulator.Emulator()


def pytest_sessionfinish(session: Any, exitstatus: int) -> None:
    print(f"\n{emulator.SEEN}")
    if exitstatus == 0 and (emulator.SEEN.found or not emulator.SEEN.runs):
        session.exitstatus = 1
