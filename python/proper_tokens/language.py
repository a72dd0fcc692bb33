"""The language of a constraint, as an automaton over characters.

The reachable subsets of the places of `rules.Rules` become the states of the automaton. Once it is
complete, `Language.calls` separates calls of rules from characters. The result is a pushdown
automaton, whose stack holds the states to return to.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from proper_tokens.arrays import Bools, Int32s, Int64s
from proper_tokens.codepoints import SIZE
from proper_tokens.patterns import Ranges
from proper_tokens.rules import MOST_STEPS, Budget, Rules, TooLarge
from proper_tokens.tokenizer import Unsupported

MOST_TOLD = 32_000_000
"""The most sets of characters in a constraint, times the character ranges they distinguish."""
MOST_STATES = 20_000
"""The most states of the automaton."""
MOST_ELEMENTS = 2_000_000
"""The most places in all states and closures together."""
MOST_ENTRIES = 8_000_000
"""The most states of the automaton, times its classes of characters."""


class Language(NamedTuple):
    """An automaton over characters. From every state, an accepting state can be reached.

    Without calls, it is deterministic. With calls, it is a pushdown automaton: a call of a rule
    pushes a state on the stack and continues at the rule's initial state, and an accepting state
    may pop a state from the stack and continue there. There is no infinite sequence of calls
    without a character between them.

    Attributes:
        classes: [SIZE] int32: the class of each code point.
        table: [states, classes] int32: the next state by state and class; -1 if there is none.
            State 0 is the initial state.
        accepts: [states] bool: whether a state is accepting.
        distance: [states] int32: the number of characters to the nearest accepting state, including
            those of called rules; at most `FAR`.
        calls: [n, 3] int32, sorted: the states that may call a rule, the rule's initial state, and
            the state behind the call, or -1 if that would only return as well.
    """

    classes: Int32s
    table: Int32s
    accepts: Bools
    distance: Int32s
    calls: Int32s = np.zeros((0, 3), np.int32)


FAR = 1 << 28
"""The largest distance; greater ones are rounded down to it."""


def language_of(rules: Rules) -> Language:
    """Build the automaton of rules.

    Raises:
        Unsupported: it is too large, accepts no text, or allows an infinite sequence of calls.
    """
    try:
        return _language_of(rules)
    except TooLarge:
        if rules.text is None:
            raise
        text = rules.text
    # The exception holds what was built until here. Both together would take too much memory.
    del rules
    return _language_of(Rules(text, is_shared=True))


def _language_of(rules: Rules) -> Language:
    n_rules = len(rules.starts)
    classes, n_classes, members = _classes(
        {ranges for edges in rules.reads for ranges, _ in edges}, n_rules
    )
    subsets = _Subsets(rules)
    entries = Budget(MOST_ENTRIES, "states times classes of characters")
    table = bytearray()
    # The predecessors of each state by a character. The first states are the initial ones.
    sources: list[list[int]] = [[] for _ in range(1 + n_rules)]
    is_call = np.zeros(n_classes, bool)
    is_call[classes[SIZE:]] = True
    for number, places in enumerate(subsets):
        entries.spend(n_classes)
        row = np.full(n_classes, -1, np.int32)
        for behind, taken in _edges(rules, places, members, subsets.steps):
            target = subsets.number(behind)
            row[taken] = target
            if target == len(sources):
                sources.append([])
            if not is_call[taken].all():
                sources[target].append(number)
        table += row.tobytes()
    found = np.frombuffer(table, np.int32).reshape(-1, n_classes)
    return _finished(classes, found, np.array(subsets.accepts), sources, rules.names)


def _classes(sets: set[Ranges], n_rules: int) -> tuple[Int32s, int, dict[Ranges, Int64s]]:
    """The class of each code point, the number of classes, and the classes of each set.

    The calls of the recursive rules follow the code points, and each has a class of its own.
    """
    size = SIZE + n_rules
    begin = np.unique(
        [
            *(0, *range(SIZE, size)),
            *(edge for ranges in sets for first, last in ranges for edge in (first, last + 1)),
        ]
    )
    begin = begin[begin < size]
    Budget(MOST_TOLD, "sets times ranges of characters").spend(len(sets) * len(begin))
    bits = np.zeros((-(-len(sets) // 8) or 1, len(begin)), np.uint8)
    for i, ranges in enumerate(sets):
        for first, last in ranges:
            low, high = np.searchsorted(begin, [first, last + 1]).tolist()
            bits[i >> 3, low:high] |= 1 << (i & 7)
    kinds, class_of = np.unique(bits.T, axis=0, return_inverse=True)
    members = {
        ranges: np.flatnonzero(kinds[:, i >> 3] >> (i & 7) & 1) for i, ranges in enumerate(sets)
    }
    lengths = np.diff(np.append(begin, size))
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
        self.steps = Budget(MOST_STEPS, "steps to build")
        self._states = Budget(MOST_STATES, "states")
        self._elements = Budget(MOST_ELEMENTS, "places in all its states")
        self._closures: dict[int, tuple[int, ...]] = {}
        self._numbers: dict[bytes, int] = {}
        self._waiting: list[bytes] = []
        self.accepts: list[bool] = []
        for start in (rules.start, *rules.starts):
            self.number(np.array([start], np.int32).tobytes())

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
    rules: Rules, places: list[int], members: dict[Ranges, Int64s], steps: Budget
) -> Iterator[tuple[bytes, Int64s]]:
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


def _finished(
    classes: Int32s, table: Int32s, accepts: Bools, sources: list[list[int]], names: list[str]
) -> Language:
    """The automaton without the states that cannot reach an accepting state, its calls apart.

    Args:
        classes: the class of each code point and then of each call, which is read like a character.
        table, accepts, sources: the automaton, where the initial states of the rules follow 0.
        names: the name of each recursive rule.
    """
    of_call = classes[SIZE:].tolist()
    found = [
        (state, 1 + rule, int(table[state, c]))
        for rule, c in enumerate(of_call)
        for state in np.flatnonzero(table[:, c] >= 0).tolist()
    ]
    distance = _distances(accepts, sources, found)
    if distance[0] > FAR:
        raise Unsupported("it allows no text")
    kept = np.flatnonzero(distance <= FAR)
    number = np.full(len(table) + 1, -1, np.int32)
    number[kept] = np.arange(len(kept))
    columns = np.setdiff1d(np.arange(table.shape[1]), of_call)
    column = np.zeros(table.shape[1], np.int32)
    column[columns] = np.arange(len(columns))
    table, accepts = number[table[kept].take(columns, axis=1)], accepts[kept]
    calls = number[np.array(found, np.int64).reshape(-1, 3)]
    calls = calls[(calls >= 0).all(axis=1)]
    only_returns = accepts & (table < 0).all(axis=1)
    only_returns[calls[:, 0]] = False
    calls[only_returns[calls[:, 2]], 2] = -1
    calls = calls[np.lexsort(calls.T[::-1])]
    _check_calls(calls.tolist(), accepts, dict(zip(number[1:].tolist(), names, strict=False)))
    return Language(column[classes[:SIZE]], table, accepts, distance[kept].astype(np.int32), calls)


def _distances(
    accepts: Bools, sources: list[list[int]], calls: list[tuple[int, int, int]]
) -> Int64s:
    """The number of characters from each state to acceptance; more than `FAR` if there is no path.

    This is Dijkstra's algorithm, in which a call is as long as its rule (Knuth 1977).
    """
    distance = np.where(accepts, 0, 2 * FAR).tolist()
    waiting = [(0, state) for state in np.flatnonzero(accepts).tolist()]
    # By each of a call's ends: its state and the other.
    beside: dict[int, list[tuple[int, int]]] = {}
    for state, rule, to in calls:
        beside.setdefault(rule, []).append((state, to))
        beside.setdefault(to, []).append((state, rule))
    while waiting:
        length, state = heapq.heappop(waiting)
        if length > distance[state]:
            continue
        found = [(before, 1) for before in sources[state]]
        # If the other end of a call is still too far, the call is met again from there.
        found += [(before, distance[other]) for before, other in beside.get(state, ())]
        for before, more in found:
            longer = min(length + more, FAR)
            if more <= FAR and longer < distance[before]:
                distance[before] = longer
                heapq.heappush(waiting, (longer, before))
    return np.array(distance)


def _check_calls(calls: list[list[int]], accepts: Bools, names: dict[int, str]) -> None:
    """Refuse rules that would fill the stack without end before a character is read."""
    begins: dict[int, list[tuple[int, int]]] = {}
    for state, rule, to in calls:
        begins.setdefault(state, []).append((rule, to))
    empty = set(np.flatnonzero(accepts).tolist())  # states from which no character need follow
    size = -1
    while size < len(empty):
        size = len(empty)
        for state, rule, to in calls:
            if rule in empty and (to < 0 or to in empty):
                empty.add(state)

    def reached(first: int) -> set[int]:
        seen, stack = {first}, [first]
        while stack:
            for rule, to in begins.get(stack.pop(), ()):
                for state in (rule, to) if rule in empty and to >= 0 else (rule,):
                    if state not in seen:
                        seen.add(state)
                        stack.append(state)
        return seen

    below = {rule: reached(rule) for rule in {rule for _, rule, _ in calls}}
    for state, rule, to in calls:
        if to >= 0 and state in below[rule]:
            raise Unsupported(
                f"its rule {names[rule]} calls itself at its beginning by way of other rules; "
                "write that rule so that a character comes first"
            )
