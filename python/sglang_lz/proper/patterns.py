"""Adds the rules of a JSON schema's patterns to XGrammar's rules.

XGrammar keeps such a pattern (`pattern`, `patternProperties`, `propertyNames`) as a regex and makes
an automaton of it only for itself. The rules that it makes of a constraint that is a regex allow
the same, except for an error of that automaton: for `(b*a)?`, it also allows "b".
"""

from __future__ import annotations

import json
import re
from typing import Any

import xgrammar

from sglang_lz.proper.language import MOST_RULES
from sglang_lz.proper.tokenizer import Unsupported

# An escape. XGrammar's rules would count all hexadecimal digits behind \\x to it, not only two.
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|.)", re.DOTALL)


def with_patterns(rules: str, schema: Any) -> str:
    """Add to rules those of each pattern that they may contain, in the format of `language.Rules`.

    A pattern that cannot be converted gets the reason instead, because it may not be needed.

    Args:
        rules: the rules of a JSON schema or a structural tag, in XGrammar's JSON.
        schema: the schema or the tag.

    Raises:
        Unsupported: the rules are too large.
    """
    parts = []
    left = MOST_RULES - len(rules)
    for pattern in sorted(_patterns(schema)):
        try:
            own = xgrammar.Grammar.from_regex(_ESCAPE.sub(_as_unicode, pattern)).serialize_json()
        except RuntimeError as error:
            own = json.dumps({"error": str(error).strip().rpartition(": ")[2]})
        parts.append(f"{json.dumps(pattern)}: {own}")
        left -= len(parts[-1])
        if left < 0:
            raise Unsupported(f"its patterns need more than {MOST_RULES} characters of rules")
    # Parsing the rules here would hold up the other threads of the server.
    return f'{rules.rstrip()[:-1]}, "patterns": {{{", ".join(parts)}}}}}' if parts else rules


def _as_unicode(escape: re.Match[str]) -> str:
    return f"\\u00{escape[1]}" if escape[1] else escape[0]


def _patterns(schema: Any) -> set[str]:
    """The patterns in a schema, and perhaps other texts."""
    found = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            pattern, properties = part.get("pattern"), part.get("patternProperties")
            found |= {pattern} if isinstance(pattern, str) else set()
            found |= set(properties) if isinstance(properties, dict) else set()
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return found
