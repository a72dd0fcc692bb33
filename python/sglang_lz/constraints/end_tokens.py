"""The tokens that end an output, in one place for constraints and penalties.

Upstream ends an output at the end tokens of the model's configuration and of its tokenizer, and at
the request's `stop_token_ids`. Its grammars know only the first of these. The output of a
constraint could then never end at the others, or ended at one before it was complete.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt


def model_end_tokens(config: Any, tokenizer: Any) -> set[int]:
    """The tokens that end every output of a model (upstream's hook).

    Args:
        config: upstream's ModelConfig.
        tokenizer: the model's tokenizer; None if the server has none.
    """
    return _union(config.hf_eos_token_id, tokenizer, config.vocab_size)


def request_end_tokens(req: Any, vocab_size: int) -> set[int]:
    """The tokens that end the output of a request, the model's among them.

    Clients may send any number as a token.

    Args:
        req: upstream's Req.
        vocab_size: V.
    """
    own = set(req.sampling_params.stop_token_ids or ()) | set(req.eos_token_ids or ())
    return _union(own, req.tokenizer, vocab_size)


def end_at_stop_tokens(req: Any) -> None:
    """Let a constraint end at `stop_token_ids`, and only where it may end (upstream's hook).

    Args:
        req: upstream's Req, with a grammar that has seen no token.
    """
    stops = req.sampling_params.stop_token_ids
    if not stops or req.sampling_params.ignore_eos:
        return
    grammar = getattr(req.grammar, "grammar", None) or req.grammar  # within a thinking section's
    walk = getattr(grammar, "matcher", grammar)
    if hasattr(walk, "end_at"):
        walk.end_at(sorted(request_end_tokens(req, req.vocab_size)))


def allow(row: npt.NDArray[np.uint32], tokens: Iterable[int], *, is_allowed: bool) -> None:
    """Allow or forbid tokens in a row of a grammar's mask.

    Args:
        row: packed bits, uint32 [ceil(V / 32)].
        tokens: ids in [0, V).
        is_allowed: which of the two.
    """
    for token in tokens:
        bit = np.uint32(1 << (token & 31))
        row[token >> 5] = row[token >> 5] | bit if is_allowed else row[token >> 5] & ~bit


def _union(own: Any, tokenizer: Any, vocab_size: int) -> set[int]:
    found = set(own or ())
    if tokenizer is not None:
        found |= {tokenizer.eos_token_id}
        found |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
    return {token for token in found if token is not None and 0 <= token < vocab_size}
