"""The rules of a request's constraint, as upstream's XGrammar backend would read it."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import xgrammar
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from sglang_lz.proper.language import Rules
from sglang_lz.proper.tokenizer import Unsupported

KINDS = {"json_schema": "json", "regex": "regex", "structural_tag": "structural_tag"}
"""Upstream's fields of constraints that may be regular, and what its grammar backends call each."""
ANY_TEXT = r"[\s\S]*"
"""The regex of a request that has no constraint."""
_EBNF = ("ebnf", "full_assistant_ebnf")
# XGrammar's rule for the characters of a string that has a minimal or maximal length. It lets
# control characters through, which JSON does not; its rule for other strings does not.
_LOOSE = re.compile(r'^(\w*characters ::= \(\(\[\^)(\\"\\\\\\r\\n\]\)\))$', re.MULTILINE)


class _NotCompiled:
    """In place of XGrammar's compiler: its rules are all that is needed."""

    def compile_regex(self, regex: str) -> Any:
        return xgrammar.Grammar.from_regex(regex)

    def compile_json_schema(self, *, schema: str, **options: Any) -> Any:
        return xgrammar.Grammar.from_json_schema(schema, **options)

    def compile_builtin_json_grammar(self) -> Any:
        return xgrammar.Grammar.builtin_json_grammar()

    def compile_structural_tag(self, tag: Any) -> Any:
        return xgrammar.Grammar.from_structural_tag(tag)


class _Reader(XGrammarGrammarBackend):  # type: ignore[misc]
    """Upstream's backend, with its checks of what comes from a request, up to the rules."""

    def __init__(self, *, any_whitespace: bool, max_whitespace_cnt: int | None) -> None:
        self.any_whitespace = any_whitespace
        self.max_whitespace_cnt = max_whitespace_cnt
        self.grammar_compiler = _NotCompiled()

    def _from_context(self, ctx: Any, *_: Any) -> Any:
        return ctx


@lru_cache(maxsize=64)
def rules_of(kind: str, text: str) -> Rules:
    """The rules of a constraint.

    Args:
        kind: what upstream's grammar backends call it.
        text: the regex, the schema or the structural tag.

    Raises:
        Unsupported: it is wrong, or no regular language.
    """
    from sglang.srt.runtime_context import get_serving

    if kind in _EBNF:
        raise Unsupported("EBNF is not regular in general")
    if "\0" in text or "\\u0000" in text:
        raise Unsupported("it holds a NUL")
    reader = _Reader(
        any_whitespace=not get_serving().constrained_json_disable_any_whitespace,
        max_whitespace_cnt=get_serving().constrained_json_max_whitespace_cnt,
    )
    try:
        rules = getattr(reader, f"dispatch_{kind}")(text)
    except (KeyError, TypeError, AttributeError, AssertionError, json.JSONDecodeError) as error:
        raise Unsupported(f"it cannot be read: {error}") from error
    if isinstance(rules, InvalidGrammarObject):
        raise Unsupported(f"it cannot be read: {rules.error_message}")
    if kind == "regex":
        return Rules(str(rules))
    return Rules(_LOOSE.sub(r"\1\\0-\\x1f\2", str(rules)))
