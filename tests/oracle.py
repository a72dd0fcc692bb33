"""The LZ penalty computed slowly and plainly: what the tests compare the product with.

An independent reading of docs/SPEC.md, sections 1, 2, 4 and 9, of docs/PENALTIES.md, and of
`repetition_detection`. It shares no code with the product, uses Python lists and loops wherever the
meaning lives, and numpy only to carry vectors of logprobs.
Never make it clever: its worth is that a reader can check it against the page line by line.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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


def numbers_of(texts: Sequence[str]) -> frozenset[int]:
    """N: the tokens whose text is a number (section 9).

    Args:
        texts: the text of every token, by id.
    """
    return frozenset(
        token
        for token, text in enumerate(texts)
        if text.strip() and all(unicodedata.category(c) == "Nd" for c in text.strip())
    )


def run_lengths(
    x: Sequence[int], window: int, numbers: frozenset[int] = frozenset()
) -> dict[int, int]:
    """run_k of every period k below the window, or with N given run'_k (docs/SPEC.md section 9).

    Args:
        x: the visible history, oldest first; runs reach past the window.
        window: W.
        numbers: N, to take all its tokens for alike.
    """
    runs = {}
    for k in range(1, window):
        r = 0
        while r < 32767 and len(x) - 1 - r - k >= 0:
            a, b = x[len(x) - 1 - r], x[len(x) - 1 - r - k]
            if not (a == b or (a in numbers and b in numbers)):
                break
            r += 1
        runs[k] = r
    return runs


def copies(x: Sequence[int], window: int) -> dict[int, int]:
    """c_p by the distance of p: how many copies of a loop p goes on with (section 9)."""
    return {
        k: r // k if r >= (16 if k == 1 else 24) else 0 for k, r in run_lengths(x, window).items()
    }


def copies_alike(x: Sequence[int], window: int, numbers: frozenset[int]) -> dict[int, int]:
    """c'_p by the distance of p: the same up to numbers (section 9)."""
    counts = {}
    for k, r in run_lengths(x, window, numbers).items():
        is_loop = r >= (16 if k == 1 else 24)
        z = sum(token in numbers for token in x[len(x) - k :]) if is_loop else 0
        counts[k] = r // k if is_loop and 20 * z <= 3 * k else 0
    return counts


@lru_cache(maxsize=4096)
def looped_tokens(
    x: tuple[int, ...], window: int, onset: int, numbers: frozenset[int] = frozenset()
) -> int:
    """E_t: how many of the newest tokens are looped from this step on (section 9).

    Args:
        x: the visible history, oldest first.
        window: W.
        onset: n, at least 1.
        numbers: N.
    """
    runs, counts = run_lengths(x, window), copies(x, window)
    alike, counts_alike = run_lengths(x, window, numbers), copies_alike(x, window, numbers)
    ends = [runs[k] + k for k in runs if counts[k] >= onset]
    ends += [alike[k] + k for k in alike if counts_alike[k] >= onset + 1]
    return max(ends, default=0)


def memory_of_steps(
    prompt: Sequence[int],
    outputs: Sequence[int],
    include_prompt: bool,
    window: int,
    onset: int,
    *,
    numbers: frozenset[int] = frozenset(),
) -> list[bool]:
    """Whether the memory is on at each step, from none to all of the outputs (section 9).

    Args:
        prompt: ids of the request's prompt.
        outputs: ids sampled so far; a draft tree's node counts with its own path.
        include_prompt: the request's `lz_include_prompt`.
        window: W.
        onset: n, the request's `lz_onset`.
        numbers: N.
    """
    if onset == 0:
        return [False] * (len(outputs) + 1)
    looped: set[int] = set()  # positions of the visible history
    covered: set[int] = set()  # steps s with C_s >= 40
    found = []
    for t in range(len(outputs) + 1):
        x = tuple(visible_history(prompt, outputs[:t], include_prompt))
        looped |= set(range(len(x) - looped_tokens(x, window, onset, numbers), len(x)))
        newest = set(range(max(len(x) - 64, 0), len(x)))
        if len(newest & looped) >= 40:
            covered.add(t)
        found.append(any(t - 512 < s <= t for s in covered))
    return found


def has_memory(
    prompt: Sequence[int],
    outputs: Sequence[int],
    include_prompt: bool,
    window: int,
    onset: int,
    *,
    numbers: frozenset[int] = frozenset(),
) -> bool:
    """Whether the memory is on at the step after these outputs; see `memory_of_steps`."""
    steps = memory_of_steps(prompt, outputs, include_prompt, window, onset, numbers=numbers)
    return steps[-1]


def delta_bits(
    history: Sequence[int],
    vocab_size: int,
    window: int,
    buffer: int,
    cost: str,
    *,
    onset: int = 0,
    memory: bool = False,
    numbers: frozenset[int] = frozenset(),
) -> list[float]:
    """Delta(a), the cost in bits of every next token a (docs/SPEC.md sections 2 and 9).

    Args:
        history: every token that the penalty may see, oldest first. Ids outside [0, vocab_size)
            take part in matching and offer nothing.
        vocab_size: V.
        window: W; only the newest W tokens of the history are seen.
        buffer: B.
        cost: "marginal" or "rate".
        onset: n; 0 for the penalty of section 2.
        memory: whether the memory is on; it says nothing for n = 0.
        numbers: N; it says nothing for n = 0.

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

    runs = run_lengths(history, window) if onset else {}
    counts = copies(history, window) if onset else {}
    counts_alike = copies_alike(history, window, numbers) if onset else {}
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
        strength = 1  # g_p
        if onset:
            c = counts.get(distance, 0)
            grown = c - onset + 1 if c >= onset else 0
            remembered = 2 if memory and runs.get(distance, 0) >= 2 else 0
            c = counts_alike.get(distance, 0)
            grown_alike = c - onset if c >= onset + 1 and token not in numbers else 0
            strength = max(grown, grown_alike, remembered)
        delta[token] = min(delta[token], literal - strength * (literal - bits))
    return delta


def log_softmax(logits: Logprobs) -> Logprobs:
    """log_softmax in float64; entries of minus infinity stay so."""
    top = logits.max()
    return logits - top - math.log(float(np.exp(logits - top).sum()))


def first_loop(
    outputs: Sequence[int],
    sizes: range,
    count: int,
    least: int = 0,
    numbers: frozenset[int] = frozenset(),
) -> tuple[int, int, int] | None:
    """The first loop of `repetition_detection`: where it ends, its pattern size, where it begins.

    Args:
        outputs: sampled tokens, oldest first.
        sizes: the sizes that a pattern may have, smallest first.
        count: `min_count`.
        least: `min_new_tokens`; shorter outputs do not count.
        numbers: N with `ignore_numbers`; empty without.
    """
    for end in range(max(least, 1), len(outputs) + 1):
        for size in sizes:
            begin = end - size * count
            if begin < 0:
                continue
            few = 20 * sum(token in numbers for token in outputs[end - size : end]) <= 3 * size
            text = [None if few and token in numbers else token for token in outputs]
            if text[begin:end] != text[end - size : end] * count:
                continue
            while begin > 0 and text[begin - 1] == text[begin - 1 + size]:
                begin -= 1
            return end, size, begin
    return None


@dataclass(frozen=True)
class Penalties:
    """The penalties over a whole history (docs/PENALTIES.md), under their requests' names.

    Attributes:
        stops: the tokens that stop the request; they wait for `min_new_tokens`.
        breakers: the token sequences that break a repeat, each a whole one.
    """

    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    penalty_last_n: int = -1
    min_new_tokens: int = 0
    stops: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    no_repeat_ngram_window: int = -1
    no_repeat_ngram_whitelist: tuple[int, ...] = ()
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    breakers: tuple[tuple[int, ...], ...] = ()


def penalised(
    logits: Logprobs, prompt: Sequence[int], outputs: Sequence[int], penalties: Penalties
) -> Logprobs:
    """Logits after the LZ penalty, changed by all other penalties, in their order.

    Args:
        logits: float64 [V], not logprobs: the repetition penalty depends on their sign. Minus
            infinity for what a grammar does not allow.
        prompt: ids of the request's prompt.
        outputs: ids sampled so far.
        penalties: the request's.
    """
    p = penalties
    changed = logits.copy()
    x = [*prompt, *outputs]
    is_output = [False] * len(prompt) + [True] * len(outputs)
    seen = range(len(x) if p.penalty_last_n < 0 else min(len(x), p.penalty_last_n))
    newest = [len(x) - 1 - i for i in seen]
    counts = Counter(x[i] for i in newest if is_output[i])
    for token, count in counts.items():
        if 0 <= token < len(changed):
            changed[token] -= p.frequency_penalty * count + p.presence_penalty
    for token in {x[i] for i in newest}:
        if 0 <= token < len(changed):
            if changed[token] < 0:
                changed[token] *= p.repetition_penalty
            else:
                changed[token] /= p.repetition_penalty
    if p.dry_multiplier > 0:
        for token, repeat in dry_repeats(x, p).items():
            if 0 <= token < len(changed) and (token,) not in p.breakers:
                exponent = repeat - p.dry_allowed_length
                if p.dry_base > 1.000001:  # no more than the largest float32
                    exponent = min(exponent, int(88.7228391 / math.log(p.dry_base)))
                lowered_by = p.dry_multiplier * p.dry_base**exponent
                changed[token] -= min(lowered_by, 1e29)
    out = set()
    if p.no_repeat_ngram_size:
        out |= forbidden(x, p)
    if len(outputs) < p.min_new_tokens:
        out |= set(p.stops)
    possible = [token for token in range(len(changed)) if changed[token] > -math.inf]
    if any(token not in out for token in possible):  # otherwise nothing is forbidden
        for token in out:
            if 0 <= token < len(changed):
                changed[token] = -math.inf
    return changed


def newest_tokens(x: Sequence[int], count: int) -> list[int]:
    """The newest tokens; -1 is all."""
    return list(x) if count < 0 else list(x)[max(0, len(x) - count) :]


def dry_repeats(x: Sequence[int], p: Penalties) -> dict[int, int]:
    """By token, the longest repeat that it would go on with, if DRY lowers it.

    Args:
        x: prompt and outputs, oldest first.
        p: the request's penalties.
    """
    h = newest_tokens(x, p.dry_penalty_last_n)
    limit = len(h)
    for i in range(len(h)):  # the newest sequence that begins, and of those the longest
        begin = len(h) - 1 - i
        whole = [len(b) for b in p.breakers if tuple(h[begin : begin + len(b)]) == b]
        if whole:
            limit = i + 1 - max(whole)
            break
    repeats: dict[int, int] = {}
    for place in range(1, len(h)):  # h[place] would be repeated
        m = 0
        while m < place and h[place - 1 - m] == h[len(h) - 1 - m]:
            m += 1
        m = min(m, limit)
        if m >= p.dry_allowed_length:
            repeats[h[place]] = max(repeats.get(h[place], 0), m)
    return repeats


def forbidden(x: Sequence[int], p: Penalties) -> set[int]:
    """The tokens that would complete an n-gram of the window again."""
    n = p.no_repeat_ngram_size
    h = newest_tokens(x, p.no_repeat_ngram_window)
    prefix = list(x)[len(x) - (n - 1) :]
    found = set()
    for begin in range(len(h) - n + 1):
        ngram = h[begin : begin + n]
        if len(x) >= n - 1 and ngram[:-1] == prefix:
            found.add(ngram[-1])
    return found - set(p.no_repeat_ngram_whitelist)
