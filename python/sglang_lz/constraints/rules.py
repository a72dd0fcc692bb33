"""Converts a request's constraint to rules in the way upstream's XGrammar backend reads it."""

from __future__ import annotations

import json
from typing import Any

import xgrammar
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammarBackend

from proper_tokens.tokenizer import Unsupported
from sglang_lz.bounds.limits import TOO_DEEP, too_large
from sglang_lz.constraints.schemas import SchemaCompiler

KINDS = {
    "json_schema": "json",
    "regex": "regex",
    "structural_tag": "structural_tag",
    "ebnf": "ebnf",
}
"""Upstream's constraint fields, and their names in its grammar backends."""
ANY_TEXT = r"[\s\S]*"
"""The regex of a request that has no constraint."""
MOST_CHARACTERS = 1 << 16
"""The most characters of a constraint."""
_WHOLE = "full_assistant_ebnf"
_TEXTS = ("regex", "ebnf")
_LOOKAHEAD = 2  # the place in a rule of what must follow it


class _NotCompiled:
    """Replaces XGrammar's compiler, because only the rules are needed."""

    def compile_regex(self, regex: str) -> Any:
        return xgrammar.Grammar.from_regex(regex)

    def compile_grammar(self, grammar: str | xgrammar.Grammar) -> Any:
        return xgrammar.Grammar.from_ebnf(grammar) if isinstance(grammar, str) else grammar

    def compile_builtin_json_grammar(self) -> Any:
        return xgrammar.Grammar.builtin_json_grammar()

    def compile_structural_tag(self, tag: Any) -> Any:
        return xgrammar.Grammar.from_structural_tag(tag)


class _Reader(XGrammarGrammarBackend):  # type: ignore[misc]
    """Upstream's backend with its checks of the request, but stopping once it has the rules."""

    def __init__(self, *, any_whitespace: bool, max_whitespace_cnt: int | None) -> None:
        self.any_whitespace = any_whitespace
        self.max_whitespace_cnt = max_whitespace_cnt
        self.grammar_compiler = SchemaCompiler(
            _NotCompiled(), any_whitespace=any_whitespace, max_whitespace_cnt=max_whitespace_cnt
        )

    def _from_context(self, ctx: Any, *_: Any) -> Any:
        return ctx


def rules_of(kind: str, text: str) -> str:
    """The rules of a constraint, in XGrammar's JSON (`language.Rules`).

    Args:
        kind: the name of the kind of constraint in upstream's grammar backends.
        text: the regex, the schema, the structural tag or the EBNF.

    Raises:
        Unsupported: it cannot be read, or is too large.
    """
    from sglang.srt.runtime_context import get_serving

    if kind == _WHOLE:
        raise Unsupported("EBNF for a whole answer, as tool parsers make it, is not covered")
    if "\0" in text or "\\u0000" in text:
        raise Unsupported("it holds a NUL")
    if len(text) > MOST_CHARACTERS:
        raise Unsupported(f"it has {len(text)} characters, more than {MOST_CHARACTERS}")
    reader = _Reader(
        any_whitespace=not get_serving().constrained_json_disable_any_whitespace,
        max_whitespace_cnt=get_serving().constrained_json_max_whitespace_cnt,
    )
    try:
        if kind not in _TEXTS and (problem := too_large(json.loads(text))):
            raise Unsupported(problem)
        rules = getattr(reader, f"dispatch_{kind}")(text)
    except Unsupported:
        raise
    except RecursionError:
        raise Unsupported(TOO_DEEP) from None
    except (KeyError, TypeError, AttributeError, AssertionError, ValueError) as error:
        raise Unsupported(f"it cannot be read: {error}") from error
    if isinstance(rules, InvalidGrammarObject):
        raise Unsupported(f"it cannot be read: {rules.error_message}")
    serialized: str = rules.serialize_json()
    if kind == "ebnf" and any(rule[_LOOKAHEAD] >= 0 for rule in json.loads(serialized)["rules"]):
        raise Unsupported("it has a lookahead assertion, which XGrammar itself does not enforce")
    return serialized
