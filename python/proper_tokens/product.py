"""CartesianMerge, lazily: finds the next tokens by walking through all automata at once.

A state of the product consists of the state of the language, the state of the pre-tokenizer, the
unfinished character and the flag of its first byte, the unfinished added token, the state of NFC,
and the last token. All but the last two are packed into one integer, the state's `packed`. A token
may come next iff all automata accept its bytes, where the cut before it is `APART` or `BROKEN`
according to the merge relation, and the text can still end from the state after it. So decoding
never runs into a dead end.

The characters alone nearly always decide whether the text can end. Every text of the language that
NFC leaves unchanged has exactly one proper spelling, so if some characters lead to an end, their
tokens do too. The only exception is the last token so far, which may merge with what follows. If
the pre-tokenizer can cut after it, any last token is safe. It is also safe if the next character
may be byte tokens that never merge. Otherwise some next token must not merge with it. For each
packed state the product caches tokens that are known to lead to an end, and nearly always one of
them does not merge with the last token. If they all do, the product searches over tokens: first the
spelling of characters after which any last token is safe, then the tokens that get closest to an
end, then all tokens. All results are cached, and each state is visited once. Searches count their
steps, and a search that takes more than `STEPS` is abandoned.

The states of a recursive language are configurations of its pushdown automaton, which are added as
they are needed (`kernels.Pushdown`). There can be infinitely many, so a search that finds no end
runs to its step limit and is abandoned. The result of a search that is not abandoned is exact.

So two rows of bits per packed state are enough: A, the tokens that are alive after a cut that the
merges make, and B, those that are alive after a cut that they do not make. After a last token whose
row in the merge relation is R, the allowed tokens are A & R | B & ~R. A few tokens begin within a
character, or with a character that NFC may change together with the text before it. Those are kept
separately for each state of NFC.

Nearly all other tokens take a fast path. The effect of the pre-tokenizer and NFC on them does not
depend on the language, and is computed once for each state of the pre-tokenizer. The effect of the
language on them is a walk through its automaton alone. Tokens that lead to the same state share one
search. The fast path excludes tokens in which the text of an added token begins and, within such a
text, tokens that continue it.

Source: Tran-Thien (CartesianMerge); Vieira et al., arXiv 2506.07956.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proper_tokens import kernels
from proper_tokens.codepoints import ROOT, SIZE, classes_of, decoder_of, reachable_classes
from proper_tokens.language import Language
from proper_tokens.prepared import Cuts, Prepared
from proper_tokens.references import reference
from proper_tokens.threads import Stopwatch, make_way
from proper_tokens.tokenizer import Unsupported
from proper_tokens.waiting import Waiting

logger = logging.getLogger(__name__)

NOTHING = -1
"""The last token of a state at the start of the text and after an added token."""
BYTES_PER_LANGUAGE = 32 << 20
"""The most memory for the rows of one constraint."""
MOST_BYTES = 48 << 20
"""The most memory for everything else that belongs to a constraint."""
MOST_ENTRIES = 1 << 19
"""The most entries of a memo."""
MOST_DEPTH = 512
"""How deep a recursive rule may be nested."""
MOST_LOOPS = 4
"""For how many sets of characters the tokens that consist of them are kept, for each constraint."""
MOST_WARM = 1024
"""How many states are computed in the background."""
A_SECOND = 3_000_000
"""Steps that a search makes in about a second of processor time."""
SLICE = A_SECOND // 20
"""Steps after which a search moves to a slow thread."""
STEPS = 20 * SLICE
"""Steps after which a search is abandoned."""

# These threads compute what the scheduler needs for a new state while its own thread continues. No
# search occupies one for more than a slice, so the searches of different constraints hardly wait
# for each other. A longer search continues in its constraint's own thread, at a lower priority.
_NICENESS = 5  # not higher, because these threads hold the GIL now and then
_SLOW_NICENESS = 10  # there may be many of these threads, and they hardly hold the GIL

# A scheduler that waits for a mask leaves the processor to these threads. Otherwise the model's
# threads take precedence.
_WORKERS = ThreadPoolExecutor(4, "proper-tokens", make_way, (_NICENESS,))


_POLL = 0.002
"""Seconds between two checks of whether to wait longer. A result that is ready ends the wait at
once."""


class Spent(Unsupported):
    """A search exceeded its limit of steps or memory, or the text exceeded the limit of nesting."""

    def __init__(self, problem: str = "finding its next tokens takes too much time or memory"):
        super().__init__(problem)


class Late(Exception):
    """A mask was not ready in time."""


class State(NamedTuple):
    """The state after a text: the packed states (`kernels.pack`), the state of NFC, and the last
    token."""

    packed: int
    nfc: int
    last: int


START = State(0, 0, NOTHING)


@dataclass
class _Rows:
    """The tokens that are alive in a packed state, that is, those after which the text can still
    end.

    Attributes:
        apart, broken: [words] uint32: A and B.
        odd: by state of NFC: the tokens that are kept separately, times four, plus 1 if they are
            alive after a cut that the merges make and 2 if after one that they do not make.
    """

    apart: npt.NDArray[np.uint32]
    broken: npt.NDArray[np.uint32]
    odd: dict[int, npt.NDArray[np.int64]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return 2 * self.apart.nbytes + sum(odd.nbytes for odd in self.odd.values()) + 256


_Found = tuple[_Rows, npt.NDArray[np.int64]]
# What `kernels.split_plain` returns.
_Split = tuple[npt.NDArray[np.uint32], npt.NDArray[np.int32]]


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
        letters = np.array([ord(letter) for letter in prepared.letters], np.int64)
        is_letter = np.zeros(SIZE, np.int32)
        is_letter[letters] = np.arange(1, len(letters) + 1)
        is_letter[0xD800:0xE000] = -1  # no other character may be in a class of surrogates
        classes, samples = classes_of([prepared.classes, language.classes, is_letter])
        spelt = np.zeros((len(samples), 5), np.int32)
        for k, code in enumerate(samples.tolist()):
            content = chr(code).encode(errors="ignore")  # surrogates have no spelling
            spelt[k, : len(content) + 1] = [len(content), *content]
        symbols = np.concatenate((spelt[:, :1], prepared.tables.byte_ids[spelt[:, 1:]]), axis=1)
        own = prepared.character_ids
        _, at, which = np.intersect1d(samples, own[:, 0], return_indices=True)
        symbols[at, 0], symbols[at, 1] = 1, own[which, 1]
        spelling = np.zeros_like(spelt)
        spelling[classes[letters]] = spelt[classes[letters]]
        decoder = decoder_of(classes)
        if len(decoder) > 1 << kernels.NODE_BITS:
            raise Unsupported("it distinguishes too many characters")
        in_tokenizer, in_language = prepared.classes[samples], language.classes[samples]
        can = np.zeros((len(language.table), -(-len(samples) // 64)), np.uint64)
        for k, c in enumerate(in_language.tolist()):
            is_taken = language.table[:, c] >= 0
            can[is_taken, k >> 6] |= np.uint64(1 << (k & 63))
        kinds = prepared.characters[in_tokenizer, 0]
        # Characters that are alike to the language and the pre-tokenizer may still differ in what
        # they allow next. A character that NFC never changes, and in which no added token begins,
        # allows everything, so one of them leads for all that are alike and spelt in bytes, or not.
        reach = reachable_classes(decoder, len(samples))
        number = np.arange(len(samples))
        bits = reach[ROOT, number >> 6] >> (number & 63).astype(np.uint64)
        has_spelling = bits & np.uint64(1) > 0  # surrogates have none
        is_open = (prepared.characters[in_tokenizer, 1:4] == 0).all(axis=1) & (spelling[:, 0] == 0)
        is_open &= has_spelling
        is_in_bytes = prepared.characters[in_tokenizer, 4] == kernels.IN_BYTES
        # One that occurs in no whole token allows more than those that do.
        general = prepared.general[kinds]
        places = (2 * in_language.astype(np.int64) + is_in_bytes) * len(prepared.general)
        is_general = is_open & (kinds == general)
        is_led = np.isin(places + general, (places + general)[is_general])
        alike = places + np.where(is_led, general, kinds)
        openest = np.concatenate(
            (np.flatnonzero(is_general), np.flatnonzero(is_open & ~is_general))
        )
        first_open = np.unique(alike[openest], return_index=True)
        is_leading = has_spelling & ~np.isin(alike, first_open[0])
        is_leading[openest[first_open[1]]] = True
        pretokens = prepared.tables.pretokens
        takes = np.zeros((len(pretokens), pretokens.shape[2], can.shape[1]), np.uint64)
        for k, c in enumerate(kinds.tolist()):
            takes[..., k >> 6][pretokens[:, c] >= 0] |= np.uint64(1 << (k & 63))
        self._tables = prepared.tables._replace(
            decoder=decoder,
            reach=reach,
            can=can,
            takes=takes,
            language=language.table,
            accepts=language.accepts,
            distance=language.distance,
            characters=np.concatenate(
                (in_language[:, None], prepared.characters[in_tokenizer]), axis=1
            ),
            spelling=spelling,
            samples=symbols.astype(np.int32),
            leading=np.flatnonzero(is_leading),
        )
        self._of_letters = np.unique(language.classes[ord("a") : ord("z") + 1])
        self._of_all = np.arange(language.table.shape[1], dtype=np.int32)
        self._loops: dict[bytes, _Split] = {}
        self._loop_bytes = 0
        self._work = np.zeros(3, np.int64)
        self._memo = kernels.new_memo(1 << 12, self._work)
        self._own_bytes = _bytes_of(self._tables, prepared.tables)
        self._room_bytes = 0
        self._is_pushdown = len(language.calls) > 0
        if self._is_pushdown:
            regular = self._tables
            self._tables = kernels.with_pushdown(regular, language.calls, self._work)
            self._room_bytes = _bytes_of(self._tables, regular)
            self._room_bytes += sum(array.nbytes for array in self._tables.pushdown)
        if self._own_bytes + self._room_bytes > MOST_BYTES:
            raise Unsupported(f"it needs more than {MOST_BYTES >> 20} MB")
        self._reference = reference(self._tables)
        # With these tables, no configuration is added.
        full = self._tables.pushdown._replace(used=np.array([0, 0, 0, 1]))
        self._frozen = reference(self._tables._replace(pushdown=full))
        self._rows: OrderedDict[int, _Rows] = OrderedDict()
        self._bytes = 0
        self._filling = threading.Lock()  # guards the memo, which searches write into
        self._keeping = threading.Lock()  # guards the rows; never held for long
        # Guards the futures; never held for long either. It is reentrant because a walk that is
        # garbage-collected needs it too, which may happen in any thread at any time.
        self._expecting = threading.RLock()
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

    @property
    def words(self) -> int:
        """The number of words in a mask."""
        return len(self._prepared.tables.relation.reachable)

    def mask(
        self,
        state: State,
        waiting: Waiting | None = None,
        out: npt.NDArray[np.uint32] | None = None,
    ) -> npt.NDArray[np.uint32]:
        """The tokens that may come next, except stop tokens, as a bit mask: [words] uint32.

        Args:
            state: the state after the text so far.
            waiting: how long to wait for the result; None to wait indefinitely.
            out: where to write it, [at least words]; the rest is set to 0. None for a new array.

        Raises:
            Late: the result is not known yet.
            Spent: the search needs too much time or memory.
        """
        if self._is_pushdown:
            depth = self._tables.pushdown.depth[kernels.unpack(state.packed)[0]]
            if depth > MOST_DEPTH:
                raise Spent(f"it is nested more than {MOST_DEPTH} levels deep")
        rows, odd = self._kept(state.packed, state.nfc) or self._awaited(state, waiting)
        words = len(rows.apart)
        mask = np.empty(words, np.uint32) if out is None else out[:words]
        assert len(mask) == words, "the mask is narrower than the vocabulary"
        if out is not None:
            out[words:] = 0
        if state.last == NOTHING:
            mask[:] = rows.apart
            kernels.set_bits(mask, odd, 1)
        else:
            row = self._prepared.row(state.last)
            kernels.combine(mask, rows.apart, rows.broken, row, odd)
        return mask

    def allowed(self, state: State) -> npt.NDArray[np.int64]:
        """The ids of the tokens in `mask`, ascending; its errors."""
        bits = np.unpackbits(self.mask(state).view(np.uint8), bitorder="little")
        return np.flatnonzero(bits)

    def may_end(self, state: State) -> bool:
        """Whether the text may end in a state."""
        return bool(kernels.may_end(self._reference, state.packed))

    def next(self, state: State, token: int) -> State | None:
        """The state after a token; None if the token is not allowed there.

        Unlike `mask`, this does not check whether the text can still end.
        """
        if not 0 <= token < len(self._prepared.tables.begin) - 1:
            return None
        place = state.packed, state.nfc, state.last, token
        packed, nfc = kernels.step(self._frozen, *place)
        if packed < 0 and self._is_unknown(place):
            with self._filling:
                packed, nfc = kernels.step(self._reference, *place)
                self._is_crowded()
        if packed < 0:
            return None
        return State(int(packed), int(nfc), NOTHING if token in self._prepared.added else token)

    def _is_unknown(self, place: tuple[int, int, int, int]) -> bool:
        """Whether a token may lead to a configuration that is not known yet.

        Searches hold their lock for up to a second. A token that no constraint allows, such as the
        one that ends a request, must not wait for it.
        """
        if not self._is_pushdown:
            return False
        used = np.array([0, 0, 0, 1])  # of this call alone, because threads share the other one
        pushdown = self._tables.pushdown._replace(used=used)
        kernels.step(reference(self._tables._replace(pushdown=pushdown)), *place)
        return bool(used[kernels.CROWDED] > 1)

    def impossible(self, state: State) -> int:
        """A token that cannot come next. It is always the same for a given state.

        Between characters it is a UTF-8 continuation byte, and within a character it is a letter.
        """
        _, _, node, _, _ = kernels.unpack(state.packed)
        return int(self._tables.byte_ids[ord("a") if node else 0x80])

    @property
    def bytes(self) -> int:
        """The size of the cached rows in bytes, at most `most_bytes`."""
        return self._bytes

    @property
    def all_bytes(self) -> int:
        """The size in bytes of everything that belongs to this product alone."""
        memo = self._memo
        configurations = int(self._used * self._room_bytes)  # the rest was never written
        own = self._own_bytes + configurations + self._loop_bytes
        return own + self._bytes + sum(array.nbytes for array in memo)

    def only(self, state: State, waiting: Waiting | None = None) -> int | None:
        """The token that must come next, if it is known quickly that there is only one.

        If the language allows characters of several classes, this returns None without waiting for
        the mask.

        Args:
            state, waiting: as in `mask`.

        Raises:
            Late, Spent: as `mask`.
        """
        language, _, node, _, _ = kernels.unpack(state.packed)
        if not node:
            choices = self._tables.can[language].tolist()
            if sum(word.bit_count() for word in choices) > 1:
                return None
        mask = self.mask(state, waiting)
        words = np.flatnonzero(mask)
        if len(words) != 1 or mask[words[0]] & (mask[words[0]] - 1):
            return None
        return int(words[0]) * 32 + int(mask[words[0]]).bit_length() - 1

    @property
    def is_worn(self) -> bool:
        """Whether half of the room for configurations is used."""
        return self._used > 0.5

    @property
    def _used(self) -> float:
        """The share of the room for configurations that is used."""
        if not self._is_pushdown:
            return 0.0
        pushdown = self._tables.pushdown
        rooms = len(pushdown.stacks), len(pushdown.depth), len(pushdown.items)
        used = pushdown.used[: kernels.CROWDED].tolist()
        return max(part / room for part, room in zip(used, rooms, strict=True))

    def _is_crowded(self) -> bool:
        """Whether there was no room for a configuration since the last call."""
        used = self._tables.pushdown.used
        is_crowded = bool(used[kernels.CROWDED])
        used[kernels.CROWDED] = 0
        return is_crowded

    def is_warm(self, state: State) -> bool:
        """Whether the rows that `mask` needs for a state are cached."""
        return self._kept(state.packed, state.nfc) is not None

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
        with self._expecting:
            self._users += 1
            self._work[kernels.STOP] = 0

    def end(self) -> None:
        """Unregister a user of the product. When the last one leaves, its searches are stopped."""
        with self._expecting:
            self._users -= 1
            if self._users == 0:
                self._work[kernels.STOP] = 1
                for future in self._futures.values():
                    future.cancel()
                self._futures.clear()

    @property
    def is_used(self) -> bool:
        """Whether the product has users."""
        return self._users > 0

    def compile_all(self) -> None:
        """Make numba compile everything that the methods call."""
        self.begin()
        self._memo = kernels.grown(self._memo)
        for _ in zip(range(2), self._warm(), strict=False):
            pass
        self._live(kernels.live_added, START.packed, START.nfc)
        kernels.begin_pushdown(self._reference)
        self._is_crowded()
        self.may_end(START)
        self.end()

    def warm_in_background(self) -> None:
        """Compute the rows of reachable states in a background thread, the nearest first."""
        _WARMER.put(self._warm())

    def _warm(self) -> Iterator[None]:
        """Compute the rows of one state at a time."""
        seen = {(START.packed, START.nfc)}
        order = [START]
        for state in order:
            is_full = self._bytes > self.most_bytes // 2 or self._used > 0.125
            if self._work[kernels.STOP] or is_full:
                return
            try:
                rows, odd = self._rows_of(state.packed, state.nfc, SLICE, is_warming=True)
            except Spent:
                return
            either = rows.apart | rows.broken
            kernels.set_bits(either, odd, 3)
            with self._filling:
                found = list(self._behind(state, either))
                self._is_crowded()
            for behind in found:
                for packed, nfc in behind[:MOST_WARM].tolist():
                    if (packed, nfc) not in seen and len(order) < MOST_WARM:
                        seen.add((packed, nfc))
                        order.append(State(packed, nfc, NOTHING))
            yield

    def _behind(
        self, state: State, allowed: npt.NDArray[np.uint32]
    ) -> Iterator[npt.NDArray[np.int64]]:
        """The states that the tokens in a mask lead to, as `kernels.states_behind` returns them."""
        tables, packed, nfc = self._tables, state.packed, state.nfc
        _, _, is_within, _, _ = kernels.unpack(packed)
        if not is_within:
            base = kernels.without_added(packed)  # the few tokens that continue one are met later
            yield kernels.states_behind_plain(self._reference, *self._plain(base), base, allowed)
        yield kernels.states_behind(self._reference, tables.marked, packed, nfc, allowed)
        yield kernels.states_behind(self._reference, tables.odd, packed, nfc, allowed)

    def _plain(self, packed: int) -> tuple[Cuts, npt.NDArray[np.int32]]:
        """The arguments of the fast path for plain tokens, for a state between two characters."""
        _, pretoken, _, _, _ = kernels.unpack(packed)
        return self._prepared.cuts(self._reference, pretoken), self._prepared.nfc(self._reference)

    def _kept(self, packed: int, nfc: int) -> _Found | None:
        with self._keeping:
            rows = self._rows.get(packed)
            odd = None if rows is None else rows.odd.get(nfc)
            if rows is None or odd is None:
                return None
            self._rows.move_to_end(packed)
            return rows, odd

    def _awaited(self, state: State, waiting: Waiting | None) -> _Found:
        watch = Stopwatch() if waiting is None else waiting.watch()
        own = Stopwatch(used=self._searched)
        try:
            while True:
                try:
                    return self.expected(state).result(None if waiting is None else _POLL)
                except TooLate:
                    if waiting is not None and waiting.is_over(own.seconds(), watch.seconds()):
                        raise Late from None
                except CancelledError:  # the last user left, and a new one arrived
                    continue
        finally:
            if waiting is not None:
                waiting.waited(own.seconds(), watch.seconds())

    def _searched(self) -> float:
        """How much processor time the searches of this product for its users have taken, in
        seconds."""
        return (int(self._work[kernels.ALL_STEPS]) - self._warmed) / A_SECOND

    def expected(self, state: State) -> Future[Any]:
        """Done when what `mask` needs for a state is known, or cannot be found.

        Its exception is then what `mask` would raise.
        """
        key = state.packed, state.nfc
        with self._expecting:
            future = self._futures.get(key)
            if future is None or future.cancelled():
                future = self._futures[key] = Future()
                (self._slow or _WORKERS).submit(self._find, future, *key)
            return future

    def _find(self, future: Future[_Found], packed: int, nfc: int) -> None:
        """Compute the rows of a state for everyone waiting for them."""
        if future.cancelled():
            return
        is_slow = threading.current_thread().name.startswith(_SLOW)
        is_first = (packed, nfc) == (START.packed, START.nfc)
        try:
            with _FIRST if is_slow and is_first else contextlib.nullcontext():
                found = self._rows_of(packed, nfc, STEPS if is_slow else SLICE)
        except Spent as error:
            if not is_slow and not self._work[kernels.STOP]:
                with self._expecting:
                    self._slow = self._slow or ThreadPoolExecutor(
                        1, _SLOW, make_way, (_SLOW_NICENESS,)
                    )
                    self._slow.submit(self._find, future, packed, nfc)
                return
            self._settle(future, (packed, nfc), error=error)
        except BaseException as error:
            self._settle(future, (packed, nfc), error=error)
            raise
        else:
            self._settle(future, (packed, nfc), found)

    def _settle(
        self,
        future: Future[_Found],
        key: tuple[int, int],
        found: _Found | None = None,
        error: BaseException | None = None,
    ) -> None:
        with self._expecting:
            if self._futures.get(key) is future:
                del self._futures[key]
            if future.cancelled():
                return
            if found is not None:
                future.set_result(found)
            else:
                future.set_exception(error)

    def _rows_of(self, packed: int, nfc: int, steps: int, is_warming: bool = False) -> _Found:
        with self._filling:
            kept = self._kept(packed, nfc)  # another thread may have filled them meanwhile
            if kept is not None:
                return kept
            self._work[kernels.STEPS] = steps
            before = int(self._work[kernels.ALL_STEPS])
            try:
                rows = self._rows.get(packed) or self._fill(packed)
                odd = self._fill_odd(packed, nfc)
            finally:
                taken = int(self._work[kernels.ALL_STEPS]) - before
                if is_warming:
                    self._warmed += taken
            self.most_steps = max(self.most_steps, taken)
            with self._keeping:
                if packed in self._rows:
                    self._bytes -= self._rows.pop(packed).size
                rows.odd[nfc] = odd
                self._rows[packed] = rows
                self._bytes += rows.size
                while self._bytes > self.most_bytes and len(self._rows) > 1:
                    self._bytes -= self._rows.popitem(last=False)[1].size
            return rows, odd

    def _fill(self, packed: int) -> _Rows:
        self.filled += 1
        apart, broken = np.zeros((2, self.words), np.uint32)
        _, _, is_within, _, _ = kernels.unpack(packed)
        if not is_within:  # within a character, all tokens are odd
            base = kernels.without_added(packed)
            split = self._split(packed)
            self._live(kernels.live_plain, *self._plain(base), base, *split, apart, broken)
            continuing = self._continuing(packed) if packed != base else []
            for trie in continuing:  # the fast path's results do not hold for these tokens
                tokens = trie[trie[:, kernels.TOKEN] >= 0, kernels.TOKEN]
                bits = np.zeros_like(apart)
                kernels.set_bits(bits, 4 * tokens.astype(np.int64) + 3, 3)
                apart &= ~bits
                broken &= ~bits
            for trie in (self._tables.marked, *continuing):
                live = self._live(kernels.live_tokens, trie, packed, 0)
                kernels.set_bits(apart, live, 1)
                kernels.set_bits(broken, live, 2)
        return _Rows(apart, broken)

    def _split(self, packed: int) -> _Split:
        """The plain tokens that lead the language from a state to itself, and a trie of the others.

        Where that is not worth its memory, all plain tokens count as others. It is worth it within
        a string of JSON, where nearly all tokens are the same for every string.
        """
        nothing = np.zeros(0, np.uint32), self._tables.plain
        language, _, _, _, _ = kernels.unpack(packed)
        # The other classes are many, and may lead to configurations that nothing else needs.
        if not kernels.staying(self._reference, language, self._of_letters).all():
            return nothing
        stays = kernels.staying(self._reference, language, self._of_all)
        key = stays.tobytes()
        if key not in self._loops and len(self._loops) < MOST_LOOPS:
            inside, rest = kernels.split_plain(self._reference, stays)
            size = inside.nbytes + rest.nbytes
            room = MOST_BYTES - self._own_bytes - self._room_bytes - self._loop_bytes
            if len(rest) < len(self._tables.plain) // 4 and size <= room:
                self._loops[key] = inside, rest
                self._loop_bytes += size
            else:
                self._loops[key] = nothing
        return self._loops.get(key, nothing)

    def _continuing(self, packed: int) -> list[npt.NDArray[np.int32]]:
        """The parts of the trie of plain tokens that may continue the unfinished added token.

        Any other plain token ends the unfinished added token with its first byte, and no added
        token begins within it.
        """
        _, _, _, _, added = kernels.unpack(packed)
        trie = self._tables.plain
        parts = []
        for i in np.flatnonzero(trie[:, kernels.DEPTH] == 1).tolist():
            if self._tables.goto[added, trie[i, kernels.BYTE]]:
                part = trie[i : trie[i, kernels.SKIP]].copy()
                part[:, kernels.SKIP] -= i
                parts.append(part)
        return parts

    def _fill_odd(self, packed: int, nfc: int) -> npt.NDArray[np.int64]:
        odd = self._live(kernels.live_tokens, self._tables.odd, packed, nfc)
        if len(self._tables.added):
            odd = np.concatenate((odd, self._live(kernels.live_added, packed, nfc)))
        return odd

    def _live(
        self, kernel: Callable[..., npt.NDArray[np.int64]], *arguments: Any
    ) -> npt.NDArray[np.int64]:
        has_room = True
        while True:
            live = kernel(self._reference, reference(self._memo), *arguments)
            if self._is_crowded():
                self._memo = kernels.new_memo(1 << 12, self._work)  # what it found may be wrong
                raise Spent
            problem = live[:1].tolist()
            if problem == [kernels.SPENT]:
                raise Spent
            if problem != [kernels.FULL]:
                return live
            if len(self._memo.packed) < MOST_ENTRIES:
                self._memo = kernels.grown(self._memo)
            elif has_room:
                self._memo = kernels.new_memo(MOST_ENTRIES, self._work)
                has_room = False
            else:
                raise Spent


def _bytes_of(tables: kernels.Tables, others: kernels.Tables) -> int:
    """The size of the arrays of tables that are not in other tables, in bytes."""
    return sum(
        array.nbytes
        for name, array in tables._asdict().items()
        if isinstance(array, np.ndarray) and array is not getattr(others, name)
    )


_SLOW = "proper-tokens-slow"
# Limits concurrent searches of initial states: no running request waits for one of them yet, and
# hundreds of clients may request them.
_FIRST = threading.BoundedSemaphore(2)


class _Warmer:
    """A thread that computes rows in the background, for all products in turn."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Iterator[None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_started = False

    def put(self, work: Iterator[None]) -> None:
        """Add work."""
        self._waiting.put(work)
        with self._lock:
            if not self._is_started:
                self._is_started = True
                threading.Thread(target=self._run, name="proper-tokens-warm", daemon=True).start()

    def _run(self) -> None:
        make_way(_SLOW_NICENESS)
        while True:
            work = self._waiting.get()
            try:
                is_over = next(work, work) is work
            except Exception:
                logger.exception("Proper tokens: a constraint is not warmed further")
                continue
            if not is_over:
                self._waiting.put(work)


_WARMER = _Warmer()
