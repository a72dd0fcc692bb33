"""References: one pointer to many arrays, for functions that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types
from numba.experimental import structref

from proper_tokens.compiled import compiled


class _Structure(types.StructRef):  # type: ignore[misc]
    """Numba's type of a `Reference`, which depends on the names and types of the fields."""

    def preprocess_fields(self, fields: Any) -> Any:
        return tuple((name, types.unliteral(kind)) for name, kind in fields)


class Reference(structref.StructRefProxy):  # type: ignore[misc]
    """One pointer to all fields of a `NamedTuple`, for compiled functions.

    These read its fields like those of the tuple. If they were given the tuple itself, numba would
    pass every field of every array as an argument of its own, and with fifty arrays compiling takes
    three times as long.

    Each kind of tuple has a subclass, which names it: `class PairReference(Reference, of=Pair)`. It
    must be defined in a module, because numba's cache on disk finds it there by name.
    """

    __slots__ = ()

    def __init_subclass__(cls, of: Any) -> None:
        structref.define_constructor(cls, _Structure, of._fields)

        def make(*fields: Any) -> Any:
            return cls(*fields)

        _MAKERS[of] = compiled(make)


structref.register(_Structure)
structref.define_boxing(_Structure, Reference)
_MAKERS: dict[type, Callable[..., Reference]] = {}


def reference(value: Any) -> Any:
    """A reference to a tuple of a registered kind; anything else is returned as it is.

    The reference holds the arrays of the tuple, and of the tuples in it, not copies of them.
    """
    make = _MAKERS.get(type(value))
    return value if make is None else make(*(reference(field) for field in value))
