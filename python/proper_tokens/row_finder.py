"""Finds the tokens after which the text can still end, for one packed state at a time.

Two rows of bits per packed state are enough: A, the tokens that are alive after a cut that the
merges make, and B, those that are alive after a cut that they do not make. After a last token whose
row in the merge relation is R, the allowed tokens are A & R | B & ~R. A few tokens begin within a
character, or with a character that NFC may change together with the text before it. Those are kept
separately for each state of NFC.

Nearly all other tokens take a fast path (`kernels.plain_walk`). Tokens that lead to the same state
share one search. The fast path excludes tokens in which the text of an added token begins and,
within such a text, tokens that continue it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proper_tokens.arrays import Int32s, Int64s, UInt32s
from proper_tokens.kernels import masks, plain_walk, pushdown, tries, walk
from proper_tokens.kernels.memo import grown, new_memo
from proper_tokens.kernels.packing import unpack, without_added
from proper_tokens.kernels.results import FULL, SPENT
from proper_tokens.kernels.tables import CROWDED, Tables
from proper_tokens.language import Language
from proper_tokens.prepared import Prepared
from proper_tokens.product_tables import tables_of
from proper_tokens.references import reference
from proper_tokens.tokenizer import Unsupported

MOST_BYTES = 48 << 20
"""The most memory for everything else that belongs to a constraint."""
MOST_ENTRIES = 1 << 19
"""The most entries of a memo."""


class Spent(Unsupported):
    """A search exceeded its limit of steps or memory, or the text exceeded the limit of nesting."""

    def __init__(self, problem: str = "finding its next tokens takes too much time or memory"):
        super().__init__(problem)


@dataclass
class Rows:
    """The tokens that are alive in a packed state, that is, those after which the text can still
    end.

    Attributes:
        apart, broken: [words] uint32: A and B.
        odd: by state of NFC: the tokens that are kept separately, times four, plus 1 if they are
            alive after a cut that the merges make and 2 if after one that they do not make.
    """

    apart: UInt32s
    broken: UInt32s
    odd: dict[int, Int64s] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return 2 * self.apart.nbytes + sum(odd.nbytes for odd in self.odd.values()) + 256


class RowFinder:
    """Computes the rows of a product. Only one thread at a time may call what searches.

    Attributes:
        tables: the tables of the product; `reference`: a reference to them.
        frozen: a reference to the same tables, to which no configuration is added.
        memo: what searches have found; `work`: its `Memo.work`.
        is_pushdown: whether the language is recursive.

    Args, Raises: as `product.Product`.
    """

    def __init__(self, prepared: Prepared, language: Language) -> None:
        self._prepared = prepared
        self.tables = tables_of(prepared, language)
        self.work = np.zeros(3, np.int64)
        self.memo = new_memo(1 << 12, self.work)
        self._own_bytes = _bytes_of(self.tables, prepared.tables)
        self._room_bytes = 0
        self.is_pushdown = len(language.calls) > 0
        if self.is_pushdown:
            regular = self.tables
            self.tables = pushdown.with_pushdown(regular, language.calls, self.work)
            self._room_bytes = _bytes_of(self.tables, regular)
            self._room_bytes += sum(array.nbytes for array in self.tables.pushdown)
        if self._own_bytes + self._room_bytes > MOST_BYTES:
            raise Unsupported(f"it needs more than {MOST_BYTES >> 20} MB")
        self.reference = reference(self.tables)
        self.frozen = self._with_used(np.array([0, 0, 0, 1]))

    def _with_used(self, used: Int64s) -> Any:
        """A reference to the tables with another count of what is used (`Pushdown.used`)."""
        counted = self.tables.pushdown._replace(used=used)
        return reference(self.tables._replace(pushdown=counted))

    def is_unknown(self, place: tuple[int, int, int, int]) -> bool:
        """Whether a token may lead to a configuration that is not known yet.

        Args:
            place: packed state, state of NFC, last token, and the token.
        """
        if not self.is_pushdown:
            return False
        used = np.array([0, 0, 0, 1])  # of this call alone, because threads share that of `frozen`
        walk.step(self._with_used(used), *place)
        return bool(used[CROWDED] > 1)

    @property
    def bytes(self) -> int:
        """The size in bytes of everything but the rows."""
        configurations = int(self.used * self._room_bytes)  # the rest was never written
        memo = sum(array.nbytes for array in self.memo)
        return self._own_bytes + configurations + memo

    @property
    def used(self) -> float:
        """The share of the room for configurations that is used."""
        if not self.is_pushdown:
            return 0.0
        found = self.tables.pushdown
        rooms = len(found.stacks), len(found.depth), len(found.items)
        used = found.used[:CROWDED].tolist()
        return max(part / room for part, room in zip(used, rooms, strict=True))

    def is_crowded(self) -> bool:
        """Whether there was no room for a configuration since the last call."""
        used = self.tables.pushdown.used
        is_crowded = bool(used[CROWDED])
        used[CROWDED] = 0
        return is_crowded

    def compile_all(self) -> None:
        """Make numba compile what hardly any rows need."""
        self.memo = grown(self.memo)
        self._live(masks.live_added, 0, 0)
        pushdown.begin_pushdown(self.reference)
        self.is_crowded()

    def behind(self, packed: int, nfc: int, allowed: UInt32s) -> Iterator[Int64s]:
        """The states that the tokens in a mask lead to, as `masks.states_behind` returns them."""
        if not unpack(packed)[2]:
            base = without_added(packed)  # the few tokens that continue one are met later
            found = plain_walk.walk_plain(self.reference, *self._plain(base), base)
            yield masks.states_behind(found, allowed)
        for trie in (self.tables.marked, self.tables.odd):
            found = walk.walk_trie(self.reference, trie, packed, nfc)
            yield masks.states_behind(found, allowed)

    def _plain(self, packed: int) -> tuple[plain_walk.Cuts, Int32s]:
        """The arguments of the fast path for plain tokens, for a state between two characters."""
        _, pretoken, _, _, _ = unpack(packed)
        return self._prepared.cuts(self.reference, pretoken), self._prepared.nfc(self.reference)

    def rows(self, packed: int) -> Rows:
        """The rows of a packed state, without those tokens that depend on the state of NFC.

        Raises:
            Spent: the search needs too many steps or too much memory.
        """
        apart, broken = np.zeros((2, len(self.tables.relation.reachable)), np.uint32)
        _, _, is_within, _, _ = unpack(packed)
        if not is_within:  # within a character, all tokens are odd
            base = without_added(packed)
            self._live(masks.live_plain, *self._plain(base), base, apart, broken)
            continuing = self._continuing(packed) if packed != base else []
            for trie in continuing:  # the fast path's results do not hold for these tokens
                tokens = trie[trie[:, tries.TOKEN] >= 0, tries.TOKEN]
                bits = np.zeros_like(apart)
                masks.set_bits(bits, 4 * tokens.astype(np.int64) + 3, 3)
                apart &= ~bits
                broken &= ~bits
            for trie in (self.tables.marked, *continuing):
                live = self._live(masks.live_tokens, trie, packed, 0)
                masks.set_bits(apart, live, 1)
                masks.set_bits(broken, live, 2)
        return Rows(apart, broken)

    def _continuing(self, packed: int) -> list[Int32s]:
        """The parts of the trie of plain tokens that may continue the unfinished added token.

        Any other plain token ends the unfinished added token with its first byte, and no added
        token begins within it.
        """
        _, _, _, _, added = unpack(packed)
        trie = self.tables.plain
        parts = []
        for i in np.flatnonzero(trie[:, tries.DEPTH] == 1).tolist():
            if self.tables.goto[added, trie[i, tries.BYTE]]:
                part = trie[i : trie[i, tries.SKIP]].copy()
                part[:, tries.SKIP] -= i
                parts.append(part)
        return parts

    def odd(self, packed: int, nfc: int) -> Int64s:
        """`Rows.odd` of a packed state and a state of NFC; the error of `rows`."""
        odd = self._live(masks.live_tokens, self.tables.odd, packed, nfc)
        if len(self.tables.added):
            odd = np.concatenate((odd, self._live(masks.live_added, packed, nfc)))
        return odd

    def _live(self, kernel: Callable[..., Int64s], *arguments: Any) -> Int64s:
        has_room = True
        while True:
            live = kernel(self.reference, reference(self.memo), *arguments)
            if self.is_crowded():
                self.memo = new_memo(1 << 12, self.work)  # what it found may be wrong
                raise Spent
            problem = live[:1].tolist()
            if problem == [SPENT]:
                raise Spent
            if problem != [FULL]:
                return live
            if len(self.memo.packed) < MOST_ENTRIES:
                self.memo = grown(self.memo)
            elif has_room:
                self.memo = new_memo(MOST_ENTRIES, self.work)
                has_room = False
            else:
                raise Spent


def _bytes_of(tables: Tables, others: Tables) -> int:
    """The size of the arrays of tables that are not in other tables, in bytes."""
    return sum(
        array.nbytes
        for name, array in tables._asdict().items()
        if isinstance(array, np.ndarray) and array is not getattr(others, name)
    )
