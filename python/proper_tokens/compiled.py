"""Compiles functions for the host with numba."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache

logger = logging.getLogger(__name__)


def compiled(function: Callable[..., Any], *, nogil: bool = False) -> Any:
    """Compile a function for the CPU on its first call, and cache the machine code on disk.

    Args:
        function: a function that numba can compile.
        nogil: whether it releases the GIL, so that other Python threads run meanwhile.
    """
    dispatcher = numba.njit(function, nogil=nogil)
    # A read-only installation has no place for the cache.
    with contextlib.suppress(RuntimeError):
        dispatcher._cache = _Kept(function)  # what njit does for cache=True
    return dispatcher


class _Kept(FunctionCache):  # type: ignore[misc]
    """A cache on disk. If the disk is full, the code is compiled again at the next start."""

    def save_overload(self, sig: Any, data: Any) -> None:
        file = self._cache_file
        try:
            if not file._load_index():
                # Numba writes the index before the code. Killed in between, it would leave an
                # index that names the code of an older version.
                pattern = file._data_name_pattern.replace("{number:d}", "*")
                for old in Path(self.cache_path).glob(pattern):
                    old.unlink(missing_ok=True)
            super().save_overload(sig, data)
        except OSError as error:
            logger.warning("what was compiled is not kept in %s: %s", self.cache_path, error)


def unlocked(function: Callable[..., Any]) -> Any:
    """Like `compiled`, but for long-running functions: it releases the GIL while it runs."""
    return compiled(function, nogil=True)
