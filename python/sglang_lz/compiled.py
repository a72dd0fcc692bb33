"""Compiles functions for the host with numba."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core import types
from numba.core.caching import FunctionCache
from numba.experimental import structref

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


def unlocked(function: Callable[..., Any]) -> Any:
    """Like `compiled`, but for long-running functions: it releases the GIL while it runs."""
    return compiled(function, nogil=True)


def is_kept(dispatcher: Any) -> bool:
    """Whether a function's machine code is cached on disk, or can never be."""
    cache = dispatcher._cache
    return not isinstance(cache, _Kept) or bool(cache._cache_file._load_index())


class _Structure(types.StructRef):  # type: ignore[misc]
    """Numba's type of a `Reference`, which depends on the names and types of the fields."""

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Reference(structref.StructRefProxy):  # type: ignore[misc]
    """One pointer to all fields of a `NamedTuple`, for compiled functions.

    These read its fields like those of the tuple. If they were given the tuple itself, numba would
    pass every field of every array as an argument of its own, and with fifty arrays compiling takes
    three times as long.
    """

    __slots__ = ()


structref.register(_Structure)
structref.define_boxing(_Structure, Reference)
_MAKERS: dict[type, Callable[..., Reference]] = {}


def refers_to(kind: type) -> Callable[[type], type]:
    """Register a class as the one of references to a kind of tuple.

    The class must be defined in a module, because numba's cache on disk finds it there by name.

    Args:
        kind: a `NamedTuple`.
    """

    def register(made: type) -> type:
        structref.define_constructor(made, _Structure, kind._fields)  # type: ignore[attr-defined]

        def make(*fields: Any) -> Any:
            return made(*fields)

        _MAKERS[kind] = compiled(make)
        return made

    return register


def reference(value: Any) -> Any:
    """A reference to a tuple of a registered kind; anything else is returned as it is.

    The reference holds the arrays of the tuple, and of the tuples in it, not copies of them.
    """
    make = _MAKERS.get(type(value))
    return value if make is None else make(*(reference(field) for field in value))


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
