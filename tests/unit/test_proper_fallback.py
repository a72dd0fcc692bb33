"""Proper tokens on BPE with byte fallback, against the `tokenizers` library.

The oracle is the tokenizer without the space that it puts before a text: a sequence is proper if it
is what that makes of the text that the sequence spells.
"""

from __future__ import annotations

import json
import random
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from ebnf import rules_json
from proper_files import (
    BYTES,
    IDLE,
    KINDS,
    LETTERS,
    METASPACE,
    OTHERS,
    PREPEND,
    REPLACE,
    changed,
    file_of,
    trained,
)
from proper_sequences import (
    accepts,
    allowed,
    assert_accepted_iff_proper,
    assert_walks_end,
    sequences,
    some,
)
from proper_tokens import merges, prepared
from proper_tokens.kernels.packing import unpack
from proper_tokens.language import language_of
from proper_tokens.product import START, Product
from proper_tokens.references import reference
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import SPACE, Unsupported, read


def oracle_of(text: str) -> Tokenizer:
    """The tokenizer without the space before a text."""
    content = json.loads(text)
    if PREPEND in (content["normalizer"] or {}).get("normalizers", []):
        content["normalizer"] = REPLACE
        for token in content["added_tokens"]:
            token["content"] = SPACE * token["normalized"] + token["content"]
    before = content["pre_tokenizer"] or {}
    for part in before.get("pretokenizers", [before]):
        if part.get("type") == "Metaspace":
            part["prepend_scheme"] = "never"
    return Tokenizer.from_str(json.dumps(content))


@cache
def prepared_of(text: str) -> prepared.Prepared:
    return prepared.Prepared(prepared.prepared_arrays(text))


def product_of(text: str, rules: str) -> Product:
    return Product(prepared_of(text), language_of(Rules(rules_json(rules))))


def encodings(text: str, strings: list[str]) -> set[tuple[int, ...]]:
    """The encodings of strings, if they spell them and have no special token."""
    tokenizer = oracle_of(text)
    special = {token["id"] for token in json.loads(text)["added_tokens"] if token["special"]}
    found = tokenizer.encode_batch(strings, add_special_tokens=False)
    decoded = tokenizer.decode_batch([one.ids for one in found], skip_special_tokens=False)
    return {
        tuple(one.ids)
        for one, after, string in zip(found, decoded, strings, strict=True)
        if after == string and special.isdisjoint(one.ids)
    }


def one_of(characters: str) -> str:
    """A set of characters in XGrammar's notation."""
    return "[" + "".join(f"\\U{ord(one):08x}" for one in characters) + "]"


# By name: characters, and how many of them a text has at most.
LANGUAGES = {
    "spaces": (" ab", 7),
    "digits": (" 123.", 5),
    "lines": ("\n\t x", 5),
    "bytes of a character": (" \u65e5\u672c\u65e6a", 5),
    "neighbours": ("\u65e5\u65e6\u00fc\u00e9\U0001f600\U0001f601", 4),
    "marks": ("e\u00e9\u0301 A", 5),
    "names of bytes": ("<0xA>", 5),
    "special": (" <s>", 5),
    "literal space": (f"a {SPACE}q", 4),
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_encodings_are_accepted(kind: str, language: str) -> None:
    """Both ways, on every text of a finite language."""
    characters, most = LANGUAGES[language]
    product = product_of(file_of(kind), f"root ::= (({one_of(characters)}{{0, {most}}}))")
    wanted = encodings(file_of(kind), some(characters, most))
    found = set(sequences(product))
    assert found == wanted, (sorted(found ^ wanted)[:3], len(found), len(wanted))


@pytest.mark.parametrize("kind", KINDS)
def test_any_text_is_accepted_as_the_tokenizer_spells_it(kind: str) -> None:
    """Random texts, and sequences similar to their encodings, are accepted iff they are proper."""
    rng = random.Random(kind)
    text = file_of(kind)
    tokenizer = oracle_of(text)
    special = frozenset(token["id"] for token in json.loads(text)["added_tokens"])
    product = Product(prepared_of(text), language_of(Rules(ANY_TEXT)))
    alphabet = LETTERS + 4 * " " + OTHERS
    strings = ["".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(1500)]

    def change(near: list[int], right: list[list[int]]) -> None:
        at = rng.randrange(len(near))
        how = rng.choice(["replace", "insert", "split"])
        content = tokenizer.id_to_token(near[at]) or ""
        if how == "split" and content not in BYTES:
            parts = [*content] if rng.random() < 0.5 else [BYTES[b] for b in content.encode()]
            near[at : at + 1] = [tokenizer.token_to_id(part) for part in parts]
        elif how == "insert":
            near.insert(at, rng.choice(rng.choice(right)))
        else:
            near[at] = rng.randrange(3, tokenizer.get_vocab_size())

    assert_accepted_iff_proper(product, tokenizer, strings, change, special)


@pytest.mark.parametrize("kind", KINDS)
def test_which_pairs_stay_apart(kind: str) -> None:
    text = file_of(kind)
    file = read(text)
    relation = merges.relation_of(file)
    plain = oracle_of(changed(text, normalizer=REPLACE, pre_tokenizer=None, added_tokens=[]))
    usable = np.flatnonzero(relation.made != merges.UNREACHABLE).tolist()
    tokens = [file.tokens[token] or b"" for token in usable]
    # A byte stands for a character that begins or ends with it.
    assert sum(content >= b"\x80" and len(content) == 1 for content in tokens) == 128
    whole = [
        (token, content.decode())
        for token, content in zip(usable, tokens, strict=True)
        if len(content) > 1 or content < b"\x80"
    ]
    pairs = [(p, t) for p in whole for t in whole]
    found = plain.encode_batch([p[1] + t[1] for p, t in pairs], add_special_tokens=False)
    compiled_relation = reference(relation)
    row = np.empty_like(relation.reachable)
    before = broken = -1
    for (p, t), one in zip(pairs, found, strict=True):
        apart = one.ids == [p[0], t[0]]
        assert merges.stay_apart(compiled_relation, p[0], t[0]) == apart
        if p[0] != before:
            before = p[0]
            merges.fill_row(compiled_relation, before, row)
        assert bool(row[t[0] >> 5] >> (t[0] & 31) & 1) == apart
        broken += not apart
    assert broken > 500


# By name: a set of characters, some of them, and how each text ends.
ENDLESS = {
    "a token": (r"[^\n]", " aq\u65e5", "so it"),
    "a character": (r"[^a]", " 1x\u672c", "\u65e5"),
    "bytes": (r"[^a]", " 1x\u65e5", "\u65e6"),
    "spaces": (r"[a-z ]", " ab", " "),
    "a line": (r"[\0-\U0010ffff]", " \nax", ".\n"),
}


@pytest.mark.parametrize("case", ENDLESS)
@pytest.mark.parametrize("kind", ["prepend", "pieces"])
def test_infinite_languages(kind: str, case: str) -> None:
    """Searches are short, all encodings are allowed, and every walk ends in a proper text."""
    characters, some_of_them, end = ENDLESS[case]
    rng = random.Random(case)
    text = file_of(kind)
    tokenizer = oracle_of(text)
    product = product_of(text, f'root ::= (({characters}* "{end}"))'.replace("\n", "\\n"))
    assert product.can_end()
    strings = ["".join(rng.choices(some_of_them, k=rng.randint(0, 8))) + end for _ in range(100)]
    for encoding in encodings(text, strings):
        assert accepts(product, list(encoding)), encoding
    ends = [one + end for one in some(some_of_them, 2)]
    assert_walks_end(product, tokenizer, partial(encodings, text), ends, rng)
    assert product.most_steps < 300_000


def added(*contents: str, **flags: bool) -> list[dict[str, Any]]:
    """Added tokens. Those that are not in the vocabulary get the next ids, as in the library."""
    vocab = json.loads(trained())["model"]["vocab"]
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    new = [content for content in contents if content not in vocab]
    ids = {content: len(vocab) + i for i, content in enumerate(new)} | vocab
    return [
        {"id": ids[content], "content": content} | dict.fromkeys(names, False) | flags
        for content in contents
    ]


def id_of(content: str) -> int:
    return int(json.loads(trained())["model"]["vocab"][content])


NORMALIZED = [f"a{SPACE}", 3 * SPACE, "b "]

# By name: the kind of tokenizer, added tokens, characters and how many of them.
ADDED: dict[str, tuple[str, list[dict[str, Any]], str, int]] = {
    "lines and spaces as Gemma's": ("replace", added("\n", "\n\n", 2 * SPACE), "\n ax", 6),
    "before Metaspace": (
        "metaspace", added("\n", "\n\n", f"a{SPACE}", normalized=True), "\n ax", 6
    ),
    "text with a space": ("replace", added("a b", "b"), " ab", 7),
    "normalized": ("replace", added(*NORMALIZED, normalized=True), " ab", 7),
    "characters that have no token": (
        "replace", added("q", "\u672c\u65e5", "<\u00e9>"), "q\u672c\u65e5<\u00e9>", 4
    ),
    "special": ("pieces", added("a b", "x ", special=True), " abx", 6),
    "special with a literal mark, as Code Llama's": (
        "metaspace", added(f"{SPACE}<x>", special=True), " <x>", 6
    ),
    "special and normalized, with a space before it": (
        "prepend", added("ax", special=True, normalized=True), " ax", 7
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ADDED)
def test_added_tokens(case: str) -> None:
    """They are cut out where the library cuts them out. One with a literal mark never is."""
    kind, entries, characters, most = ADDED[case]
    before = json.loads(trained())["added_tokens"]
    text = file_of(kind, added_tokens=[*before, *entries])
    product = product_of(text, f"root ::= (({one_of(characters)}{{0, {most}}}))")
    wanted = encodings(text, some(characters, most))
    found = set(sequences(product))
    assert found == wanted, (sorted(found ^ wanted)[:3], len(found), len(wanted))
    is_text = [token["id"] for token in entries if not token["special"]]
    assert any(set(is_text) & set(encoding) for encoding in found) == bool(is_text)


def random_tokenizer(rng: random.Random) -> tuple[str, str]:
    """One with some characters, tokens, merges and added tokens, and characters for texts."""
    kind = rng.choice([*KINDS])
    letters = rng.sample("ab\n\u65e5\u00e9\U0001f600", rng.randint(1, 3))
    words = [SPACE, *letters]
    for _ in range(rng.randint(2, 10)):
        word = rng.choice(words) + rng.choice(words)
        words += [word] if len(word) <= 6 and word not in words else []
    vocab = {word: i for i, word in enumerate(["<unk>", *BYTES, *words])}
    pairs = [
        [word[:cut], word[cut:]]
        for word in words
        for cut in range(1, len(word))
        if word[:cut] in vocab and word[cut:] in vocab
    ]
    rng.shuffle(pairs)
    characters = " " + "".join(rng.sample(sorted({*letters, "b", "\u00e9", "\u65e6", SPACE}), 3))
    contents = {
        rng.choice([*words, "".join(rng.choices(characters + SPACE, k=rng.randint(1, 3)))])
        for _ in range(rng.randint(0, 3))
    }
    ids = vocab | {one: len(vocab) + i for i, one in enumerate(sorted(contents - vocab.keys()))}
    entries = []
    for content in sorted(contents):
        flags = {
            "special": rng.random() < 0.3,
            "normalized": kind != "prepend" and rng.random() < 0.4,
        }
        entries += [one | {"id": ids[content]} for one in added(content, **flags)]
    changes = {"model__vocab": vocab, "model__merges": pairs, "added_tokens": entries}
    return changed(json.dumps(json.loads(trained()) | KINDS[kind]), **changes), characters


@pytest.mark.slow
def test_random_tokenizers() -> None:
    """They are exact or refused, whatever merges and added tokens they have."""
    rng = random.Random("tokenizers")
    served = 0
    for _ in range(150):
        text, characters = random_tokenizer(rng)
        try:
            own = prepared.Prepared(prepared.prepared_arrays(text))
        except Unsupported:
            continue
        rules = rules_json(f"root ::= (({one_of(characters)}{{0, 4}}))")
        found = set(sequences(Product(own, language_of(Rules(rules)))))
        assert found == encodings(text, some(characters, 4)), text
        served += 1
    assert served > 75


def test_the_space_before_a_text_changes_nothing() -> None:
    """The prepared tokenizer is the same with and without it."""
    text = file_of("prepend")
    arrays = prepared.prepared_arrays(text)
    for name, array in prepared.prepared_arrays(oracle_of(text).to_str()).items():
        assert (array == arrays[name]).all(), name


def test_an_impossible_token_is_found() -> None:
    """`impossible` is one, between characters and within one."""
    text = file_of("replace")
    product = product_of(text, f"root ::= (({one_of(' aé旦日')}{{0, 4}}))")
    for state in (START, product.next(START, id_of(BYTES[0xE6]))):
        assert state is not None
        token = product.impossible(state)
        assert token not in allowed(product, state)
        assert product.next(state, token) is None
    assert unpack(state.packed)[2]


SEQUENCE = {"type": "Sequence", "normalizers": [REPLACE, {"type": "NFC"}]}
SPLIT = {"type": "Split", "pattern": {"String": "a"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("replace", {"model__type": "Unigram"}, "its model is Unigram, not BPE"),
        ("replace", {"model__dropout": 0.1}, "dropout"),
        ("replace", {"model__ignore_merges": True}, "ignore_merges"),
        ("replace", {"model__vocab": {SPACE: 0, "a": 1}}, "does not hold every byte"),
        ("replace", {"model__vocab": {name: i for i, name in enumerate(BYTES)}}, SPACE),
        ("replace", {"model__merges__0": ["a", "zzz"]}, "does not exist"),
        ("replace", {"model__merges": []}, "no merges"),
        ("replace", {"normalizer": None}, "pre-tokenizer has a Split"),
        ("replace", {"normalizer": None, "pre_tokenizer": None}, "nothing makes a space"),
        ("replace", {"normalizer__pattern": {"Regex": " "}}, "normalizer has a Replace"),
        ("replace", {"normalizer__content": "_"}, "normalizer has a Replace"),
        ("replace", {"normalizer": SEQUENCE}, "normalizer has a NFC"),
        ("prepend", {"normalizer__normalizers__0__prepend": "a"}, "normalizer has a Prepend"),
        ("replace", {"pre_tokenizer": SPLIT}, "pre-tokenizer has a Split"),
        ("replace", {"pre_tokenizer__invert": True}, "pre-tokenizer has a Split"),
        ("replace", {"pre_tokenizer": {"type": "Whitespace"}}, "pre-tokenizer has a Whitespace"),
        ("pieces", {"pre_tokenizer__pretokenizers": [IDLE, METASPACE]}, "has a Sequence"),
        ("metaspace", {"pre_tokenizer__replacement": "_"}, "pre-tokenizer has a Metaspace"),
        ("replace", {"added_tokens": added("<0x41>")}, "<0x41> is that of a byte"),
        ("replace", {"added_tokens": added(SPACE, special=True)}, f"BPE may make .*{SPACE}"),
        (
            "replace",
            {"added_tokens": added(*(f"<unused{i}>" for i in range(10_000)))},
            "added tokens are too many",
        ),
        ("replace", {"added_tokens": added("ab", single_word=True)}, "single_word"),
        ("replace", {"added_tokens": added(" ", SPACE, normalized=True)}, "the same text"),
        ("prepend", {"added_tokens": added("ab")}, "puts a space behind"),
        ("pieces", {"added_tokens": added("ab")}, "puts a space behind"),
        (
            "metaspace",
            {"normalizer": PREPEND, "added_tokens": added("so", normalized=True, special=True)},
            "BPE may make its added token 'so'",
        ),
        (
            "prepend",
            {"added_tokens": added("so", normalized=True, special=True)},
            "BPE may make its added token 'so'",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_other_features_are_refused(kind: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        prepared.prepared_arrays(file_of(kind, **changes))


def test_a_merge_of_the_token_of_a_byte_is_refused() -> None:
    content = json.loads(file_of("replace"))
    content["model"]["vocab"] |= {"<0x0": 900, "A>": 901}
    content["model"]["merges"].append(["<0x0", "A>"])
    with pytest.raises(Unsupported, match="the token of a byte"):
        read(json.dumps(content))
