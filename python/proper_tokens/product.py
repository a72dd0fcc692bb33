"""CartesianMerge, lazily: finds the next tokens by walking through all automata at once.

A state of the product consists of the state of the language, the state of the pre-tokenizer, the
unfinished character and the flag of its first byte, the unfinished added token, the state of NFC,
and the last token. All but the last two are packed into one integer, the state's `packed`. A token
may come next iff all automata accept its bytes, where the cut before it is `APART` or `BROKEN`
according to the merge relation, and the text can still end from the state after it. So decoding
never runs into a dead end.

Whether it can end is nearly always decided by characters alone (`kernels.endings`), otherwise by a
search over tokens (`kernels.token_search`). All results are cached, and each state is visited once.
Searches count their steps, and a search that takes more than `STEPS` is abandoned.

The states of a recursive language are configurations of its pushdown automaton, which are added as
they are needed (`kernels.pushdown`). There can be infinitely many, so a search that finds no end
runs to its step limit and is abandoned. The result of a search that is not abandoned is exact.

Source: Tran-Thien (CartesianMerge); Vieira et al., arXiv 2506.07956.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from typing import Any, NamedTuple

import numpy as np

from proper_tokens.arrays import Int64s, UInt32s
from proper_tokens.kernels import masks, walk
from proper_tokens.kernels.memo import ALL_STEPS, STOP
from proper_tokens.kernels.memo import STEPS as STEPS_LEFT
from proper_tokens.kernels.packing import unpack
from proper_tokens.language import Language
from proper_tokens.prepared import Prepared
from proper_tokens.row_finder import RowFinder, Rows, Spent
from proper_tokens.threads import WORKERS, in_background, slow_thread
from proper_tokens.time_limits import Stopwatch, WaitLimit

NOTHING = -1
"""The last token of a state at the start of the text and after an added token."""
BYTES_PER_LANGUAGE = 32 << 20
"""The most memory for the rows of one constraint."""
MOST_DEPTH = 512
"""How deep a recursive rule may be nested."""
MOST_WARM = 1024
"""How many states are computed in the background."""
A_SECOND = 3_000_000
"""Steps that a search makes in about a second of processor time."""
SLICE = A_SECOND // 20
"""Steps after which a search moves to a slow thread."""
STEPS = 20 * SLICE
"""Steps after which a search is abandoned."""
_POLL = 0.002
"""Seconds between two checks of whether to wait longer. A result that is ready ends the wait at
once."""
# Limits concurrent searches of initial states: no running request waits for one of them yet, and
# hundreds of clients may request them.
_FIRST = threading.BoundedSemaphore(2)


class Late(Exception):
    """A mask was not ready in time."""


class State(NamedTuple):
    """The state after a text: what `packing.pack` packs, the state of NFC, and the last token."""

    packed: int
    nfc: int
    last: int


START = State(0, 0, NOTHING)


_Found = tuple[Rows, Int64s]
"""The rows of a packed state, and `Rows.odd` of a state of NFC."""


class Product:
    """The proper token sequences of a language. It is thread-safe.

    Args:
        prepared: the tokenizer.
        language: the automaton of the texts.

    Raises:
        Unsupported: the UTF-8 decoder has too many nodes, or the tables need too much memory.
    """

    def __init__(self, prepared: Prepared, language: Language) -> None:
        self._prepared = prepared
        self._finder = RowFinder(prepared, language)
        self._tables, self._work = self._finder.tables, self._finder.work
        self._rows: OrderedDict[int, Rows] = OrderedDict()
        self.bytes = 0
        """The size of the rows that are cached."""
        self._memo_lock = threading.Lock()  # guards the memo, which searches write into
        self._rows_lock = threading.Lock()  # guards the rows; never held for long
        # Guards the futures; never held for long either. It is reentrant because a walk that is
        # garbage-collected needs it too, which may happen in any thread at any time.
        self._futures_lock = threading.RLock()
        self._futures: dict[tuple[int, int], Future[_Found]] = {}
        self._slow: ThreadPoolExecutor | None = None
        self._users = 0
        self.most_bytes = BYTES_PER_LANGUAGE
        """The most memory for the rows."""
        self.filled = 0
        """How many times rows were computed."""
        self.most_steps = 0
        """The most steps that computing one of them took."""
        self._warmed = 0  # steps of searches in the background

    def mask(
        self, state: State, limit: WaitLimit | None = None, out: UInt32s | None = None
    ) -> UInt32s:
        """The tokens that may come next, except stop tokens, as a bit mask: [words] uint32.

        Args:
            state: the state after the text so far.
            limit: how long to wait for the result; None to wait indefinitely.
            out: where to write it, [at least words]; the rest is set to 0. None for a new array.

        Raises:
            Late: the result is not known yet.
            Spent: the search needs too much time or memory.
        """
        if self._finder.is_pushdown:
            depth = self._tables.pushdown.depth[unpack(state.packed)[0]]
            if depth > MOST_DEPTH:
                raise Spent(f"it is nested more than {MOST_DEPTH} levels deep")
        rows, odd = self._known(state.packed, state.nfc) or self._awaited(state, limit)
        words = len(rows.apart)
        mask = np.empty(words, np.uint32) if out is None else out[:words]
        assert len(mask) == words, "the mask is narrower than the vocabulary"
        if out is not None:
            out[words:] = 0
        if state.last == NOTHING:
            mask[:] = rows.apart
            masks.set_bits(mask, odd, 1)
        else:
            row = self._prepared.row(state.last)
            masks.combine(mask, rows.apart, rows.broken, row, odd)
        return mask

    def allowed(self, state: State) -> Int64s:
        """The ids of the tokens in `mask`, ascending; its errors."""
        bits = np.unpackbits(self.mask(state).view(np.uint8), bitorder="little")
        return np.flatnonzero(bits)

    def may_end(self, state: State) -> bool:
        """Whether the text may end in a state."""
        tables = self._tables
        return bool(walk.may_end(tables.accepts, tables.may_end, state.packed))

    def next(self, state: State, token: int) -> State | None:
        """The state after a token; None if the token is not allowed there.

        Unlike `mask`, this does not check whether the text can still end.
        """
        if not 0 <= token < len(self._prepared.tables.begin) - 1:
            return None
        place = state.packed, state.nfc, state.last, token
        packed, nfc = walk.step(self._finder.frozen, *place)
        # Searches hold their lock for up to a second. A token that no constraint allows, such as
        # the one that ends a request, must not wait for it.
        if packed < 0 and self._finder.is_unknown(place):
            with self._memo_lock:
                packed, nfc = walk.step(self._finder.reference, *place)
                self._finder.is_crowded()
        if packed < 0:
            return None
        return State(int(packed), int(nfc), NOTHING if token in self._prepared.added else token)

    def impossible(self, state: State) -> int:
        """A token that cannot come next. It is always the same for a given state.

        Between characters it is a UTF-8 continuation byte, and within a character it is a letter.
        """
        _, _, node, _, _ = unpack(state.packed)
        return int(self._tables.byte_ids[ord("a") if node else 0x80])

    @property
    def all_bytes(self) -> int:
        """The size in bytes of everything that belongs to this product alone."""
        return self._finder.bytes + self.bytes

    def only(self, state: State, limit: WaitLimit | None = None) -> int | None:
        """The token that must come next, if it is known quickly that there is only one.

        If the language allows characters of several classes, this returns None without waiting for
        the mask.

        Args:
            state, limit: as in `mask`.

        Raises:
            Late, Spent: as `mask`.
        """
        language, _, node, _, _ = unpack(state.packed)
        if not node:
            choices = self._tables.can[language].tolist()
            if sum(word.bit_count() for word in choices) > 1:
                return None
        mask = self.mask(state, limit)
        words = np.flatnonzero(mask)
        if len(words) != 1 or mask[words[0]] & (mask[words[0]] - 1):
            return None
        return int(words[0]) * 32 + int(mask[words[0]]).bit_length() - 1

    @property
    def is_worn(self) -> bool:
        """Whether half of the room for configurations is used."""
        return self._finder.used > 0.5

    def is_warm(self, state: State) -> bool:
        """Whether the rows that `mask` needs for a state are cached."""
        return self._known(state.packed, state.nfc) is not None

    def expect(self, state: State) -> None:
        """Start computing what `mask` needs for a state in another thread."""
        if not self.is_warm(state):
            self.expected(state)

    def can_end(self) -> bool:
        """Whether the language has any proper sequence.

        This finds the first mask in any case, so that no scheduler waits for it.

        Raises:
            Spent: as `mask`.
        """
        has_next = bool(self.mask(START).any())
        return has_next or self.may_end(START)

    def begin(self) -> None:
        """Register a user of the product, until `end` is called."""
        with self._futures_lock:
            self._users += 1
            self._work[STOP] = 0

    def end(self) -> None:
        """Unregister a user of the product. When the last one leaves, its searches are stopped."""
        with self._futures_lock:
            self._users -= 1
            if self._users == 0:
                self._work[STOP] = 1
                for future in self._futures.values():
                    future.cancel()
                self._futures.clear()

    @property
    def is_used(self) -> bool:
        """Whether the product has users."""
        return self._users > 0

    def compile_all(self) -> None:
        """Make numba compile everything that the methods call. START must allow a token."""
        self.begin()
        for _ in zip(range(2), self._warm(), strict=False):
            pass
        self._finder.compile_all()
        self.may_end(START)
        state = self.next(START, int(self.allowed(START)[0]))
        assert state is not None
        self.mask(state)
        self.end()

    def warm_in_background(self) -> None:
        """Compute the rows of reachable states in a background thread, the nearest first."""
        in_background(self._warm())

    def _warm(self) -> Iterator[None]:
        """Compute the rows of one state at a time."""
        seen = {(START.packed, START.nfc)}
        order = [START]
        for state in order:
            is_full = self.bytes > self.most_bytes // 2 or self._finder.used > 0.125
            if self._work[STOP] or is_full:
                return
            try:
                rows, odd = self._rows_of(state.packed, state.nfc, SLICE, is_warming=True)
            except Spent:
                return
            either = rows.apart | rows.broken
            masks.set_bits(either, odd, 3)
            with self._memo_lock:
                found = list(self._finder.behind(state.packed, state.nfc, either))
                self._finder.is_crowded()
            for behind in found:
                for packed, nfc in behind[:MOST_WARM].tolist():
                    if (packed, nfc) not in seen and len(order) < MOST_WARM:
                        seen.add((packed, nfc))
                        order.append(State(packed, nfc, NOTHING))
            yield

    def _known(self, packed: int, nfc: int) -> _Found | None:
        with self._rows_lock:
            rows = self._rows.get(packed)
            odd = None if rows is None else rows.odd.get(nfc)
            if rows is None or odd is None:
                return None
            self._rows.move_to_end(packed)
            return rows, odd

    def _awaited(self, state: State, limit: WaitLimit | None) -> _Found:
        watch = Stopwatch() if limit is None else Stopwatch(used=limit.clock)
        own = Stopwatch(used=self._searched)
        try:
            while True:
                try:
                    return self.expected(state).result(None if limit is None else _POLL)
                except TooLate:
                    if limit is not None and limit.is_over(own.seconds(), watch.seconds()):
                        raise Late from None
                except CancelledError:  # the last user left, and a new one arrived
                    continue
        finally:
            if limit is not None:
                limit.waited(own.seconds(), watch.seconds())

    def _searched(self) -> float:
        """Seconds of processor time that this product's searches for its users have taken."""
        return (int(self._work[ALL_STEPS]) - self._warmed) / A_SECOND

    def expected(self, state: State) -> Future[Any]:
        """Done when what `mask` needs for a state is known, or cannot be found.

        Its exception is then what `mask` would raise.
        """
        key = state.packed, state.nfc
        with self._futures_lock:
            future = self._futures.get(key)
            if future is None or future.cancelled():
                future = self._futures[key] = Future()
                if self._slow is None:
                    WORKERS.submit(self._find, future, key)
                else:
                    self._slow.submit(self._find, future, key, is_slow=True)
            return future

    def _find(self, future: Future[_Found], key: tuple[int, int], *, is_slow: bool = False) -> None:
        """Compute the rows of a state for everyone waiting for them."""
        if future.cancelled():
            return
        is_first = is_slow and key == (START.packed, START.nfc)
        try:
            with _FIRST if is_first else contextlib.nullcontext():
                found = self._rows_of(*key, STEPS if is_slow else SLICE)
        except BaseException as error:
            is_spent = isinstance(error, Spent)
            if is_spent and not is_slow and not self._work[STOP]:
                with self._futures_lock:
                    self._slow = self._slow or slow_thread()
                    self._slow.submit(self._find, future, key, is_slow=True)
                return
            self._settle(future, key, error)
            if not is_spent:
                raise
        else:
            self._settle(future, key, found)

    def _settle(
        self, future: Future[_Found], key: tuple[int, int], found: _Found | BaseException
    ) -> None:
        with self._futures_lock:
            if self._futures.get(key) is future:
                del self._futures[key]
            if future.cancelled():
                return
            if isinstance(found, BaseException):
                future.set_exception(found)
            else:
                future.set_result(found)

    def _rows_of(self, packed: int, nfc: int, steps: int, is_warming: bool = False) -> _Found:
        with self._memo_lock:
            known = self._known(packed, nfc)  # another thread may have filled them meanwhile
            if known is not None:
                return known
            self._work[STEPS_LEFT] = steps
            before = int(self._work[ALL_STEPS])
            try:
                rows = self._rows.get(packed)
                if rows is None:
                    self.filled += 1
                    rows = self._finder.rows(packed)
                odd = self._finder.odd(packed, nfc)
            finally:
                taken = int(self._work[ALL_STEPS]) - before
                if is_warming:
                    self._warmed += taken
            self.most_steps = max(self.most_steps, taken)
            with self._rows_lock:
                if packed in self._rows:
                    self.bytes -= self._rows.pop(packed).size
                rows.odd[nfc] = odd
                self._rows[packed] = rows
                self.bytes += rows.size
                while self.bytes > self.most_bytes and len(self._rows) > 1:
                    self.bytes -= self._rows.popitem(last=False)[1].size
            return rows, odd
