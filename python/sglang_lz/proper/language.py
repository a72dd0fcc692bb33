"""The language of a regex, JSON schema or structural tag, as an automaton over characters.

XGrammar, the library behind upstream's default backend, turns each of them into rules, so a
constraint allows the same texts with and without proper tokens. The rules become a Thompson NFA,
and its reachable subsets become the states of the automaton. A rule that calls itself at its end is
a loop. A rule that calls itself elsewhere is not regular in general, and is refused.

A regex of a few bytes can require an arbitrary number of places and subsets. Everything is
therefore counted while it is built, and a constraint that exceeds a bound is refused immediately.
The bounds keep every constraint below about two seconds and 100 MB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sglang_lz.proper.codepoints import SIZE
from sglang_lz.proper.tokenizer import Unsupported

MOST_RULES = 1_000_000
"""The most characters in the rules that XGrammar generates from a constraint."""
MOST_PLACES = 100_000
"""The most places of the NFA."""
MOST_STEPS = 2_000_000
"""The most steps for building the NFA, and again for building the automaton. A step is a part of a
rule, a visit to a place, or a class of characters with a transition from a state."""
MOST_TOLD = 32_000_000
"""The most sets of characters in a constraint, times the character ranges they distinguish."""
MOST_STATES = 20_000
"""The most states of the automaton."""
MOST_ELEMENTS = 2_000_000
"""The most places in all states and closures together."""
MOST_ENTRIES = 8_000_000
"""The most states of the automaton, times its classes of characters."""
LAST = SIZE - 1


class Language(NamedTuple):
    """A deterministic automaton over characters. Every state can reach an accepting state.

    Attributes:
        classes: [SIZE] int32: the class of each code point.
        table: [states, classes] int32: the next state by state and class; -1 if there is none.
            State 0 is the initial state.
        accepts: [states] bool: whether a state is accepting.
        distance: [states] int32: the number of characters to the nearest accepting state.
    """

    classes: npt.NDArray[np.int32]
    table: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of code points as inclusive ranges."""

ANY_TEXT = r"root ::= (([\0-\U0010ffff]*))"
"""The rules that allow every text."""


class _Budget:
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
            raise Unsupported(f"it needs more than {self._most} {self._what}")


class Rules:
    """Rules in XGrammar's notation, as a graph (the NFA).

    Places are numbered. `reads` holds, for each place, the sets of characters that it reads and the
    place that each set leads to. `also` holds the places that it leads to without reading. Place 0
    accepts.

    Raises:
        Unsupported: they are recursive, too large, or contain something that is not text.
    """

    def __init__(self, text: str) -> None:
        _Budget(MOST_RULES, "characters of rules").spend(len(text))
        self._steps = _Budget(MOST_STEPS, "steps to build")
        self._places = _Budget(MOST_PLACES, "places")
        self.reads: list[Sequence[tuple[Ranges, int]]] = [()]
        self.also: list[Sequence[int]] = [()]
        self._calls: dict[tuple[str, int], int] = {}
        self._active: dict[str, int] = {}
        try:
            self._rules = dict(_rules(text))
            self.start = self._call("root", 0)
        except RecursionError:
            raise Unsupported("it is nested too deeply") from None
        del self._rules, self._calls, self._active

    def _place(self, reads: Sequence[tuple[Ranges, int]] = (), also: Sequence[int] = ()) -> int:
        self._places.spend()
        self.reads.append(reads)
        self.also.append(also)
        return len(self.reads) - 1

    def _call(self, name: str, after: int) -> int:
        """The first place of a rule that continues at the place `after`."""
        key = (name, after)
        if key not in self._calls:
            if self._active.get(name):
                raise Unsupported(f"it is recursive, at its rule {name}")
            self._calls[key] = place = self._place()
            self._active[name] = 1
            self.also[place] = (self._build(self._rules[name], after),)
            self._active[name] = 0
        return self._calls[key]

    def _build(self, node: Any, after: int) -> int:
        self._steps.spend()
        kind, value = node
        if kind == "text":
            for character in reversed(value):
                after = self._read(((ord(character), ord(character)),), after)
            return after
        if kind == "set":
            return self._read(value, after)
        if kind == "call":
            return self._call(value, after)
        if kind == "sequence":
            for part in reversed(value):
                after = self._build(part, after)
            return after
        if kind == "choice":
            return self._place(also=tuple([self._build(part, after) for part in value]))
        if kind == "repeat":
            part, least, most = value
            return self._repeat(part, least, most, after)
        return self._dispatch(value, after)

    def _read(self, ranges: Ranges, after: int) -> int:
        return self._place(reads=((ranges, after),))

    def _repeat(self, part: Any, least: int, most: int, after: int) -> int:
        if most < 0:
            place = self._place()
            self.also[place] = (after, self._build(part, place))
        else:
            place = after
            for _ in range(most - least):
                place = self._place(also=(after, self._build(part, place)))
        for _ in range(least):
            place = self._build(part, place)
        return place

    def _dispatch(self, value: dict[str, Any], after: int) -> int:
        """Any text up to a trigger, then the rule of that trigger, repeatedly if it loops."""
        triggers: dict[str, str] = value["triggers"]
        words = [*triggers, *value["excludes"]]
        letters = set("".join(words))
        self._steps.spend(sum(map(len, words)) * (len(words) + len(letters)))
        prefixes = sorted({word[:size] for word in words for size in range(len(word) + 1)})
        places = {prefix: self._place() for prefix in prefixes}
        start = places[""]
        others = _complement((ord(letter), ord(letter)) for letter in letters)
        for prefix, place in places.items():
            found = next((word for word in words if prefix.endswith(word)), None)
            if found is not None:
                if found in triggers:
                    behind = start if value["loops"] else after
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


def language_of(rules: Rules) -> Language:
    """Build the automaton of rules.

    Raises:
        Unsupported: it is too large, or accepts no text.
    """
    classes, n_classes, members = _classes({ranges for edges in rules.reads for ranges, _ in edges})
    subsets = _Subsets(rules)
    entries = _Budget(MOST_ENTRIES, "states times classes of characters")
    table = bytearray()
    sources: list[list[int]] = [[]]  # the predecessors of each state
    for number, places in enumerate(subsets):
        entries.spend(n_classes)
        row = np.full(n_classes, -1, np.int32)
        for behind, taken in _edges(rules, places, members, subsets.steps):
            target = subsets.number(behind)
            row[taken] = target
            if target == len(sources):
                sources.append([])
            sources[target].append(number)
        table += row.tobytes()
    accepts = np.array(subsets.accepts)
    return _trimmed(
        classes, np.frombuffer(table, np.int32).reshape(-1, n_classes), accepts, sources
    )


def _classes(
    sets: set[Ranges],
) -> tuple[npt.NDArray[np.int32], int, dict[Ranges, npt.NDArray[np.int64]]]:
    """The class of each code point, the number of classes, and the classes of each set."""
    begin = np.unique(
        [0, *(edge for ranges in sets for first, last in ranges for edge in (first, last + 1))]
    )
    begin = begin[begin < SIZE]
    _Budget(MOST_TOLD, "sets times ranges of characters").spend(len(sets) * len(begin))
    bits = np.zeros((-(-len(sets) // 8) or 1, len(begin)), np.uint8)
    for i, ranges in enumerate(sets):
        for first, last in ranges:
            low, high = np.searchsorted(begin, [first, last + 1]).tolist()
            bits[i >> 3, low:high] |= 1 << (i & 7)
    kinds, class_of = np.unique(bits.T, axis=0, return_inverse=True)
    members = {
        ranges: np.flatnonzero(kinds[:, i >> 3] >> (i & 7) & 1) for i, ranges in enumerate(sets)
    }
    lengths = np.diff(np.append(begin, SIZE))
    return np.repeat(class_of.ravel().astype(np.int32), lengths), len(kinds), members


class _Subsets:
    """The reachable sets of places, numbered as they are found.

    Iteration includes the sets that are added while it runs.

    Attributes:
        accepts: whether each set accepts.
        steps: the steps that are left.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.steps = _Budget(MOST_STEPS, "steps to build")
        self._states = _Budget(MOST_STATES, "states")
        self._elements = _Budget(MOST_ELEMENTS, "places in all its states")
        self._closures: dict[int, tuple[int, ...]] = {}
        self._numbers: dict[bytes, int] = {}
        self._waiting: list[bytes] = []
        self.accepts: list[bool] = []
        self.number(np.array([rules.start], np.int32).tobytes())

    def number(self, subset: bytes) -> int:
        """The number of a set of places, given as the bytes of a sorted int32 array."""
        number = self._numbers.setdefault(subset, len(self._numbers))
        if number == len(self._waiting):
            self._states.spend()
            self._elements.spend(len(subset) // 4)
            self._waiting.append(subset)
        return number

    def __iter__(self) -> Iterator[list[int]]:
        """For each set, its places that read a character."""
        for subset in self._waiting:
            places = np.frombuffer(subset, np.int32).tolist()
            if len(places) == 1:
                found: Iterable[int] = self._closure(places[0])
            else:
                found = set()
                for place in places:
                    found.update(self._closure(place))
            self.accepts.append(0 in found)
            yield [place for place in found if place]

    def _closure(self, first: int) -> tuple[int, ...]:
        """The places reachable from a place without reading that read a character or accept."""
        if first not in self._closures:
            seen = {first}
            stack = [first]
            while stack:
                also = self._rules.also[stack.pop()]
                self.steps.spend(1 + len(also))
                for place in also:
                    if place not in seen:
                        seen.add(place)
                        stack.append(place)
            closure = tuple([place for place in seen if not place or self._rules.reads[place]])
            self._elements.spend(len(closure))
            self._closures[first] = closure
        self.steps.spend(len(self._closures[first]))
        return self._closures[first]


def _edges(
    rules: Rules,
    places: list[int],
    members: dict[Ranges, npt.NDArray[np.int64]],
    steps: _Budget,
) -> Iterator[tuple[bytes, npt.NDArray[np.int64]]]:
    """The transitions from a set of places: each target set, and the classes that lead to it."""
    edges = [
        (members[ranges], after)
        for place in places
        for ranges, after in rules.reads[place]
        if len(members[ranges])
    ]
    steps.spend(sum(len(taken) for taken, _ in edges))
    if len(edges) == 1:
        ((taken, after),) = edges
        yield np.array([after], np.int32).tobytes(), taken
        return
    if not edges:
        return
    behind = np.repeat([after for _, after in edges], [len(taken) for taken, _ in edges])
    pairs = np.unique(np.concatenate([taken for taken, _ in edges]) << 32 | behind)
    by_class, behind = pairs >> 32, pairs.astype(np.int32)
    classes, begin = np.unique(by_class, return_index=True)
    alike: dict[bytes, list[int]] = {}
    for k, first, last in zip(
        classes.tolist(), begin.tolist(), [*begin[1:].tolist(), len(pairs)], strict=True
    ):
        alike.setdefault(behind[first:last].tobytes(), []).append(k)
    for subset, found in alike.items():
        yield subset, np.array(found)


def _trimmed(
    classes: npt.NDArray[np.int32],
    table: npt.NDArray[np.int32],
    accepts: npt.NDArray[np.bool_],
    sources: list[list[int]],
) -> Language:
    """The automaton without the states that cannot reach an accepting state."""
    distance = np.where(accepts, 0, -1).astype(np.int32)
    order = np.flatnonzero(accepts).tolist()
    for state in order:
        for before in sources[state]:
            if distance[before] < 0:
                distance[before] = distance[state] + 1
                order.append(before)
    if distance[0] < 0:
        raise Unsupported("it allows no text")
    if len(order) == len(table):
        return Language(classes, table, accepts, distance)
    kept = np.sort(order)
    number = np.full(len(table) + 1, -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    return Language(classes, number[table[kept]], accepts[kept], distance[kept])


def _complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All code points except those in some ranges."""
    found, first = [], 0
    for begin, end in sorted(ranges):
        if first < begin:
            found.append((first, begin - 1))
        first = max(first, end + 1)
    if first <= LAST:
        found.append((first, LAST))
    return tuple(found)


# XGrammar's notation. This covers what XGrammar prints, not everything that it can read.
_LEXEME = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<name>[A-Za-z_][\w.\-]*)
    |(?P<repeat>\{\s*(?P<least>\d+)\s*,\s*(?P<most>-?\d+)\s*\})|(?P<sign>::=|[()|*+?=,]))""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "b": "\b", "a": "\a", "0": "\0"}
_CHARACTER = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)


def _rules(text: str) -> Iterator[tuple[str, Any]]:
    """The rules of a grammar by name."""
    lexemes = [found for line in text.splitlines() for found in _lexemes(line)]
    reader = _Reader(lexemes)
    while reader.at < len(lexemes):
        name = reader.take("name")
        reader.take("sign", "::=")
        yield name, reader.choice()


def _lexemes(line: str) -> Iterator[tuple[str, str]]:
    line = line.rstrip()
    at = 0
    while at < len(line):
        found = _LEXEME.match(line, at)
        if found is None:
            raise Unsupported(f"its rules hold {line[at : at + 40]!r}")
        kind = found.lastgroup or ""
        yield ("repeat" if found["repeat"] else kind), found.group().strip()
        at = found.end()


class _Reader:
    """Reads rules from lexemes."""

    def __init__(self, lexemes: list[tuple[str, str]]) -> None:
        self._lexemes = lexemes
        self.at = 0

    def peek(self, ahead: int = 0) -> tuple[str, str]:
        at = self.at + ahead
        return self._lexemes[at] if at < len(self._lexemes) else ("end", "")

    def take(self, kind: str, text: str | None = None) -> str:
        found_kind, found = self.peek()
        if found_kind != kind or text not in (None, found):
            raise Unsupported(f"its rules hold {found!r} in place of {text or kind}")
        self.at += 1
        return found

    def choice(self) -> Any:
        parts = [self.sequence()]
        while self.peek() == ("sign", "|"):
            self.at += 1
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else ("choice", parts)

    def sequence(self) -> Any:
        parts: list[Any] = []
        while True:
            kind, text = self.peek()
            if kind == "end" or text in ("|", ")") or self.peek(1) == ("sign", "::="):
                return parts[0] if len(parts) == 1 else ("sequence", parts)
            part = self.item()
            if part is not None:
                parts.append(self.suffixed(part))

    def suffixed(self, part: Any) -> Any:
        kind, text = self.peek()
        if kind == "repeat":
            least, most = map(int, text.strip("{}").split(","))
        elif kind == "sign" and text in "*+?":
            least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}[text]
        else:
            return part
        self.at += 1
        return ("repeat", (part, least, most))

    def item(self) -> Any:
        kind, text = self.peek()
        self.at += 1
        if kind == "text":
            return ("text", "".join(_characters(text[1:-1])))
        if kind == "set":
            return ("set", _ranges(text[1:-1]))
        if kind == "name":
            if self.peek() == ("sign", "("):
                return self.dispatch(text)
            return ("call", text)
        if text != "(":
            raise Unsupported(f"its rules hold {text!r}")
        if self.peek() == ("sign", "="):
            # A hint for XGrammar's own tables, which is implied by the other rules.
            self.at += 1
            self.choice()
            self.take("sign", ")")
            return None
        part = self.choice()
        self.take("sign", ")")
        return part

    def dispatch(self, name: str) -> Any:
        """`TagDispatch(("trigger", rule), ..., loop_after_dispatch=..., excludes=(...))`."""
        if name == "Regex":
            raise Unsupported(
                "it has a pattern, and XGrammar gives no rules for the patterns of a JSON schema "
                "(pattern, patternProperties, propertyNames); use enum, format or maxLength, or "
                "write the whole constraint as a regex"
            )
        if name != "TagDispatch":
            raise Unsupported(f"its rules hold {name}, which is no text")
        self.take("sign", "(")
        triggers: dict[str, str] = {}
        excludes: list[str] = []
        loops = True
        while self.peek() != ("sign", ")"):
            if self.peek() == ("sign", "("):
                self.at += 1
                trigger = "".join(_characters(self.take("text")[1:-1]))
                self.take("sign", ",")
                triggers[trigger] = self.take("name")
                self.take("sign", ")")
            else:
                key = self.take("name")
                self.take("sign", "=")
                if key == "loop_after_dispatch":
                    loops = self.take("name") == "true"
                elif key == "excludes":
                    self.take("sign", "(")
                    while self.peek()[0] == "text":
                        excludes.append("".join(_characters(self.take("text")[1:-1])))
                        if self.peek() == ("sign", ","):
                            self.at += 1
                    self.take("sign", ")")
                else:
                    raise Unsupported(f"its rules hold {key}")
            if self.peek() == ("sign", ","):
                self.at += 1
        self.take("sign", ")")
        return ("dispatch", {"triggers": triggers, "excludes": excludes, "loops": loops})


def _characters(text: str) -> Iterator[str]:
    for short, middle, long, escaped, plain in _CHARACTER.findall(text):
        digits = short or middle or long
        yield chr(int(digits, 16)) if digits else plain or _ESCAPES.get(escaped, escaped)


def _ranges(text: str) -> Ranges:
    """The ranges of a character set, given the text between its brackets."""
    is_not = text.startswith("^")
    ranges = []
    items = [found.group() for found in _CHARACTER.finditer(text[is_not:])]
    at = 0
    while at < len(items):
        first = next(_characters(items[at]))
        is_range = at + 2 < len(items) and items[at + 1] == "-"
        last = next(_characters(items[at + 2])) if is_range else first
        ranges.append((ord(first), ord(last)))
        at += 3 if is_range else 1
    return _complement(ranges) if is_not else tuple(sorted(ranges))
