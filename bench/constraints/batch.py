"""What the masks of a whole batch cost the scheduler's thread in a decode step.

    python -m bench.constraints.batch --out bench/results/constraints/batch.json

Each row of the batch is a request with `proper_tokens` on Qwen2.5's tokenizer, which follows a text
of its own. Before each step, its mask is filled in; after it, its token is accepted, by the methods
that upstream's scheduler calls. The masks are known, as nearly all are without a constraint (the
first pass over the texts does not count). XGrammar does the same for any tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xgrammar
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from bench.common import provenance, versions, write_result
from bench.constraints.vocabularies import installed_texts
from bench.published import tokenizer_json
from sglang_lz.proper import prepared
from sglang_lz.proper.backend import ProperGrammar
from sglang_lz.proper.language import ANY_TEXT, Rules, language_of
from sglang_lz.proper.prepared import prepare
from sglang_lz.proper.product import Product

TOKENIZER = "qwen"
BATCHES = (1, 64, 256)
STEPS = 100
CHARACTERS = 1000
"""Enough for as many tokens as there are steps."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m bench.constraints.batch", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--folder", type=Path, default=Path(".cache/vocabularies"))
    arguments = parser.parse_args()
    os.environ[prepared.CACHE_VARIABLE] = str(arguments.folder / "prepared")
    text = tokenizer_json(TOKENIZER)
    tokenizer = Tokenizer.from_str(text)
    corpus = "".join(installed_texts(400_000))
    product = Product(prepare(text), language_of(Rules(ANY_TEXT)))
    hugging = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    info = xgrammar.TokenizerInfo.from_huggingface(hugging)
    any_text = xgrammar.GrammarCompiler(info).compile_regex(r"[\s\S]*")
    end = hugging.eos_token_id
    ways: dict[str, Callable[[], Any]] = {
        "proper tokens": lambda: ProperGrammar(product, [end]),
        "xgrammar": lambda: XGrammarGrammar(
            xgrammar.GrammarMatcher(any_text), len(hugging), any_text, None
        ),
    }
    rows = []
    for batch in BATCHES:
        size = len(corpus) // batch
        parts = [corpus[i * size : i * size + CHARACTERS] for i in range(batch)]
        tokens = [one.ids[:STEPS] for one in tokenizer.encode_batch(parts)]
        spent: dict[str, list[float]] = {}
        for turn in range(3):
            for way, make in ways.items():
                found = steps([make() for _ in range(batch)], tokens, len(hugging))
                if turn:
                    spent.setdefault(way, []).extend(found)
        for way, seconds in spent.items():
            tenths = statistics.quantiles(seconds, n=10)
            us = [round(1e6 * part, 1) for part in (tenths[4], tenths[0], tenths[8])]
            rows.append({"batch": batch, "way": way, "us": us})
            print(*rows[-1].values(), sep="\t", flush=True)
    result = {
        "measures": "time of the scheduler's thread for the masks of a decode step and for "
        "accepting its tokens, microseconds: median, 10th and 90th percentile of the steps",
        **provenance("bench.constraints.batch"),
        **versions("sglang", "xgrammar", "numba"),
        "tokenizer": TOKENIZER,
        "rows": rows,
    }
    write_result(arguments.out, result)


def steps(grammars: list[Any], tokens: list[list[int]], vocab: int) -> list[float]:
    """The seconds of each step of a batch that follows some texts."""
    mask = grammars[0].allocate_vocab_mask(vocab, len(grammars), "cpu")
    spent = []
    for step in range(STEPS):
        began = time.perf_counter()
        for row, grammar in enumerate(grammars):
            grammar.fill_vocab_mask(mask, row)
        for row, grammar in enumerate(grammars):
            grammar.accept_token(tokens[row][step])
        spent.append(time.perf_counter() - began)
    return spent


if __name__ == "__main__":
    main()
