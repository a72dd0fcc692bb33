"""The refusal of a field whose value is valid but cannot be honoured where the request runs."""

from __future__ import annotations

import json
from dataclasses import dataclass

from lz_penalty.fields.table import FieldError, shown


@dataclass(frozen=True)
class Refusal:
    """Which field is refused, and why.

    Attributes:
        name: the field's name; for a key of an object, both names with a dot between them.
        needed: the value that would be accepted, as it follows "must be".
        where: the mode, model or constraint that does not allow another value, such as "with beam
            search".
        why: what is wrong there.
    """

    name: str
    needed: str
    where: str
    why: str = "it is not exact there"

    @property
    def field(self) -> str:
        """The name of the whole field."""
        return self.name.partition(".")[0]

    def error(self, value: object, *, is_preferred: bool = False) -> FieldError:
        """The error that the client gets.

        Args:
            value: the field's value.
            is_preferred: whether the value is one of the server's preferred parameters.
        """
        got = json.dumps(value) if isinstance(value, bool) else shown(value)
        whose = " from the server's --preferred-sampling-params" if is_preferred else ""
        return FieldError(
            self.field,
            f"{self.name} must be {self.needed} {self.where}, got {got}{whose}: {self.why}.",
        )
