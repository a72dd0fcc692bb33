"""The problems that are asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["integer", "letter", "text"]


@dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
        id: "TASK/...", unique in a run.
        prompt: the user's message.
        answer: the right one; None where none is known.
        kind: how an answer is read off an output and compared (`loops.answers`); None without one.
        group: what results are broken down by, "AIME 2024" for instance; "" without.
        level: how hard it is, "8" for instance; "" without.
    """

    id: str
    prompt: str
    answer: str | None
    kind: Kind | None
    group: str = ""
    level: str = ""
