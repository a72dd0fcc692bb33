"""Decides which texts are already in NFC, so that a tokenizer's normalizer leaves them unchanged.

If NFC changes a text, tokenizing it again yields tokens that spell a different text, so no token
sequence that spells the original is proper. Whether a character may come next depends on the last
starter (a character of combining class 0) and on the class of the previous character:

- combining classes must not decrease between two starters;
- a character must not change together with that starter, unless it is blocked from it (Unicode
  Standard, 3.11). It is blocked if a character of its own class comes between them or, if it is a
  starter itself, if any character does.

Which characters change is determined with the NFC and NFD of the tokenizers library, so both always
use the same Unicode version.
"""

from __future__ import annotations

import itertools
import unicodedata
from typing import NamedTuple

import numpy as np
from tokenizers import normalizers

from proper_tokens.arrays import Bools, Int32s
from proper_tokens.codepoints import SIZE

_END = "\n"
# Hangul syllables: the first of every 28 composes with a trailing consonant, the others do not.
# The first syllable represents all of those that do.
_HANGUL, _SYLLABLES, _TRAILING = 0xAC00, 11172, 28
_OTHERS = range(1, _SYLLABLES)
STARTS = 256
"""A state is the kind of the last starter times `STARTS`, plus the class of the last character."""


class Normalization(NamedTuple):
    """The properties of each code point that matter for NFC.

    Attributes:
        combining: [SIZE] int32: the combining class; -1 for a character that NFC always changes.
        mark: [SIZE] int32: the kind of a character that may change together with a preceding
            starter; 0 for other characters.
        starter: [SIZE] int32: the kind of a starter; 0 for one that no later character changes.
        changes: [starter kinds, mark kinds] bool: whether NFC changes the two together.
    """

    combining: Int32s
    mark: Int32s
    starter: Int32s
    changes: Bools


def no_normalization(changed: str = "") -> Normalization:
    """The normalization of a tokenizer that does not normalize to NFC.

    Args:
        changed: characters that nevertheless no proper sequence spells.
    """
    nothing = np.zeros(SIZE, np.int32)
    combining = nothing.copy()
    combining[[ord(character) for character in changed]] = -1
    return Normalization(combining, nothing, nothing, np.zeros((1, 1), bool))


def normalization() -> Normalization:
    """The normalization of a tokenizer that normalizes to NFC."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    characters = [chr(code) for code in range(SIZE) if not 0xD800 <= code < 0xE000]
    composed = _each(nfc, characters)
    decomposed = _each(nfd, characters)
    combining = np.zeros(SIZE, np.int32)
    for character, after in zip(characters, composed, strict=True):
        if after != character:
            combining[ord(character)] = -1
    for character, value in _combining_classes(nfd, characters).items():
        if combining[ord(character)] == 0:
            combining[ord(character)] = value
    parts = {
        character: after
        for character, after in zip(characters, decomposed, strict=True)
        if after != character and combining[ord(character)] == 0
    }
    # A character that ends a decomposition may combine with the character before it.
    marks = sorted(
        {after[-1] for after in parts.values() if combining[ord(after[-1])] >= 0}
        | {chr(code) for code in np.flatnonzero(combining > 0)}
    )
    starters = sorted(
        {character for character, after in parts.items() if len(after) > 1}
        | {before for after in parts.values() for before in _each(nfc, [after[:-1]])}
    )
    starters = [
        one
        for one in starters
        if len(one) == 1 and combining[ord(one)] == 0 and ord(one) - _HANGUL not in _OTHERS
    ]
    changed = _changed_pairs(nfc, starters, marks)
    rows, starter_kind = np.unique(changed, axis=0, return_inverse=True)
    columns, mark_kind = np.unique(rows, axis=1, return_inverse=True)
    changes = np.zeros((len(rows) + 1, columns.shape[1] + 1), bool)
    changes[1:, 1:] = columns
    mark = np.zeros(SIZE, np.int32)
    mark[[ord(one) for one in marks]] = mark_kind.ravel() + 1
    starter = np.zeros(SIZE, np.int32)
    starter[[ord(one) for one in starters]] = starter_kind.ravel() + 1
    starter[_HANGUL : _HANGUL + _SYLLABLES : _TRAILING] = starter[_HANGUL]
    return Normalization(combining, mark, starter, changes)


def _each(normalizer: normalizers.Normalizer, texts: list[str]) -> list[str]:
    """Normalize each text on its own."""
    if _END in texts:
        return [text if text == _END else normalizer.normalize_str(text) for text in texts]
    return normalizer.normalize_str(_END.join(texts)).split(_END)


def _changed_pairs(nfc: normalizers.Normalizer, starters: list[str], marks: list[str]) -> Bools:
    """[starters, marks] bool: whether NFC changes the two together."""
    pairs = np.full((len(starters), len(marks), 3), ord(_END), np.uint32)
    pairs[:, :, 0] = np.array([ord(one) for one in starters])[:, None]
    pairs[:, :, 1] = np.array([ord(one) for one in marks])
    text = nfc.normalize_str(pairs.tobytes().decode("utf-32-le"))
    after = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    ends = np.flatnonzero(after == ord(_END))
    begins = np.append(0, ends[:-1] + 1)
    same = ends - begins == 2
    before = pairs.reshape(-1, 3)
    for i in range(2):
        same &= after[np.minimum(begins + i, len(after) - 1)] == before[:, i]
    return (~same).reshape(len(starters), len(marks))


def _combining_classes(nfd: normalizers.Normalizer, characters: list[str]) -> dict[str, int]:
    """The combining class of each character whose class is not 0.

    NFD moves a character in front of one with a higher class, so characters of known classes reveal
    the class of any other character.
    """
    highest = max(characters, key=unicodedata.combining)
    moved = _each(nfd, [highest + one for one in characters if one != _END])
    found = {highest: None} | {
        after[0]: None for after in moved if len(after) == 2 and after[1] == highest != after[0]
    }
    # The first character of each class, because all Unicode versions agree on its class.
    known: dict[int, str] = {}
    for one in sorted(found):
        known.setdefault(unicodedata.combining(one), one)
    known.pop(0, None)
    values = dict.fromkeys(found, unicodedata.combining(highest))
    ascending = sorted(known)
    for below, value in reversed(list(itertools.pairwise(ascending))):
        pairs = [known[value] + one for one in found]
        for one, pair, after in zip(found, pairs, _each(nfd, pairs), strict=True):
            if after != pair:
                values[one] = below
    return values
