"""The rules of a constraint, as a nondeterministic automaton over characters (NFA).

XGrammar, the library behind upstream's default backend, turns each constraint into rules, so a
constraint allows the same texts with and without proper tokens. The rules become a Thompson NFA.

A rule that calls itself at its end becomes a loop. A left-recursive rule becomes a loop at its end:
A = A x | y means y followed by any number of x. A rule that calls itself elsewhere is recursive and
gets places of its own, in which a call is read like a character.

All other rules are copied for each call, so an array of at most n objects holds n copies of the
object. If that is too large, rules that begin with a bracket and are called more than once, as the
objects and arrays of a JSON schema, get places of their own too. The bracket limits how many rules
can start here.

A regex of a few bytes can require an arbitrary number of places. Everything is therefore counted
while it is built, here and in `language`, and a constraint that exceeds a bound is refused
immediately. The bounds keep each attempt to build a constraint below about two seconds and 100 MB.
"""

from __future__ import annotations

import json
import re._parser as op  # private; see tests/unit/test_python_regex.py
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from proper_tokens import patterns
from proper_tokens.codepoints import SIZE
from proper_tokens.patterns import LAST, Ranges, complement
from proper_tokens.tokenizer import Unsupported

MOST_RULES = 5_000_000
"""The most characters in the rules that XGrammar generates from a constraint, as JSON."""
MOST_PLACES = 100_000
"""The most places of the NFA."""
MOST_STEPS = 2_000_000
"""The most steps for building the NFA, and again for building the automaton. A step is a part of a
rule, a visit to a place, or a class of characters with a transition from a state."""

SERIALIZATION = "v16"
"""The version of XGrammar's JSON that `Rules` reads (`xgrammar.get_serialization_version`)."""
# The kinds of expressions, as `GrammarExprType` in XGrammar's grammar_impl.h numbers them. Those
# between the last two are about tokens, and are not text.
(_BYTES, _SET, _SET_STAR, _EMPTY, _CALL, _SEQUENCE, _CHOICES, _TAG_DISPATCH, _REPEAT) = range(9)
_PATTERN = 12
# The last fields of a rule that has no options; before them are its name, its expression and a hint
# for XGrammar's own tables, in two fields, which is implied by the other rules.
_NO_OPTIONS = [-1, -1, "", False, None]
# XGrammar's set for the characters of a string with a minimum or maximum length. Unlike its set for
# other strings, it allows control characters, which JSON forbids.
_LOOSE = [1, *(34, 34), *(92, 92), *(13, 13), *(10, 10)]
_ESCAPED = ((0, 31), (34, 34), (92, 92))  # the characters that JSON escapes in a string
_STRICT = [1, *(edge for pair in _ESCAPED for edge in pair)]

ANY_TEXT = json.dumps(
    {
        "rules": [["root", 0, -1, False, *_NO_OPTIONS]],
        "grammar_expr_data": [_SET_STAR, 3, 0, 0, LAST],
        "grammar_expr_indptr": [0],
        "root_rule_id": 0,
        "__VERSION__": SERIALIZATION,
    }
)
"""The rules that allow every text."""


class TooLarge(Unsupported):
    """A bound on the size of an automaton is exceeded."""


class Budget:
    """How much of a bounded resource is left."""

    def __init__(self, most: int, what: str) -> None:
        self._left, self._most, self._what = most, most, what

    def spend(self, amount: int = 1) -> None:
        """Spend an amount.

        Raises:
            Unsupported: the amount is more than what is left.
        """
        self._left -= amount
        if self._left < 0:
            raise TooLarge(f"it needs more than {self._most} {self._what}")


class Rules:
    """Rules in XGrammar's JSON (`Grammar.serialize_json`), as a graph (the NFA).

    Places are numbered. `reads` holds, for each place, the sets of characters that it reads and the
    place that each set leads to. `also` holds the places that it leads to without reading. Place 0
    accepts. `starts` has the first places of the recursive and shared rules; a call of the i-th is
    read like the character `SIZE + i`. `text` is the rules where sharing may make the automaton
    smaller, otherwise None.

    Args:
        text: the rules.
        is_shared: whether rules that begin with a bracket and are called more than once are called
            like recursive ones, not copied for each call. Without it, they are if the copies are
            too large.

    Raises:
        Unsupported: they are too large, of another version of XGrammar, or contain
            something that is not text.
    """

    def __init__(self, text: str, *, is_shared: bool = False) -> None:
        Budget(MOST_RULES, "characters of rules").spend(len(text))
        self._steps = Budget(MOST_STEPS, "steps to build")
        self._active: set[int] = set()
        grammar = json.loads(text)
        version = grammar.get("__VERSION__")
        if version != SERIALIZATION:
            raise Unsupported(
                f"its rules must have __VERSION__ {SERIALIZATION!r}, got {version!r}: install the "
                "version of xgrammar that sglang requires"
            )
        self._rules: list[list[Any]] = grammar["rules"]
        self._data: list[int] = grammar["grammar_expr_data"]
        self._begins: list[int] = grammar["grammar_expr_indptr"]
        try:
            brackets = self._brackets()
            self.text = None if is_shared or not brackets else text
            self._shared = brackets if is_shared else set()
            try:
                self._build_twice(grammar["root_rule_id"])
            except TooLarge:
                if self.text is None:
                    raise
                self.text, self._shared, self._active = None, brackets, set()
                self._build_twice(grammar["root_rule_id"])
        except RecursionError:
            raise Unsupported("it is nested too deeply") from None
        del self._rules, self._data, self._begins, self._calls, self._active
        del self._recursive, self._called

    def _build_twice(self, root: int) -> None:
        self._recursive: dict[int, int] = {}
        self._called: list[int] = []  # the same rules, by number
        self._build_all(root)
        if self._recursive:  # again without the copies made before it was known
            self._build_all(root)

    def _brackets(self) -> set[int]:
        """The rules that begin with a bracket and are called more than once."""
        calls = Counter(self._data[i + 2] for i in self._begins if self._data[i] == _CALL)
        return {
            rule for rule, n in calls.items() if n > 1 and self._is_bracket(self._rules[rule][1])
        }

    def _is_bracket(self, number: int) -> bool:
        kind, values = self._expression(number)
        if kind == _CHOICES:
            return all(map(self._is_bracket, values))
        if not values:
            return False
        if kind == _SEQUENCE:
            return self._is_bracket(values[0])
        return kind == _BYTES and values[0] & 0xFF in b"{["

    def _build_all(self, root: int) -> None:
        self._places = Budget(MOST_PLACES, "places")
        self.reads: list[Sequence[tuple[Ranges, int]]] = [()]
        self.also: list[Sequence[int]] = [()]
        self.names: list[str] = []
        self.starts: list[int] = []
        self._calls: dict[tuple[int, int], int] = {}
        self.start = self._call(root, 0)
        while len(self.starts) < len(self._called):  # which grows meanwhile
            rule = self._called[len(self.starts)]
            self.names.append(self._rules[rule][0])
            self.starts.append(self._own(rule))

    def _place(self, reads: Sequence[tuple[Ranges, int]] = (), also: Sequence[int] = ()) -> int:
        self._places.spend()
        self.reads.append(reads)
        self.also.append(also)
        return len(self.reads) - 1

    def _call(self, rule: int, after: int) -> int:
        """The first place of a rule that continues at the place `after`."""
        key = (rule, after)
        if key not in self._calls:
            if rule in self._active or rule in self._recursive or rule in self._shared:
                if rule not in self._recursive:
                    self._recursive[rule] = len(self._called)
                    self._called.append(rule)
                code = SIZE + self._recursive[rule]
                self._calls[key] = self._read(((code, code),), after)
                return self._calls[key]
            self._inline(rule, after)
        return self._calls[key]

    def _inline(self, rule: int, after: int) -> int:
        """The first place of a copy of a rule that continues at the place `after`."""
        name, expression, *_ = self._rules[rule]
        if self._rules[rule][4:] != _NO_OPTIONS:
            raise Unsupported(f"its rule {name} has options, which are no text")
        self._calls[rule, after] = place = self._place()
        self._active.add(rule)
        kind, values = self._expression(expression)
        if kind == _SET and values == _LOOSE and name.endswith("characters"):
            self.also[place] = (self._read(_ranges(_STRICT), after),)
        else:
            self.also[place] = (self._build(expression, after),)
        self._active.remove(rule)
        return place

    def _own(self, rule: int) -> int:
        """The first place of a recursive rule's own automaton.

        Where the rule calls itself at its beginning, the places behind the calls follow its end.
        """
        end = self._place(also=(0,))
        start = self._inline(rule, end)
        code = SIZE + self._recursive[rule]
        seen, stack = {start}, [start]
        reads: list[tuple[Ranges, int]] = []
        behind = []
        while stack:
            place = stack.pop()
            self._steps.spend(1 + len(self.also[place]) + len(self.reads[place]))
            for ranges, after in self.reads[place]:
                if ranges == ((code, code),):
                    behind.append(after)
                else:
                    reads.append((ranges, after))
            new = set(self.also[place]) - seen
            seen |= new
            stack += new
        if behind:
            self.also[start] = (self._place(reads, (end,) if end in seen else ()),)
            self.also[end] = (0, *behind)
        return start

    def _expression(self, number: int) -> tuple[int, list[int]]:
        """The kind and the values of an expression, without what only holds a single other one."""
        while True:
            begin = self._begins[number]
            kind, size = self._data[begin : begin + 2]
            values = self._data[begin + 2 : begin + 2 + size]
            if kind not in (_SEQUENCE, _CHOICES) or size != 1:
                return kind, values
            (number,) = values

    def _build(self, number: int, after: int) -> int:
        self._steps.spend()
        kind, values = self._expression(number)
        if kind == _EMPTY:
            return after
        if kind == _BYTES:
            for character in reversed(_text(values)):
                after = self._read(((ord(character), ord(character)),), after)
            return after
        if kind == _SET:
            return self._read(_ranges(values), after)
        if kind == _SET_STAR:
            place = self._place()
            self.also[place] = (after, self._read(_ranges(values), place))
            return place
        if kind == _CALL:
            return self._call(values[0], after)
        if kind == _SEQUENCE:
            for part in reversed(values):
                after = self._build(part, after)
            return after
        if kind == _CHOICES:
            return self._place(also=tuple([self._build(part, after) for part in values]))
        if kind == _REPEAT:
            rule, least, most = values
            return self._repeat(lambda place: self._call(rule, place), least, most, after)
        if kind == _TAG_DISPATCH:
            return self._dispatch(values, after)
        if kind == _PATTERN:
            is_in_string, *characters = values
            excluded = _ESCAPED if is_in_string else ()
            try:
                tree = patterns.tree_of(_text(characters))
            except patterns.Unreadable as error:
                raise Unsupported(str(error)) from error
            return self._match(tree, after, excluded)
        raise Unsupported(f"its rules hold an expression of kind {kind}, which is no text")

    def _match(self, tree: Any, after: int, excluded: Ranges) -> int:
        """The first place of a pattern's tree, without some characters.

        As in XGrammar, the pattern must match the whole string, so `^` and `$` mean nothing.
        """
        for kind, value in reversed(list(tree)):
            after = self._match_one(kind, value, after, excluded)
        return after

    def _match_one(self, kind: Any, value: Any, after: int, excluded: Ranges) -> int:
        self._steps.spend()
        characters = patterns.characters_of(kind, value)
        if characters is not None:
            if excluded:
                characters = complement([*complement(characters), *excluded])
            return self._read(characters, after)
        if kind is op.AT and value in (op.AT_BEGINNING, op.AT_END):
            return after
        if kind is op.BRANCH:
            return self._place(also=[self._match(one, after, excluded) for one in value[1]])
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return self._match(value[3], after, excluded)
        if kind not in (op.MAX_REPEAT, op.MIN_REPEAT):
            raise Unsupported(f"its pattern has {str(kind).lower()}, which is not covered")
        least, most, tree = value
        most = -1 if most is op.MAXREPEAT else most
        return self._repeat(lambda place: self._match(tree, place, excluded), least, most, after)

    def _read(self, ranges: Ranges, after: int) -> int:
        return self._place(reads=((ranges, after),))

    def _repeat(self, part: Callable[[int], int], least: int, most: int, after: int) -> int:
        """The first place of a part that occurs `least` to `most` times, any number if that is -1.

        Args:
            part: makes a copy of the part that continues at a place; returns its first place.
            after: the place behind the last copy.
        """

        def repeated(place: int) -> int:
            self._steps.spend()
            return part(place)

        if most < 0:
            place = self._place()
            self.also[place] = (after, repeated(place))
        else:
            place = after
            for _ in range(most - least):
                place = self._place(also=(after, repeated(place)))
        for _ in range(least):
            place = repeated(place)
        return place

    def _dispatch(self, values: list[int], after: int) -> int:
        """Any text up to a trigger, followed by the rule of that trigger; repeated if it loops.

        Args:
            values: for each trigger its expression and its rule; then whether it loops, and the
                choice of the texts that end it.
            after: the place behind it.
        """
        *pairs, loops, ends = values
        triggers = {
            _text(self._expression(pairs[i])[1]): pairs[i + 1] for i in range(0, len(pairs), 2)
        }
        kind, excludes = self._expression(ends)
        texts = [excludes] if kind == _BYTES else [self._expression(one)[1] for one in excludes]
        words = [*triggers, *map(_text, texts)]
        letters = set("".join(words))
        self._steps.spend(sum(map(len, words)) * (len(words) + len(letters)))
        prefixes = sorted({word[:size] for word in words for size in range(len(word) + 1)})
        places = {prefix: self._place() for prefix in prefixes}
        start = places[""]
        others = complement((ord(letter), ord(letter)) for letter in letters)
        for prefix, place in places.items():
            found = next((word for word in words if prefix.endswith(word)), None)
            if found is not None:
                if found in triggers:
                    behind = start if loops else after
                    self.also[place] = (self._call(triggers[found], behind),)
                continue
            self.also[place] = (after,)
            reads = [(others, start)]
            for letter in letters:
                text = prefix + letter
                while text not in places:
                    text = text[1:]
                reads.append((((ord(letter), ord(letter)),), places[text]))
            self.reads[place] = reads
        return start


def _text(values: list[int]) -> str:
    """The text of bytes, which XGrammar may give as signed numbers."""
    try:
        return bytes([value & 0xFF for value in values]).decode()
    except UnicodeDecodeError:
        raise Unsupported("its rules hold bytes that are no text") from None


def _ranges(values: list[int]) -> Ranges:
    """The ranges of a set: whether it is negated, then the first and last of each range."""
    is_not, *edges = values
    ranges = zip(edges[::2], edges[1::2], strict=True)
    return complement(ranges) if is_not else tuple(sorted(ranges))
