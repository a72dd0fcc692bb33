"""What numba compiles for the host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import numba
from numba.core.caching import FunctionCache

logger = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], *, nogil: bool = False) -> Any:
    """Compile a function for the CPU at its first call; the machine code is kept on disk.

    Args:
        function: what numba can compile.
        nogil: whether other threads of Python go on while it runs.
    """
    dispatcher = numba.njit(function, nogil=nogil)
    # There may be nowhere to keep what was compiled: a read-only installation.
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = _Kept(function)  # what njit does for cache=True
    return dispatcher


def unlocked(function: Callable[..., Any]) -> Any:
    """`compiled`, for what takes long: other threads of Python go on while it runs."""
    return compiled(function, nogil=True)


class _Kept(FunctionCache):  # type: ignore[misc]
    """Machine code on disk; what a full disk does not take is compiled again at the next start."""

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            logger.warning("what was compiled is not kept in %s: %s", self.cache_path, error)
