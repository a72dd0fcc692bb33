"""The directory of a run: its settings, its items and its samples."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import records
from bench.models.grid import Grid, Item, Key
from bench.records import Lines, RecordError

RUN, ITEMS, SAMPLES, RESULT = "run.json", "items.jsonl", "samples.jsonl", "result.json"


@dataclass
class Record:
    """The open run directory; no other process can write to it.

    Attributes:
        directory: where it is.
        done: what is sampled.
        samples: samples.jsonl.
    """

    directory: Path
    done: set[Key]
    samples: Lines

    def add(self, key: Key, sample: Mapping[str, Any]) -> None:
        """Append one sample."""
        self.samples.add({**key._asdict(), **sample})
        self.done.add(key)


@contextlib.contextmanager
def record(
    directory: Path,
    items: Sequence[Item],
    grid: Grid,
    settings: dict[str, Any],
    facts: dict[str, Any],
) -> Iterator[Record]:
    """Open a run directory, begun by this call or before.

    Args:
        directory: made if it is missing.
        items: all items of the run.
        grid: what each is sampled under.
        settings: everything that two samples must share to be compared.
        facts: whatever else is worth knowing; kept from the run's first call.

    Raises:
        RecordError: another process writes there, or what is there was made with other settings.
    """
    with Lines(directory / SAMPLES) as samples:
        if (directory / RUN).exists():
            before = json.loads((directory / RUN).read_text())
            # The others are facts, which may differ.
            records.require_same(directory, {name: before.get(name) for name in settings}, settings)
        else:
            lines = [json.dumps(item.line(), ensure_ascii=False) for item in items]
            records.write(directory / ITEMS, "".join(line + "\n" for line in lines))
            records.write(directory / RUN, json.dumps({**facts, **settings}, indent=1) + "\n")
        yield Record(directory, _done(samples.before, directory / SAMPLES, grid, items), samples)


def _done(
    lines: Sequence[Mapping[str, Any]], path: Path, grid: Grid, items: Sequence[Item]
) -> set[Key]:
    wanted, done = set(grid.keys(items)), set[Key]()
    for number, sample in enumerate(lines, 1):
        key = key_of(sample)
        if key not in wanted or key in done:
            problem = "is there twice" if key in done else "is no part of this run"
            raise RecordError(f"{path}, line {number}: {tuple(key)} {problem}.")
        done.add(key)
    return done


def key_of(sample: Mapping[str, Any]) -> Key:
    """Which sample of the grid a line of samples.jsonl is."""
    return Key(*(sample[name] for name in Key._fields))
