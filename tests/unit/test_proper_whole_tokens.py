"""Tokens that `ignore_merges` gives to whole pre-tokens only, as Llama 3 has them.

The oracle is the `tokenizers` library, as in `test_proper_tokens`.
"""

from __future__ import annotations

import json
import random
from functools import cache

import pytest
from tokenizers import Tokenizer

from bench.published import byte_level
from ebnf import rules_json
from proper_files import WHOLE, with_whole_tokens
from proper_sequences import ALPHABET, assert_accepted_iff_proper, encodings, sequences, some
from proper_tokens import merges
from proper_tokens.language import language_of
from proper_tokens.prepared import Prepared, prepared_arrays
from proper_tokens.product import Product
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import Unsupported, byte_characters


@cache
def prepared() -> Prepared:
    return Prepared(prepared_arrays(with_whole_tokens()))


@pytest.mark.parametrize(
    ("characters", "longest"),
    [("ab ", 6), ("ab'.", 5), ("a\u65e5\u672c ", 5), ("1a\n\u00e9 ", 4), ("a\u8a9e\u672c ", 4)],
)
def test_exactly_the_encodings_are_accepted(characters: str, longest: int) -> None:
    """Both ways, on every text of a finite language; no walk ends dead."""
    strings = some(characters, longest)
    letters = "".join(f"\\u{ord(letter):04x}" for letter in characters)
    rules = f"root ::= (([{letters}]{{0, {longest}}}))"
    product = Product(prepared(), language_of(Rules(rules_json(rules))))
    wanted = encodings(Tokenizer.from_str(with_whole_tokens()), strings)
    whole = {i for i, rank in enumerate(prepared().tables.relation.made) if rank == merges.WHOLE}
    assert any(whole & set(encoding) for encoding in wanted)
    assert set(sequences(product)) == wanted


@pytest.mark.parametrize("text", WHOLE)
def test_a_language_of_one_text(text: str) -> None:
    """It has one proper sequence, also where no other token may spell the text."""
    content = "".join(f"\\u{ord(letter):04x}" for letter in text)
    product = Product(prepared(), language_of(Rules(rules_json(f'root ::= (("{content}"))'))))
    tokenizer = Tokenizer.from_str(with_whole_tokens())
    assert product.can_end()
    assert set(sequences(product)) == encodings(tokenizer, [text])


def test_letters_that_only_whole_tokens_tell_apart() -> None:
    """The regex takes d and D for one, and both occur in whole tokens, so neither leads both."""
    product = Product(prepared(), language_of(Rules(rules_json('root ::= (("\u8a9e" [dD]))'))))
    tokenizer = Tokenizer.from_str(with_whole_tokens())
    assert set(sequences(product)) == encodings(tokenizer, ["\u8a9ed", "\u8a9eD"])


def test_any_text() -> None:
    """Random texts, and sequences similar to their encodings, are accepted iff they are proper."""
    rng = random.Random("whole tokens")
    tokenizer = Tokenizer.from_str(with_whole_tokens())
    product = Product(prepared(), language_of(Rules(ANY_TEXT)))
    pieces = (*WHOLE, *WHOLE, *ALPHABET, "a", "b", " ", " a")
    strings = ["".join(rng.choices(pieces, k=rng.randint(1, 6))) for _ in range(3000)]

    def change(near: list[int], right: list[list[int]]) -> None:
        at = rng.randrange(len(near))
        spelt = tokenizer.id_to_token(near[at])
        cut = rng.randrange(len(spelt)) if len(spelt) > 1 else 0
        parts = [tokenizer.token_to_id(part) for part in (spelt[:cut], spelt[cut:]) if part]
        if rng.random() < 0.6 and None not in parts:
            near[at : at + 1] = parts
        else:
            near.insert(at, rng.choice(rng.choice(right)))

    assert_accepted_iff_proper(product, tokenizer, strings, change)


PATTERNS = (
    r" ?\p{L}+|\s+", r"\p{L}|\s", r"a+|[^a]+", r"[ab]{1,2}", r"\s+(?!\S)|\s+|\S+", r"ab|b",
    r"a(?!b)|ba?", r" [^ ]*|[^ ]+", r"\n+", r"aa?(?=b)|[\s\S]", r"[\s\S]*?b|[\s\S]",
)  # fmt: skip


def random_tokenizer(rng: random.Random) -> tuple[str, list[str], list[str]]:
    """One with some merges, whole tokens, splits and added tokens; with characters for texts, and
    its whole tokens."""
    letters = rng.sample("ab \n\u00e9\u8a9e\u8a9f\u0301\U0001f600", rng.randint(1, 3))
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [bytes([byte]) for byte in sorted(set("".join(letters).encode()))]
    pairs = []
    for _ in range(rng.randint(1, 9)):
        left, right = rng.choice(words), rng.choice(words)
        if len(left + right) <= 10 and (left, right) not in pairs:
            pairs.append((left, right))
            if left + right not in ranks:
                ranks[left + right] = len(ranks)
                words.append(left + right)
    rng.shuffle(pairs)
    whole: list[str] = []
    for _ in range(rng.randint(1, 6)):
        is_longer = whole and rng.random() < 0.4
        text = rng.choice(whole) if is_longer else ""
        text += "".join(rng.choices(letters, k=1 if is_longer else rng.randint(1, 4)))
        if text.encode() not in ranks:
            ranks[text.encode()] = len(ranks)
            whole.append(text)
    content = byte_level(ranks, "")
    vocab, model = content["model"]["vocab"], content["model"]
    letter = {byte: character for character, byte in byte_characters().items()}
    model["merges"] = [["".join(letter[byte] for byte in part) for part in pair] for pair in pairs]
    splits = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in rng.choices(PATTERNS, k=rng.choice([0, 0, 1, 1, 1, 2, 2, 3]))
    ]
    (last,) = content["pre_tokenizer"]["pretokenizers"]
    last["use_regex"] = rng.random() < 0.1
    content["pre_tokenizer"]["pretokenizers"] = [*splits, last]
    characters = sorted({*letters, rng.choice("ab \n\u8a9fc")})
    ascii_ones = [one for one in characters if one.isascii()] or ["a"]
    texts = {
        "".join(rng.choices(ascii_ones, k=rng.randint(2, 3)))
        for _ in range(rng.choice([0, 0, 1, 2, 3]))
    }
    texts |= {text for text in whole if text.isascii() and len(text) > 1 and rng.random() < 0.1}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    new = sorted(text for text in texts if text not in vocab)
    ids = {text: len(vocab) + i for i, text in enumerate(new)} | vocab
    content["added_tokens"] = [
        {"id": ids[text], "content": text, "special": rng.random() < 0.3}
        | dict.fromkeys(flags, False)
        for text in sorted(texts)
    ]
    return json.dumps(content), characters, whole


def one_of(texts: list[str]) -> str:
    """A choice of texts in XGrammar's notation."""
    spelt = ["".join(f"\\U{ord(letter):08x}" for letter in text) for text in texts]
    return "(" + " | ".join(f'"{text}"' for text in spelt) + ")"


def test_random_tokenizers() -> None:
    """They are exact, whatever merges, whole tokens, splits and added tokens they have."""
    rng = random.Random("whole tokens")
    served = 0
    for _ in range(45):
        text, characters, whole = random_tokenizer(rng)
        try:
            own = Prepared(prepared_arrays(text))
        except Unsupported:
            continue
        served += bool((own.tables.relation.made == merges.WHOLE).any())
        tokenizer = Tokenizer.from_str(text)
        special = {one["id"] for one in json.loads(text)["added_tokens"] if one["special"]}
        strings = some("".join(characters), 4)
        few = rng.sample([*strings[1:], *whole, *(word[:-1] + "a" for word in whole)], 3)
        for rules, of_rules in (
            (f"({one_of(characters)}{{0, 4}})", strings), (one_of(few), few)
        ):  # fmt: skip
            wanted = {one for one in encodings(tokenizer, of_rules) if special.isdisjoint(one)}
            product = Product(own, language_of(Rules(rules_json(f"root ::= {rules}"))))
            assert product.can_end() == bool(wanted), text
            if wanted:
                assert set(sequences(product)) == wanted, (text, rules)
    assert served > 30
