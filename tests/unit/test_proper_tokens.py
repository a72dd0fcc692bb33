"""Proper tokens against the tokenizers themselves: exactly the encodings are accepted.

The oracle is the `tokenizers` library: a sequence is proper if it is what the tokenizer makes of
the text that the sequence spells.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from bench.constraints.vocabularies import PATTERNS, SPECIAL, train
from ebnf import rules_json, schema_rules
from proper_files import changed
from proper_sequences import (
    ALPHABET,
    accepts,
    assert_accepted_iff_proper,
    assert_walks_end,
    encodings,
    prepared_of,
    product_of,
    sequences,
    some,
    texts,
    tokenizer_json,
)
from proper_tokens import merges, nfc, prepared
from proper_tokens.language import language_of
from proper_tokens.product import START, Product, State
from proper_tokens.references import reference
from proper_tokens.rules import ANY_TEXT, SERIALIZATION, Rules
from proper_tokens.tokenizer import Unsupported, read
from sglang_lz.constraints.grammar import ProperGrammar

# One whose pattern is a single regex, and one with several; the others are like the first.
TOKENIZERS = [
    pytest.param(name, marks=() if name in ("qwen2", "deepseek") else pytest.mark.full)
    for name in PATTERNS
]


def of(*parts: list[str]) -> list[str]:
    return ["".join(text) for text in itertools.product(*parts)]


# By name: rules in XGrammar's notation, and all their texts.
LANGUAGES = {
    "digits": ("root ::= (([0-9]{0, 4}))", some("0123456789", 4)),
    "spaces": ("root ::= (([ \\na1']{0, 6}))", some(" \na1'", 6)),
    "contractions": (
        "root ::= ((a b c d))\n"
        'a ::= (("don") | ("I") | ("we"))\n'
        'b ::= ("" | ("\'t") | ("\'ll") | ("\'S") | ("\'\u017f"))\n'
        "c ::= (([ \\t\\n]{0, 3}))\n"
        'd ::= ("" | ("the") | ("\u65e5\u672c") | ("\u00e9") | ("7"))',
        of(
            ["don", "I", "we"],
            ["", "'t", "'ll", "'S", "'\u017f"],
            some(" \t\n", 3),
            ["", "the", "\u65e5\u672c", "\u00e9", "7"],
        ),
    ),
    "normalized": (
        'root ::= (([ae\\u0301\\u0323\\u0327\\xe9]{0, 4} x))\nx ::= ("" | ("x"))',
        of(some("ae\u0301\u0323\u0327\u00e9", 4), ["", "x"]),
    ),
    "added": (
        'root ::= ((a b{0, 2} c))\na ::= (("a") | ("<"))\n'
        'b ::= (("<think>") | ("<tool_call") | ("<tool_call>"))\n'
        'c ::= ("" | ("b") | ("</think>") | ("think>") | ("<|im_end|>"))',
        [
            first + middle + last
            for first in "a<"
            for n in range(3)
            for middle in map(
                "".join, itertools.product(["<think>", "<tool_call", "<tool_call>"], repeat=n)
            )
            for last in ["", "b", "</think>", "think>", "<|im_end|>"]
        ],
    ),
    "tails": ('root ::= (([a \\uac00]{0, 3} "\\ub2e4"))', of(some("a \uac00", 3), ["\ub2e4"])),
    "marks": (
        'root ::= (([aq\\u0323\\u0301]{0, 4} "\\u0323"))',
        of(some("aq\u0323\u0301", 4), ["\u0323"]),
    ),
    "jamo": (
        'root ::= (([\\u1100\\u1161\\uac00\\u11a8a]{0, 4} x))\nx ::= ("" | ("\\u11a8"))',
        of(some("\u1100\u1161\uac00\u11a8a", 4), ["", "\u11a8"]),
    ),
    "scripts": (
        "root ::= (([\\u4e00a\\u093e\\u0915\\uac00\\u11a8.]{0, 5}))",
        some("\u4e00a\u093e\u0915\uac00\u11a8.", 5),
    ),
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_exactly_the_encodings_are_accepted(name: str, language: str) -> None:
    """Both ways, on every text of a finite language (over 250,000 texts in all)."""
    rules, strings = LANGUAGES[language]
    tokenizer = Tokenizer.from_str(tokenizer_json(name))
    wanted = encodings(tokenizer, strings)
    found = set(sequences(product_of(name, rules)))
    assert found == wanted, (sorted(found ^ wanted)[:3], len(found), len(wanted))


# By name: a set of characters, and how each text ends. Each took minutes before its first mask.
ENDLESS = {
    "hangul": (r"[^\n]", "a \uac00\uc785\ub2c8q", "\uc785\ub2c8\ub2e4"),
    "no latin": ("[^a-z]", " A\uac00\u1100.", "\uac00"),
    "latin": ("[a-z]", "abcdestq", "\uac00"),
    "repeats": ("[a-z]", "abcd", "abcabcabdabcabcabd"),
    "devanagari": (r"[\u0900-\u097f ]", " \u0915\u093e\u094d", "\u0939\u0948"),
    "mark": (r"[\0-\U0010ffff]", "aeq \u0301", "\u0323"),
    "marks": (r"[\0-\U0010ffff]", "aeq \uac00", "\u0323\u0301"),
    "jamo": (r"[\u1100-\u11ff]", "\u1100\u1161\u11a8", "\u11a8"),
    "added": (r"[\0-\U0010ffff]", "a <t", "<think>"),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_infinite_languages(case: str) -> None:
    """Searches are short, all encodings are allowed, and every walk ends in a proper text."""
    characters, some_of_them, end = ENDLESS[case]
    rng = random.Random(case)
    tokenizer = Tokenizer.from_str(tokenizer_json("qwen2"))
    product = product_of("qwen2", f'root ::= (({characters}* "{end}"))')
    assert product.can_end()
    strings = ["".join(rng.choices(some_of_them, k=rng.randint(0, 8))) + end for _ in range(200)]
    proper = encodings(tokenizer, strings)
    assert len(proper) > 20
    for encoding in proper:
        assert accepts(product, list(encoding)), encoding
    ends = [one + end for one in some(some_of_them, 2)]
    assert_walks_end(product, tokenizer, partial(encodings, tokenizer), ends, rng)
    assert product.most_steps < 300_000


def test_a_token_after_which_a_small_letter_must_come() -> None:
    """Some tokens of GPT-4o's are of two scripts, and its pre-tokenizer keeps those together only
    before a small letter. The search for one went as deep as the language is long."""
    words = ["\u65e5\u672cAVa ", "\u65e5\u672cAPPh ", " \u4e2d\u6587AVb"]
    text = train("gpt-oss", 2048, iter([*texts(), *["".join(words)] * 300]))
    assert any(token.endswith("AV") for token in Tokenizer.from_str(text).get_vocab())
    rules = Rules(rules_json(r"root ::= (([\0-\U0010ffff]{0, 60}))"))
    product = Product(prepared.Prepared(prepared.prepared_arrays(text)), language_of(rules))
    assert product.mask(START).any()
    assert product.most_steps < 15_000  # it took 28,815


def test_a_set_that_begins_with_surrogates() -> None:
    """They have no spelling. A class of theirs that also held other characters was read past its
    end, where the pre-tokenizer tells none of them apart."""
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    text = changed(tokenizer_json("gpt2"), pre_tokenizer={**whole, "use_regex": False})
    rules = Rules(rules_json(r'root ::= (("ab" [\U0000d800-\U0000e00f]))'))
    product = Product(prepared.Prepared(prepared.prepared_arrays(text)), language_of(rules))
    assert product.mask(START).any()
    assert accepts(product, Tokenizer.from_str(text).encode("ab\ue005").ids)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_text_is_accepted_as_the_tokenizer_spells_it(name: str) -> None:
    """Random texts, and sequences similar to their encodings, are accepted iff they are proper."""
    rng = random.Random(f"any {name}")
    tokenizer = Tokenizer.from_str(tokenizer_json(name))
    product = Product(prepared_of(name), language_of(Rules(ANY_TEXT)))
    strings = [
        "".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 12))) for _ in range(3000)
    ]

    def change(near: list[int], right: list[list[int]]) -> None:
        at = rng.randrange(len(near))
        how = rng.choice(["replace", "insert", "split"])
        content = tokenizer.id_to_token(near[at]) or ""
        if how == "split" and len(content) > 1:
            cut = rng.randrange(1, len(content))
            parts = [tokenizer.token_to_id(part) for part in (content[:cut], content[cut:])]
            near[at : at + 1] = [part for part in parts if part is not None]
        elif how == "insert":
            near.insert(at, rng.choice(rng.choice(right)))
        else:
            near[at] = rng.randrange(len(SPECIAL), tokenizer.get_vocab_size())

    assert_accepted_iff_proper(product, tokenizer, strings, change)


@pytest.mark.parametrize("name", ["gpt2", "qwen2"])
def test_pairs_by_the_merges_alone(name: str) -> None:
    """Which two tokens stay apart, against the tokenizer without its pre-tokenizer."""
    content = json.loads(tokenizer_json(name))
    relation = merges.relation_of(read(json.dumps(content)))
    tokens = read(json.dumps(content)).tokens
    content["pre_tokenizer"] = {
        "type": "ByteLevel", "add_prefix_space": False, "use_regex": False, "trim_offsets": False
    }  # fmt: skip
    content |= {"normalizer": None, "added_tokens": []}
    plain = Tokenizer.from_str(json.dumps(content))
    rng = random.Random(f"pairs {name}")
    usable = [t for t, text in enumerate(tokens) if text and relation.made[t] != merges.UNREACHABLE]
    pairs = [(rng.choice(usable), rng.choice(usable)) for _ in range(30_000)]
    pairs += [(int(x), int(y)) for x, y in relation.parts if {int(x), int(y)} <= set(usable)]
    pairs = [pair for pair in pairs if is_text(b"".join(tokens[t] or b"" for t in pair))]
    strings = [b"".join(tokens[t] or b"" for t in pair).decode() for pair in pairs]
    broken = 0
    row = np.empty_like(relation.reachable)
    compiled_relation = reference(relation)
    for (p, t), one in zip(
        pairs, plain.encode_batch(strings, add_special_tokens=False), strict=True
    ):
        apart = one.ids == [p, t]
        assert merges.stay_apart(compiled_relation, p, t) == apart
        broken += not apart
        if rng.random() < 0.1:
            merges.fill_row(compiled_relation, p, row)
            assert bool(row[t >> 5] >> (t & 31) & 1) == apart
    assert 1000 < broken < len(pairs) - 1000


def is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_a_token_may_have_several_merges() -> None:
    """Every split of each token is a merge, as in files that were made from tiktoken's ranks."""
    content = json.loads(tokenizer_json("llama3"))
    vocab = content["model"]["vocab"]
    taken = {token["id"] for token in content["added_tokens"]}
    by_id = sorted((i, text) for text, i in vocab.items() if i not in taken and len(text) > 1)
    content["model"]["merges"] = [
        [text[:cut], text[cut:]]
        for _, text in by_id
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    content["model"]["ignore_merges"] = False
    text = json.dumps(content)
    tokenizer = Tokenizer.from_str(text)
    own = prepared.Prepared(prepared.prepared_arrays(text))
    assert len(content["model"]["merges"]) > 1.5 * len(by_id)
    for rules, strings in (LANGUAGES["spaces"], LANGUAGES["contractions"]):
        found = set(sequences(Product(own, language_of(Rules(rules_json(rules))))))
        assert found == encodings(tokenizer, strings)


def mutated(**changes: Any) -> str:
    return changed(tokenizer_json("qwen2"), **changes)


SPLIT = {"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Removed", "invert": False}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model__type": "Unigram"}, "Unigram"),
        ({"model__dropout": 0.1}, "dropout"),
        ({"model__byte_fallback": True}, "byte_fallback"),
        ({"model__end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"pre_tokenizer": None}, "ByteLevel"),
        ({"pre_tokenizer": BYTE_LEVEL}, "add_prefix_space"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "Metaspace"),
        ({"pre_tokenizer__pretokenizers__0": SPLIT}, "Isolated"),
        ({"pre_tokenizer__pretokenizers__0__pattern": {"Regex": r"\s++|."}}, "POSSESSIVE"),
        ({"pre_tokenizer__pretokenizers__0__pattern": {"Regex": r"(?<=a)b|."}}, "ASSERT"),
        ({"pre_tokenizer__pretokenizers__0__pattern": {"Regex": "(?i:ss)|."}}, "fold"),
        ({"added_tokens__0__single_word": True}, "single_word"),
        # The decoder of ByteLevel takes each of its characters for a byte.
        ({"added_tokens__2__content": "x\u00e9"}, "decoded to another text"),
        ({"added_tokens__2__content": "k><t", "added_tokens__4__normalized": False}, "overlap"),
        ({"added_tokens__3__normalized": False, "added_tokens__3__content": "h"}, "overlap"),
        ({"model__merges__0": ["a", "zz\u0120q"]}, "does not exist"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_features_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prepared.prepared_arrays(mutated(**changes))


PATTERN = "pre_tokenizer__pretokenizers__0__pattern"


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"normalizer": None}, id="no NFC"),
        pytest.param({PATTERN: {"Regex": r"[a-c]+|\s"}}, id="with gaps", marks=pytest.mark.full),
        pytest.param({PATTERN: {"String": "1"}}, id="string", marks=pytest.mark.full),
        pytest.param(
            {PATTERN: {"Regex": r"\p{L}+?|\s+(?=\n)|'"}}, id="lazy", marks=pytest.mark.full
        ),
        pytest.param({"pre_tokenizer__pretokenizers__1__use_regex": True}, id="two regexes"),
    ],
)
def test_other_features_are_exact(changes: dict[str, Any]) -> None:
    text = mutated(**changes)
    tokenizer = Tokenizer.from_str(text)
    own = prepared.Prepared(prepared.prepared_arrays(text))
    for name in ("digits", "contractions", "normalized", "added"):
        rules, strings = LANGUAGES[name]
        found = set(sequences(Product(own, language_of(Rules(rules_json(rules))))))
        assert found == encodings(tokenizer, strings)


@pytest.mark.slow
@pytest.mark.parametrize("raw", [pytest.param((), marks=pytest.mark.full), (1, 2)])
def test_added_tokens_may_overlap(raw: tuple[int, ...]) -> None:
    """The leftmost is cut out first, the longest of several, and normalized ones come last."""
    contents = ["<|endoftext|>", "aa>", "<a>", ">b>", "b><b"]
    content = json.loads(tokenizer_json("qwen2"))
    vocab = content["model"]["vocab"]
    vocab[contents[1]] = vocab.pop(SPECIAL[1])
    is_special = len(raw) == 2
    for i, token in enumerate(content["added_tokens"]):
        token |= {"content": contents[i], "normalized": i not in raw}
    content["added_tokens"][1]["special"] = is_special
    tokenizer = Tokenizer.from_str(json.dumps(content))
    own = prepared.Prepared(prepared.prepared_arrays(json.dumps(content)))
    wanted = encodings(tokenizer, some("<>ab", 5))
    if is_special:
        wanted = {encoding for encoding in wanted if 1 not in encoding}
    rules = rules_json("root ::= (([<>ab]{0, 5}))")
    assert set(sequences(Product(own, language_of(Rules(rules))))) == wanted


@pytest.mark.slow
def test_nfc_is_the_tokenizers_own() -> None:
    found = nfc.normalization()
    normalizer = normalizers.NFC()
    rng = random.Random("nfc")
    marks = [*np.flatnonzero((found.mark > 0) | (found.combining > 0)).tolist()]
    starters = [*np.flatnonzero(found.starter > 0).tolist(), *range(0xAC00, 0xAC40), 0x61]
    counts = [0, 0]
    for _ in range(30_000):
        codes = [
            rng.choice(starters if rng.random() < 0.4 else marks) for _ in range(rng.randint(1, 5))
        ]
        text = "".join(map(chr, codes))
        is_normal = normalizer.normalize_str(text) == text
        assert is_normal == stays(found, codes), [hex(code) for code in codes]
        counts[is_normal] += 1
    assert min(counts) > 2500


def stays(found: nfc.Normalization, codes: list[int]) -> bool:
    starter = before = 0
    for code in codes:
        combining, mark = int(found.combining[code]), int(found.mark[code])
        if combining < 0 or (combining and before > combining):
            return False
        meets = before < combining if combining else before == 0
        if mark and meets and found.changes[starter, mark]:
            return False
        if combining == 0:
            starter = int(found.starter[code])
        before = combining
    return True


def test_rules_are_read_as_a_regex_would_be() -> None:
    import xgrammar

    regexes = [
        r"(ab|cd) (ef)?",
        "[a-c]{2,3}x?",
        "(a|ab)(c|bcd)*",
        "[^a]b*",
        r"a+(b|c+)*",
        r"[\-\]\\^x]{1,2}",
    ]
    for regex in regexes:
        language = language_of(Rules(xgrammar.Grammar.from_regex(regex).serialize_json()))
        for text in some("abcdef x-]\\^", 4):
            assert is_in(language, text) == bool(re.fullmatch(regex, text)), (regex, text)


def is_in(language: Any, text: str) -> bool:
    state = 0
    for character in text:
        state = language.table[state, language.classes[ord(character)]]
        if state < 0:
            return False
    return bool(language.accepts[state])


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ('root ::= ("a" root)', "no text"),
        ('root ::= ("(" root ")")', "no text"),
        ('root ::= (("a"{0, 300000}))', "places"),
        ("root ::= (([a-b]* [a] [a-b]{16, 16}))", "states"),
        ("root ::= ((Token(3)))", "rules hold"),
        ('root ::= ((a))\na ::= Regex("(?=x)", json_string=true)', "its pattern has assert"),
        ("root ::= ((a{0, 300}))\na ::= (([ab]{0, 100}))", "steps"),
        ('root ::= ((a{1000000000, 1000000000}))\na ::= ("")', "places"),
        (f"root ::= (({'[ab]? ' * 3000}))", "steps"),
        (f"root ::= (({' '.join(f'[^{chr(0x4E00 + i)}]' for i in range(2000))}))", "steps"),
        (f"root ::= (({' '.join(f'[{chr(0x4E00 + i)}]' for i in range(8000))}))", "sets times"),
        (f"root ::= (({' '.join(f'[{chr(0x4E00 + i)}]' for i in range(4000))}))",
         "states times classes"),
        ("\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(2000)), 'r2000 ::= "a"']),
         "nested"),
        (f'root ::= (("{"a" * 2_000_000}"))', "characters of rules"),
    ],
    ids=lambda value: value if len(value) < 40 else None,
)  # fmt: skip
def test_languages_that_are_refused(rules: str, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        language_of(Rules(rules_json(rules)))


def test_xgrammars_serialization_is_the_one_that_is_read() -> None:
    """A new version may number expressions differently, so its changes must be reviewed first."""
    import xgrammar

    assert xgrammar.get_serialization_version() == SERIALIZATION
    with pytest.raises(Unsupported, match="must have __VERSION__ 'v16', got 'v17': install the"):
        Rules(rules_json('root ::= "a"').replace(SERIALIZATION, "v17"))


@pytest.mark.parametrize("bounds", [{"maxLength": 3}, {"minLength": 1}, {}], ids=str)
def test_strings_of_a_schema_hold_no_control_characters(bounds: dict[str, int]) -> None:
    """XGrammar allows them in strings of bounded length."""
    language = language_of(Rules(schema_rules({"type": "string"} | bounds)))
    assert is_in(language, '"a \x7f"')
    assert not any(is_in(language, f'"a{chr(code)}"') for code in [*range(32), 34, 92])


def test_long_languages_are_swept_once() -> None:
    """Computing the distances of 18,000 states in a row once took 18,000 sweeps over all states."""
    began = time.process_time()
    language = language_of(
        Rules(
            rules_json('root ::= ((a{500, 500}))\na ::= (("abcdefghijklmnopqrstuvwxyz0123456789"))')
        )
    )
    assert language.distance.tolist() == list(range(18_000, -1, -1))
    text = "".join(chr(0x4E00 + i) for i in range(2000))
    assert is_in(language_of(Rules(rules_json(f'root ::= (("{text}"))'))), text)
    assert time.process_time() - began < 10


def test_triggered_tags() -> None:
    import xgrammar

    tag = {"begin": "<f>", "content": {"type": "regex", "pattern": "[0-9]+"}, "end": "</f>"}
    form = {"type": "triggered_tags", "triggers": ["<f"], "tags": [tag]}
    text = json.dumps({"type": "structural_tag", "format": form})
    language = language_of(Rules(xgrammar.Grammar.from_structural_tag(text).serialize_json()))
    for string, wanted in {
        "": True, "a < b": True, "a<<f>12</f>b<f>3</f>": True, "<f>12</f": False, "<fx": False,
        "<f></f>": False, "<": True,
    }.items():  # fmt: skip
        assert is_in(language, string) == wanted, string


def test_memory_is_bounded() -> None:
    product = product_of("llama3", "root ::= (([a-z ]{0, 300}))")
    product.most_bytes = 20_000
    state, masks = START, []
    for token in (
        Tokenizer.from_str(tokenizer_json("llama3")).encode("so it is and so it was " * 8).ids
    ):
        masks.append((state, product.mask(state)))
        after = product.next(state, token)
        assert after is not None
        state = after
    assert product.bytes <= 20_000
    for before, mask in masks:  # what was thrown away is computed again, the same
        assert (product.mask(before) == mask).all()


def test_prewarming_leaves_nothing_to_compute() -> None:
    product = product_of("qwen2", LANGUAGES["contractions"][0])
    for _ in product._warm():
        pass
    filled = product.filled
    assert len(set(sequences(product))) > 100
    assert product.filled == filled


def test_rows_are_computed_in_other_threads() -> None:
    """The computation of a row starts when the token that leads to it is accepted."""
    product = product_of("llama3", "root ::= (([a-z ]{0, 300}))")
    fill, threads = product._finder.rows, []

    def filled(text: int) -> Any:
        threads.append(threading.current_thread())
        return fill(text)

    product._finder.rows = filled  # type: ignore[method-assign]
    walk = ProperGrammar(product, [0])
    mask = walk.allocate_vocab_mask(len(product._prepared.tables.is_inert), 1, "cpu")
    for token in Tokenizer.from_str(tokenizer_json("llama3")).encode("so it is and so it was").ids:
        walk.fill_vocab_mask(mask, 0)
        computed = len(threads)
        walk.accept_token(token)
        while not product.is_warm(walk._states[-1]):
            time.sleep(0.001)
        assert len(threads) == computed + 1
    assert threading.current_thread() not in threads


def test_threads_that_ask_at_once_get_the_same() -> None:
    product = product_of("qwen2", "root ::= (([a-z ]{0, 300}))")
    ids = Tokenizer.from_str(tokenizer_json("qwen2")).encode("so it is and so it was").ids

    def walk(_: int) -> list[bytes]:
        state: State | None = START
        masks = []
        for token in ids:
            assert state is not None
            masks.append(product.mask(state).tobytes())
            state = product.next(state, token)
        return masks

    with ThreadPoolExecutor(8) as pool:
        walks = list(pool.map(walk, range(8)))
    assert all(masks == walks[0] for masks in walks)
    assert product.filled <= len(ids)
