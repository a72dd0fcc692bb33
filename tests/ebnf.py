"""Rules of XGrammar, written as EBNF."""

from __future__ import annotations

import xgrammar


def rules_json(ebnf: str) -> str:
    """The rules of an EBNF grammar as `sglang_lz.proper.language.Rules` reads them."""
    serialized: str = xgrammar.Grammar.from_ebnf(ebnf).serialize_json()
    return serialized
