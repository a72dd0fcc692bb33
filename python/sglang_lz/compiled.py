"""What numba compiles for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function for the CPU at its first call; the machine code is kept on disk."""
    try:
        return numba.njit(function, cache=True)
    except RuntimeError:  # nowhere to keep what was compiled: a read-only installation
        return numba.njit(function)
