"""What our code must know of differences between the upstream releases that we support.

Every such difference is a function here, decided by what upstream's object has and never by a
version. It names the release that needs it, and goes when that release does.
"""

from __future__ import annotations

from typing import Any

from sglang_lz.guard import FINISH_REASON


def applies_constraint(grammar: Any) -> bool:
    """Whether upstream's ReasonerGrammarObject constrains the next token.

    0.5.22 has no `_grammar_active`: there a constraint begins with the answer.
    """
    active = getattr(grammar, "_grammar_active", None)
    if active is not None:
        return bool(active())
    return grammar.grammar is not None and bool(grammar._is_generation())


def describes_thinking(grammar: Any) -> bool:
    """Whether the constraint of upstream's ReasonerGrammarObject covers the thinking section too.

    0.5.22 has no `reasoning_in_grammar`: there none does.
    """
    return getattr(grammar, "reasoning_in_grammar", False) and grammar.grammar is not None


def frames_answers(backend: Any, kind: str) -> bool:
    """Whether upstream's ReasonerGrammarBackend puts tokens around answers to such a constraint.

    0.5.22 has no `_is_framed`: there none does.

    Args:
        backend: upstream's.
        kind: of the constraint, such as "json".
    """
    framed = getattr(backend, "_is_framed", None)
    return framed is not None and bool(framed(kind))


def event_maker(event_type: Any, response: dict[str, Any]) -> Any:
    """What makes the last event of a stream of the Responses API.

    0.5.22 checks it against OpenAI's own types, which know no reason of ours; 0.5.23 does not.

    Args:
        event_type: OpenAI's type of the event.
        response: what the event is to hold.
    """
    ours = (response.get("incomplete_details") or {}).get("reason") == FINISH_REASON
    return event_type.construct if ours else event_type
