"""Print the functions that searches compile or load although `compile_all` should have done it.

Run as a script, in a process of its own, with a `tokenizer.json` on standard input.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import xgrammar

from proper_tokens import prepared
from proper_tokens.language import language_of
from proper_tokens.product import START, Product
from proper_tokens.rules import Rules
from proper_tokens.warm_up import compile_all

RULES = (
    "root ::= (([\\0-\\U0010ffff]*))",
    'root ::= (([a-z]* "\\u00e9" [0-9]{2, 3}))',
    'root ::= (("abababab"))',
)


def compiled() -> set[tuple[str, str]]:
    """The name and the argument types of everything that is compiled."""
    return {
        (name, str(types))
        for module in list(sys.modules)
        if module.startswith("proper_tokens.")
        for name, function in vars(sys.modules[module]).items()
        for types in getattr(function, "signatures", ())
    }


def walk(product: Product, rng: random.Random) -> None:
    """Call what a scheduler calls for an output of up to twenty tokens."""
    product.begin()
    assert product.can_end()
    state = START
    for _ in range(20):
        product.expect(state)
        product.only(state)
        product.impossible(state)
        product.may_end(state)
        mask = product.mask(state)
        tokens = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not len(tokens):
            break
        after = product.next(state, int(rng.choice(tokens)))
        assert after is not None
        state = after
    product.end()


def main() -> None:
    """Compile, walk, and print what the walks compiled."""
    tokenizer = prepared.Prepared(prepared.prepared_arrays(sys.stdin.read()))
    compile_all(tokenizer)
    before = compiled()
    assert before
    for seed, rules in enumerate(RULES * 3):
        language = language_of(Rules(xgrammar.Grammar.from_ebnf(rules).serialize_json()))
        walk(Product(tokenizer, language), random.Random(seed))
    for name, types in sorted(compiled() - before):
        print(name, types)


if __name__ == "__main__":
    main()
