"""The constraints that are measured, and texts that each allows.

The folder `schemas` has twenty JSON schemas as applications send them, written for this benchmark
from what such interfaces hold, each with documents that it allows.
"""

from __future__ import annotations

import json
import random
import string
from functools import cache
from pathlib import Path
from typing import Any

TEXTS = 40
"""How many texts of each of `CASES` are followed."""

WORDS = [
    *("alpha", "bravo", "delta", "kilo", "Paris", "Tokyo", "return", "value", "import", "class"),
    *("north", "south", "engine", "record", "error", "state", "token", "prime", "river"),
]
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
    "JSON of 10 fields": ("json", json.dumps(SCHEMA)),
    "free text to 200": ("regex", r"[\s\S]{0,200}"),
}
"""By name: whether it is a regex or a JSON schema, and its text."""

TREE = {
    "$defs": {
        "comment": {
            "type": "object",
            "properties": {
                "author": {"type": "string"},
                "text": {"type": "string"},
                "replies": {"type": "array", "items": {"$ref": "#/$defs/comment"}},
            },
            "required": ["author", "text", "replies"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/comment",
}
ANY_JSON, RECURSIVE = "any JSON", "recursive schema"


@cache
def schemas() -> dict[str, Any]:
    """The real-world schemas by name: for each its `schema` and `examples`."""
    folder = Path(__file__).with_name("schemas")
    return {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


def schema_cases() -> dict[str, tuple[str, str]]:
    """`CASES` of any JSON, as `{"type": "json_object"}` asks for it, and of schemas."""
    found: dict[str, Any] = {ANY_JSON: {"type": "object"}, RECURSIVE: TREE}
    found |= {name: content["schema"] for name, content in schemas().items()}
    return {name: ("json", json.dumps(schema)) for name, schema in found.items()}


def texts(name: str) -> list[str]:
    """Texts that a case allows; of schemas on one line each, and with an indent."""
    rng = random.Random(name)
    if name in CASES:
        return [example(name, rng) for _ in range(TEXTS)]
    if name == ANY_JSON:
        values = [content["examples"][0] for content in schemas().values()]
    elif name == RECURSIVE:
        values = [_comment(rng, 3) for _ in range(10)]
    else:
        values = schemas()[name]["examples"]
    # XGrammar's strings of bounded length allow no escapes.
    return [
        json.dumps(one, indent=indent, ensure_ascii=False) for one in values for indent in (None, 2)
    ]


def _comment(rng: random.Random, depth: int) -> dict[str, Any]:
    n_replies = rng.randint(0, depth)
    return {
        "author": _word(rng, 3, 9),
        "text": _sentence(rng, 60),
        "replies": [_comment(rng, depth - 1) for _ in range(n_replies)],
    }


def example(name: str, rng: random.Random) -> str:
    """A text that one of `CASES` allows."""
    if name == "date":
        return f"{rng.randrange(10000):04}-{rng.randrange(100):02}-{rng.randrange(100):02}"
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
