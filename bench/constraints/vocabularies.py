"""Tokenizers with the pre-tokenizers of published models, trained on what is installed here."""

from __future__ import annotations

import itertools
import json
import random
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from bench.published import GPT4, GPT4O, QWEN, SPACES

PATTERNS: dict[str, list[str]] = {
    "gpt2": [],
    "qwen2": [QWEN],
    "llama3": [GPT4],
    "gpt-oss": [GPT4O],
    "deepseek": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{SPACES}",
    ],
}
"""The regexes that split, by the model that they are published with; GPT-2's is its library's."""
ADDED = ["<think>", "</think>", "<tool_call>"]
SPECIAL = ["<|endoftext|>", "<|im_end|>"]
_SCRIPTS = (
    "abcdefghijklmnopqrstuvwxyz\u00e0\u00e2\u00e7\u00e9\u00e8\u00ea\u00ee\u00f4\u00fb\u00fc",
    "\u0430\u0431\u0432\u0433\u0434\u0435\u0436\u0437\u0438\u043a\u043b\u043c\u043d\u043e\u043f",
    "\u65e5\u672c\u8a9e\u4e2d\u6587\u5b57\u5b66\u751f\u56fd\u969b\u6771\u4eac\u4f1a\u793e\u6642",
    "\u0905\u0906\u0915\u0916\u0917\u091a\u091c\u0924\u0926\u0928\u092a\u092c\u092e\u093e\u094d",
    "\u0e01\u0e02\u0e04\u0e07\u0e08\u0e0a\u0e14\u0e15\u0e17\u0e19\u0e1a\u0e1b\u0e31\u0e34\u0e48",
    "\u0621\u0622\u0623\u0628\u062a\u062b\u062c\u062f\u0631\u0633\u0634\u0635\u064e\u064f\u0652",
)


def train(name: str, size: int, texts: Iterator[str]) -> str:
    """The `tokenizer.json` of a byte-level BPE tokenizer.

    Args:
        name: of its pre-tokenizer, one of `PATTERNS`.
        size: tokens, without the added ones.
        texts: to train on.
    """
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in PATTERNS[name]),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not PATTERNS[name]),
        ]
    )
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=128,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(ADDED)
    text: str = tokenizer.to_str()
    return text


def installed_texts(characters: int) -> Iterator[str]:
    """Invented words of several scripts, and what Python's packages here are written in."""
    rng = random.Random(3)
    for _ in range(3000):
        script = rng.choice(_SCRIPTS)
        words = ("".join(rng.choices(script, k=rng.randint(1, 9))) for _ in range(60))
        yield " ".join(words)
    folders = [Path(sysconfig.get_path(name)) for name in ("purelib", "stdlib")]
    files = sorted(itertools.chain(*(folder.rglob("*.py") for folder in folders)))
    rng.shuffle(files)
    for file in files:
        try:
            text = file.read_text()
        except (OSError, UnicodeDecodeError):
            continue
        yield text
        characters -= len(text)
        if characters < 0:
            return


def vocabulary(name: str, size: int, folder: Path) -> str:
    """A trained tokenizer, kept in a folder."""
    path = folder / f"{name}-{size}.json"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(train(name, size, installed_texts(1000 * size)))
    text = path.read_text()
    json.loads(text)
    return text
