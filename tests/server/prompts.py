"""Seeded random prompts and parameters that make matches long and windows matter."""

from __future__ import annotations

import random
from typing import Any

from oracle import Penalties
from server.client import OFF, Lz
from server.contract import Case
from server.launch import vocab_size

FIRST_PLAIN_ID = 3  # below stand the special tokens


def token_ids(rng: random.Random, count: int) -> list[int]:
    """Ids drawn from the whole vocabulary but its special tokens."""
    return [rng.randrange(FIRST_PLAIN_ID, vocab_size()) for _ in range(count)]


def repetitive(rng: random.Random, length: int) -> list[int]:
    """A prompt of repeated fragments with noise between: long matches, several sources, ties."""
    fragments = [token_ids(rng, rng.randint(2, 9)) for _ in range(3)]
    prompt: list[int] = []
    while len(prompt) < length:
        prompt += rng.choice(fragments) if rng.random() < 0.8 else token_ids(rng, 1)
    return prompt[:length]


def parameters(rng: random.Random) -> Lz:
    """Parameters of every kind: both costs, windows and buffers of all sizes, prompt or not."""
    window = rng.choice((1, 2, 7, 16, 33, 512, 1024))
    buffer = rng.choice([size for size in (1, 2, 5, 32, 64) if size <= window])
    return Lz(
        penalty=rng.choice((0.02, 0.15, 0.5, 2.0)),
        window=window,
        buffer=buffer,
        include_prompt=rng.random() < 0.5,
        cost=rng.choice(("marginal", "rate")),
        onset=rng.choice((0, 0, 1, 2, 4)),
    )


def penalties(rng: random.Random, new_tokens: int) -> tuple[Penalties, tuple[str, ...]]:
    """Some of the penalties over the whole history, or all, and DRY's sequence breakers."""
    drawn = {
        "frequency_penalty": rng.choice((0.3, -0.4, 2.0)),
        "presence_penalty": rng.choice((0.7, -1.0)),
        "repetition_penalty": rng.choice((1.2, 2.0, 0.7)),
        "min_new_tokens": min(rng.choice((2, 20)), new_tokens),
        "no_repeat_ngram_size": rng.choice((1, 2, 3, 5)),
        "dry_multiplier": rng.choice((0.2, 0.8)),
    }
    some = rng.sample(sorted(drawn), rng.choice((1, 1, 2, len(drawn))))
    last_n = rng.choice((-1, -1, 4, 25, 100))
    return Penalties(
        **{name: drawn[name] for name in some},
        penalty_last_n=last_n,
        stops=tuple(token_ids(rng, 2)) if "min_new_tokens" in some else (),
        no_repeat_ngram_window=rng.choice((-1, 12, 90)),
        no_repeat_ngram_whitelist=tuple(token_ids(rng, 3)),
        dry_base=rng.choice((1.75, 1.1)),
        dry_allowed_length=rng.choice((1, 2, 4)),
        dry_penalty_last_n=rng.choice((-1, 50)),
    ), rng.choice(((), ("\n", ":"), ("e",), ("the ", "in")))


def case(
    rng: random.Random, length: int, new_tokens: int, lz: Lz | None = None, **options: Any
) -> Case:
    """A case with random parameters (or those given); half of them sample at temperature 1."""
    temperature = rng.choice((0.0, 0.0, 1.0, 0.7))
    favoured = tuple(token_ids(rng, 5)) if rng.random() < 0.6 else ()
    return Case(
        prompt=repetitive(rng, length),
        new_tokens=new_tokens,
        lz=parameters(rng) if lz is None else lz,
        temperature=temperature,
        favoured=favoured,
        **options,
    )


def mixed(rng: random.Random, count: int, length: int, new_tokens: int) -> list[Case]:
    """Cases for one batch: every third without the LZ penalty, two of four with others, lengths
    spread around those given."""
    cases = []
    for i in range(count):
        tokens = max(2, new_tokens + rng.randint(-new_tokens // 4, new_tokens // 4))
        drawn, breakers = penalties(rng, tokens) if i % 4 in (1, 2) else (Penalties(), ())
        cases.append(
            case(
                rng,
                max(2, length + rng.randint(-length // 4, length // 4)),
                tokens,
                OFF if i % 3 == 2 else None,
                penalties=drawn,
                breakers=breakers,
            )
        )
    return cases
