"""CartesianMerge, lazily: the tokens that may come next, by walks through all automata at once.

A state of the product is (state of the language, state of the pre-tokenizer, character under way
and the flag of its first byte, added token under way; what NFC must know; last token). Its first
four parts are packed into one number, its `text`. A token may come next iff the walk of its bytes
meets no end in any automaton, the cut before it being `APART` or `BROKEN` by the merge relation,
and a state lies behind it from which the text can end: so no decoding runs into a dead end.

Whether the text can end is a search that goes to the nearest accepting state first, and remembers
what it finds. The search behind a token t that the pre-tokenizer certainly cuts off does not depend
on the token before t: what is open after a cut that the merges do not make is open after any cut.
One answer then counts for all last tokens.

So for each text two rows of bits are enough: A, the tokens that live after a cut that the merges
make, and B, those that live after one that they do not. The tokens after a last token with the row
R of the merge relation are A & R | B & ~R. Tokens that begin within a character, or with one that
NFC may change with what stands before, are few; they are kept apart, by state of NFC.

Nearly all other tokens take a short way. What the pre-tokenizer and NFC make of them does not
depend on the language, and is computed once for each state of the pre-tokenizer; what the language
makes of them is a walk through its automaton alone. Where both lead to the same place, one search
counts for all. Left out are tokens in which the text of an added token begins, and places within
one.

Source: Tran-Thien (CartesianMerge); Vieira et al., arXiv 2506.07956.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_lz.proper import kernels
from sglang_lz.proper.codepoints import classes_of, decoder_of, reachable_classes
from sglang_lz.proper.language import Language
from sglang_lz.proper.prepared import Cuts, Prepared
from sglang_lz.proper.tokenizer import Unsupported

NOTHING = -1
"""In place of the last token, at the start of the text and behind an added token."""
BYTES_PER_LANGUAGE = 32 << 20
MOST_WARM = 4096
"""How many states are looked at in the background."""

# What a scheduler asks of a new state is computed here, while its own thread goes on.
_WORKERS = ThreadPoolExecutor(4, thread_name_prefix="proper-tokens")


class State(NamedTuple):
    """Where a text stands: the packed states of its automata, the state of NFC, the last token."""

    text: int
    nfc: int
    last: int


START = State(0, 0, NOTHING)


@dataclass
class _Rows:
    """The tokens that live after a text.

    Attributes:
        apart, broken: [words] uint32: A and B.
        odd: by state of NFC: the tokens that are kept apart, times four, plus 1 and 2 where they
            live after a cut that the merges make and do not make.
    """

    apart: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint32]
    odd: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return 2 * self.apart.nbytes + sum(odd.nbytes for odd in self.odd.values()) + 256


_Found = tuple[_Rows, npt.NDArray[np.int64]]


class Product:
    """The proper token sequences of a language. Threads may share it.

    Args:
        prepared: the tokenizer.
        language: the texts.

    Raises:
        Unsupported: there are too many beginnings of characters.
    """

    def __init__(self, prepared: Prepared, language: Language) -> None:
        self._prepared = prepared
        classes, samples = classes_of([prepared.classes, language.classes])
        decoder = decoder_of(classes)
        if len(decoder) > 1 << kernels.NODE_BITS:
            raise Unsupported("it tells too many characters apart")
        in_tokenizer, in_language = prepared.classes[samples], language.classes[samples]
        can = np.zeros((len(language.table), -(-len(samples) // 64)), np.uint64)
        for k, c in enumerate(in_language.tolist()):
            can[language.table[:, c] >= 0, k >> 6] |= np.uint64(1 << (k & 63))
        self._has_choice = (language.table[:, in_language] >= 0).sum(1) > 1
        kinds = prepared.characters[in_tokenizer, 0]
        pretokens = prepared.tables.pretokens
        takes = np.zeros((len(pretokens), pretokens.shape[2], can.shape[1]), np.uint64)
        for k, c in enumerate(kinds.tolist()):
            takes[..., k >> 6][pretokens[:, c] >= 0] |= np.uint64(1 << (k & 63))
        self._tables = prepared.tables._replace(
            decoder=decoder,
            reach=reachable_classes(decoder, len(samples)),
            can=can,
            takes=takes,
            language=language.table,
            accepts=language.accepts,
            distance=language.distance,
            characters=np.concatenate(
                (in_language[:, None], prepared.characters[in_tokenizer]), axis=1
            ),
            nearest=np.full((len(language.table), kernels.NEAREST), kernels.UNKNOWN, np.int64),
        )
        self._memo = kernels.new_memo(1 << 12)
        self._rows: OrderedDict[int, _Rows] = OrderedDict()
        self._bytes = 0
        self._filling = threading.Lock()  # of the memo: searches write into it
        self._keeping = threading.Lock()  # of the rows: never held for long
        self._expecting = threading.Lock()  # of the futures, likewise
        self._futures: dict[tuple[int, int], Future[_Found]] = {}
        self._is_stopped = False
        self.filled = 0
        """How many times rows were computed."""

    @property
    def words(self) -> int:
        """Words of a mask."""
        return len(self._prepared.tables.relation.reachable)

    def mask(self, state: State) -> npt.NDArray[np.uint32]:
        """The tokens that may come next but stop tokens, as bits: [words] uint32."""
        rows, odd = self._kept(state.text, state.nfc) or self._expected(state).result()
        mask = rows.apart.copy()
        tables = self._tables
        if state.last == NOTHING:
            kernels.set_bits(mask, odd, 1)
        else:
            kernels.combine(
                mask, rows.broken, self._prepared.row(state.last), odd, tables.relation, state.last
            )
        return mask

    def may_end(self, state: State) -> bool:
        """Whether the text may end in a state."""
        return bool(kernels.may_end(self._tables, state.text))

    def next(self, state: State, token: int) -> State | None:
        """The state behind a token; None if the token may not come there.

        It does not look whether the text can still end: `mask` does.
        """
        if not 0 <= token < len(self._prepared.tables.begin) - 1:
            return None
        text, nfc = kernels.step(self._tables, state.text, state.nfc, state.last, token)
        if text < 0:
            return None
        return State(int(text), int(nfc), NOTHING if token in self._prepared.added else token)

    @property
    def bytes(self) -> int:
        """Bytes of the rows that are kept; `BYTES_PER_LANGUAGE` at most."""
        return self._bytes

    def only(self, state: State) -> int | None:
        """The token that must come next, if there is only one, as far as that is soon known.

        Where the language allows characters of several classes, nobody waits for the mask.
        """
        language, _, node, _, _ = kernels.unpacked(state.text)
        if not node and self._has_choice[language]:
            return None
        mask = self.mask(state)
        words = np.flatnonzero(mask)
        if len(words) != 1 or mask[words[0]] & (mask[words[0]] - 1):
            return None
        return int(words[0]) * 32 + int(mask[words[0]]).bit_length() - 1

    def is_warm(self, state: State) -> bool:
        """Whether `mask` has what it needs for a state."""
        return self._kept(state.text, state.nfc) is not None

    def expect(self, state: State) -> None:
        """Begin to compute what `mask` needs for a state, in another thread."""
        if not self.is_warm(state):
            self._expected(state)

    def can_end(self) -> bool:
        """Whether the language has any proper sequence."""
        return self.may_end(START) or bool(self.mask(START).any())

    def warm_in_background(self) -> None:
        """Compute the rows of the states that tokens lead to, the nearest first, in a thread."""
        threading.Thread(target=self._warm, daemon=True).start()

    def stop(self) -> None:
        """End what goes on in the background."""
        self._is_stopped = True

    def _warm(self) -> None:
        seen = {(START.text, START.nfc)}
        order = [START]
        for state in order:
            full = self._bytes > BYTES_PER_LANGUAGE // 2
            if self._is_stopped or full or len(order) > MOST_WARM:
                return
            rows, odd = self._rows_of(state.text, state.nfc)
            either = rows.apart | rows.broken
            kernels.set_bits(either, odd, 3)
            for behind in self._behind(state, either):
                for text, nfc in behind.tolist():
                    if (text, nfc) not in seen:
                        seen.add((text, nfc))
                        order.append(State(text, nfc, NOTHING))

    def _behind(
        self, state: State, allowed: npt.NDArray[np.uint32]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Where the tokens in a mask lead: [n, 2] int64, text and state of NFC."""
        tables, text, nfc = self._tables, state.text, state.nfc
        plain = self._plain(text)
        if plain is None:
            yield kernels.texts_behind(tables, tables.plain, text, nfc, allowed)
        else:
            yield kernels.texts_behind_plain(tables, *plain, text, allowed)
        yield kernels.texts_behind(tables, tables.marked, text, nfc, allowed)
        yield kernels.texts_behind(tables, tables.odd, text, nfc, allowed)

    def _plain(self, text: int) -> tuple[Cuts, npt.NDArray[np.int32]] | None:
        """What the short way to the plain tokens needs; None where it does not lead to them."""
        _, pretoken, node, _, added = kernels.unpacked(text)
        if node or added:
            return None
        return self._prepared.cuts(self._tables, pretoken), self._prepared.nfc(self._tables)

    def _kept(self, text: int, nfc: int) -> _Found | None:
        with self._keeping:
            rows = self._rows.get(text)
            odd = None if rows is None else rows.odd.get(nfc)
            if rows is None or odd is None:
                return None
            self._rows.move_to_end(text)
            return rows, odd

    def _expected(self, state: State) -> Future[_Found]:
        key = state.text, state.nfc
        with self._expecting:
            if key not in self._futures:
                self._futures[key] = _WORKERS.submit(self._found, *key)
            return self._futures[key]

    def _found(self, text: int, nfc: int) -> _Found:
        try:
            return self._rows_of(text, nfc)
        finally:
            with self._expecting:
                del self._futures[text, nfc]

    def _rows_of(self, text: int, nfc: int) -> _Found:
        with self._filling:
            kept = self._kept(text, nfc)  # another thread may have filled them meanwhile
            if kept is not None:
                return kept
            rows = self._rows.get(text) or self._fill(text)
            odd = self._fill_odd(text, nfc)
            with self._keeping:
                if text in self._rows:
                    self._bytes -= self._rows.pop(text).size
                rows.odd[nfc] = odd
                self._rows[text] = rows
                self._bytes += rows.size
                while self._bytes > BYTES_PER_LANGUAGE and len(self._rows) > 1:
                    self._bytes -= self._rows.popitem(last=False)[1].size
            return rows, odd

    def _fill(self, text: int) -> _Rows:
        self.filled += 1
        apart, broken = np.zeros((2, self.words), np.uint32)
        _, _, is_within, _, _ = kernels.unpacked(text)
        if not is_within:  # within a character all tokens are odd
            tries = [self._tables.plain, self._tables.marked]
            plain = self._plain(text)
            if plain is not None:
                self._live(kernels.live_plain, *plain, text, apart, broken)
                tries = tries[1:]
            for trie in tries:
                live = self._live(kernels.live_tokens, trie, text, 0)
                kernels.set_bits(apart, live, 1)
                kernels.set_bits(broken, live, 2)
        return _Rows(apart, broken)

    def _fill_odd(self, text: int, nfc: int) -> npt.NDArray[np.int64]:
        odd = self._live(kernels.live_tokens, self._tables.odd, text, nfc)
        if len(self._tables.added):
            odd = np.concatenate((odd, self._live(kernels.live_added, text, nfc)))
        return odd

    def _live(
        self, kernel: Callable[..., npt.NDArray[np.int64]], *arguments: Any
    ) -> npt.NDArray[np.int64]:
        while True:
            live = kernel(self._tables, self._memo, *arguments)
            if live[:1].tolist() != [kernels.FULL]:
                return live
            self._memo = kernels.grown(self._memo)
