"""The pocket reasoner's problems: four kinds of puzzle, each with its chain of thought.

A problem's level is its size: the number of steps, letters, arrows or records. The training text
contains all sizes, and larger ones are rarer, as in natural text. The held-out problems include as
many large ones as small ones, and in the large ones the chain of thought may get lost.
"""

import functools
import itertools
import json
import random
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

NAMES = (
    *("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hal", "ida", "jack", "kim", "leo"),
    *("mia", "ned", "otto", "pam", "quin", "rosa", "sam", "tom", "uma", "vera", "will", "zoe"),
)
# By kind: the mean level in the training text, and the highest level.
MEAN_LEVEL = {"steps": 14, "sort": 7, "walk": 7, "json": 5}
LARGEST_LEVEL = {"steps": 118, "sort": 26, "walk": 25, "json": len(NAMES)}
HELD_OUT_LEVELS = {
    "steps": (8, 12, 16, 20, 24, 28, 32, 104, 110, 115),
    "sort": (4, 6, 8, 10, 12, 14, 16, 18, 20, 24),
    "walk": (4, 6, 8, 10, 12, 14, 16, 18, 20, 24),
    "json": (3, 4, 5, 6, 7, 8, 10, 12, 14, 16),
}


@dataclass(frozen=True)
class Puzzle:
    """One problem, the chain of thought that ends in its answer, and the answer alone."""

    kind: str
    level: int
    question: str
    solution: str
    answer: str


def steps(rng: random.Random, level: int) -> Puzzle:
    """Halve an even number, triple an odd one and add 1, until it is below 20: `level` times."""
    start = rng.choice(_starts()[level])
    numbers = _orbit(start)
    return _puzzle("steps", level, f"Steps: {start}", [_joined(numbers)], str(numbers[-1]))


def sort(rng: random.Random, level: int) -> Puzzle:
    """Sort `level` different letters by taking out the first of the alphabet again and again."""
    left = rng.sample(string.ascii_uppercase, level)
    question = f"Sort: {' '.join(left)}"
    answer = " ".join(sorted(left))
    thoughts = []
    while left:
        first = min(left)
        thoughts.append(f"{' '.join(left)} -> {first}")
        left.remove(first)
    return _puzzle("sort", level, question, thoughts, answer)


def walk(rng: random.Random, level: int) -> Puzzle:
    """Follow `level` arrows, to a letter without one or, in every other puzzle, back to the path.

    Up to 8 other arrows are not on the path.
    """
    letters = rng.sample(string.ascii_uppercase, 26)
    path, others = letters[: level + 1], letters[level + 1 :]
    if level > 1 and rng.random() < 0.5:
        path[-1] = rng.choice(path[:-2])
    way = list(itertools.pairwise(path))
    elsewhere = others[: rng.randint(0, min(9, len(others)))]
    arrows = [*way, *itertools.pairwise(elsewhere)]
    rng.shuffle(arrows)
    question = f"Walk from {path[0]}: {_arrows(arrows)}"
    return _puzzle("walk", level, question, [f"Way: {_arrows(way)}"], path[-1])


def records(rng: random.Random, level: int) -> Puzzle:
    """Write `level` people and their ages as JSON, which requires only copying."""
    people = [(name, rng.randint(10, 99)) for name in rng.sample(NAMES, level)]
    question = f"JSON: {', '.join(f'{name} {age}' for name, age in people)}"
    answer = json.dumps([{"name": name, "age": age} for name, age in people])
    return _puzzle("json", level, question, [], answer)


KINDS: dict[str, Callable[[random.Random, int], Puzzle]] = {
    "steps": steps,
    "sort": sort,
    "walk": walk,
    "json": records,
}


def training(seed: int) -> Iterator[Puzzle]:
    """Yield problems of all levels indefinitely, excluding the held-out ones."""
    rng = random.Random(f"training {seed}")
    questions = {puzzle.question for puzzle in held_out()}
    while True:
        kind = rng.choice(list(KINDS))
        level = 1 + int(rng.expovariate(1 / (MEAN_LEVEL[kind] - 0.5)))
        if level > LARGEST_LEVEL[kind] or (kind == "steps" and level not in _starts()):
            continue
        puzzle = KINDS[kind](rng, level)
        if puzzle.question not in questions:
            yield puzzle


def held_out(count: int = 60) -> list[Puzzle]:
    """Return `count` different problems of each kind, alternating kinds and levels."""
    rng = random.Random("held out")
    found: dict[str, Puzzle] = {}
    for kind, make in KINDS.items():
        levels = itertools.cycle(HELD_OUT_LEVELS[kind])
        for level in itertools.islice(levels, count):
            puzzle = make(rng, level)
            while puzzle.question in found:
                puzzle = make(rng, level)
            found[puzzle.question] = puzzle
    puzzles = list(found.values())
    return [puzzle for number in range(count) for puzzle in puzzles[number::count]]


def _orbit(start: int) -> list[int]:
    numbers = [start]
    while numbers[-1] >= 20:
        number = numbers[-1]
        numbers.append(3 * number + 1 if number % 2 else number // 2)
    return numbers


@functools.cache
def _starts() -> dict[int, list[int]]:
    """Return the start numbers below 1000 whose steps stay below 10000, by number of steps."""
    found: dict[int, list[int]] = {}
    for start in range(20, 1000):
        numbers = _orbit(start)
        if max(numbers) < 10_000:
            found.setdefault(len(numbers) - 1, []).append(start)
    return found


def _joined(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


def _arrows(arrows: list[tuple[str, str]]) -> str:
    return ", ".join(f"{start}>{end}" for start, end in arrows)


def _puzzle(kind: str, level: int, question: str, thoughts: list[str], answer: str) -> Puzzle:
    return Puzzle(kind, level, question, "\n".join([*thoughts, f"Answer: {answer}"]), answer)


def main() -> None:
    """Print the held-out problems as JSONL, in the format of the benchmark's tasks."""
    for number, puzzle in enumerate(held_out()):
        record = {
            "id": f"{number:03}-{puzzle.kind}-{puzzle.level}",
            "prompt": puzzle.question,
            "answer": puzzle.answer,
            "group": puzzle.kind,
            "level": str(puzzle.level),
        }
        print(json.dumps(record))


if __name__ == "__main__":
    main()
