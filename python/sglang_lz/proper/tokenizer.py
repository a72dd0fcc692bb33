"""Reads from a `tokenizer.json` everything that decides which token sequences are proper.

`read` refuses every feature that the automata of this package do not model. A tokenizer is
therefore either modelled exactly or refused with a reason.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regex that the pre-tokenizer `ByteLevel` splits by if `use_regex` is set."""


class Unsupported(ValueError):
    """A tokenizer, grammar or schema that cannot be served exactly; the message says why."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of a text before anything else happens to it.

    Attributes:
        id: its token id.
        content: its text, in UTF-8.
        is_text: whether an output may contain it as text. Special tokens are not text.
        normalized: whether it is matched after the text has been normalized.
    """

    id: int
    content: bytes
    is_text: bool
    normalized: bool


@dataclass(frozen=True)
class TokenizerFile:
    """A byte-level BPE tokenizer.

    Attributes:
        tokens: the bytes of each token, by id; None for added tokens and unused ids.
        merges: [M, 3] int64: left part, right part and result of each merge, by rank.
        patterns: the regexes that split a text into pre-tokens, each applied to the pieces that the
            previous one produced.
        nfc: whether a text is normalized to NFC.
        added: the added tokens.
    """

    tokens: list[bytes | None]
    merges: npt.NDArray[np.int64]
    patterns: tuple[str, ...]
    nfc: bool
    added: tuple[AddedToken, ...]
    ignore_merges: bool


def read(text: str) -> TokenizerFile:
    """Read a `tokenizer.json`.

    Raises:
        Unsupported: it has a feature that is not modelled.
    """
    content = json.loads(text)
    model = content["model"]
    if model.get("type") != "BPE":
        raise Unsupported(f"its model is {model.get('type')}, not BPE")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(name):
            raise Unsupported(f"its model has {name}")
    added = tuple(_added_tokens(content.get("added_tokens") or ()))
    vocab: dict[str, int] = model["vocab"]
    taken = {token.id for token in added}
    tokens: list[bytes | None] = [None] * (max([*vocab.values(), *taken]) + 1)
    for spelling, token in vocab.items():
        if token not in taken:
            tokens[token] = _bytes(spelling)
    if {token for token in tokens if token is not None and len(token) == 1} != {
        bytes([byte]) for byte in range(256)
    }:
        raise Unsupported("its vocabulary does not hold every byte")
    return TokenizerFile(
        tokens=tokens,
        merges=_merges(model["merges"], vocab),
        patterns=_patterns(content.get("pre_tokenizer")),
        nfc=_is_nfc(content.get("normalizer")),
        added=added,
        ignore_merges=bool(model.get("ignore_merges")),
    )


def byte_characters() -> dict[str, int]:
    """Map each character of a byte-level vocabulary to the byte it represents (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTES = byte_characters()


def _bytes(spelling: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in spelling)
    except KeyError:
        raise Unsupported(f"its token {spelling!r} is not spelt in bytes") from None


def _added_tokens(entries: list[dict[str, Any]] | tuple[()]) -> list[AddedToken]:
    tokens = []
    for entry in entries:
        content = entry["content"]
        if entry.get("single_word"):
            raise Unsupported(f"its added token {content!r} is a single_word")
        strips = bool(entry.get("lstrip") or entry.get("rstrip"))
        tokens.append(
            AddedToken(
                id=entry["id"],
                content=content.encode(),
                is_text=not entry.get("special") and not strips,
                normalized=bool(entry.get("normalized")),
            )
        )
    # Tokens that are not normalized are cut out first, even where others begin before them.
    late = [token for token in tokens if token.normalized]
    early = [token for token in tokens if not token.normalized]
    for left, right in itertools.product(late, early):
        meets = right.content in left.content or _overlap(left.content, right.content)
        if meets and (left.is_text or right.is_text):
            raise Unsupported(
                f"its added token {left.content.decode()!r} is normalized, and overlaps "
                f"{right.content.decode()!r}, which is not"
            )
    return tokens


def _overlap(left: bytes, right: bytes) -> bool:
    """Whether a proper suffix of `left` is a proper prefix of `right`."""
    return any(left.endswith(right[:size]) for size in range(1, min(len(left), len(right))))


def _merges(entries: list[Any], vocab: dict[str, int]) -> npt.NDArray[np.int64]:
    parts = [entry.split(" ") if isinstance(entry, str) else entry for entry in entries]
    try:
        return np.array(
            [(vocab[left], vocab[right], vocab[left + right]) for left, right in parts], np.int64
        ).reshape(-1, 3)
    except (KeyError, ValueError):
        raise Unsupported("a merge of its model names a token that does not exist") from None


def _patterns(entry: dict[str, Any] | None) -> tuple[str, ...]:
    parts = entry.get("pretokenizers", [entry]) if entry else []
    patterns = []
    for part in parts:
        if part["type"] == "Split":
            pattern = part["pattern"]
            if part.get("behavior") != "Isolated" or part.get("invert"):
                raise Unsupported("its pre-tokenizer Split is not Isolated")
            patterns.append(pattern.get("Regex") or re.escape(pattern["String"]))
        elif part["type"] == "ByteLevel" and part is parts[-1]:
            if part.get("add_prefix_space"):
                raise Unsupported("its pre-tokenizer ByteLevel has add_prefix_space")
            if part.get("use_regex", True):
                patterns.append(GPT2_PATTERN)
            return tuple(patterns)
        else:
            raise Unsupported(f"its pre-tokenizer has a {part['type']}")
    raise Unsupported("its pre-tokenizer does not end with ByteLevel")


def _is_nfc(entry: dict[str, Any] | None) -> bool:
    parts = entry.get("normalizers", [entry]) if entry else []
    for part in parts:
        if part["type"] != "NFC":
            raise Unsupported(f"its normalizer has a {part['type']}")
    return bool(parts)
