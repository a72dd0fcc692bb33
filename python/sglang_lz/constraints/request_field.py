"""The request field `proper_tokens`: which requests are accepted with it, and which are refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lz_penalty.fields.kinds import boolean
from lz_penalty.fields.table import FieldError, entries_of, field, read
from proper_tokens.tokenizer import Unsupported
from sglang_lz.bounds.modes import unsupported_modes
from sglang_lz.bounds.refusal import Refusal

FIELD = "proper_tokens"
BACKEND = "xgrammar"
"""Upstream's default grammar backend, whose masks have our layout. No other backend was tested."""


@dataclass(frozen=True, slots=True)
class ProperParams:
    """The options of a request's constraint in addition to upstream's fields."""

    proper_tokens: bool = field(
        False,
        boolean(),
        "whether to allow only the tokens that the tokenizer itself would produce for the output's "
        "text; works alone or with a `regex`, JSON schema, EBNF or structural tag",
    )


ENTRIES = entries_of(ProperParams)


def is_asked(requested: Mapping[str, Any], preferred: Mapping[str, Any]) -> bool:
    """Whether a request or the server's preferred parameters request proper tokens.

    Raises:
        FieldError: the value is invalid.
    """
    return bool(read(ENTRIES, requested, {}, preferred)[FIELD])


def unserved_modes(config: Callable[[str], Any]) -> Iterator[Refusal]:
    """Refusals of proper tokens in server modes where they are not exact, or not known to be.

    Args:
        config: looks up the effective value of a server argument by its name.
    """
    for mode in unsupported_modes(config):
        yield Refusal(FIELD, "false", mode)
    if config("skip_tokenizer_init"):
        yield Refusal(FIELD, "false", "on a server with --skip-tokenizer-init")
    backend = config("grammar_backend")
    if backend not in (None, BACKEND):  # None is the default, not yet resolved
        yield Refusal(FIELD, "false", f"with --grammar-backend {backend}")


def constrain(sampling_params: Any, requested: Mapping[str, Any], tokenizer: Any) -> None:
    """Check the constraint of a request with proper tokens; without one, it may be any text.

    Slow checks are left to `check_rules`, if the request comes over HTTP, and to the scheduler.

    Args:
        sampling_params: upstream's struct.
        requested: the request's own sampling parameters.
        tokenizer: the model's tokenizer.

    Raises:
        FieldError: the tokenizer cannot be served exactly.
    """
    from sglang_lz.constraints.rules import ANY_TEXT, KINDS

    check_tokenizer(requested, tokenizer)
    if all(getattr(sampling_params, name) is None for name in KINDS):
        sampling_params.regex = ANY_TEXT


def check_tokenizer(requested: Mapping[str, Any], tokenizer: Any) -> None:
    """Refuse a tokenizer that does not support proper tokens.

    Args:
        requested, tokenizer: as in `constrain`.

    Raises:
        FieldError: as in `constrain`.
    """
    if reason := _refusal(tokenizer):
        raise _refused(requested, "with this model's tokenizer", reason)


async def check_rules(given: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Refuse a constraint whose rules already show that it does not support proper tokens.

    This does not block the event loop.

    Args:
        given: upstream's constraint fields by name, as far as they are known.
        requested: as in `constrain`.

    Raises:
        FieldError: the constraint cannot be read, is not supported, or takes too long.
    """
    from sglang_lz.constraints.rules import KINDS

    for name, kind in KINDS.items():
        text = given.get(name)
        if not isinstance(text, str):  # upstream refuses anything but a string
            continue
        key = hashlib.sha256(f"{kind} {text}".encode("utf-8", "surrogatepass")).digest()
        if key not in _CHECKED:
            loop = asyncio.get_running_loop()
            _CHECKED[key] = await loop.run_in_executor(_CHECKERS, _problem, kind, text)
            while len(_CHECKED) > CHECKED:
                _CHECKED.popitem(last=False)
        if problem := _CHECKED.get(key):
            raise _refused(requested, f"with this {name}", problem)


CHECKED = 1024
"""For how many constraints the result of the check is cached."""
_CHECKED: OrderedDict[bytes, str | None] = OrderedDict()
_CHECKERS = ThreadPoolExecutor(8, thread_name_prefix="proper-rules")


def _problem(kind: str, text: str) -> str | None:
    """Why a constraint does not support proper tokens, judging by its rules; None if it may."""
    from proper_tokens.compiler import COMPILER
    from sglang_lz.constraints.rules import rules_of

    try:
        COMPILER.check(rules_of(kind, text))
    except Unsupported as error:
        return str(error)[:300]
    return None


@lru_cache(maxsize=4)
def _refusal(tokenizer: Any) -> str | None:
    """Why a tokenizer is not supported, judging by its file; None if it may be."""
    from proper_tokens.tokenizer import read as read_tokenizer
    from sglang_lz.constraints.backend import tokenizer_text

    try:
        read_tokenizer(tokenizer_text(tokenizer))
    except Unsupported as error:
        return str(error)[:300]
    return None


def _refused(requested: Mapping[str, Any], where: str, why: str) -> FieldError:
    refusal = Refusal(FIELD, "false", where, why)
    return refusal.error(True, is_preferred=not requested.get(FIELD))
