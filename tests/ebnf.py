"""XGrammar's rules, of EBNF and of JSON schemas."""

from __future__ import annotations

import json
from typing import Any

import xgrammar


def rules_json(ebnf: str) -> str:
    """The rules of an EBNF grammar as `proper_tokens.rules.Rules` reads them."""
    serialized: str = xgrammar.Grammar.from_ebnf(ebnf).serialize_json()
    return serialized


def schema_rules(schema: Any) -> str:
    """The rules of a JSON schema, likewise."""
    serialized: str = xgrammar.Grammar.from_json_schema(json.dumps(schema)).serialize_json()
    return serialized
