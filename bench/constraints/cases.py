"""The constraints that are measured, and texts that each allows."""

from __future__ import annotations

import json
import random
import string
from typing import Any

WORDS = [
    "alpha",
    "bravo",
    "delta",
    "kilo",
    "Paris",
    "Tokyo",
    "return",
    "value",
    "import",
    "class",
    "north",
    "south",
    "engine",
    "record",
    "error",
    "state",
    "token",
    "prime",
    "river",
]
_RNG = random.Random(5)
ENUM = sorted(
    {
        f"{' '.join(_RNG.choices(WORDS, k=_RNG.randint(1, 3)))}{_RNG.randrange(1000)}"
        for _ in range(200)
    }
)
_TEXT = {"type": "string", "maxLength": 40}
FIELDS: dict[str, Any] = {
    "name": _TEXT,
    "age": {"type": "integer"},
    "active": {"type": "boolean"},
    "role": {"enum": ["admin", "user", "guest", "editor"]},
    "email": _TEXT,
    "score": {"type": "number"},
    "verified": {"type": "boolean"},
    "country": {"enum": ["France", "Germany", "Japan", "Brazil", "Canada"]},
    "notes": _TEXT,
    "balance": {"type": "number"},
}
SCHEMA = {
    "type": "object",
    "properties": FIELDS,
    "required": list(FIELDS),
    "additionalProperties": False,
}
CASES: dict[str, tuple[str, str]] = {
    "date": ("regex", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "name": ("regex", r"[A-Z][a-z]{1,10}( [A-Z][a-z]{1,10}){0,2}"),
    "JSON of 10 fields": ("json", json.dumps(SCHEMA)),
    "compact JSON": ("compact json", json.dumps(SCHEMA)),
    "enum of 200": ("regex", "|".join(ENUM)),
    "email": ("regex", r"[a-zA-Z0-9._%+-]{1,64}@[a-zA-Z0-9-]{1,63}(\.[a-zA-Z0-9-]{1,63}){1,3}"),
    "free text to 200": ("regex", r"[\s\S]{0,200}"),
}
"""By name: a regex, a JSON schema with any whitespace or with only one way, and its text."""


def example(name: str, rng: random.Random) -> str:
    """A text that a case allows."""
    if name == "date":
        return f"{rng.randrange(10000):04}-{rng.randrange(100):02}-{rng.randrange(100):02}"
    if name == "name":
        return " ".join(_word(rng, 2, 11).capitalize() for _ in range(rng.randint(1, 3)))
    if name == "enum of 200":
        return rng.choice(ENUM)
    if name == "email":
        return f"{_word(rng, 3, 12)}.{_word(rng, 3, 9)}@{_word(rng, 3, 12)}.com"
    if name == "free text to 200":
        return _sentence(rng, 200)
    values = {
        field: rng.choice(kind["enum"])
        if "enum" in kind
        else _sentence(rng, 40)
        if kind is _TEXT
        else rng.random() < 0.5
        if kind["type"] == "boolean"
        else rng.randrange(1000)
        if kind["type"] == "integer"
        else round(rng.uniform(-9, 99), 2)
        for field, kind in FIELDS.items()
    }
    return json.dumps(values)


def _word(rng: random.Random, shortest: int, longest: int) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(shortest, longest)))


def _sentence(rng: random.Random, longest: int) -> str:
    return " ".join(rng.choices(WORDS, k=longest // 5))[: rng.randint(1, longest)]
