"""The contract beside everything else that changes logits (docs/SPEC.md section 5).

The penalty acts first; each other transform is applied here from its own definition.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence

import numpy as np
import pytest
import xgrammar
from transformers import AutoTokenizer

from oracle import Penalties, penalised
from server.client import OFF, Lz, Rows, generate, penalty_fields
from server.configurations import on
from server.contract import check
from server.launch import Server, model_path, vocab_size
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


class Grammar:
    """What a grammar forbids after some outputs, by xgrammar itself."""

    def __init__(self, **kind: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(model_path())
        self.eos = [tokenizer.eos_token_id]
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocab_size(), stop_token_ids=self.eos
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


@on("overlap", "no-overlap", "mixed-chunk", "eagle-tree")
@pytest.mark.parametrize(
    "kind",
    [
        {"regex": "(ab|ba|cab ){12,16}"},
        {"json_schema": json.dumps(NAMES)},
    ],
    ids=["regex", "json_schema"],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_grammar(server: Server, kind: dict[str, str], temperature: float) -> None:
    """Tokens that the grammar forbids stay at minus infinity; the others obey the contract."""
    rng = random.Random(f"grammar {temperature}")
    grammar = Grammar(**kind)
    mode = f"{server.config.name}: {'regex' if 'regex' in kind else 'JSON schema'}"
    for lz in PARAMETERS:
        prompt = repetitive(rng, 30)
        others = OTHERS if lz == PARAMETERS[1] else Penalties()

        def transform(
            logits: Rows,
            before: Sequence[int],
            prompt: list[int] = prompt,
            others: Penalties = others,
        ) -> Rows:
            return grammar.transform(penalised(logits, prompt, before, others), before)

        fields = {"ignore_eos": False, **penalty_fields(others), **kind}
        sample = generate(server, prompt, 60, lz, temperature=temperature, **fields)
        assert sample.outputs[-1] in grammar.eos or len(sample.outputs) == 60
        check(server, sample, lz, mode, temperature=temperature, transform=transform)


@on("overlap", "no-overlap")
def test_min_new_tokens(server: Server) -> None:
    """Stop tokens are out of reach until enough tokens stand, whatever the penalty adds to them."""
    rng = random.Random("min_new_tokens")
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    for lz in PARAMETERS:
        stops = token_ids(rng, 6)

        def transform(logits: Rows, before: Sequence[int], stops: list[int] = stops) -> Rows:
            masked = logits.copy()
            if len(before) < 20:
                masked[[*stops, tokenizer.eos_token_id]] = -math.inf
            return masked

        sample = generate(
            server,
            repetitive(rng, 20),
            30,
            lz,
            temperature=1.0,
            ignore_eos=False,
            min_new_tokens=20,
            stop_token_ids=stops,
        )
        assert len(sample.outputs) >= 20
        mode = f"{server.config.name}: min_new_tokens"
        check(server, sample, lz, mode, temperature=1.0, transform=transform)


@on("overlap", "no-overlap", "eagle")
def test_logit_bias(server: Server) -> None:
    """A bias stands beside the penalty, on tokens that it penalises and on others."""
    rng = random.Random("logit_bias")
    for lz in PARAMETERS:
        bias = {token: rng.choice((-30.0, 3.5, 20.0, 22.0)) for token in token_ids(rng, 12)}

        def transform(logits: Rows, before: Sequence[int], bias: dict[int, float] = bias) -> Rows:
            biased = logits.copy()
            for token, amount in bias.items():
                biased[token] += amount
            return biased

        for temperature in (0.0, 1.0):
            sample = generate(
                server,
                repetitive(rng, 20),
                40,
                lz,
                temperature=temperature,
                logit_bias={str(token): amount for token, amount in bias.items()},
            )
            mode = f"{server.config.name}: logit_bias"
            check(server, sample, lz, mode, temperature=temperature, transform=transform)
