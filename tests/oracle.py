"""The LZ penalty computed slowly and plainly: what the tests compare the product with.

An independent reading of docs/SPEC.md, sections 1, 2 and 4. It shares no code with `sglang_lz`,
uses Python lists and loops wherever the meaning lives, and numpy only to carry vectors of logprobs.
Never make it clever: its worth is that a reader can check it against the page line by line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MARGINAL = "marginal"
RATE = "rate"
COSTS = (MARGINAL, RATE)

Logprobs = npt.NDArray[np.float64]


def visible_history(
    prompt: Sequence[int], outputs: Sequence[int], include_prompt: bool
) -> list[int]:
    """The tokens that the penalty may see, oldest first (docs/SPEC.md section 4).

    Args:
        prompt: ids of the request's prompt.
        outputs: ids sampled so far.
        include_prompt: the request's `lz_include_prompt`.
    """
    return [*prompt, *outputs] if include_prompt else list(outputs)


def match_lengths(h: Sequence[int], buffer: int) -> list[int]:
    """m_j of every source j of the window h (docs/SPEC.md section 1).

    Args:
        h: the window, oldest first; h[-1] is the newest token.
        buffer: B, the longest match that counts.

    Returns:
        One length for each position of h but the newest, which is no source: the largest m <= B
        such that the m tokens of h that end at j equal the newest m tokens of h.
    """
    lengths = []
    for j in range(len(h) - 1):
        m = 0
        while m < buffer and j - m >= 0 and h[j - m] == h[len(h) - 1 - m]:
            m += 1
        lengths.append(m)
    return lengths


def delta_bits(
    history: Sequence[int], vocab_size: int, window: int, buffer: int, cost: str
) -> list[float]:
    """Delta(a), the cost in bits of every next token a (docs/SPEC.md section 2).

    Args:
        history: every token that the penalty may see, oldest first. Ids outside [0, vocab_size)
            take part in matching and offer nothing.
        vocab_size: V.
        window: W; only the newest W tokens of the history are seen.
        buffer: B.
        cost: "marginal" or "rate".

    Returns:
        V floats, none above log2(V).

    Raises:
        ValueError: cost is neither of the two.
    """
    if cost not in COSTS:
        raise ValueError(f"cost must be one of {COSTS}, not {cost!r}")
    literal = math.log2(vocab_size)
    delta = [literal] * vocab_size

    h = list(history)[-window:]
    t = len(h)  # 1-based position of the newest token, as the page counts
    m = match_lengths(h, buffer)

    longest = 0  # l
    nearest = 0  # d
    for j, length in enumerate(m):
        distance = t + 1 - (j + 1)
        if length > longest or (length == longest and length >= 1):  # the later j is the nearer
            longest, nearest = length, distance

    for p, token in enumerate(h):
        if not 0 <= token < vocab_size:
            continue
        distance = t + 1 - (p + 1)
        extended = 1 + (m[p - 1] if p > 0 else 0)  # lambda_p
        if cost == RATE:
            bits = max(0.0, (math.log2(distance) + math.log2(extended)) / extended)
        elif longest >= 1 and extended == longest + 1:
            bits = math.log2((longest + 1) * distance) - math.log2(longest * nearest) - 1
        else:
            bits = math.log2(distance)
        delta[token] = min(delta[token], bits)
    return delta


def log_softmax(logits: Logprobs) -> Logprobs:
    """log_softmax in float64; entries of minus infinity stay so."""
    top = logits.max()
    return logits - top - math.log(float(np.exp(logits - top).sum()))


def expected_logprobs(
    base: Logprobs,
    history: Sequence[int],
    *,
    alpha: float,
    window: int,
    buffer: int,
    cost: str,
    temperature: float = 1.0,
) -> Logprobs:
    """log_softmax((base + alpha * Delta) / temperature) (docs/SPEC.md sections 2 and 7).

    Args:
        base: float64 [V], the logprobs (or logits) of the same prefix without the penalty.
        history: the visible tokens, oldest first.
        alpha: strength in nats per bit.
        window: W.
        buffer: B.
        cost: "marginal" or "rate".
        temperature: what the sampler divides by; 1 for greedy requests.
    """
    delta = np.array(delta_bits(history, len(base), window, buffer, cost), dtype=np.float64)
    return log_softmax((base + alpha * delta) / temperature)
