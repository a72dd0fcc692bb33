"""Measure constraints with proper tokens beside the libraries that enforce them on any tokens.

    python -m bench.constraints --out bench/results/constraints/speed.json

Each tokenizer, of 32,000 and 100,000 tokens, is trained here, then prepared, and read again as
prepared. Then every engine gets every constraint, and follows the same texts, each as the tokenizer
spells it, in one process and one thread: how long until the first mask, and how long a mask takes.
The first pass over texts meets new states, the second only known ones. llguidance and outlines_core
are measured where they are installed, outlines_core only while it takes less than a minute.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xgrammar

from bench.common import command, date, machine, versions, write_result
from bench.constraints.cases import CASES, example
from bench.constraints.vocabularies import vocabulary
from sglang_lz.proper import prepared
from sglang_lz.proper.language import Rules, language_of
from sglang_lz.proper.prepared import Prepared, prepare, prepared_arrays
from sglang_lz.proper.product import BYTES_PER_LANGUAGE, START, Product

TEXTS = 40
TOKENIZERS = (("llama3", 32_000), ("llama3", 100_000))
PATIENCE_SECONDS = 60.0


class Walk(NamedTuple):
    """One engine on one constraint: `mask` computes the next mask, `accept` goes on by a token."""

    mask: Callable[[], Any]
    accept: Callable[[int], Any]


Engine = Callable[[str, str], Callable[[], Walk]]
"""Compiles a constraint of some kind; each call of what it returns begins a text."""


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        "python -m bench.constraints",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, help="JSON file to write (default: print the rows)")
    parser.add_argument("--folder", type=Path, default=Path(".cache/vocabularies"))
    arguments = parser.parse_args()
    os.environ[prepared.CACHE_VARIABLE] = str(arguments.folder / "prepared")
    tokenizers, rows = [], []
    small = Prepared(prepared_arrays(vocabulary("gpt2", 2048, arguments.folder)))
    text = vocabulary("gpt2", 2048, arguments.folder)
    measure(lambda *case: Proper(text, small, *case), "date", text)
    for name, size in TOKENIZERS:
        text = vocabulary(name, size, arguments.folder)
        (prepared.cache_directory() / f"{prepared.key_of(text)}.npz").unlink(missing_ok=True)
        facts: dict[str, Any] = {"tokenizer": name, "tokens": size}
        _, facts["prepare_seconds"] = timed(prepare, text)
        own, facts["prepare_again_seconds"] = timed(prepare, text)
        facts |= {name: round(facts[name], 4) for name in facts if name.endswith("seconds")}
        tokenizers.append(facts)
        print(*facts.values(), sep="\t", flush=True)
        for engine, make in engines(text, own).items():
            for case in CASES:
                row: dict[str, Any] = {"tokenizer": name, "tokens": size, "engine": engine}
                row |= {"case": case, **measure(make, case, text)}
                rows.append(row)
                print(*row.values(), sep="\t", flush=True)
                if row.get("compile_ms", 0) > 1000 * PATIENCE_SECONDS:
                    break
    result = {
        "measures": "constraints with proper tokens, and engines with any tokens; one at a time",
        "command": command("bench.constraints"),
        "date": date(),
        **machine(),
        **versions("tokenizers", "numba", "xgrammar", "llguidance", "outlines_core"),
        "texts": TEXTS,
        "bytes_per_constraint": BYTES_PER_LANGUAGE,
        "tokenizers": tokenizers,
        "rows": rows,
    }
    if arguments.out:
        write_result(arguments.out, result)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What work returns, and the seconds that it took."""
    start = time.perf_counter()
    found = work(*arguments)
    return found, time.perf_counter() - start


def measure(make: Engine, case: str, text: str) -> dict[str, Any]:
    """The figures of one engine on one constraint."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    rng = random.Random(case)
    examples = [
        tokenizer.encode(example(case, rng), add_special_tokens=False).ids for _ in range(TEXTS)
    ]
    try:
        begin, seconds = timed(make, *CASES[case])
        _, mask_seconds = timed(lambda: begin().mask())
        passes = [follow(begin, examples) for _ in range(2)]
    except Exception as error:  # what a library cannot do is a row of its own
        return {"error": str(error)[:200]}
    new, warm = (1e6 * np.array(times) for times in passes)
    row = {
        "compile_ms": round(1e3 * (seconds + mask_seconds), 2),
        "steps": len(new),
        "first_pass_us_median": round(float(np.median(new)), 1),
        "first_pass_us_p99": round(float(np.percentile(new, 99)), 1),
        "warm_us_median": round(float(np.median(warm)), 1),
        "warm_us_p99": round(float(np.percentile(warm, 99)), 1),
    }
    if isinstance(begin, Proper):
        row |= begin.facts(examples)
    return row


def follow(begin: Callable[[], Walk], examples: Sequence[Sequence[int]]) -> list[float]:
    """The seconds of each mask along texts, as far as patience reaches.

    Raises:
        ValueError: a text is refused that the constraint allows.
    """
    times: list[float] = []
    for tokens in examples:
        if sum(times) > PATIENCE_SECONDS / 4:
            break
        walk = begin()
        for token in tokens:
            times.append(timed(walk.mask)[1])
            if walk.accept(token) is False:
                raise ValueError("refuses a text that the constraint allows")
    return times


class Proper:
    """Ours, on one constraint."""

    def __init__(self, text: str, own: Prepared, kind: str, constraint: str) -> None:
        self._text = text
        self._language = language_of(Rules(rules(kind, constraint).serialize_json()))
        self._product = Product(own, self._language)

    def __call__(self) -> Walk:
        """Begin a text."""
        state = START

        def accept(token: int) -> None:
            nonlocal state
            after = self._product.next(state, token)
            assert after is not None
            state = after

        return Walk(lambda: self._product.mask(state), accept)

    def facts(self, examples: Sequence[Sequence[int]]) -> dict[str, Any]:
        """New states, forced steps and memory over some texts, on a tokenizer just read again."""
        product = Product(prepare(self._text), self._language)
        forced = steps = 0
        times = []
        for tokens in examples:
            state = START
            for token in tokens:
                is_new = not product.is_warm(state)
                _, seconds = timed(product.mask, state)
                if is_new:
                    times.append(1e3 * seconds)
                forced += not product.may_end(state) and product.only(state) is not None
                steps += 1
                after = product.next(state, token)
                assert after is not None
                state = after
        return {
            "forced_share": round(forced / steps, 3),
            "new_states": len(times),
            "new_state_ms_median": round(float(np.median(times)), 2),
            "new_state_ms_p99": round(float(np.percentile(times, 99)), 2),
            "megabytes": round(product.bytes / 2**20, 2),
        }


def engines(text: str, own: Prepared) -> dict[str, Engine]:
    """All engines that are installed, for one tokenizer."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_str(text)
    hugging = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    found: dict[str, Engine] = {
        "proper tokens": lambda kind, constraint: Proper(text, own, kind, constraint),
        "xgrammar": _xgrammar(hugging),
    }
    if importlib.util.find_spec("llguidance"):
        found["llguidance"] = _llguidance(hugging)
    if importlib.util.find_spec("outlines_core"):
        found["outlines_core"] = _outlines(tokenizer)
    return found


def rules(kind: str, constraint: str) -> Any:
    """XGrammar's rules of a constraint."""
    if kind == "regex":
        return xgrammar.Grammar.from_regex(constraint)
    return xgrammar.Grammar.from_json_schema(constraint, any_whitespace=kind == "json")


def _xgrammar(hugging: Any) -> Engine:
    compiler = xgrammar.GrammarCompiler(
        xgrammar.TokenizerInfo.from_huggingface(hugging), max_threads=1, cache_enabled=False
    )
    mask = xgrammar.allocate_token_bitmask(1, len(hugging))

    def make(kind: str, constraint: str) -> Callable[[], Walk]:
        compiled = compiler.compile_grammar(rules(kind, constraint))

        def begin() -> Walk:
            matcher = xgrammar.GrammarMatcher(compiled)
            return Walk(lambda: matcher.fill_next_token_bitmask(mask), matcher.accept_token)

        return begin

    return make


def _llguidance(hugging: Any) -> Engine:
    import llguidance.hf
    import llguidance.numpy

    tokenizer = llguidance.hf.from_tokenizer(hugging)
    mask = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)

    def make(kind: str, constraint: str) -> Callable[[], Walk]:
        options = {
            "whitespace_flexible": kind == "json",
            **({} if kind == "json" else {"item_separator": ", ", "key_separator": ": "}),
        }
        grammar = (
            llguidance.LLMatcher.grammar_from_regex(constraint)
            if kind == "regex"
            else llguidance.LLMatcher.grammar_from_json_schema(constraint, overrides=options)
        )

        def begin() -> Walk:
            matcher = llguidance.LLMatcher(tokenizer, grammar)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            fill = llguidance.numpy.fill_next_token_bitmask
            return Walk(lambda: fill(matcher, mask, 0), matcher.consume_token)

        return begin

    return make


def _outlines(tokenizer: Any) -> Engine:
    from outlines_core import Guide, Index, Vocabulary
    from outlines_core.json_schema import build_regex_from_schema

    from sglang_lz.proper.tokenizer import read

    tokens = read(tokenizer.to_str()).tokens
    by_text: dict[bytes, list[int]] = {}
    for token, content in enumerate(tokens):
        if content:
            by_text.setdefault(content, []).append(token)
    words = Vocabulary(tokenizer.token_to_id("<|endoftext|>"), by_text)

    def make(kind: str, constraint: str) -> Callable[[], Walk]:
        space = " " if kind == "compact json" else None
        regex = constraint if kind == "regex" else build_regex_from_schema(constraint, space)
        index = Index(regex, words)

        def begin() -> Walk:
            guide = Guide(index)
            return Walk(guide.get_tokens, lambda token: guide.advance(token, False))

        return begin

    return make


if __name__ == "__main__":
    main()
