"""Constraints that end their request because they allow no token, or because they are too slow.

A grammar may allow no next token, either at once or after some tokens: `root ::= root`, a regex
that no character matches, or a JSON schema whose minimum is above its maximum. Its row of the mask
would set every logit to minus infinity, and sampling from that row would crash the server. We
therefore unmask the whole row and end the request with an error before the sampled token counts.
A constraint may also take too long to compute its next tokens (`matchers`), which would block all
other requests. Its request is ended too.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sglang_lz.bounds.limits import CONSTRAINTS
from sglang_lz.constraints import ranks

REACHED = "reached"
"""The next token has no valid choice."""
DRAFTED = "drafted"
"""A node of a draft tree has no valid choice, but verification may not reach that node."""

MOST_SECONDS = 0.1
"""The most processor time for accepting a token or computing a mask."""

_NOTHING = (
    "must allow some token wherever the output has not ended, got one that allows none where this "
    "output has come to."
)
_CONTRADICTORY = (
    "must not contradict itself, got one for which the grammar library allowed a token and then "
    "rejected it."
)
"""XGrammar's masks of a regex sometimes allow a token that begins within a character and continues
after it, which its matcher then rejects."""
_SLOW = (
    f"must have next tokens that are found within {MOST_SECONDS} s, got one that can be read in "
    "too many ways where this output has come to."
)

_WITHOUT_MASK = (
    "must allow some token wherever the output has not ended, and next tokens that are found "
    f"within {MOST_SECONDS} s, got one that does not where this output has come to."
)
"""If another stage or server had the mask: the last of a pipeline, or the one that prefills."""


def open_dead_ends(mask: Tensor | None, grammars: Sequence[Any]) -> None:
    """Unmask rows that allow no token, or that were not found in time (upstream's hook).

    Args:
        mask: packed bits, int32 [rows, ceil(V / 32)] on the host, filled; None without a grammar.
        grammars: upstream's grammar of each request, or None. Every request has equally many rows.
    """
    if mask is None or mask.dtype != torch.int32 or mask.device.type != "cpu":
        return  # the grammar backend has its own kind of mask
    nodes = len(mask) // len(grammars)
    for i, matcher in _stop_slow(grammars):
        for row in mask[i * nodes : (i + 1) * nodes]:
            matcher.fill_without_mask(row)
    rows = (np.bitwise_or.reduce(mask.numpy(), axis=1) == 0).nonzero()[0].tolist()
    for row in rows:
        grammar = grammars[row // nodes]
        matcher = _matcher(grammar)
        if hasattr(matcher, "fill_without_mask"):
            matcher.fill_without_mask(mask[row])
        else:
            mask[row] = -1
        grammar.lz_dead_end = DRAFTED if nodes > 1 or is_pipeline() else REACHED


def _stop_slow(grammars: Sequence[Any]) -> list[tuple[int, Any]]:
    """Stop the matchers that were too slow on any rank.

    Returns:
        The positions of their requests, which have to end, and the matchers.
    """
    found = {i: _matcher(grammar) for i, grammar in enumerate(grammars)}
    timed = {i: matcher for i, matcher in found.items() if hasattr(matcher, "is_stopped")}
    going_on = ranks.least([not matcher.is_stopped for matcher in timed.values()])
    slow = [i for i, goes_on in zip(timed, going_on, strict=True) if not goes_on]
    for i in slow:
        timed[i].stop()
    return [(i, timed[i]) for i in slow]


def _matcher(grammar: Any) -> Any:
    """The matcher of a grammar, or of the grammar that it wraps; None if it has none."""
    return getattr(getattr(grammar, "grammar", None) or grammar, "matcher", None)


def end_constrained(req: Any, new_tokens: int) -> None:
    """End a request whose constraint allows no further token, or is too slow.

    On a path of drafts, a dead end shows when the grammar rejects the sampled token. Upstream would
    report that as an error of its own.

    Args:
        req: upstream's Req, with its new tokens and a grammar.
        new_tokens: how many tokens the step added; those sampled without a mask do not count.
    """
    reason, dead_end = req.to_finish, getattr(req.grammar, "lz_dead_end", None)
    is_slow = getattr(_matcher(req.grammar), "is_slow", False)
    if _is_refused(reason):
        if is_slow or (dead_end is None and req.bootstrap_room is not None):
            _end(req, _WITHOUT_MASK)  # with a bootstrap room, another server had the mask
        else:
            _end(req, _CONTRADICTORY if dead_end is None else _NOTHING)
    elif dead_end == REACHED and reason is None:
        req.finished_len = max(0, len(req.output_ids) - new_tokens)
        _end(req, _NOTHING)
    elif reason is None and is_slow:
        req.finished_len = max(0, len(req.output_ids) - new_tokens)  # the mask allowed everything
        _end(req, _SLOW)


def _is_refused(reason: Any) -> bool:
    """Whether upstream is ending a request because its grammar rejected a token.

    If the grammar is that of proper tokens, the error is ours.
    """
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    if not isinstance(reason, FINISH_ABORT) or "by proper tokens" in reason.message:
        return False
    return bool(reason.message.startswith("Grammar accept_token"))


def _end(req: Any, problem: str) -> None:
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    kind = next((name for name in CONSTRAINTS if getattr(req.sampling_params, name)), "constraint")
    req.to_finish = FINISH_ABORT(f"{kind} {problem}", HTTPStatus.BAD_REQUEST, "BadRequestError")


def is_pipeline() -> bool:
    """Whether only the last of several stages sees the masks."""
    from sglang.srt.runtime_context import get_parallel

    return bool(get_parallel().pp_size > 1)
