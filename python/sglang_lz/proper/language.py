"""The language of a regex, JSON schema or structural tag, as an automaton over characters.

XGrammar, the library behind upstream's default backend, turns each of them into rules, so a
constraint allows the same texts with proper tokens as without. The rules become a Thompson NFA, and
its reachable subsets the automaton. A rule that calls itself last is a loop; one that calls itself
elsewhere is no regular language, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from sglang_lz.proper.codepoints import SIZE, classes_of, of_ranges
from sglang_lz.proper.tokenizer import Unsupported

MOST_PLACES = 200_000
MOST_STATES = 20_000
_FAR = np.int32(1 << 30)
LAST = SIZE - 1


class Language(NamedTuple):
    """A deterministic automaton over characters; each state leads to an accepting one.

    Attributes:
        classes: [SIZE] int32: the class of each code point.
        table: [states, classes] int32, from state and class to the next state; -1 is none. State 0
            is the first.
        accepts: [states] bool.
        distance: [states] int32: how many characters an accepting state is away.
    """

    classes: npt.NDArray[np.int32]
    table: npt.NDArray[np.int32]
    accepts: npt.NDArray[np.bool_]
    distance: npt.NDArray[np.int32]


Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""A set of code points, both ends of each range included."""

ANY_TEXT = r"root ::= (([\0-\U0010ffff]*))"
"""The rules of every text."""


class Rules:
    """Rules in XGrammar's notation, as a graph.

    Places are numbered. Each has a list of characters that it reads, with the place behind, and a
    list of places that it also stands for. Place 0 accepts.

    Raises:
        Unsupported: they are recursive, too large, or hold what is no text.
    """

    def __init__(self, text: str) -> None:
        self._rules = dict(_rules(text))
        self.reads: list[list[tuple[Ranges, int]]] = [[]]
        self.also: list[list[int]] = [[]]
        self._calls: dict[tuple[str, int], int] = {}
        self._active: dict[str, int] = {}
        self.start = self._call("root", 0)

    def _place(self) -> int:
        if len(self.reads) > MOST_PLACES:
            raise Unsupported(f"it needs more than {MOST_PLACES} places")
        self.reads.append([])
        self.also.append([])
        return len(self.reads) - 1

    def _call(self, name: str, after: int) -> int:
        """The first place of a rule that goes on at another place."""
        key = (name, after)
        if key not in self._calls:
            if self._active.get(name):
                raise Unsupported(f"it is recursive, at its rule {name}")
            self._calls[key] = place = self._place()
            self._active[name] = 1
            self.also[place].append(self._build(self._rules[name], after))
            self._active[name] = 0
        return self._calls[key]

    def _build(self, node: Any, after: int) -> int:
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
            place = self._place()
            self.also[place] = [self._build(part, after) for part in value]
            return place
        if kind == "repeat":
            part, least, most = value
            return self._repeat(part, least, most, after)
        return self._dispatch(value, after)

    def _read(self, ranges: Ranges, after: int) -> int:
        place = self._place()
        self.reads[place].append((ranges, after))
        return place

    def _repeat(self, part: Any, least: int, most: int, after: int) -> int:
        if most < 0:
            place = self._place()
            self.also[place] = [after, self._build(part, place)]
        else:
            place = after
            for _ in range(most - least):
                head = self._place()
                self.also[head] = [after, self._build(part, place)]
                place = head
        for _ in range(least):
            place = self._build(part, place)
        return place

    def _dispatch(self, value: dict[str, Any], after: int) -> int:
        """Any text up to a trigger, then the trigger's rule, and so on."""
        triggers: dict[str, str] = value["triggers"]
        words = [*triggers, *value["excludes"]]
        prefixes = sorted({word[:size] for word in words for size in range(len(word) + 1)})
        places = {prefix: self._place() for prefix in prefixes}
        start = places[""]
        for prefix, place in places.items():
            found = next((word for word in words if prefix.endswith(word)), None)
            if found is not None:
                if found in triggers:
                    behind = start if value["loops"] else after
                    self.also[place].append(self._call(triggers[found], behind))
                continue
            self.also[place].append(after)
            letters = {word[at] for word in words for at in range(len(word))}
            for letter in letters:
                text = prefix + letter
                while text not in places:
                    text = text[1:]
                self.reads[place].append((((ord(letter), ord(letter)),), places[text]))
            self.reads[place].append((_others(letters), start))
        return start


def language_of(rules: Rules) -> Language:
    """The automaton of rules.

    Raises:
        Unsupported: it is too large, or allows no text.
    """
    sets = sorted({ranges for edges in rules.reads for ranges, _ in edges})
    classes, samples = classes_of([of_ranges(ranges) for ranges in sets] or [np.zeros(SIZE, bool)])
    members = {
        ranges: [
            k
            for k, code in enumerate(samples.tolist())
            if any(first <= code <= last for first, last in ranges)
        ]
        for ranges in sets
    }
    closures: dict[int, tuple[frozenset[int], bool]] = {}
    start = frozenset([rules.start])
    states = {start: 0}
    order = [start]
    rows, accepts = [], []
    for state in order:
        row = np.full(len(samples), -1, np.int32)
        targets: dict[int, set[int]] = {}
        accepting = False
        for place in _closure(rules, state, closures):
            accepting |= place == 0
            for ranges, after in rules.reads[place]:
                for k in members[ranges]:
                    targets.setdefault(k, set()).add(after)
        for k, after_all in targets.items():
            target = frozenset(after_all)
            number = states.setdefault(target, len(states))
            if number == len(order):
                order.append(target)
                if number >= MOST_STATES:
                    raise Unsupported(f"it needs more than {MOST_STATES} states")
            row[k] = number
        rows.append(row)
        accepts.append(accepting)
    return _trimmed(classes, np.stack(rows), np.array(accepts))


def _closure(rules: Rules, state: frozenset[int], known: dict[int, Any]) -> set[int]:
    """The places of a state and all that they stand for."""
    seen: set[int] = set()
    for first in state:
        if first not in known:
            found: set[int] = set()
            stack = [first]
            while stack:
                place = stack.pop()
                if place not in found:
                    found.add(place)
                    stack += rules.also[place]
            known[first] = {place for place in found if place == 0 or rules.reads[place]}
        seen |= known[first]
    return seen


def _trimmed(
    classes: npt.NDArray[np.int32], table: npt.NDArray[np.int32], accepts: npt.NDArray[np.bool_]
) -> Language:
    """The automaton without the states that lead to no accepting one."""
    distance = np.where(accepts, 0, _FAR).astype(np.int32)
    while True:
        after = np.where(table >= 0, distance[table], _FAR).min(axis=1)
        nearer = np.minimum(distance, np.where(after < _FAR, after + 1, _FAR))
        if (nearer == distance).all():
            break
        distance = nearer.astype(np.int32)
    if distance[0] == _FAR:
        raise Unsupported("it allows no text")
    kept = np.flatnonzero(distance < _FAR)
    number = np.full(len(table) + 1, -1, np.int32)
    number[kept] = np.arange(len(kept), dtype=np.int32)
    return Language(classes, number[table[kept]], accepts[kept], distance[kept])


def _others(letters: set[str]) -> Ranges:
    """All code points but some."""
    ranges, first = [], 0
    for code in sorted(map(ord, letters)):
        if first < code:
            ranges.append((first, code - 1))
        first = code + 1
    return (*ranges, (first, LAST))


# XGrammar's notation: what it prints, not all that it reads.
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
    at = 0
    while line[at:].strip():
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
            # A hint for XGrammar's own tables: it follows from the other rules.
            self.at += 1
            self.choice()
            self.take("sign", ")")
            return None
        part = self.choice()
        self.take("sign", ")")
        return part

    def dispatch(self, name: str) -> Any:
        """`TagDispatch(("trigger", rule), ..., loop_after_dispatch=..., excludes=(...))`."""
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
    """The set that stands between brackets."""
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
    if not is_not:
        return tuple(sorted(ranges))
    found = of_ranges(ranges)
    edges = np.flatnonzero(np.diff(np.concatenate(([True], found, [True])).astype(np.int8)))
    return tuple((int(a), int(b) - 1) for a, b in edges.reshape(-1, 2))
