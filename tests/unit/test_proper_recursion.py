"""Proper tokens of recursive constraints against the tokenizers, and against lists of texts."""

from __future__ import annotations

import json
import random
import threading
from collections import OrderedDict
from concurrent.futures import Future
from types import ModuleType
from typing import Any

import pytest
import xgrammar
from tokenizers import Tokenizer

from ebnf import rules_json, schema_rules
from proper_sequences import accepts, allowed, encodings, prepared_of, product_of, tokenizer_json
from proper_tokens import language as languages
from proper_tokens import product as products
from proper_tokens import row_finder
from proper_tokens import rules as rule_places
from proper_tokens.kernels import pushdown
from proper_tokens.kernels.packing import unpack
from proper_tokens.kernels.tables import CONFIGURATIONS
from proper_tokens.language import language_of
from proper_tokens.product import START, Product
from proper_tokens.row_finder import Spent
from proper_tokens.rules import Rules
from proper_tokens.tokenizer import Unsupported
from sglang_lz.constraints.backend import ProperTokens

Grammar = dict[str, list[list[str]]]
# By name: the alternatives of each rule, and how many characters the texts have at most.
GRAMMARS: dict[str, tuple[Grammar, int]] = {
    "brackets": ({"root": [["(", "root", ")", "root"], []]}, 8),
    "left": (
        {
            "root": [["e"]],
            "e": [["e", " + ", "t"], ["t"]],
            "t": [["t", "*", "f"], ["f"]],
            "f": [["(", "e", ")"], ["an"], ["1"]],
        },
        9,
    ),
    "right": ({"root": [["a"], ["an ", "root"], ["(", "root", ")", "root"]]}, 9),
    "ambiguous": ({"root": [["root", "root"], ["a"], ["an"], ["n", "root"], [" "]]}, 6),
    "same beginning": (
        {"root": [["(", "root", ")"], ["(", "root", "]"], ["(", "root", ",", "root", ")"], ["a"]]},
        10,
    ),
    "empty": ({"root": [["x", "root", "y"], []], "x": [["in"], []], "y": [["\n"], ["a"], []]}, 6),
    "never": (
        {"root": [["a", "n"], ["(", "root", ")"], ["b", "root", "n"], ["the"]], "n": [["x", "n"]]},
        9,
    ),
    "spaces": (
        {
            "root": [["[", "s", "]"], ["'t"], [" a"], ["7"]],
            "s": [["root", "s"], ["\n", "s"], [" ", "s"], []],
        },
        6,
    ),
    "marks": (
        {
            "root": [["e", "m"], ["(", "root", "\u0301"], ["a", "root"], ["\uac00", "root"]],
            "m": [["(", "m", "\u0323"], ["a"], ["\u0301"], []],
        },
        6,
    ),
    "added": ({"root": [["<", "root", ">"], ["think"], ["root", "</"], ["a"], ["tool_call"]]}, 18),
    "jamo": (
        {
            "root": [["\u1100", "v"], ["\uac00(", "root", "\u11a8"], ["a"]],
            "v": [["\u1161"], ["root"], []],
        },
        6,
    ),
}


def ebnf(grammar: Grammar) -> str:
    """A grammar in XGrammar's notation."""

    def part(one: str) -> str:
        return one if one in grammar else json.dumps(one)

    return "\n".join(
        f"{name} ::= " + " | ".join(" ".join(map(part, parts)) or '""' for parts in alternatives)
        for name, alternatives in grammar.items()
    )


def texts_of(grammar: Grammar, most: int) -> list[str]:
    """All texts of a grammar with at most so many characters."""
    found: dict[str, set[str]] = {name: set() for name in grammar}
    size = -1
    while size != sum(map(len, found.values())):
        size = sum(map(len, found.values()))
        for name, alternatives in grammar.items():
            for parts in alternatives:
                made = {""}
                for part in parts:
                    behind = found[part] if part in grammar else {part}
                    made = {a + b for a in made for b in behind if len(a) + len(b) <= most}
                found[name] |= made
    return sorted(found["root"])


def bounded(tested: Product, tokenizer: Tokenizer, most: int) -> set[tuple[int, ...]]:
    """The sequences of at most so many characters that a product accepts; no walk may end dead."""
    found = set()
    stack: list[tuple[Any, tuple[int, ...]]] = [(START, ())]
    while stack:
        state, before = stack.pop()
        tokens = allowed(tested, state)
        assert tokens or tested.may_end(state), f"dead end behind {before}"
        if tested.may_end(state):
            found.add(before)
        for token in tokens:
            after = tested.next(state, token)
            assert after is not None
            tokens_so_far = (*before, token)
            text = tokenizer.decode(tokens_so_far, skip_special_tokens=False)
            if len(text.rstrip("\ufffd")) <= most:
                stack.append((after, tokens_so_far))
    return {one for one in found if len(tokenizer.decode(one, skip_special_tokens=False)) <= most}


@pytest.mark.parametrize("case", GRAMMARS)
@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        pytest.param("qwen2", marks=pytest.mark.slow),
        pytest.param("llama3", marks=pytest.mark.full),
    ],
)
def test_exactly_the_encodings_are_accepted(name: str, case: str) -> None:
    """Both ways, on all short texts of recursive grammars, listed without an automaton."""
    grammar, most = GRAMMARS[case]
    tokenizer = Tokenizer.from_str(tokenizer_json(name))
    tested = product_of(name, ebnf(grammar))
    wanted = encodings(tokenizer, texts_of(grammar, most))
    found = bounded(tested, tokenizer, most)
    assert found == wanted, (sorted(found ^ wanted)[:3], len(found), len(wanted))
    assert len(found) > 2


def test_shared_rules_allow_the_same() -> None:
    """Rules that begin with a bracket may be called instead of copied."""
    grammar: Grammar = {
        "root": [["[", "o", "m", "]"], ["[]"], ["o"]],
        "m": [[",", "o"], [",", "o", ",", "o"], []],
        "o": [["{", "a", "}"], ["{an", "}"], ["{in}"]],
    }
    tokenizer = Tokenizer.from_str(tokenizer_json("gpt2"))
    wanted = encodings(tokenizer, texts_of(grammar, 20))
    rules = rules_json(ebnf(grammar))
    calls = []
    for is_shared in (False, True):
        language = language_of(Rules(rules, is_shared=is_shared))
        calls.append(len(language.calls))
        assert bounded(Product(prepared_of("gpt2"), language), tokenizer, 20) == wanted
    assert calls[0] == 0 < calls[1]
    assert len(wanted) > 30


@pytest.mark.parametrize(
    ("module", "bound"), [(rule_places, "MOST_PLACES"), (languages, "MOST_STATES")]
)
def test_rules_are_shared_where_copies_are_too_large(
    module: ModuleType, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}
    schema = {"type": "array", "items": item, "maxItems": 30}
    rules = schema_rules(schema)
    assert len(language_of(Rules(rules)).calls) == 0
    monkeypatch.setattr(module, bound, 400)
    assert len(language_of(Rules(rules)).calls) > 0


def test_bytes_may_be_signed() -> None:
    """Also at the beginning of a rule that is called twice."""
    rules = rules_json('root ::= a ":" a\na ::= "\u00e9{" | "\u00e8"')
    content = json.loads(rules)
    assert 0xC3 in content["grammar_expr_data"]
    signed = [value - 256 if value >= 128 else value for value in content["grammar_expr_data"]]
    again = json.dumps(content | {"grammar_expr_data": signed})
    first, second = language_of(Rules(rules)), language_of(Rules(again))
    assert (first.table == second.table).all()
    assert (first.classes == second.classes).all()


def any_json() -> Product:
    rules = xgrammar.Grammar.builtin_json_grammar().serialize_json()
    return Product(prepared_of("qwen2"), language_of(Rules(rules)))


def distance(tested: Product, state: Any) -> int:
    """How many characters the nearest end is away."""
    return int(tested._tables.distance[unpack(state.packed)[0]])


def test_walks_through_any_json() -> None:
    """Walk at random for a while, then to the end: the texts parse, and the tokens are proper."""
    rng = random.Random(5)
    tokenizer = Tokenizer.from_str(tokenizer_json("qwen2"))
    tested = any_json()
    deepest = 0
    for _ in range(60):
        state, walked, most = START, [], rng.randint(1, 60)
        while len(walked) < most or not tested.may_end(state):
            tokens = allowed(tested, state)
            if not tokens:
                break
            some = rng.sample(tokens, min(len(tokens), 40))
            states = [tested.next(state, token) for token in some]
            assert all(states)
            is_over = len(walked) >= most
            best = min(range(len(some)), key=lambda i: distance(tested, states[i]) * is_over)
            state = states[best]
            assert state is not None
            walked.append(some[best])
            language = unpack(state.packed)[0]
            deepest = max(deepest, int(tested._tables.pushdown.depth[language]))
        text = tokenizer.decode(walked, skip_special_tokens=False)
        json.loads(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == walked
    assert deepest > 0


def test_any_json_is_accepted_as_the_tokenizer_spells_it() -> None:
    rng = random.Random(6)
    tokenizer = Tokenizer.from_str(tokenizer_json("qwen2"))
    tested = any_json()

    def value(depth: int) -> Any:
        kind = rng.randrange(6 if depth < 5 else 4)
        if kind < 2:
            return rng.choice(["", "don't \n", "caf\u00e9", '"x"', "\u65e5\u672c", "a  b"])
        if kind < 4:
            return rng.choice([0, -1.5, 1e20, True, False, None])
        if kind == 4:
            return [value(depth + 1) for _ in range(rng.randrange(4))]
        return {f"k{i}": value(depth + 1) for i in range(rng.randrange(4))}

    for _ in range(100):
        text = json.dumps([value(0)], ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 2]))
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        assert accepts(tested, tokens), text
        assert not accepts(tested, tokens[:-1])


def test_nesting_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound there is an error message and no mask."""
    monkeypatch.setattr(products, "MOST_DEPTH", 20)
    tested = product_of("gpt2", ebnf({"root": [["(", "root", ")"], ["a"]]}))
    tokenizer = Tokenizer.from_str(tokenizer_json("gpt2"))
    tokens = tokenizer.encode("(" * 40, add_special_tokens=False).ids
    with pytest.raises(Spent, match="nested more than 20 levels deep"):
        accepts(tested, tokens)


def test_a_token_that_no_constraint_allows_never_waits_for_a_search() -> None:
    """The token that ends a request whose mask is late is accepted on the scheduler's thread."""
    product = product_of("gpt2", 'root ::= "(" root ")" | "x"')
    allowed(product, START)
    answers: list[Any] = []
    with product._memo_lock:
        walk = threading.Thread(
            target=lambda: answers.append(product.next(START, product.impossible(START)))
        )
        walk.start()
        walk.join(60)
    assert answers == [None]


def test_configurations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that is nearly full is worn, and a full one still gives no wrong result."""
    monkeypatch.setattr(pushdown, "MOST_CONFIGURATIONS", 400)
    tested = product_of("gpt2", ebnf({"root": [["(", "root", ")"], ["[", "root", "]"], ["a"]]}))
    assert not tested.is_worn
    assert tested.can_end()
    rng = random.Random(4)
    full = False
    for _ in range(200):
        state = START
        try:
            for _ in range(30):
                tokens = allowed(tested, state)
                if not tokens:
                    break
                after = tested.next(state, rng.choice(tokens))
                assert after is not None
                state = after
        except Spent:
            full = True
            break
        assert tokens or tested.may_end(state)
    assert full
    assert tested.is_worn
    assert tested.all_bytes < row_finder.MOST_BYTES


def test_a_worn_product_is_rebuilt() -> None:
    """The requests that use the old product keep it."""
    served = ProperTokens.__new__(ProperTokens)
    served._products, served._lock = OrderedDict(), threading.Lock()
    served._stop_tokens, served._shared = (), None
    old, new = any_json(), any_json()
    key = ("json", "$$ANY$$")
    served._products[key] = Future()
    served._products[key].set_result(old)

    def build(_: Any, future: Future[Product]) -> None:
        new.begin()
        future.set_result(new)

    served._build = build  # type: ignore[method-assign]
    assert served.is_ready(*key)
    first = served._grammar(*key)
    assert first._product is old
    old._tables.pushdown.used[CONFIGURATIONS] = len(old._tables.pushdown.depth)
    assert not served.is_ready(*key)
    assert served._grammar(*key)._product is new
    assert [future.result() for future in served._products.values()] == [old, new]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ('root ::= "(" root ")"', "no text"),
        ('root ::= x root "a" | "b"\nx ::= "" | "(" x ")"', "rule (root|x) calls itself at its"),
    ],
)
def test_rules_that_never_read_a_character_are_refused(rules: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        product_of("gpt2", rules)
