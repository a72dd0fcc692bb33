"""Speculative decoding: greedy output and sampling are those of plain decoding, penalty included.

The contract itself, position by position, is held in test_modes.py and its neighbours, which run on
these servers too.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from oracle import Penalties, log_softmax, penalised
from server.client import (
    OFF,
    Json,
    Lz,
    answers,
    base_rows,
    flush_cache,
    generate,
    penalty_fields,
    post_ok,
    request_body,
    without_logprobs,
)
from server.configurations import CONFIGURATIONS, FORKED, SPECULATION, on
from server.contract import TOLERANCE, Case, bits
from server.launch import Config, Server, serving, vocab_size
from server.model import normalisers
from server.prompts import repetitive

CONTEXT = 2048
"""The demo model's, in tokens."""
PENALTIES = (
    *(OFF, Lz(0.15), Lz(0.15, cost="rate"), Lz(0.5, 24, 8, True), Lz(1.0, 5, 3, True)),
    *(Lz(0.15, onset=2), Lz(0.5, 24, 8, True, onset=1)),
)

OTHERS = (
    Penalties(frequency_penalty=0.3, presence_penalty=0.2),
    Penalties(repetition_penalty=1.2, min_new_tokens=30),
    Penalties(no_repeat_ngram_size=4),
    Penalties(dry_multiplier=0.8),
)


def greedy_cases() -> list[Case]:
    """Prompts of three lengths, each with every kind of penalty."""
    rng = random.Random("greedy")
    prompts = [repetitive(rng, length) for length in (6, 40, 90)]
    cases = [Case(prompt, 96, lz) for prompt, lz in itertools.product(prompts, PENALTIES)]
    others = zip(itertools.product(prompts, OTHERS), itertools.cycle(PENALTIES[:2]), strict=False)
    return cases + [
        Case(prompt, 96, lz, penalties=penalties, breakers=("\n", "e"))
        for (prompt, penalties), lz in others
    ]


@on("overlap", "eagle-tree", "ngram", "eagle", "dflash", "dspark")
def test_outputs_reach_the_end_of_the_context(server: Server) -> None:
    """Slots that a verify step reserved beyond the end once crashed the server."""
    rng = random.Random("context")
    for length in range(CONTEXT - 40, CONTEXT - 36):
        body = request_body(repetitive(rng, length), 1, Lz(0.15))
        body["sampling_params"] |= {"max_new_tokens": None, "ignore_eos": True}
        answer = post_ok(server, "/generate", body)
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        assert answer["meta_info"]["completion_tokens"] >= CONTEXT - length - 2


def answered(server: Server, cases: list[Case]) -> list[Json]:
    """The answers to all cases, sent together and without logprobs."""
    return answers(server, [without_logprobs(case.body()) for case in cases])


@pytest.fixture(scope="session")
def plain_outputs(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What a server without speculation answers."""
    log = tmp_path_factory.mktemp("plain") / "server.log"
    with serving(replace(CONFIGURATIONS["overlap"], env=FORKED), log) as plain:
        return [answer["output_ids"] for answer in answered(plain, greedy_cases())]


@pytest.mark.each_kind
@on(*SPECULATION, "disaggregated-dflash", "disaggregated-dspark")
def test_greedy_output_is_that_of_plain_decoding(
    server: Server, plain_outputs: list[list[int]]
) -> None:
    """Token for token, with drafts accepted and drafts rejected on the way."""
    is_alone = server.config.name in ("ngram", "eagle", "eagle-tree", "dflash", "dspark")
    correct, proposed = assert_as_plain(server, plain_outputs, every=1 if is_alone else 2)
    assert 0 < correct < proposed


@pytest.mark.xdist_group("blocks of drafts")
@pytest.mark.full
@pytest.mark.parametrize("draft", ["dflash", "dspark"])
def test_greedy_output_with_an_untrained_draft_is_that_of_plain_decoding(
    tmp_path: Path, draft: str, plain_outputs: list[list[int]]
) -> None:
    flags = ("--speculative-algorithm", draft.upper())
    config = Config(f"untrained {draft}", flags, FORKED, draft=draft, trained=False)
    with serving(config, tmp_path / "server.log") as server:
        correct, proposed = assert_as_plain(server, plain_outputs, every=4)
    assert correct < 0.02 * proposed


def assert_as_plain(
    server: Server, plain_outputs: list[list[int]], every: int = 1
) -> tuple[int, int]:
    """Compare the server's answers with the plain ones; return its accepted drafts and all.

    Args:
        every: 1 for all cases, n for one in n.
    """
    cases = greedy_cases()[::every]
    found = answered(server, cases)
    for case, answer, expected in zip(cases, found, plain_outputs[::every], strict=True):
        outputs = answer["output_ids"]
        differs = (i for i in range(case.new_tokens) if outputs[i] != expected[i])
        if (first := next(differs, None)) is not None:
            pair = outputs[first], expected[first]
            assert is_near_tie(server, case, expected[:first], pair), (first, case, outputs)
    correct, proposed = (sum(answer["meta_info"][name] for answer in found) for name in ACCEPTANCE)
    return correct, proposed


ACCEPTANCE = ("spec_num_correct_drafts", "spec_num_proposed_drafts")


WORDS = (
    *("the", "of", "a", "in", "and", "to", "is", "be", "for", "that"),
    *("class", "object", "value", "name"),
)


@on("ngram", "eagle")
def test_drafts_are_accepted_again_once_memory_has_ended(server: Server) -> None:
    """Both outputs have a loop that turns the memory on, and then other words, more than it lasts
    and fewer. A constraint makes every output say them in the same tokens; what follows is free."""
    rng = random.Random("memory")
    free = 40
    for words, is_over in ((600, True), (200, False)):
        text = "one loop " * 30 + "".join(f"{rng.choice(WORDS)} " for _ in range(words))
        tokens = post_ok(server, "/v1/tokenize", {"model": "m", "prompt": text})["tokens"]
        assert (len(tokens) > 60 + 512 + 64) == is_over
        found = []
        # The first request finds the masks, for which it may pause; then it needs fewer drafts.
        for lz in (OFF, OFF, Lz(0.15, onset=3)):
            flush_cache(server)  # drafts of NGRAM come from earlier outputs
            constraint = {"regex": f"{text}[a-z ]*", "proper_tokens": True, "ignore_eos": True}
            body = request_body([5, 6, 7], len(tokens) + free, lz, **constraint)
            answer = post_ok(server, "/generate", without_logprobs(body))
            meta = answer["meta_info"]
            found.append((answer["output_ids"], meta["spec_verify_ct"], meta[ACCEPTANCE[0]]))
        _, without, with_penalty = found
        said = len(tokens) - 2  # the last one may go on with what follows
        assert without[0][:said] == with_penalty[0][:said]
        assert (without == with_penalty) == is_over


def is_near_tie(server: Server, case: Case, before: list[int], pair: tuple[int, int]) -> bool:
    """Whether the contract leaves two tokens within the tolerance of each other."""
    outputs = [*before, 0]
    base = base_rows(server, case.prompt, outputs)[-1]
    row = case.logits_of(outputs, server.model)(base, before)
    return bool(abs(row[pair[0]] - row[pair[1]]) < TOLERANCE)


SAMPLES = 1000
LENGTH = 4  # the first token comes from prefill, the others from verification
TOP_K = 3
# P(X >= k + 2 sqrt(k x) + 2 x) <= exp(-x) for a chi-squared X of k degrees (Laurent and Massart):
# a lossless server fails once in a million runs.
EXPONENT = math.log(1e6)


LZ = Lz(0.2, 64, 16, True)
OTHER_PENALTIES = Penalties(
    frequency_penalty=0.8,
    presence_penalty=0.5,
    repetition_penalty=1.02,  # those that see the prompt are weak, or no draft would be accepted
    min_new_tokens=3,
    stops=(7, 8),
    no_repeat_ngram_size=4,
    no_repeat_ngram_window=16,
    dry_multiplier=0.1,
    dry_base=1.1,
    dry_allowed_length=1,
)


@pytest.mark.each_kind
@on("eagle", "ngram", "dflash", "dspark")
@pytest.mark.parametrize(
    ("lz", "penalties", "min_p"),
    [
        pytest.param(LZ, Penalties(), 0.0, id="lz"),
        pytest.param(OFF, OTHER_PENALTIES, 0.25, id="others", marks=pytest.mark.full),
    ],
)
def test_sampling_is_lossless(server: Server, lz: Lz, penalties: Penalties, min_p: float) -> None:
    """The sequences sampled at temperature 1 are distributed as plain decoding's would be.

    Token 0, with which upstream fills n-gram trees, is made as likely as any.
    """
    beginning = repetitive(random.Random("lossless 2"), 10)
    prompt = [*beginning, *generate(server, beginning, 55).outputs]  # begins to loop
    first = base_rows(server, prompt, [0])[0]
    bias = np.zeros(vocab_size())
    bias[0] = first.max() - first[0]
    body = request_body(
        prompt,
        LENGTH,
        lz,
        temperature=1.0,
        top_k=TOP_K,
        n=50,
        logit_bias={"0": bias[0]},
        min_p=min_p,
        **penalty_fields(penalties),
    )
    asked = without_logprobs(body)
    found = [answer for _ in range(SAMPLES // 50) for answer in post_ok(server, "/generate", asked)]
    counts = Counter(tuple(answer["output_ids"]) for answer in found)
    assert sum(answer["meta_info"].get(ACCEPTANCE[0], 0) for answer in found) > SAMPLES / 100

    @cache
    def row(outputs: tuple[int, ...]) -> np.ndarray:
        return base_rows(server, prompt, [*outputs, 0])[-1]

    @cache
    def normaliser(outputs: tuple[int, ...]) -> float:
        if penalties.repetition_penalty == 1:
            return 0.0
        return normalisers(server.model, prompt, [*outputs, 0])[-1]

    def changed(outputs: tuple[int, ...], seen: int) -> np.ndarray:
        history = [*prompt, *outputs[:seen]]
        after_lz = row(outputs) + lz.penalty * bits(history, lz) + normaliser(outputs)
        return penalised(after_lz, prompt, outputs[:seen], penalties) + bias

    right = distribution(lambda outputs: changed(outputs, LENGTH), min_p)
    degrees, distance = chi_squared(counts, right)
    bound = degrees + 2 * math.sqrt(degrees * EXPONENT) + 2 * EXPONENT
    assert distance < bound
    # The check has teeth: neither the root's history for all nodes, nor no penalty, would pass.
    for wrong in (lambda outputs: changed(outputs, 1), lambda outputs: row(outputs) + bias):
        assert chi_squared(counts, distribution(wrong, min_p))[1] > bound
    if min_p:
        without = distribution(lambda outputs: changed(outputs, LENGTH))
        assert chi_squared(counts, without)[1] > bound


def distribution(
    logits: Callable[[tuple[int, ...]], np.ndarray], min_p: float = 0.0
) -> dict[tuple[int, ...], float]:
    """The probability of every sequence, if each token is one of the likeliest TOP_K.

    Args:
        logits: those after some outputs, float64 [V].
        min_p: the least probability of a token, as a share of the likeliest's.
    """
    probabilities = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for outputs, probability in probabilities.items():
            after = logits(outputs)
            likeliest = np.argsort(after)[-TOP_K:]
            shares = np.exp(log_softmax(after[likeliest]))
            shares[shares < min_p * shares.max()] = 0
            shares /= shares.sum()
            for token, share in zip(likeliest.tolist(), shares, strict=True):
                if share:
                    longer[*outputs, token] = probability * share
        probabilities = longer
    return probabilities


def chi_squared(
    counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]
) -> tuple[int, float]:
    """Pearson's statistic and its degrees of freedom; what is expected less than 8 times is one."""
    total = sum(counts.values())
    common = {key: p * total for key, p in expected.items() if p * total >= 8}
    cells = sorted((mean, counts[key]) for key, mean in common.items())
    rest = total - sum(mean for mean, _ in cells), total - sum(seen for _, seen in cells)
    if rest[0] < 8:  # even together
        rest = rest[0] + cells[0][0], rest[1] + cells.pop(0)[1]
    cells.append(rest)
    return len(cells) - 1, sum((seen - mean) ** 2 / mean for mean, seen in cells)
