"""A greedy answer and its verify steps, and where in it the penalty's onset is reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.http_client import HTTP, request
from sglang_lz.penalty.window import SHORTEST_LOOP, SHORTEST_LOOP_OF_ONE


@dataclass(frozen=True)
class Answer:
    """A greedy answer.

    Attributes:
        tokens: its token ids.
        steps: the verify steps that it took.
        correct: how many of the steps accepted 0, 1, 2, ... drafts; empty without a step.
    """

    tokens: list[int]
    steps: int
    correct: list[int]


def ask(base_url: str, prompt: list[int], sampling: dict[str, object]) -> Answer:
    """Return the greedy answer of a server whose cache is flushed first.

    The flush takes from an n-gram drafter all that it knows.

    Args:
        base_url: the server's address.
        prompt: token ids.
        sampling: sampling parameters beside the temperature.
    """
    HTTP.get(f"{base_url}/flush_cache?timeout=30").raise_for_status()
    body: dict[str, object] = {
        "input_ids": prompt,
        "sampling_params": {"temperature": 0, **sampling},
    }
    found = request(f"{base_url}/generate", body)
    meta = found["meta_info"]
    return Answer(
        found["output_ids"],
        meta.get("spec_verify_ct", 0),
        meta.get("spec_correct_drafts_histogram", []),
    )


def same_until(reference: Answer, other: Answer, *, onset_reached: bool) -> bool:
    """Whether two answers that end where an onset is reached came in the same verify steps.

    Args:
        reference: the answer without a penalty.
        other: the answer with an onset.
        onset_reached: whether it is reached at their end. The last step may then go on past it,
            where the penalty accepts fewer drafts.
    """
    if (reference.tokens, reference.steps) != (other.tokens, other.steps):
        return False
    pair = [
        Counter({drafts: steps for drafts, steps in enumerate(answer.correct) if steps})
        for answer in (reference, other)
    ]
    more, fewer = list((pair[0] - pair[1]).elements()), list((pair[1] - pair[0]).elements())
    if not onset_reached:
        return more == fewer
    return len(more) == len(fewer) <= 1 and more >= fewer


def onset_reached(tokens: Sequence[int], onset: int, window_size: int = 512) -> int | None:
    """How many tokens an output has when it first loops that often (docs/SPEC.md section 9).

    Args:
        tokens: the output's token ids.
        onset: `lz_onset`, at least 1.
        window_size: `lz_window_size`.

    Returns:
        The number of tokens, so that the next is the first that is sampled with the penalty; None
        if the output ends before.
    """
    ids = np.asarray(tokens, np.int64)
    period = np.arange(1, window_size)
    shortest = np.where(period == 1, SHORTEST_LOOP_OF_ONE, SHORTEST_LOOP)
    run = np.zeros(len(period), np.int64)
    for newest in range(len(ids)):
        seen = min(newest, len(period))
        run[:seen] = np.where(ids[newest - seen : newest][::-1] == ids[newest], run[:seen] + 1, 0)
        if np.any((run >= shortest) & (run // period >= onset)):
            return newest + 1
    return None
