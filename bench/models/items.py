"""The problems of a run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
        id: "TASK/...", unique in a run.
        prompt: the user's message.
        answer: the right one; None where none is known.
        group: what results are broken down by, "sort" for instance; "" without.
        level: how hard it is, "8" for instance; "" without.
        fields: request fields of its own, a `response_format` for instance.
        check: how an output is judged if not by `answer`: for code, `function` and the programs
            `before` and `after` it; for reasoning-gym, `gym` and `entry`.
    """

    id: str
    prompt: str
    answer: str | None
    group: str = ""
    level: str = ""
    fields: dict[str, object] = field(default_factory=dict, hash=False)
    check: dict[str, object] = field(default_factory=dict, hash=False)

    def line(self) -> dict[str, Any]:
        """The item as JSON has it, without `fields` and `check` if they are empty."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value != {}}


def digest(items: Sequence[Item]) -> str:
    """The sha256 of everything in these items."""
    text = json.dumps([item.line() for item in items])
    return hashlib.sha256(text.encode()).hexdigest()


def task_of(item: str) -> str:
    """The task in an item's id."""
    return item.split("/", 1)[0]
