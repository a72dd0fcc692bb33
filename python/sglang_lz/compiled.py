"""What numba compiles for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], *, nogil: bool = False) -> Any:
    """Compile a function for the CPU at its first call; the machine code is kept on disk.

    Args:
        function: what numba can compile.
        nogil: whether other threads of Python go on while it runs.
    """
    try:
        return numba.njit(function, cache=True, nogil=nogil)
    except RuntimeError:  # nowhere to keep what was compiled: a read-only installation
        return numba.njit(function, nogil=nogil)


def unlocked(function: Callable[..., Any]) -> Any:
    """`compiled`, for what takes long: other threads of Python go on while it runs."""
    return compiled(function, nogil=True)
