"""The request field `proper_tokens`: which requests are served with it, and which are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sglang_lz.kinds import boolean
from sglang_lz.params import FieldError, entries_of, field, read, shown
from sglang_lz.proper.tokenizer import Unsupported
from sglang_lz.support import unsupported_modes

FIELD = "proper_tokens"
BACKEND = "xgrammar"
"""Upstream's default grammar backend, whose masks have our layout. No other was ever run."""
EBNF = "ebnf"


@dataclass(frozen=True, slots=True)
class ProperParams:
    """What a request asks of its constraint beside upstream's fields."""

    proper_tokens: bool = field(
        False,
        boolean(),
        "whether the output is spelt only as the tokenizer would spell it, with a `regex`, JSON "
        "schema or structural tag or alone",
    )


ENTRIES = entries_of(ProperParams)


def is_asked(requested: Mapping[str, Any], preferred: Mapping[str, Any]) -> bool:
    """Whether a request or the server's preferred parameters ask for proper tokens.

    Raises:
        FieldError: a wrong value.
    """
    return bool(read(ENTRIES, requested, {}, preferred)[FIELD])


def unserved_modes(config: Callable[[str], Any]) -> Iterator[str]:
    """Server modes in which proper tokens are not exact, or not yet shown to be.

    Args:
        config: looks up the value in effect of a server argument by its name.
    """
    yield from unsupported_modes(config)
    if config("skip_tokenizer_init"):
        yield "on a server with --skip-tokenizer-init"
    backend = config("grammar_backend")
    if backend not in (None, BACKEND):  # None is the default, not yet resolved
        yield f"with --grammar-backend {backend}"


def resolve_proper_tokens(
    requested: Mapping[str, Any], *, max_new_tokens: int | None, beam_width: int | None
) -> bool:
    """Whether a request is to have proper tokens, by its field or the server's preferred one.

    Args:
        requested: its own sampling parameters. A null counts as missing.
        max_new_tokens: the most tokens to generate; None for no limit.
        beam_width: beams of beam search; None or 1 for none.

    Raises:
        FieldError: a wrong value, or a server or request that cannot have them.
    """
    from sglang.srt.runtime_context import get_context

    config = get_context().config_leaf
    preferred = config("preferred_sampling_params") or {}
    if not is_asked(requested, preferred) or max_new_tokens == 0:
        return False
    reasons = list(unserved_modes(config))
    if (beam_width or 1) > 1:
        reasons.append("with beam search (beam_width > 1)")
    if requested.get(EBNF):
        reasons.append("with ebnf, which is not regular in general")
    if reasons:
        raise _refused(requested, f"{reasons[0]}: it is not exact there")
    return True


def constrain(sampling_params: Any, requested: Mapping[str, Any], tokenizer: Any) -> None:
    """Check the constraint of a request with proper tokens; one without gets that of any text.

    Args:
        sampling_params: upstream's struct.
        requested: the request's own sampling parameters.
        tokenizer: the model's.

    Raises:
        FieldError: the tokenizer or the constraint cannot be served exactly.
    """
    from sglang_lz.proper.rules import ANY_TEXT, KINDS

    given = {name: getattr(sampling_params, name) for name in (*KINDS, EBNF)}
    check_constraint(given, requested, tokenizer)
    if not any(value is not None for value in given.values()):
        sampling_params.regex = ANY_TEXT


def check_constraint(
    given: Mapping[str, Any], requested: Mapping[str, Any], tokenizer: Any
) -> None:
    """Refuse a constraint that has no proper tokens.

    Args:
        given: upstream's fields of constraints, by name, as far as they are known.
        requested, tokenizer: as in `constrain`.

    Raises:
        FieldError: as `constrain`.
    """
    from sglang_lz.proper.rules import KINDS, rules_of

    if reason := _refusal(tokenizer):
        raise _refused(requested, f"with this model's tokenizer, which is not covered: {reason}")
    if given.get(EBNF) is not None:
        raise _refused(requested, "with ebnf, which is not regular in general")
    for name, kind in KINDS.items():
        text = given.get(name)
        if isinstance(text, str):  # upstream refuses anything else
            try:
                rules_of(kind, text)
            except Unsupported as error:
                raise _refused(requested, f"with this {name}: {error}") from None


@lru_cache(maxsize=4)
def _refusal(tokenizer: Any) -> str | None:
    """Why a tokenizer is not covered, as far as its file tells; None if it may be."""
    from sglang_lz.proper.backend import tokenizer_text
    from sglang_lz.proper.tokenizer import read as read_tokenizer

    try:
        read_tokenizer(tokenizer_text(tokenizer))
    except Unsupported as error:
        return str(error)
    return None


def _refused(requested: Mapping[str, Any], reason: str) -> FieldError:
    whose = "" if requested.get(FIELD) else " from the server's --preferred-sampling-params"
    return FieldError(
        FIELD, f"{FIELD} must be false {reason[:300]}, got {shown(True).lower()}{whose}."
    )
