"""Hold proper tokens to the tokenizers themselves, on pairs and sequences at random.

Pairs: which two tokens stay apart, against the tokenizer without its pre-tokenizer. Sequences: the
encoding of a text at random must be accepted, and the same with one token replaced, put in or split
iff the tokenizer makes it of the text that it spells. Accepted walks at random must retokenize to
themselves, and must never end dead. Half of the texts are mostly space, digits, quotes and marks.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from proper_tokens import merges
from proper_tokens.language import language_of
from proper_tokens.prepared import Prepared, prepared_arrays
from proper_tokens.product import START, Product
from proper_tokens.references import reference
from proper_tokens.rules import ANY_TEXT, Rules
from proper_tokens.tokenizer import read

HARD = " \n\t\r'0123,.-sdtSé日a\u0301\u0323\u093e\uac00\u11a8"
PAIRS, SEQUENCES, WALKS = 150_000, 4_000, 60


def pairs(text: str) -> dict[str, int]:
    """Pairs of tokens: how many, how many the merges break, and how many are told wrongly."""
    file = read(text)
    relation = merges.relation_of(file)
    content = json.loads(text)
    if not content["model"].get("byte_fallback"):
        content["normalizer"] = None
        content["pre_tokenizer"] = {
            "type": "ByteLevel", "add_prefix_space": False, "use_regex": False,
            "trim_offsets": False,
        }  # fmt: skip
    content["added_tokens"] = []
    content["model"]["ignore_merges"] = False
    plain = Tokenizer.from_str(json.dumps(content))
    rng = random.Random(text[:1000])
    usable = np.flatnonzero(relation.made != merges.UNREACHABLE).tolist()
    seen: dict[tuple[int, int], str] = {}
    parts = [(int(x), int(y)) for x, y in relation.parts]
    while len(seen) < PAIRS:
        pair = rng.choice(parts)
        if rng.random() < 0.7:
            pair = (rng.choice(usable), rng.choice(usable))
        try:
            seen[pair] = b"".join(file.tokens[t] or b"" for t in pair).decode()
        except UnicodeDecodeError:
            continue
        if min(relation.made[list(pair)]) == merges.UNREACHABLE:
            del seen[pair]
    found = plain.encode_batch(list(seen.values()), add_special_tokens=False)
    apart = [one.ids == list(pair) for pair, one in zip(seen, found, strict=True)]
    compiled_relation = reference(relation)
    told = [bool(merges.stay_apart(compiled_relation, p, t)) for p, t in seen]
    return {
        "pairs": len(seen),
        "broken_pairs": apart.count(False),
        "wrong_pairs": sum(a != b for a, b in zip(apart, told, strict=True)),
    }


def sequences(text: str, corpus: str) -> dict[str, int]:
    """Sequences: how many, how many are proper, how many are told wrongly; and walks."""
    tokenizer = Tokenizer.from_str(text)
    specials = {
        token["content"]: token["id"]
        for token in json.loads(text)["added_tokens"]
        if token["special"]
    }
    words = sorted(set(tokenizer.get_vocab().values()) - set(specials.values()))
    product = Product(Prepared(prepared_arrays(text)), language_of(Rules(ANY_TEXT)))
    rng = random.Random(len(text))
    strings = []
    for i in range(SEQUENCES // 2):
        size = rng.randint(1, 12)
        if i % 2:
            strings.append("".join(rng.choices(HARD, k=size)))
        else:
            at = rng.randrange(len(corpus) - 20)
            strings.append(corpus[at : at + size])
    right = [one.ids for one in tokenizer.encode_batch(strings, add_special_tokens=False)]
    checked = []
    for tokens in right:
        checked += [tokens, changed(tokens, right, words, tokenizer, rng)]
    decoded = tokenizer.decode_batch(checked, skip_special_tokens=False)
    again = tokenizer.encode_batch(decoded, add_special_tokens=False)
    proper = wrong = 0
    for tokens, string, one in zip(checked, decoded, again, strict=True):
        is_proper = (
            one.ids == tokens
            and "\ufffd" not in string
            and not any(special in string for special in specials)
        )
        proper += is_proper
        wrong += is_proper != accepts(product, tokens)
    dead = improper = 0
    for _ in range(WALKS):
        tokens, ended = walk(product, rng)
        string = tokenizer.decode(tokens, skip_special_tokens=False)
        dead += not ended
        improper += tokenizer.encode(string, add_special_tokens=False).ids != tokens
    return {
        "sequences": len(checked),
        "proper_sequences": proper,
        "wrong_sequences": wrong,
        "walks": WALKS,
        "dead_walks": dead,
        "improper_walks": improper,
    }


def changed(
    tokens: list[int], others: list[list[int]], words: list[int], tokenizer: Any, rng: Any
) -> list[int]:
    """A sequence with one token split, put in or replaced by another one of `words`."""
    near = list(tokens)
    at = rng.randrange(len(near))
    content = tokenizer.id_to_token(near[at]) or ""
    how = rng.randrange(3)
    if how == 0 and len(content) > 1:
        cut = rng.randrange(1, len(content))
        parts = [tokenizer.token_to_id(part) for part in (content[:cut], content[cut:])]
        near[at : at + 1] = [part for part in parts if part is not None]
    elif how == 1:
        near.insert(at, rng.choice(rng.choice(others)))
    else:
        near[at] = rng.choice(words)
    return near


def accepts(product: Product, tokens: list[int]) -> bool:
    """Whether a product allows a sequence, each token by its mask, and its end."""
    state = START
    for token in tokens:
        is_allowed = bool(product.mask(state)[token >> 5] >> np.uint32(token & 31) & 1)
        after = product.next(state, token)
        if after is None or not is_allowed:
            return False
        state = after
    return product.may_end(state)


def walk(product: Product, rng: random.Random) -> tuple[list[int], bool]:
    """A sequence at random of what may come next, and whether it ended where a text may end."""
    state = START
    tokens: list[int] = []
    for _ in range(200):
        bits = np.unpackbits(product.mask(state).view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits)
        if product.may_end(state) and (len(tokens) > 40 or not len(allowed)):
            return tokens, True
        if not len(allowed):
            return tokens, False
        tokens.append(int(rng.choice(allowed)))
        after = product.next(state, tokens[-1])
        assert after is not None
        state = after
    return tokens, False
