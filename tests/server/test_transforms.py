"""The contract beside everything else that changes logits (docs/SPEC.md section 5).

The penalty acts first; each other transform is applied here from its own definition. What forbids
tokens yields to a grammar (docs/PENALTIES.md), and no request leaves a server nothing to sample.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgrammar

from oracle import Penalties
from server.client import OFF, Json, Lz, Rows, post, post_ok
from server.configurations import on
from server.contract import Case, check_together
from server.launch import Server, vocab_size
from server.model import stop_ids, tokenizer
from server.prompts import repetitive, token_ids

PARAMETERS = (
    Lz(0.5),
    Lz(1.5, 12, 4, False, "rate"),
    Lz(0.3, 512, 32, True, "marginal"),
    Lz(2.0, 30, 30, True, "rate"),
    OFF,
)
OTHERS = Penalties(frequency_penalty=0.4, presence_penalty=0.3, dry_multiplier=0.5)
NAMES = {
    "type": "object",
    "properties": {
        "name": {"enum": ["abab", "abba", "baab"]},
        "sizes": {"type": "array", "items": {"enum": [11, 12, 21]}, "minItems": 4, "maxItems": 7},
    },
    "required": ["name", "sizes"],
}


@pytest.mark.each_kind
@on("overlap", "ngram", "eagle-tree", "dflash", "dspark", "tp2", "pp2")
def test_a_constraint_ends_at_stop_token_ids_and_only_where_it_may(server: Server) -> None:
    """tests/server/test_proper_tokenizers.py has the model's own end tokens."""
    for text in ("3", "x"):
        (end,) = post_ok(server, "/v1/tokenize", {"model": "m", "prompt": text})["tokens"][-1:]
        for proper in (False, True):
            fields = {
                **{"regex": "[0-9]{5,40}", "stop_token_ids": [end], "proper_tokens": proper},
                **{"max_new_tokens": 60, "temperature": 1, "n": 4, "logit_bias": {str(end): 100}},
            }
            body = {"input_ids": [5, 6, 7], "sampling_params": fields}
            for answer in post_ok(server, "/generate", body):
                reason = answer["meta_info"]["finish_reason"]
                assert (reason["type"], reason["matched"]) == ("stop", end)
                assert re.fullmatch("[0-9]{5,7}", answer["text"]), answer["text"]


class Grammar:
    """The tokens that a grammar forbids after some outputs, by xgrammar itself."""

    def __init__(self, **kind: str) -> None:
        self.fields: Json = {**kind}
        self.eos = list(stop_ids())
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer(), vocab_size=vocab_size(), stop_token_ids=self.eos
        )
        compiler = xgrammar.GrammarCompiler(info)
        if "regex" in kind:
            self.compiled = compiler.compile_regex(kind["regex"])
        else:
            self.compiled = compiler.compile_json_schema(kind["json_schema"])

    def transform(self, logits: Rows, before: Sequence[int]) -> Rows:
        """The row with minus infinity for what may not follow."""
        matcher = xgrammar.GrammarMatcher(self.compiled)
        for token in before:
            assert matcher.accept_token(token), f"{token} in {before} is outside the grammar"
        bitmask = xgrammar.allocate_token_bitmask(1, vocab_size())
        matcher.fill_next_token_bitmask(bitmask)
        words = bitmask.numpy().view(np.uint32)[0]
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(logits)]
        return np.where(allowed.astype(bool), logits, -math.inf)


@pytest.mark.each_kind
@on("overlap", "no-overlap", "mixed-chunk", "eagle-tree", "dflash", "dspark")
@pytest.mark.parametrize(
    "kind",
    [{"regex": "(ab|ba|cab ){12,16}"}, {"json_schema": json.dumps(NAMES)}],
    ids=["regex", "json_schema"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammar(server: Server, kind: dict[str, str], temperature: float) -> None:
    """Tokens that the grammar forbids stay at minus infinity; the others obey the contract."""
    rng = random.Random(f"grammar {temperature}")
    grammar = Grammar(**kind)
    cases = [
        Case(repetitive(rng, 30), 60, lz, temperature, ignore_eos=False, constraint=grammar)
        for lz in PARAMETERS
    ]
    cases[1] = replace(cases[1], penalties=OTHERS)
    mode = f"{server.config.name}: {'regex' if 'regex' in kind else 'JSON schema'}"
    for sample in check_together(server, cases, mode):
        assert sample.outputs[-1] in grammar.eos or len(sample.outputs) == 60


@on("overlap", "no-overlap")
def test_min_new_tokens(server: Server) -> None:
    """Stop tokens are out of reach until enough tokens stand, whatever the penalty adds to them."""
    rng = random.Random("min_new_tokens")
    cases = []
    for lz in PARAMETERS:
        penalties = Penalties(min_new_tokens=20, stops=tuple(token_ids(rng, 6)))
        prompt = repetitive(rng, 20)
        cases.append(Case(prompt, 30, lz, 1.0, ignore_eos=False, penalties=penalties))
    for sample in check_together(server, cases, f"{server.config.name}: min_new_tokens"):
        assert len(sample.outputs) >= 20


@pytest.mark.each_kind
@on("overlap", "no-overlap", "eagle", "dflash", "dspark")
def test_logit_bias(server: Server) -> None:
    """A bias stands beside the penalty, on tokens that it penalises and on others."""
    rng = random.Random("logit_bias")
    cases = []
    for lz, temperature in itertools.product(PARAMETERS, (0.0, 1.0)):
        bias = {token: rng.choice((-30.0, 3.5, 20.0, 22.0)) for token in token_ids(rng, 12)}
        prompt = repetitive(rng, 20)
        cases.append(Case(prompt, 40, lz, temperature, bias=tuple(bias.items())))
    check_together(server, cases, f"{server.config.name}: logit_bias")


FORBIDDING = (
    Penalties(no_repeat_ngram_size=1),
    Penalties(no_repeat_ngram_size=2, frequency_penalty=0.4),
    Penalties(min_new_tokens=60),
    Penalties(min_new_tokens=60, no_repeat_ngram_size=1, dry_multiplier=0.5),
)


@pytest.mark.each_kind
@on("overlap", "no-overlap", "mixed-chunk", "eagle-tree", "ngram", "tp2", "dflash", "dspark")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_forbidden_tokens_yield_to_a_grammar(server: Server, temperature: float) -> None:
    """If every token that the grammar allows is forbidden, none is treated as forbidden."""
    rng = random.Random(f"yields {temperature}")
    grammar = Grammar(regex="(ab|ba|cab ){3,5}")
    own: Any = {"ignore_eos": False, "constraint": grammar}
    cases = [
        Case(repetitive(rng, 30), 60, OFF, temperature, penalties=penalties, **own)
        for penalties in FORBIDDING
    ]
    for sample in check_together(server, cases, f"{server.config.name}: forbidden under a regex"):
        assert sample.outputs[-1] in grammar.eos


THE = {"regex": "(the ){300}"}
HARMFUL: tuple[dict[str, Any], ...] = (
    {"regex": "(a ){5}", "no_repeat_ngram_size": 1},
    {"regex": "a", "min_new_tokens": 5},
    {"regex": "a", "min_new_tokens": 5, "proper_tokens": True},
    {"regex": "(a ){5}", "no_repeat_ngram_size": 1, "proper_tokens": True},
    {
        **THE,
        "dry_multiplier": 100,
        "dry_base": 100,
        "dry_sequence_breakers": [],
        "max_new_tokens": 200,
    },
    {**THE, "dry_multiplier": 100, "dry_base": 100, "no_repeat_ngram_size": 2},
    {"regex": "(a|b)*", "no_repeat_ngram_size": 1, "min_new_tokens": 20},
    {"repetition_penalty": 1e-38},
    {"repetition_penalty": 1e-45},
    {"repetition_penalty": 0.01, "temperature": 1e-6},
    {"temperature": 1e-38},
    {"temperature": 1e39, "regex": "(a|b){20}"},
    {"temperature": 1e30, "regex": "(a|b){20}"},
    {"top_p": 1e-45},
    {"top_p": 1e-30},
    {"min_p": 1e-45},
    {"min_p": 1.0, "top_k": 3},
    {"frequency_penalty": -2, "temperature": 1e-6},
    {"presence_penalty": 1e39},
    {"sampling_seed": -(2**63)},
    {"sampling_seed": 2**63 - 1},
    {"logit_bias": {"5": 1e38}},
    {"logit_bias": {"5": 1e39}},
    {"logit_bias": {"5": -1e29, "6": 1e29}, "temperature": 1e-6},
    {"logit_bias": {str(token): -1e29 for token in range(1, 2000)}, "min_new_tokens": 5},
)


@on("overlap", "no-overlap", "eagle-tree", "ngram", "dp2", "dflash", "dspark")
def test_harmful_values_do_not_crash_the_server(server: Server) -> None:
    """Each answers HTTP 200 or 400, sampled and greedy, and the server lives on."""
    plain = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    before = post_ok(server, "/generate", plain)["output_ids"]
    asked = [
        {"max_new_tokens": 40, **sampling, "temperature": temperature}
        for sampling in HARMFUL
        for temperature in {sampling.get("temperature", 1.0), 0.0}
    ]
    bodies = [{"text": "a b a b", "sampling_params": sampling} for sampling in asked]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda body: post(server, "/generate", body), bodies))
    for sampling, answer in zip(asked, answers, strict=True):
        assert answer.status_code in (200, 400), (sampling, answer.text[:500])
        if answer.status_code == 400:
            assert any(f"{name} must" in answer.text for name in sampling), answer.text
        elif "regex" in sampling:
            reason = answer.json()["meta_info"]["finish_reason"]["type"]
            assert reason in ("stop", "length"), (sampling, reason)
    assert post_ok(server, "/generate", plain)["output_ids"] == before


DEAD_ENDS: tuple[dict[str, Any], ...] = (
    {"ebnf": "root ::= root"},
    {"ebnf": 'root ::= "a b a b " b\nb ::= b'},
    {"json_schema": json.dumps({"$ref": "#"})},
    {"json_schema": json.dumps({"type": "integer", "minimum": 5, "maximum": 3})},
)


@on(
    *("overlap", "no-overlap", "mixed-chunk", "eagle-tree", "ngram", "tp2", "pp2"),
    *("dflash", "dspark", "disaggregated", "disaggregated-eagle"),
)
def test_a_constraint_that_allows_nothing_ends_its_request(server: Server) -> None:
    """With an error that says so, whatever is sampled and however long the output may be; others
    go on."""
    plain = {"input_ids": [5, 6, 7], "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    before = post_ok(server, "/generate", plain)["output_ids"]
    for constraint in DEAD_ENDS:
        for own in ({"temperature": 0}, {"temperature": 1}, {"max_new_tokens": 1}):
            asked = {"max_new_tokens": 40, **constraint, **own}
            body = {"text": "a b a b a b ab ab", "sampling_params": asked}
            answer = post(server, "/generate", body)
            if own.get("max_new_tokens") == 1 and answer.status_code == 200:
                assert answer.json()["meta_info"]["finish_reason"]["type"] == "length"
                continue  # the end comes later than that
            assert answer.status_code == 400, (asked, answer.text[:500])
            assert re.search(r"must allow some token|Failed to compile", answer.text), answer.text
    assert post_ok(server, "/generate", plain)["output_ids"] == before
