"""The grid of a run: problems, penalties as request fields, temperatures, seeds."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lz_penalty.fields.lz import FIELDS as LZ_FIELDS
from lz_penalty.fields.lz import LARGEST_MAX_WINDOW_SIZE, LZParams
from lz_penalty.fields.repetition import FIELD as DETECTION
from lz_penalty.fields.repetition import RECOMMENDED_FIELD

# The LZ fields that a variant's name spells in its own way; the others stand by their names.
NAMED = ("lz_penalty", "lz_cost", "lz_include_prompt")
# The ranges that OpenAI's API and SGLang give the count penalties.
COUNT_PENALTIES = {
    "repetition_penalty": (0.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}


@dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
        id: "TASK/...", unique in a run.
        prompt: the user's message.
        answer: the right one; None where none is known.
        group: what results are broken down by, "sort" for instance; "" without.
        level: how hard it is, "8" for instance; "" without.
        fields: request fields of its own, a `response_format` for instance.
        check: how an output is judged if not by `answer`: for code, `function` and the programs
            `before` and `after` it; for reasoning-gym, `gym` and `entry`.
    """

    id: str
    prompt: str
    answer: str | None
    group: str = ""
    level: str = ""
    fields: dict[str, object] = field(default_factory=dict, hash=False)
    check: dict[str, object] = field(default_factory=dict, hash=False)

    def line(self) -> dict[str, Any]:
        """The item as JSON has it, without `fields` and `check` if they are empty."""
        found = dataclasses.asdict(self)
        return {name: value for name, value in found.items() if value != {}}


def digest(items: Sequence[Item]) -> str:
    """The sha256 of everything in these items."""
    text = json.dumps([item.line() for item in items])
    return hashlib.sha256(text.encode()).hexdigest()


def task_of(item: str) -> str:
    """The task in an item's id."""
    return item.split("/", 1)[0]


@dataclass(frozen=True)
class Variant:
    """One way to penalise.

    Attributes:
        name: short and canonical: "none", "lz 0.15", "repetition 1.2 + frequency 0.5".
        fields: what it adds to a request.
    """

    name: str
    fields: dict[str, object]


class Key(NamedTuple):
    """The key of one sample of a run."""

    item: str
    variant: str
    temperature: float
    seed: int


def request_seed(key: Key) -> int:
    """The seed that a request sends, 31 bits.

    The same under every variant, so that they differ by the penalty alone, and another for each
    item: servers draw the noise of a position from the seed only.
    """
    digest = hashlib.sha256(f"{key.seed} {key.item}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True)
class Grid:
    """Every item is sampled under each variant, at each temperature, with each seed."""

    variants: Sequence[Variant]
    temperatures: Sequence[float]
    seeds: int

    def keys(self, items: Sequence[Item]) -> Iterator[Key]:
        """All samples, in an order such that any beginning of it is a fair part of the grid.

        First all of temperature 0, where a seed changes nothing and there is only seed 0. Then one
        seed after the other, and in each the items in a fixed random order, each with everything
        that is asked of it.
        """
        shuffled = [item.id for item in items]
        random.Random(0).shuffle(shuffled)
        greedy = [temperature for temperature in self.temperatures if temperature == 0]
        sampled = [temperature for temperature in self.temperatures if temperature > 0]
        for temperatures, seeds in ((greedy, 1), (sampled, self.seeds)):
            for seed in range(seeds):
                for item in shuffled:
                    for temperature in temperatures:
                        for variant in self.variants:
                            yield Key(item, variant.name, temperature, seed)


def expand(penalties: Sequence[str]) -> list[Variant]:
    """The variants that the values of `--penalty` name, each once, in their order.

    Raises:
        ValueError: a value that is no list of fields, or out of its field's range.
    """
    found: dict[str, Variant] = {}
    for penalty in penalties:
        variant = _variant(_fields("" if penalty == "none" else penalty))
        found.setdefault(variant.name, variant)
    return list(found.values())


def check_temperatures(temperatures: Sequence[float]) -> list[float]:
    """Each temperature once, in the given order.

    Raises:
        ValueError: one is not in [0, 2].
    """
    for temperature in temperatures:
        if not 0 <= temperature <= 2:
            raise ValueError(f"--temperature must be a number in [0, 2], got {temperature}.")
    return list(dict.fromkeys(temperatures))


def _fields(specification: str) -> dict[str, object]:
    """Read "field=value,field=value"; a value is JSON, or else a string."""
    fields: dict[str, object] = {}
    for part in filter(None, specification.split(",")):
        name, equals, value = (text.strip() for text in part.partition("="))
        if not (name.isidentifier() and equals and value):
            raise ValueError(
                f"--penalty must be none or field=value[,field=value ...], got {specification!r}."
            )
        if name in fields:
            raise ValueError(f"--penalty gives {name} twice: {specification!r}.")
        try:
            fields[name] = json.loads(value)
        except ValueError:
            fields[name] = value
    return fields


def _variant(fields: dict[str, object]) -> Variant:
    """Check the fields and give them their name."""
    lz = {name: value for name, value in fields.items() if name in LZ_FIELDS}
    others = {name: value for name, value in fields.items() if name not in LZ_FIELDS}
    copies = others.get(DETECTION)
    if isinstance(copies, int):
        others[DETECTION] = {**RECOMMENDED_FIELD, "min_count": copies}
    parts: list[str] = []
    sent = others
    if lz:
        params = _lz_params(lz)
        # Named even where it is the default: a name must mean the same on every server.
        sent = {**lz, "lz_cost": params.cost, **others}
        parts.append(_lz_name(params, lz))
    parts += [_other_name(name, value) for name, value in others.items()]
    return Variant(" + ".join(parts) or "none", sent)


def _lz_params(lz: dict[str, object]) -> LZParams:
    try:
        params = LZParams.parse(lz, LARGEST_MAX_WINDOW_SIZE)
    except ValueError as error:
        raise ValueError(f"--penalty: {error}") from None
    if params.penalty == 0:
        raise ValueError(f"--penalty: lz_penalty must be a number above 0 beside {', '.join(lz)}.")
    return params


def _lz_name(params: LZParams, lz: dict[str, object]) -> str:
    kind = "lz" if params.cost == "marginal" else f"lz {params.cost}"
    settings = "".join(
        f", {name.removeprefix('lz_').removesuffix('_size')} {lz[name]}"
        for name in LZ_FIELDS
        if name not in NAMED and lz.get(name) is not None
    )
    return f"{kind} {params.penalty:g}{settings}{', prompt' * params.include_prompt}"


def _other_name(name: str, value: object) -> str:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if name in COUNT_PENALTIES:
        low, high = COUNT_PENALTIES[name]
        if number is None or not math.isfinite(number) or not low <= number <= high:
            raise ValueError(
                f"--penalty: {name} must be a number in [{low:g}, {high:g}], got {value!r}."
            )
    if name == DETECTION and isinstance(value, dict):
        but = ", ignoring numbers" * bool(value.get("ignore_numbers"))
        return f"stop at {value['min_count']} copies{but}"
    kind = name.removesuffix("_penalty").removesuffix("_multiplier")
    return f"{kind} {value}" if number is None else f"{kind} {number:g}"
