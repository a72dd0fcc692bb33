"""lz_penalty = 0 is stock SGLang: the same server built without our patches answers the same."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from server.client import Sample, flush_cache, generate, refusal
from server.configurations import CONFIGURATIONS, on
from server.launch import Server, serving
from server.prompts import repetitive

PROMPTS = 9
NO_PENALTY: tuple[dict[str, float], ...] = ({}, {"lz_penalty": 0}, {"lz_penalty": 0.0})


def answers(server: Server, ways: Sequence[Mapping[str, float]] = NO_PENALTY[:1]) -> list[Sample]:
    """One greedy sample for each of the prompts, one request after the other, nothing cached.

    The prompts take turns with the ways to say that there is no penalty.
    """
    flush_cache(server)
    rng = random.Random("stock")
    prompts = [repetitive(rng, 8 + 5 * i) for i in range(PROMPTS)]
    return [
        generate(server, prompt, 24, **way)
        for prompt, way in zip(prompts, itertools.cycle(ways), strict=False)
    ]


@on("overlap")
def test_without_a_penalty_it_is_stock(server: Server, tmp_path: Path) -> None:
    """Same tokens and, bit by bit, the same logprobs; also once the penalty has been used."""
    with serving(CONFIGURATIONS["stock"], tmp_path / "server.log") as stock:
        expected = answers(stock)
        fields = {"lz_penalty": 0.5, "max_new_tokens": 1}
        refusal(stock, "/generate", {"text": "a", "sampling_params": fields})  # it knows none
    before = answers(server)
    generate(server, repetitive(random.Random("with"), 30), 8, lz_penalty=0.5)
    for observed in (before, answers(server, NO_PENALTY)):
        for ours, theirs in zip(observed, expected, strict=True):
            assert ours.outputs == theirs.outputs
            np.testing.assert_array_equal(ours.rows, theirs.rows)
