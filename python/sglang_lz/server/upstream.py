"""Differences between the upstream releases that we support.

Each difference is a function here. It checks what upstream's object has, never a version number.
It names the release that needs it, and is deleted when we drop support for that release.
"""

from __future__ import annotations

from typing import Any

from sglang_lz.loops.detector import FINISH_REASON


def applies_constraint(grammar: Any) -> bool:
    """Whether upstream's ReasonerGrammarObject constrains the next token.

    0.5.22 has no `_grammar_active`; there, a constraint begins with the answer.
    """
    active = getattr(grammar, "_grammar_active", None)
    if active is not None:
        return bool(active())
    return grammar.grammar is not None and bool(grammar._is_generation())


def describes_thinking(grammar: Any) -> bool:
    """Whether the constraint of upstream's ReasonerGrammarObject covers the thinking section too.

    0.5.22 has no `reasoning_in_grammar`; there, no constraint does.
    """
    return getattr(grammar, "reasoning_in_grammar", False) and grammar.grammar is not None


def frames_answers(backend: Any, kind: str) -> bool:
    """Whether upstream's ReasonerGrammarBackend adds tokens around answers under this constraint.

    0.5.22 has no `_is_framed`; there, it never does.

    Args:
        backend: upstream's.
        kind: the kind of constraint, such as "json".
    """
    framed = getattr(backend, "_is_framed", None)
    return framed is not None and bool(framed(kind))


def event_maker(event_type: Any, response: dict[str, Any]) -> Any:
    """What creates the last event of a stream of the Responses API (upstream's hook).

    0.5.22 validates the event against OpenAI's types, which reject our reason; 0.5.23 does not.

    Args:
        event_type: OpenAI's type of the event.
        response: the response that the event will contain.
    """
    ours = (response.get("incomplete_details") or {}).get("reason") == FINISH_REASON
    return event_type.construct if ours else event_type
