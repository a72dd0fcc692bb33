"""Reads from a `tokenizer.json` everything that decides which token sequences are proper.

`read` refuses every feature that the automata of this package do not model. A tokenizer is
therefore either modelled exactly or refused with a reason.

There are two kinds of BPE. Byte-level BPE merges bytes. BPE with byte fallback, as SentencePiece
trains it, merges characters. It spells a space as `SPACE`. A character that has no token becomes
the tokens of its UTF-8 bytes, which never merge. So a token of a byte occurs only within the
complete spelling of such a character. A text with a literal `SPACE` has the tokens of the text with
a space, and they spell the latter, so no proper sequence spells the former. Some of these
tokenizers put a space before a text. An output continues a text, so that space is left out here.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from proper_tokens.arrays import Int64s

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The regex that the pre-tokenizer `ByteLevel` splits by if `use_regex` is set."""
METASPACE_PATTERN = r" [^ ]*|[^ ]+"
"""How the pre-tokenizer `Metaspace` splits a text if `split` is set: each space begins a piece."""
SPACE = "\u2581"
"""How BPE with byte fallback spells a space."""


class Unsupported(ValueError):
    """A tokenizer, grammar or schema that cannot be served exactly; the message says why."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is cut out of a text before anything else happens to it.

    Attributes:
        id: its token id.
        content: the text that is cut out, in UTF-8.
        is_text: whether an output may contain it as text. Special tokens are not text.
        normalized: whether it is matched after the text has been normalized.
    """

    id: int
    content: bytes
    is_text: bool
    normalized: bool


@dataclass(frozen=True)
class TokenizerFile:
    """A BPE tokenizer.

    Attributes:
        tokens: the bytes of each token, by id; None for added tokens, unused ids, and tokens that
            stand in no text.
        merges: [M, 3] int64: left part, right part and result of each merge, by rank.
        patterns: the regexes that split a text into pre-tokens, each applied to the pieces that the
            previous one produced.
        nfc: whether a text is normalized to NFC.
        added: the added tokens.
        ignore_merges: whether a pre-token that is a token is never taken apart.
        characters: if BPE begins with characters, the token of each that has one; empty if it
            begins with bytes.
    """

    tokens: list[bytes | None]
    merges: Int64s
    patterns: tuple[str, ...]
    nfc: bool
    added: tuple[AddedToken, ...]
    ignore_merges: bool
    characters: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def byte_ids(self) -> Int64s:
        """[256] the token of each byte, or of the ASCII character that it is."""
        ids = np.zeros(256, np.int64)
        for token, content in enumerate(self.tokens):
            if content and len(content) == 1:
                ids[content[0]] = token
        for character, token in self.characters.items():
            if character.isascii():
                ids[ord(character)] = token
        return ids

    def symbols(self, content: bytes) -> list[int]:
        """The tokens that BPE begins with on the bytes of a text or of a token."""
        ids = self._byte_list
        if not self.characters:
            return [ids[byte] for byte in content]
        found = []
        for character in content.decode(errors="surrogateescape"):
            token = self.characters.get(character)
            if token is not None:
                found.append(token)
            else:
                found += [ids[byte] for byte in character.encode(errors="surrogateescape")]
        return found

    @cached_property
    def _byte_list(self) -> list[int]:
        ids: list[int] = self.byte_ids.tolist()
        return ids


def read(text: str) -> TokenizerFile:
    """Read a `tokenizer.json`.

    Raises:
        Unsupported: it has a feature that is not modelled.
    """
    content = json.loads(text)
    model = content["model"]
    if model.get("type") != "BPE":
        raise Unsupported(f"its model is {model.get('type')}, not BPE")
    for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise Unsupported(f"its model has {name}")
    if model.get("byte_fallback"):
        return _read_fallback(content)
    added = tuple(_added_tokens(content.get("added_tokens") or (), lambda entry: entry["content"]))
    vocab: dict[str, int] = model["vocab"]
    for one in added:
        written = one.content.decode()
        is_spelt = one.is_text or written in vocab
        if is_spelt and _BYTES.keys() >= set(written) and _bytes(written) != one.content:
            raise Unsupported(f"its added token {written!r} is decoded to another text")
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


def _read_fallback(content: dict[str, Any]) -> TokenizerFile:
    """Read BPE with byte fallback."""
    model = content["model"]
    vocab: dict[str, int] = model["vocab"]
    if model.get("ignore_merges"):
        raise Unsupported("its model has byte_fallback and ignore_merges")
    if not _BYTE_TOKENS.keys() <= vocab.keys():
        raise Unsupported(
            "its model has byte_fallback, but its vocabulary does not hold every byte"
        )
    if SPACE not in vocab:
        raise Unsupported(f"its model has byte_fallback, but its vocabulary does not hold {SPACE}")
    is_replaced, is_prepended = _spaces_of_normalizer(content.get("normalizer"))
    patterns, is_metaspace, is_repeated = _spaces_of_pretokenizer(
        content.get("pre_tokenizer"), is_replaced=is_replaced
    )
    if not is_replaced and not is_metaspace:
        raise Unsupported(f"its model has byte_fallback, but nothing makes a space {SPACE}")

    def text_of(entry: dict[str, Any]) -> str | None:
        """The text that an added token is cut out of; None if no text holds it."""
        text: str = entry["content"]
        if entry.get("normalized"):  # so is the text that it is looked for with
            text = SPACE * is_prepended + text
            text = text.replace(SPACE, " ") if is_replaced else text
        return None if SPACE in text else text

    def is_added(entry: dict[str, Any]) -> bool:
        """Whether it is not merely one of the other tokens: Gemma's list has tokens of spaces."""
        return bool(entry.get("special")) or text_of(entry) is not None

    entries = content.get("added_tokens") or ()
    added = tuple(_added_tokens(entries, text_of))
    merges = _merges(model["merges"], vocab)
    if np.isin(merges, [vocab[spelling] for spelling in _BYTE_TOKENS]).any():
        raise Unsupported("a merge of its model has the token of a byte")
    for entry in entries:
        text = entry["content"]
        if text in _BYTE_TOKENS:
            raise Unsupported(f"its added token {text} is that of a byte")
        is_made = len(text) == 1 or entry["id"] in merges[:, 2]
        if is_made and is_added(entry) and text_of(entry) != text.replace(SPACE, " "):
            raise Unsupported(f"BPE may make its added token {text!r} where it is not cut out")
    if len({one.content for one in added}) < len(added):
        raise Unsupported("two of its added tokens are cut out of the same text")
    for one in added:
        if one.is_text and (is_prepended or is_repeated):
            raise Unsupported(f"it puts a space behind its added token {one.content.decode()!r}")
    characters = {
        " " if spelling == SPACE else spelling: token
        for spelling, token in vocab.items()
        if len(spelling) == 1 and spelling != " "
    }
    taken = {entry["id"] for entry in entries if is_added(entry)}
    tokens: list[bytes | None] = [None] * (max([*vocab.values(), *taken]) + 1)
    for spelling, token in vocab.items():
        byte = _BYTE_TOKENS.get(spelling)
        if token in taken or " " in spelling:
            continue
        if byte is None:
            tokens[token] = spelling.replace(SPACE, " ").encode()
        elif byte >= 0x80 or chr(byte) not in characters:
            tokens[token] = bytes([byte])
    return TokenizerFile(
        tokens=tokens,
        merges=merges,
        patterns=patterns,
        nfc=False,
        added=added,
        ignore_merges=False,
        characters=characters,
    )


def byte_characters() -> dict[str, int]:
    """Map each character of a byte-level vocabulary to the byte it represents (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + i): byte for i, byte in enumerate(others)
    }


_BYTES = byte_characters()
_BYTE_TOKENS = {f"<0x{byte:02X}>": byte for byte in range(256)}


def _bytes(spelling: str) -> bytes:
    try:
        return bytes(_BYTES[character] for character in spelling)
    except KeyError:
        raise Unsupported(f"its token {spelling!r} is not spelt in bytes") from None


def _added_tokens(
    entries: list[dict[str, Any]] | tuple[()], text_of: Callable[[dict[str, Any]], str | None]
) -> list[AddedToken]:
    """The added tokens, given the text that each is cut out of, or None."""
    tokens = []
    for entry in entries:
        content = text_of(entry)
        if content is None:
            continue
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


def _merges(entries: list[Any], vocab: dict[str, int]) -> Int64s:
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


def _spaces_of_normalizer(entry: dict[str, Any] | None) -> tuple[bool, bool]:
    """Whether the normalizer of BPE with byte fallback replaces spaces, and prepends one."""
    is_replaced = is_prepended = False
    for part in entry.get("normalizers", [entry]) if entry else []:
        kind = part["type"]
        if kind == "Prepend" and part["prepend"] == SPACE and not is_prepended:
            is_prepended = True
        elif kind == "Replace" and part["pattern"] == {"String": " "} and part["content"] == SPACE:
            is_replaced = True
        else:
            raise Unsupported(f"its model has byte_fallback, and its normalizer has a {kind}")
    return is_replaced, is_prepended


def _spaces_of_pretokenizer(
    entry: dict[str, Any] | None, *, is_replaced: bool
) -> tuple[tuple[str, ...], bool, bool]:
    """The regexes that the pre-tokenizer of BPE with byte fallback splits by, whether it replaces
    spaces, and whether it prepends one to each part of a text, and not to the first alone."""
    if entry and entry["type"] == "Sequence" and len(entry["pretokenizers"]) == 1:
        entry = entry["pretokenizers"][0]
    if entry is None:
        return (), False, False
    kind = entry["type"]
    if kind == "Metaspace" and entry["replacement"] == SPACE:
        patterns = () if entry.get("split") is False else (METASPACE_PATTERN,)
        is_never = entry.get("add_prefix_space") is False
        return patterns, True, not is_never and entry.get("prepend_scheme") in (None, "always")
    # Gemma's splits by spaces, of which its normalizer leaves none.
    is_idle = kind == "Split" and entry["pattern"] == {"String": " "} and not entry.get("invert")
    if is_idle and is_replaced:
        return (), False, False
    raise Unsupported(f"its model has byte_fallback, and its pre-tokenizer has a {kind}")


def _is_nfc(entry: dict[str, Any] | None) -> bool:
    parts = entry.get("normalizers", [entry]) if entry else []
    for part in parts:
        if part["type"] != "NFC":
            raise Unsupported(f"its normalizer has a {part['type']}")
    return bool(parts)
