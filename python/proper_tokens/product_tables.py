"""The tables of a product: those of a tokenizer joined with a language."""

from __future__ import annotations

import numpy as np

from proper_tokens.arrays import AnyArray, Bools, Int32s, Int64s, UInt64s
from proper_tokens.codepoints import SIZE, classes_of, decoder_of, reachable_classes
from proper_tokens.kernels.packing import NODE_BITS
from proper_tokens.kernels.tables import IN_BYTES, Tables
from proper_tokens.language import Language
from proper_tokens.prepared import Prepared
from proper_tokens.tokenizer import Unsupported


def tables_of(prepared: Prepared, language: Language) -> Tables:
    """The tables of a product, without those of a pushdown automaton.

    Raises:
        Unsupported: the UTF-8 decoder has too many nodes.
    """
    letters = np.array([ord(letter) for letter in prepared.letters], np.int64)
    is_letter = np.zeros(SIZE, np.int32)
    is_letter[letters] = np.arange(1, len(letters) + 1)
    is_letter[0xD800:0xE000] = -1  # no other character may be in a class of surrogates
    classes, samples = classes_of([prepared.classes, language.classes, is_letter])
    decoder = decoder_of(classes)
    if len(decoder) > 1 << NODE_BITS:
        raise Unsupported("it distinguishes too many characters")
    reach = reachable_classes(decoder, len(samples))
    spelt, symbols = _spelt(prepared, samples)
    spelling = np.zeros_like(spelt)
    spelling[classes[letters]] = spelt[classes[letters]]
    in_language = language.classes[samples]
    properties = prepared.characters[prepared.classes[samples]]
    kinds = properties[:, 0]
    # Any other character may be followed by less, or by the beginning of an added token.
    is_open = (properties[:, 1:4] == 0).all(axis=1) & (spelling[:, 0] == 0)
    is_in_bytes = properties[:, 4] == IN_BYTES
    has_spelling = spelt[:, 0] > 0  # surrogates have none
    return prepared.tables._replace(
        decoder=decoder,
        reach=reach,
        can=_accepted(language.table >= 0, in_language),
        takes=_accepted((prepared.tables.pretokens >= 0).transpose(0, 2, 1), kinds),
        language=language.table,
        accepts=language.accepts,
        distance=language.distance,
        characters=np.concatenate((in_language[:, None], properties), axis=1),
        spelling=spelling,
        samples=symbols.astype(np.int32),
        leading=_leading(
            2 * in_language.astype(np.int64) + is_in_bytes,
            kinds,
            prepared.general,
            is_open & has_spelling,
            has_spelling,
        ),
    )


def _spelt(prepared: Prepared, samples: Int64s) -> tuple[Int32s, AnyArray]:
    """What `Tables.spelling` and `Tables.samples` hold of these characters, all spelt out."""
    spelt = np.zeros((len(samples), 5), np.int32)
    for k, code in enumerate(samples.tolist()):
        content = chr(code).encode(errors="ignore")  # surrogates have no spelling
        spelt[k, : len(content) + 1] = [len(content), *content]
    symbols = np.concatenate((spelt[:, :1], prepared.tables.byte_ids[spelt[:, 1:]]), axis=1)
    own = prepared.character_ids
    _, at, which = np.intersect1d(samples, own[:, 0], return_indices=True)
    symbols[at, 0], symbols[at, 1] = 1, own[which, 1]
    return spelt, symbols


def _accepted(takes: Bools, columns: Int32s) -> UInt64s:
    """The classes of characters that an automaton accepts in a state, as bits: [..., words].

    Args:
        takes: [..., columns] bool: whether there is a transition.
        columns: [classes] the column of each class.
    """
    found = np.zeros((*takes.shape[:-1], -(-len(columns) // 64)), np.uint64)
    for k, c in enumerate(columns.tolist()):
        found[..., k >> 6][takes[..., c]] |= np.uint64(1 << (k & 63))
    return found


def _leading(
    places: Int64s, kinds: Int32s, general: Int32s, is_open: Bools, has_spelling: Bools
) -> Int64s:
    """The classes that lead for all others (`Tables.leading`).

    Characters that are alike to the language and the pre-tokenizer may still differ in what they
    allow next. A character that NFC never changes, and in which no added token begins, allows
    everything, so one of them leads for all that are alike and spelt in bytes, or not.

    Args:
        places: [classes] the class in the language, and whether it is spelt in bytes.
        kinds: [classes] the class in the pre-tokenizer; `general`: `Prepared.general`.
        is_open: [classes] whether such a character allows everything.
        has_spelling: [classes] whether it is a character.
    """
    general_kinds = general[kinds]
    # One that occurs in no whole token allows more than those that do.
    is_general = is_open & (kinds == general_kinds)
    places = places * len(general)
    is_led = np.isin(places + general_kinds, (places + general_kinds)[is_general])
    alike = places + np.where(is_led, general_kinds, kinds)
    openest = np.concatenate((np.flatnonzero(is_general), np.flatnonzero(is_open & ~is_general)))
    first_open = np.unique(alike[openest], return_index=True)
    is_leading = has_spelling & ~np.isin(alike, first_open[0])
    is_leading[openest[first_open[1]]] = True
    return np.flatnonzero(is_leading)
