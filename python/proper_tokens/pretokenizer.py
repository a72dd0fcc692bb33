"""The other half of CartesianMerge: an automaton over characters for where a pre-tokenizer cuts.

A pre-tokenizer splits a text with a regex that is greedy, backtracks and looks ahead, so its
matches depend on later text. A reader that only moves forward therefore has to guess, and has to
remember what must hold for the guess to be right. A guess consists of:

- the place in the regex on the path that the match takes;
- the places of all paths that the regex prefers to it, which must therefore never match;
- the characters that may come next; any other would complete a match of such a preferred path.

Paths are tried in the order in which a backtracking engine tries them, so exactly one sequence of
guesses survives for each text. The automaton is therefore unambiguous and reproduces the engine's
matches exactly. A state is the set of guesses that are still open.

Each character is read with a flag that says whether there is a token boundary before it, and
whether the merges alone would have kept the tokens apart there (`merges.stay_apart`). A boundary
that the merges would not keep is allowed only where the pre-tokenizer cuts, and the pre-tokenizer
may cut only at token boundaries.

If there are several regexes, each splits the pieces that the previous one produced. A guess then
has one part for each regex, and a cut by one regex ends the text for all later ones.

A tokenizer with `ignore_merges` looks each piece up among its tokens before it merges anything.
This matters for tokens that no merges make, here called whole tokens: such a token stands for a
piece that is its text, and no other tokens may spell that piece. The automaton therefore follows
the text since the last cut through a trie of whole tokens' texts, and notes whether there was a
token boundary in it (`_Whole`). The merge relation in turn lets nothing stand beside a whole token
without a cut.

Source: Tran-Thien (CartesianMerge: the product with a splitting automaton); Cognetta & Okazaki,
arXiv 2410.15696.
"""

from __future__ import annotations

import functools
import itertools
import re
import re._parser as op  # private; see tests/unit/test_python_regex.py
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from proper_tokens.arrays import Bools, Int32s, Int64s
from proper_tokens.codepoints import SIZE, Set, classes_of, matched_by
from proper_tokens.tokenizer import Unsupported

WITHIN, APART, BROKEN, EITHER = range(4)
"""Flags of a character: no cut before it, a cut that the merges make, one that they do not, or
either of the first two, where the tokens are not known yet."""
FLAGS = 4

MOST_STATES = 1 << 14
MOST_CELLS = 1 << 22
"""Of states and classes of characters; each takes 16 bytes."""

_PROPERTY = re.compile(r"\\[pP]\{\^?[A-Za-z_]+\}|\\[sS]")
_ASIDE = 0xF0000  # private-use characters replace these properties while the pattern is parsed
_FOLDED_PAIRS = ("ff", "fi", "fl", "ss", "st")  # one character matches both if case is ignored

MATCH, GAP = -1, -2
"""Places in a regex: after a match, and in text that no match covers."""
Guess = tuple[int, frozenset[tuple[int, int]], int]
Guesses = tuple[Guess, ...]
"""One for each regex."""
Place = tuple[int, bool]
"""A place of `_Whole`."""


class PreTokenizer(NamedTuple):
    """The automaton of a pre-tokenizer.

    Attributes:
        classes: [SIZE] int32: the class of each code point.
        general: [classes] int32: the class that the regexes do not distinguish from a class and
            that occurs in no whole token; the class itself if there is none.
        table: [states, classes, FLAGS] int32: the next state by state, class and flag; -1 if there
            is none. State 0 is the initial state, and also the state after an added token.
        torn: [states] int32: the state instead of a state if there is a token boundary within the
            last character.
        may_end: [states] bool: whether the text may end there.
    """

    classes: Int32s
    general: Int32s
    table: Int32s
    torn: Int32s
    may_end: Bools


def pretokenizer_of(patterns: Sequence[str], whole: Sequence[str] = ()) -> PreTokenizer:
    """The automaton of regexes, each of which splits the pieces that the previous one produced.

    Args:
        patterns: the regexes.
        whole: the texts of the whole tokens.

    Raises:
        Unsupported: a regex has a feature that is not modelled, or the automaton is too large.
    """
    splitters = [_Splitter(pattern) for pattern in patterns]
    sets = [found for splitter in splitters for found in splitter.sets]
    letters = np.zeros(SIZE, np.int32)
    for number, letter in enumerate(sorted(set("".join(whole))), 1):
        letters[ord(letter)] = number
    classes, samples = classes_of([*sets, letters])
    for splitter in splitters:
        splitter.set_classes(samples)
    words = _Whole(whole)
    general = _general(classes_of(sets or [np.zeros(SIZE, bool)])[0][samples], letters[samples])

    @functools.cache
    def split(guesses: Guesses, c: int) -> tuple[tuple[Guesses, ...], tuple[Guesses, ...]]:
        parts = zip(splitters, guesses, strict=True)
        uncut = itertools.product(*(one.after(guess, c, cut=False) for one, guess in parts))
        return tuple(uncut), tuple(_cut(splitters, guesses, c))

    def after(state: frozenset[tuple[Guesses, Place]], c: int, letter: str, flag: int) -> int:
        found: set[tuple[Guesses, Place]] = set()
        for guesses, place in state:
            uncut, cut = split(guesses, int(general[c]))
            if flag != BROKEN:
                found.update((one, words.read(place, letter, flag)) for one in uncut)
            if flag != WITHIN and words.may_cut(place):
                found.update((one, words.begin(letter)) for one in cut)
        return states.setdefault(frozenset(found), len(states)) if found else -1

    start = tuple(splitter.start_guess for splitter in splitters)
    states = {frozenset([(start, _Whole.START)]): 0}
    rows: list[Int32s] = []
    torn = []
    while len(rows) < len(states):
        state = next(itertools.islice(states, len(rows), None))
        row = np.empty((len(samples), FLAGS), np.int32)
        # Classes that are alike to the regexes and lead to the same nodes lead to the same states.
        known: dict[Any, list[int]] = {}
        for c, code in enumerate(samples.tolist()):
            letter = chr(code) if letters[code] else ""
            nodes = (words.next(node, letter) for _, (node, _) in state)
            key = (general[c], words.next(0, letter), *nodes)
            if key not in known:
                known[key] = [after(state, c, letter, flag) for flag in range(FLAGS)]
            row[c] = known[key]
        rows.append(row)
        of_several = frozenset((guesses, (node, False)) for guesses, (node, _) in state)
        torn.append(states.setdefault(of_several, len(states)))
        if len(states) > MOST_STATES or len(states) * len(samples) > MOST_CELLS:
            raise Unsupported(
                f"its pre-tokenizer needs more than {MOST_STATES} states, or {MOST_CELLS} states "
                "multiplied by classes of characters"
            )
    may_end = [
        any(words.may_cut(place) and _may_end(splitters, guesses) for guesses, place in state)
        for state in states
    ]
    return PreTokenizer(
        classes, general, np.stack(rows), np.array(torn, np.int32), np.array(may_end)
    )


def _general(kinds: Int32s, letters: Int32s) -> Int32s:
    """`PreTokenizer.general`, from what the regexes distinguish and the letters of whole tokens."""
    general = np.arange(len(kinds), dtype=np.int32)
    for kind in np.unique(kinds):
        alike = np.flatnonzero(kinds == kind)
        plain = alike[letters[alike] == 0]
        general[alike] = plain[0] if len(plain) else alike
    return general


def _cut(splitters: Sequence[_Splitter], guesses: Guesses, c: int) -> Iterator[Guesses]:
    """The guesses after a character of class c before which there is a cut."""
    parts = list(zip(splitters, guesses, strict=True))
    for level, (splitter, guess) in enumerate(parts):
        if _may_end(splitters[level + 1 :], guesses[level + 1 :]):
            yield from itertools.product(
                *(before.after(one, c, cut=False) for before, one in parts[:level]),
                splitter.after(guess, c, cut=True),
                *(later.after(later.start_guess, c, cut=True) for later in splitters[level + 1 :]),
            )


def _may_end(splitters: Sequence[_Splitter], guesses: Guesses) -> bool:
    return all(map(_Splitter.may_end, splitters, guesses))


class _Whole:
    """A trie of the texts of whole tokens.

    What is known of the text since the last cut is a place: its node in the trie, which is 0 at the
    beginning of a text and -1 if no such text begins like that, and whether one token may spell it.
    """

    START: Place = (0, False)

    def __init__(self, texts: Sequence[str]) -> None:
        self._nodes: dict[tuple[int, str], int] = {}
        self._ends: set[int] = set()
        for text in texts:
            node = 0
            for letter in text:
                node = self._nodes.setdefault((node, letter), len(self._nodes) + 1)
            self._ends.add(node)

    def next(self, node: int, letter: str) -> int:
        """The node after a letter."""
        return self._nodes.get((node, letter), -1)

    def begin(self, letter: str) -> Place:
        """The place after the first letter of a piece."""
        node = self.next(0, letter)
        return node, node > 0

    def read(self, place: Place, letter: str, flag: int) -> Place:
        """The place after a letter before which there is no cut."""
        node, is_one = place
        if node == 0:
            return self.begin(letter)
        node = self.next(node, letter)
        return node, is_one and node > 0 and flag != APART

    def may_cut(self, place: Place) -> bool:
        """Whether there may be a cut or the end of the text."""
        node, is_one = place
        return is_one or node not in self._ends


class _Splitter:
    """One regex as a graph of places, and its guesses.

    A place is a tuple: ("character", set, next), ("either", [next, in order of preference]), or
    ("ahead", set, whether the lookahead is negative, next). `sets` are numbered, and become masks
    of character classes. The highest bit of a mask represents the end of the text.
    """

    def __init__(self, pattern: str) -> None:
        self.sets: list[Set] = []
        self._numbers: dict[Any, int] = {}
        self._places: list[Any] = []
        self._aside: list[str] = []
        try:
            tree = op.parse(_PROPERTY.sub(self._put_aside, pattern))
        except re.error as error:
            raise Unsupported(f"its pre-tokenizer's regex {pattern} cannot be read: {error}") from (
                error
            )
        self._pattern = pattern
        self._start = self._sequence(tree, MATCH, 0)
        self._paths: dict[int, list[tuple[int, int]]] = {}
        self._read: dict[tuple[Guess, int, bool], tuple[Guess, ...]] = {}

    def set_classes(self, samples: Int64s) -> None:
        """Set the character classes, given one code point of each."""
        self._end = 1 << len(samples)
        self._all = 2 * self._end - 1
        self._masks = [
            sum(1 << k for k in np.flatnonzero(found[samples]).tolist()) for found in self.sets
        ]
        self.start_guess: Guess = (MATCH, frozenset(), self._all)

    def after(self, guess: Guess, c: int, *, cut: bool) -> tuple[Guess, ...]:
        """The guesses after a character.

        Args:
            guess: the guess before it.
            c: its class.
            cut: whether it begins a new piece of this regex.
        """
        key = (guess, c, cut)
        if key not in self._read:
            self._read[key] = tuple(dict.fromkeys(self._guesses(guess, 1 << c, cut)))
        return self._read[key]

    def may_end(self, guess: Guess) -> bool:
        """Whether the text may end at a guess."""
        place, _, allowed = guess
        return bool(allowed & self._end) and (
            place == GAP or any(n == MATCH and mask & self._end for n, mask in self._closure(place))
        )

    def _guesses(self, guess: Guess, bit: int, cut: bool) -> Iterator[Guess]:
        place, forbidden, allowed = guess
        if not allowed & bit:
            return
        paths: set[tuple[int, int]] = set()
        allowed = self._all
        for n, mask in forbidden:
            if mask & bit:
                allowed = self._forbid(self._places[n][2], paths, allowed)
        if place == GAP:
            if cut:
                yield from self._begin(bit, paths, allowed, gap=False)
            else:
                for n, mask in self._closure(self._start):
                    if mask & bit and allowed:
                        allowed = self._forbid(self._places[n][2], paths, allowed)
                if allowed:
                    yield (GAP, frozenset(paths), allowed)
            return
        for n, mask in self._closure(place):
            if not allowed:
                return
            if not mask & bit:
                continue
            if n == MATCH:
                if cut:
                    yield from self._begin(bit, paths, allowed, gap=True)
                return
            if not cut:
                yield (self._places[n][2], frozenset(paths), allowed)
            allowed = self._forbid(self._places[n][2], paths, allowed)

    def _begin(
        self, bit: int, paths: set[tuple[int, int]], allowed: int, *, gap: bool
    ) -> Iterator[Guess]:
        """The guesses after the first character of a piece."""
        paths = set(paths)
        for n, mask in self._closure(self._start):
            if not allowed:
                return
            if mask & bit:
                if n == MATCH:
                    raise Unsupported(
                        f"its pre-tokenizer's regex {self._pattern} can match nothing"
                    )
                yield (self._places[n][2], frozenset(paths), allowed)
                allowed = self._forbid(self._places[n][2], paths, allowed)
        if gap and allowed:
            yield (GAP, frozenset(paths), allowed)

    def _forbid(self, place: int, paths: set[tuple[int, int]], allowed: int) -> int:
        """Forbid all paths from a place to match; return what the next character may then be."""
        for n, mask in self._closure(place):
            if n == MATCH:
                allowed &= self._all & ~mask
                if not allowed:
                    break
            else:
                paths.add((n, mask))
        return allowed

    def _closure(self, place: int) -> list[tuple[int, int]]:
        """The places that read a character, or `MATCH`, in the engine's order, each with the next
        characters for which it is reached."""
        if place not in self._paths:
            found: list[tuple[int, int]] = []
            seen = set()
            stack = [(place, self._all)]
            while stack:
                n, mask = stack.pop()
                if (n, mask) in seen or not mask:
                    continue
                seen.add((n, mask))
                kind = "match" if n == MATCH else self._places[n][0]
                if kind == "match":
                    found.append((n, mask))
                elif kind == "character":
                    found.append((n, mask & self._masks[self._places[n][1]]))
                elif kind == "either":
                    stack += [(after, mask) for after in reversed(self._places[n][1])]
                else:
                    _, number, is_not, after = self._places[n]
                    other = self._all & ~self._masks[number]
                    stack.append((after, mask & (other if is_not else self._masks[number])))
            self._paths[place] = [(n, mask) for n, mask in found if mask]
        return self._paths[place]

    def _put_aside(self, found: re.Match[str]) -> str:
        self._aside.append(found.group())
        return chr(_ASIDE + len(self._aside) - 1)

    def _add(self, place: Any) -> int:
        self._places.append(place)
        return len(self._places) - 1

    def _sequence(self, tree: Any, after: int, flags: int) -> int:
        letters = "".join(
            chr(value).lower() if kind is op.LITERAL and flags & re.IGNORECASE else " "
            for kind, value in tree
        )
        if any(pair in letters for pair in _FOLDED_PAIRS):
            raise self._unsupported("letters that fold into one")
        for kind, value in reversed(list(tree)):
            after = self._item(kind, value, after, flags)
        return after

    def _item(self, kind: Any, value: Any, after: int, flags: int) -> int:
        if kind in (op.LITERAL, op.NOT_LITERAL, op.IN):
            return self._add(("character", self._set(kind, value, flags), after))
        if kind is op.BRANCH:
            return self._add(("either", [self._sequence(one, after, flags) for one in value[1]]))
        if kind is op.SUBPATTERN:
            return self._sequence(value[3], after, (flags | value[1]) & ~value[2])
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, tree = value
            return self._repeat(least, most, tree, after, flags, is_greedy=kind is op.MAX_REPEAT)
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, tree = value
            if direction == 1 and len(tree) == 1:
                (one, content) = tree[0]
                number = self._set(one, content, flags)
                return self._add(("ahead", number, kind is op.ASSERT_NOT, after))
        raise self._unsupported(str(kind))

    def _repeat(
        self, least: int, most: Any, tree: Any, after: int, flags: int, *, is_greedy: bool
    ) -> int:
        def either(body: int) -> list[int]:
            return [body, after] if is_greedy else [after, body]

        if most is op.MAXREPEAT:
            place = self._add(None)
            self._places[place] = ("either", either(self._sequence(tree, place, flags)))
        else:
            place = after
            for _ in range(most - least):
                place = self._add(("either", either(self._sequence(tree, place, flags))))
        for _ in range(least):
            place = self._sequence(tree, place, flags)
        return place

    def _set(self, kind: Any, value: Any, flags: int) -> int:
        """The number of the set of one character of the regex."""
        key = (kind, repr(value), flags & re.IGNORECASE)
        if key not in self._numbers:
            self._numbers[key] = len(self.sets)
            self.sets.append(self._members(kind, value, flags))
        return self._numbers[key]

    def _members(self, kind: Any, value: Any, flags: int) -> Set:
        if kind is op.LITERAL:
            return self._literal(value, flags)
        if kind is op.NOT_LITERAL:
            return ~self._literal(value, flags)
        if kind is not op.IN:
            raise self._unsupported(str(kind))
        found = np.zeros(SIZE, bool)
        is_not = False
        for item, content in value:
            if item is op.NEGATE:
                is_not = True
            elif item is op.LITERAL:
                found |= self._literal(content, flags)
            elif item is op.RANGE and not flags & re.IGNORECASE:
                found[content[0] : content[1] + 1] = True
            else:
                raise self._unsupported(str(item))
        return ~found if is_not else found

    def _literal(self, code: int, flags: int) -> Set:
        if 0 <= code - _ASIDE < len(self._aside):
            return _members_of(self._aside[code - _ASIDE])
        found = np.zeros(SIZE, bool)
        found[code] = True
        if flags & re.IGNORECASE:
            found |= matched_by(f"(?i:{re.escape(chr(code))})", _letters())
        return found

    def _unsupported(self, what: str) -> Unsupported:
        return Unsupported(f"its pre-tokenizer's regex {self._pattern} has {what}")


@functools.cache
def _members_of(pattern: str) -> Set:
    return matched_by(pattern)


def _letters() -> Set:
    """All characters that an ASCII letter may match if case is ignored."""
    return _members_of("(?i:[a-zA-Z])")
