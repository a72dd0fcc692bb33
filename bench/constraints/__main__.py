"""Measure constraints with proper tokens beside the libraries that enforce them on any tokens.

    python -m bench.constraints --out bench/results/constraints/schemas.json

The constraints are any JSON, a recursive schema and the schemas of bench/constraints/schemas, on
a published tokenizer (`bench.published`). Every
engine gets every constraint, and follows the same texts, each as the tokenizer spells it, one
engine at a time in one thread: how long until the first mask, how long a mask takes, and how much
memory the engine holds in the end. The first pass over texts meets new states, the second only
known ones. llguidance is measured where it is installed.

Each engine gets each constraint in a fork of this process, which is ended if it takes longer than a
minute to the first mask or more than 8 GB, because a call of a library cannot be interrupted.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib.util
import json
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xgrammar

from bench.common import provenance, versions, write_result
from bench.constraints.cases import ANY_JSON, CASES, schema_cases, texts
from bench.constraints.vocabularies import vocabulary
from bench.published import SOURCES, tokenizer_json
from proper_tokens.arrays import AnyArray
from proper_tokens.language import Language, language_of
from proper_tokens.prepared import Prepared, prepared_arrays
from proper_tokens.product import BYTES_PER_LANGUAGE, START, Product
from proper_tokens.rules import Rules

PATIENCE_SECONDS = 60
MOST_BYTES = 8 << 30
"""The most memory of a fork, beyond what this process has."""


class Walk(NamedTuple):
    """One engine on one constraint: `mask` computes the next mask, `accept` goes on by a token."""

    mask: Callable[[], Any]
    accept: Callable[[int], Any]


Arrays = dict[str, AnyArray]
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
    parser.add_argument(
        "--tokenizer", nargs="+", choices=SOURCES, default=["qwen"], help="default: qwen"
    )
    parser.add_argument("--case", nargs="+", help="measure only these of them")
    arguments = parser.parse_args()
    cases = schema_cases()
    if arguments.case:
        cases = {name: cases[name] for name in arguments.case}
    tokenizers: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    result = {
        "measures": "constraints with proper tokens, and engines with any tokens; one at a time",
        **provenance("bench.constraints"),
        **versions("tokenizers", "numba", "xgrammar", "llguidance"),
        "texts": {case: len(texts(case)) for case in cases},
        "bytes_per_constraint": BYTES_PER_LANGUAGE,
        "tokenizers": tokenizers,
        "rows": rows,
    }
    small = Prepared(prepared_arrays(vocabulary("gpt2", 2048, arguments.folder)))
    for constraint in (CASES["date"], schema_cases()[ANY_JSON]):
        # This loads what is compiled, without threads, which would be missing in a fork.
        Product(small, _language(*constraint)).compile_all()
    for name in arguments.tokenizer:
        text = tokenizer_json(name)
        tokens = len(json.loads(text)["model"]["vocab"])
        facts: dict[str, Any] = {"tokenizer": name, "tokens": tokens}
        arrays, seconds = timed(prepared_arrays, text)
        facts["prepare_seconds"] = round(seconds, 4)
        tokenizers.append(facts)
        print(*facts.values(), sep="\t", flush=True)
        followed = {case: tokens_of(text, case) for case in cases}
        for engine, make in engines(text, arrays).items():
            for case, constraint in cases.items():
                row: dict[str, Any] = {"tokenizer": name, "tokens": tokens}
                row |= {"engine": engine, "case": case}
                row |= alone(measure, make, constraint, followed[case], PATIENCE_SECONDS)
                rows.append(row)
                print(*row.values(), sep="\t", flush=True)
                if arguments.out:
                    write_result(arguments.out, result)


def timed(work: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of work, and the seconds that it took."""
    start = time.perf_counter()
    found = work(*arguments)
    return found, time.perf_counter() - start


def tokens_of(text: str, case: str) -> list[list[int]]:
    """The texts of a case as a tokenizer spells them."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    return [tokenizer.encode(one, add_special_tokens=False).ids for one in texts(case)]


def alone(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Return the result of work in a fork of this process, or why the fork ended without it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)

    def run() -> None:
        used = _status("VmSize")
        resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
        theirs.send(work(*arguments))

    process = context.Process(target=run)
    process.start()
    theirs.close()
    try:
        row: dict[str, Any] = ours.recv()
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGALRM:
            return {"error": f"takes longer than {PATIENCE_SECONDS} s"}
        return {
            "error": f"ends with exit code {process.exitcode}; it may take {MOST_BYTES >> 30} GB"
        }
    process.join()
    return row


def _status(name: str) -> int:
    """A size of this process in bytes, by its name in Linux's list."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def _held() -> int:
    """The memory that this process has and uses, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # gives back what is free
    return _status("RssAnon")


def measure(
    make: Engine, constraint: tuple[str, str], examples: list[list[int]], patience: int = 0
) -> dict[str, Any]:
    """The figures of one engine on one constraint.

    Args:
        make: the engine.
        constraint: its kind and text.
        examples: tokens that are followed.
        patience: seconds to the first mask after which this process ends; 0 for endlessly many.
    """
    before = _held()
    try:
        signal.alarm(patience)
        begin, seconds = timed(make, *constraint)
        _, mask_seconds = timed(lambda: begin().mask())
        signal.alarm(0)
        first = follow(begin, examples)
        again = follow(begin, examples[: len(first)])
    except Exception as error:  # what a library cannot do is a row of its own
        return {"error": str(error)[:200]}
    held = _held() - before
    new, warm = (1e6 * np.concatenate(times) for times in (first, again))
    row = {
        "compile_ms": round(1e3 * (seconds + mask_seconds), 2),
        "steps": len(new),
        "first_pass_us_median": round(float(np.median(new)), 1),
        "first_pass_us_p99": round(float(np.percentile(new, 99)), 1),
        "warm_us_median": round(float(np.median(warm)), 1),
        "warm_us_p99": round(float(np.percentile(warm, 99)), 1),
        "held_megabytes": round(held / 2**20, 1),
    }
    if isinstance(begin, Proper):
        row |= begin.facts(examples)
    return row


def follow(begin: Callable[[], Walk], examples: Sequence[Sequence[int]]) -> list[list[float]]:
    """The seconds of each mask along each text, as far as patience reaches.

    Raises:
        ValueError: a text is refused that the constraint allows.
    """
    found: list[list[float]] = []
    for tokens in examples:
        if sum(map(sum, found)) > PATIENCE_SECONDS / 4:
            break
        walk = begin()
        times = []
        for token in tokens:
            times.append(timed(walk.mask)[1])
            if walk.accept(token) is False:
                raise ValueError("refuses a text that the constraint allows")
        found.append(times)
    return found


class Proper:
    """Ours, on one constraint."""

    def __init__(self, arrays: Arrays, own: Prepared, kind: str, constraint: str) -> None:
        self._arrays = arrays
        self._language = _language(kind, constraint)
        self._product = Product(own, self._language)

    def __call__(self) -> Walk:
        """Begin a text."""
        state = START

        def accept(token: int) -> bool:
            nonlocal state
            after = self._product.next(state, token)
            state = after or state
            return after is not None

        return Walk(lambda: self._product.mask(state), accept)

    def facts(self, examples: Sequence[Sequence[int]]) -> dict[str, Any]:
        """New states, forced steps and memory over some texts, on a tokenizer not used before."""
        product = Product(Prepared(self._arrays), self._language)
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
            "all_megabytes": round(product.all_bytes / 2**20, 2),
        }


def engines(text: str, arrays: Arrays) -> dict[str, Engine]:
    """All engines that are installed, for one tokenizer, given its `prepared_arrays`."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    own = Prepared(arrays)
    tokenizer = Tokenizer.from_str(text)
    hugging = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    found: dict[str, Engine] = {
        "proper tokens": lambda kind, constraint: Proper(arrays, own, kind, constraint),
        "xgrammar": _xgrammar(hugging),
    }
    if importlib.util.find_spec("llguidance"):
        found["llguidance"] = _llguidance(hugging)
    return found


def _language(kind: str, constraint: str) -> Language:
    return language_of(Rules(rules(kind, constraint).serialize_json()))


def rules(kind: str, constraint: str) -> Any:
    """XGrammar's rules of a constraint."""
    if kind == "regex":
        return xgrammar.Grammar.from_regex(constraint)
    return xgrammar.Grammar.from_json_schema(constraint, any_whitespace=True)


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
        grammar = llguidance.LLMatcher.grammar_from_json_schema(
            constraint, overrides={"whitespace_flexible": True}
        )

        def begin() -> Walk:
            matcher = llguidance.LLMatcher(tokenizer, grammar)
            if matcher.is_error():
                raise ValueError(matcher.get_error())
            fill = llguidance.numpy.fill_next_token_bitmask
            return Walk(lambda: fill(matcher, mask, 0), matcher.consume_token)

        return begin

    return make


if __name__ == "__main__":
    main()
