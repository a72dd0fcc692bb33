"""The automata that depend only on the tokenizer."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from proper_tokens import merges, nfc, pretokenizer
from proper_tokens.arrays import AnyArray, Int32s, UInt32s
from proper_tokens.codepoints import SIZE, classes_of
from proper_tokens.kernels.packing import ADDED_BITS
from proper_tokens.kernels.plain_walk import Cuts, cuts_behind, nfc_behind
from proper_tokens.kernels.pushdown import no_pushdown
from proper_tokens.kernels.tables import IN_BYTES, IN_ONE, LENGTH, Tables
from proper_tokens.kernels.tries import LONGEST, TOKEN, trie_array
from proper_tokens.merges import MergeRelation, fill_row, relation_of
from proper_tokens.references import Reference, reference
from proper_tokens.tokenizer import SPACE, AddedToken, Unsupported, read

ROWS = 1024
"""How many rows of the merge relation are cached."""
CUTS = 64
"""For how many pre-tokenizer states the result of `plain_walk.cuts_behind` is cached."""

_ARRAYS = (
    "content", "begin", "plain", "marked", "odd", "byte_ids", "added", "is_raw", "goto",
    "pretokens", "torn", "may_end", "changes",
)  # fmt: skip


class Prepared:
    """The automata of a tokenizer. It is thread-safe.

    Attributes:
        tables: the tokenizer's part of the tables of a product.
        classes: [SIZE] int32: the class of each code point.
        characters: [classes, 5] int32: `Tables.characters` without the language's column.
        character_ids: [n, 2] int64: the code points that are a token of their own where BPE begins
            with characters, and these tokens.
        general: `pretokenizer.PreTokenizer.general`.
        letters: the characters that occur in the texts of added tokens.
        added: the added tokens that are text.
    """

    def __init__(self, arrays: Mapping[str, AnyArray]) -> None:
        relation = MergeRelation(*(arrays[f"relation.{name}"] for name in MergeRelation._fields))
        self.characters = arrays["characters"]
        self.character_ids = arrays["character_ids"]
        self.general = arrays["general"]
        made_by = np.full(len(relation.parts), -1, np.int64)
        made_by[relation.made[relation.made >= 0]] = np.flatnonzero(relation.made >= 0)
        is_inert = np.zeros(len(arrays["begin"]) - 1, bool)
        inert = np.concatenate((arrays["plain"], arrays["marked"]))[:, TOKEN]
        is_inert[inert[inert >= 0]] = True
        self.tables = Tables(
            **{name: arrays[name] for name in _ARRAYS},
            is_inert=is_inert,
            relation=relation,
            made_by=made_by,
            pushdown=no_pushdown(),
        )
        lengths = np.diff(np.append(arrays["class_begin"], SIZE))
        self.classes = np.repeat(arrays["class_value"], lengths)
        # Only added tokens have a text although nothing merges into them.
        is_added = np.repeat(relation.made == merges.UNREACHABLE, np.diff(arrays["begin"]))
        self.letters = sorted(set(arrays["content"][is_added].tobytes().decode(errors="ignore")))
        self.added = frozenset(arrays["added"].tolist())
        self._relation = reference(relation)
        self.row = functools.lru_cache(ROWS)(self._row)
        """The tokens that may follow a token within a pre-token, as a bit mask: [words] uint32."""
        self._cuts: OrderedDict[int, Cuts] = OrderedDict()
        self._nfc: Int32s | None = None
        self._lock = threading.Lock()

    def _row(self, token: int) -> UInt32s:
        row = np.empty_like(self.tables.relation.reachable)
        fill_row(self._relation, token, row)
        return row

    def cuts(self, tables: Reference, pretoken: int) -> Cuts:
        """The result of `plain_walk.cuts_behind`, which is the same for all constraints.

        Args:
            tables: those of any product of this tokenizer.
            pretoken: a state of the pre-tokenizer.
        """
        with self._lock:
            if pretoken in self._cuts:
                self._cuts.move_to_end(pretoken)
                return self._cuts[pretoken]
        cuts: Cuts = cuts_behind(tables, self.nfc(tables), pretoken)
        with self._lock:
            self._cuts[pretoken] = cuts
            if len(self._cuts) > CUTS:
                self._cuts.popitem(last=False)
        return cuts

    def nfc(self, tables: Reference) -> Int32s:
        """The result of `plain_walk.nfc_behind`, which is the same for all constraints."""
        if self._nfc is None:
            self._nfc = nfc_behind(tables)
        return self._nfc


def prepare(text: str) -> Prepared:
    """Prepare a tokenizer, which takes seconds for a large vocabulary.

    Args:
        text: the content of its `tokenizer.json`.

    Raises:
        Unsupported: it has a feature that is not modelled.
    """
    return Prepared(prepared_arrays(text))


def prepared_arrays(text: str) -> dict[str, AnyArray]:
    """The arrays of `Prepared`, by name.

    Raises:
        Unsupported: as `prepare`.
    """
    file = read(text)
    relation = relation_of(file)
    whole = np.flatnonzero(relation.made == merges.WHOLE).tolist()
    splitting = pretokenizer.pretokenizer_of(
        file.patterns, [(file.tokens[token] or b"").decode() for token in whole]
    )
    normalization = (
        nfc.normalization() if file.nfc else nfc.no_normalization(SPACE if file.characters else "")
    )
    character_ids = np.array(
        sorted((ord(one), token) for one, token in file.characters.items()), np.int64
    ).reshape(-1, 2)
    spelt_as = np.full(SIZE, IN_BYTES if file.characters else 0, np.int32)
    # Of the token of an ASCII character and that of its byte, only one is in `file.tokens`.
    spelt_as[character_ids[:, 0]] = np.where(character_ids[:, 0] < 0x80, 0, IN_ONE)
    characters = (
        splitting.classes, normalization.combining, normalization.mark, normalization.starter,
        spelt_as,
    )  # fmt: skip
    classes, samples = classes_of(characters)
    begin = np.flatnonzero(np.append(True, classes[1:] != classes[:-1]))
    tokens = [
        content if content and relation.made[token] != merges.UNREACHABLE else None
        for token, content in enumerate(file.tokens)
    ]
    inert = (normalization.combining == 0) & (normalization.mark == 0)
    inert[0xD800:0xE000] = False  # which stand for bytes that begin no whole character
    is_plain = [
        content is not None and bool(inert[ord(content.decode(errors="surrogateescape")[0])])
        for content in tokens
    ]
    contents = [content or b"" for content in tokens]
    is_raw = np.zeros(len(contents), bool)
    for added in file.added:
        contents[added.id] = added.content
        is_raw[added.id] = not (added.normalized and file.nfc)
    spelt = [(content, token) for token, content in enumerate(tokens) if content]
    marks = {token.content[:1] for token in file.added}
    even = [item for item in spelt if is_plain[item[1]]]
    is_marked = {token: any(mark in content for mark in marks) for content, token in even}
    return {f"relation.{name}": array for name, array in relation._asdict().items()} | {
        "class_begin": begin,
        "class_value": classes[begin],
        "characters": np.stack([values[samples] for values in characters], axis=1),
        "content": np.frombuffer(b"".join(contents), np.uint8).copy(),
        "begin": np.cumsum([0, *map(len, contents)]),
        "plain": _trie([item for item in even if not is_marked[item[1]]]),
        "marked": _trie([item for item in even if is_marked[item[1]]]),
        "odd": _trie([item for item in spelt if not is_plain[item[1]]]),
        "byte_ids": file.byte_ids,
        "character_ids": character_ids,
        "added": np.array([token.id for token in file.added if token.is_text], np.int64),
        "is_raw": is_raw,
        "goto": _added_automaton(file.added),
        "general": splitting.general,
        "pretokens": splitting.table,
        "torn": splitting.torn,
        "may_end": splitting.may_end,
        "changes": normalization.changes,
    }


def _added_automaton(added: tuple[AddedToken, ...]) -> Int32s:
    """The Aho-Corasick automaton of the added tokens' texts: `Tables.goto`.

    An added token is cut out of the text, so no other added token begins within it. Only a longer
    one that begins at the same place continues after its end.
    """
    words = {token.content for token in added}
    prefixes = sorted({word[:n] for word in words for n in range(len(word) + 1)} | {b""})
    prefixes.sort(key=len)
    if len(prefixes) > 1 << ADDED_BITS:
        raise Unsupported("its added tokens are too many")
    number = {prefix: i for i, prefix in enumerate(prefixes)}
    goto = np.zeros((len(prefixes), 257), np.int32)
    shorter = [0] * len(prefixes)
    for i, prefix in enumerate(prefixes):
        if prefix:
            # The failure link: the longest proper suffix that is also a prefix; none after a word.
            end = goto[shorter[number[prefix[:-1]]], prefix[-1]] if prefix[1:] else 0
            end = 0 if prefix in words else end
            shorter[i] = end
            goto[i] = goto[end]
            if prefix in words:
                goto[i, LENGTH] = len(prefix)
        for byte in range(256):
            after = number.get(prefix + bytes([byte]))
            if after is not None:
                goto[i, byte] = after
    return goto


def _trie(items: list[tuple[bytes, int]]) -> Int32s:
    items.sort()
    if any(len(text) > LONGEST for text, _ in items):
        raise Unsupported(f"it has a token of more than {LONGEST} bytes")
    content = np.frombuffer(b"".join(text for text, _ in items), np.uint8)
    ends = np.cumsum([0, *(len(text) for text, _ in items)])
    trie: Int32s = trie_array(content, ends, np.array([i for _, i in items]))
    return trie
